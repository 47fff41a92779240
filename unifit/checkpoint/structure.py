"""What a model is made of: the class and place of each layer, as a checkpoint says it and other libraries need it."""

from __future__ import annotations

from typing import Any, NamedTuple

from unifit.checkpoint.reading import Checkpoint
from unifit.contract import tree
from unifit.errors import CheckpointError
from unifit.weights import records_of

SEQUENTIAL, FUNCTIONAL, LIST, DICT, LAYER = "sequential", "functional", "list", "dict", "layer"

_OWN = "unifit.layers."


def layer_facts(model: Any) -> dict[str, Any]:
    """The value of `layers` in a `state.json`: by path, the model itself under ""."""
    facts: dict[str, Any] = {}
    first: dict[int, str] = {}
    stack = [("", model)]
    while stack:
        path, layer = stack.pop()
        entry: dict[str, Any] = {"class": type(layer).__name__, "kind": _kind(layer)}
        if type(layer).__module__.startswith(_OWN):
            entry["options"] = _plain_arguments(layer)
        if entry["kind"] == FUNCTIONAL:
            entry["order"] = _by_depth(layer)
        facts[path] = entry
        if first.setdefault(id(layer), path) != path:
            entry["same_as"] = first[id(layer)]
            continue
        children = reversed(layer._modules.items())  # not named_children(), which skips a layer's second name
        stack.extend((f"{path}.{name}" if path else name, child) for name, child in children if child is not None)
    return facts


def _kind(layer: Any) -> str:
    if getattr(layer, "is_container", False):
        return DICT if hasattr(layer, "items") else LIST
    if getattr(layer, "_graph", None) is not None:
        return FUNCTIONAL
    return SEQUENTIAL if any(base.__module__ == "unifit.sequential" for base in type(layer).__mro__) else LAYER


def _plain_arguments(layer: Any) -> dict[str, Any]:
    """The constructor's arguments that were given and that JSON takes as they are; not those of the weights' start."""
    given = layer.__dict__.get("_config_arguments")
    values = {} if given is None else given.values
    return {
        name: value
        for name, value in values.items()
        if _is_plain(value) and not name.endswith(("_initializer", "_regularizer"))
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(entry) for entry in value)
    return value is None or isinstance(value, (bool, int, str))


def _by_depth(network: Any) -> list[str]:
    """Keys of a functional model's layers in the order of Keras' `model.layers`, by which its files number them.

    By their distance from the outputs, the farthest first; of one distance, as a walk from the outputs meets them.
    """
    graph = network._graph
    depth_of_node: dict[int, int] = {}
    depth_of_layer: dict[int, int] = {}
    for node in reversed(graph.nodes):
        depth = max(depth_of_node.get(id(node), 0), depth_of_layer.get(id(node.layer), 0))
        depth_of_node[id(node)] = depth_of_layer[id(node.layer)] = depth
        for symbol in node.inputs:
            if symbol.node is not None:
                depth_of_node[id(symbol.node)] = max(depth + 1, depth_of_node.get(id(symbol.node), 0))
    met = _in_order_met(graph)
    keys = dict(zip(map(id, graph.layers), network._keys, strict=True))
    return [keys[layer] for layer in sorted(keys, key=lambda layer: (-depth_of_layer[layer], met[layer]))]


def _in_order_met(graph: Any) -> dict[int, int]:
    within = {id(node) for node in graph.nodes}
    met: dict[int, int] = {}
    stack = [symbol.node for symbol in reversed(tree.leaves(graph.outputs))]
    while stack:
        node = stack.pop()
        if id(node) in within:
            within.remove(id(node))
            met.setdefault(id(node.layer), len(met))
            stack.extend(symbol.node for symbol in reversed(node.inputs))
    return met


class LayerFacts(NamedTuple):
    """A layer.

    Attributes:
        path: Where it is in the model; "" is the model itself.
        name: Its class' name.
        kind: "sequential", "functional", "list", "dict" (of layers), or "layer".
        options: Arguments that its constructor was given and that JSON takes; None unless the class is unifit's own.
        order: A functional model's children, the farthest from the outputs first.
        same_as: The first path of a layer that has several; weights have that one. Else None.
    """

    path: str
    name: str
    kind: str
    options: dict[str, Any] | None
    order: list[str] | None
    same_as: str | None

    def is_own(self, *names: str) -> bool:
        """Whether it is unifit's layer of one of these names, and not a user's of the same name."""
        return self.options is not None and self.name in names

    def option(self, name: str, default: Any = None) -> Any:
        """A constructor's argument."""
        return (self.options or {}).get(name, default)


class WeightFacts(NamedTuple):
    """A weight: its path, its layer's path, its name in the layer, its shape, and whether it was trained."""

    path: str
    layer: str
    name: str
    shape: tuple[int, ...]
    trainable: bool


class Structure(NamedTuple):
    """Layers and weights by path, in the model's order."""

    layers: dict[str, LayerFacts]
    weights: dict[str, WeightFacts]

    def layer_of(self, weight: WeightFacts) -> LayerFacts:
        """The layer that has the weight."""
        return self.layers[weight.layer]

    def parent_of(self, path: str) -> str:
        """The path of the layer, or list of layers, right above one."""
        return path.rpartition(".")[0]

    def weights_in(self, layer: str) -> dict[str, str]:
        """From the names of a layer's own weights to their paths."""
        return {weight.name: weight.path for weight in self.weights.values() if weight.layer == layer}

    def children_of(self, path: str) -> list[str]:
        """Paths of what is right below, in order; a functional model's as `order` says."""
        own = [other for other in self.layers if other and self.parent_of(other) == path]
        order = self.layers[path].order
        if order is None:
            return own
        prefix = f"{path}." if path else ""
        rank = {prefix + key: number for number, key in enumerate(order)}
        return sorted(own, key=lambda child: rank.get(child, len(rank)))


def structure_of_checkpoint(checkpoint: Checkpoint) -> Structure:
    """The structure of the model whose checkpoint it is.

    Raises:
        CheckpointError: When its `state.json` does not say.
    """
    state = checkpoint.state
    layers = _layers(state.get("layers"))
    if layers is None:
        raise CheckpointError(
            f"'{checkpoint.path}' does not say which layers its model has (state.json has no 'layers'), so its arrays "
            "cannot be laid out for another library; format='safetensors' writes them under unifit's names."
        )
    weights = {}
    for path, facts in state["weights"].items():
        owner = path.removesuffix(facts["name"]).removesuffix(".")
        if owner not in layers:
            raise CheckpointError(f"'{checkpoint.path}' has a weight '{path}' and no layer '{owner}' in state.json.")
        weights[path] = WeightFacts(path, owner, facts["name"], tuple(facts["shape"]), facts["trainable"])
    return Structure(layers, weights)


def structure_of_model(model: Any) -> Structure:
    """The structure of a built model."""
    layers = _layers(layer_facts(model))
    assert layers is not None
    weights = {
        path: WeightFacts(path, path.removesuffix(name).removesuffix("."), name, record.shape, record.trainable)
        for path, _, name, record in records_of(model)
    }
    return Structure(layers, weights)


def _layers(facts: Any) -> dict[str, LayerFacts] | None:
    if not isinstance(facts, dict) or not all(
        isinstance(entry, dict) and isinstance(entry.get("class"), str) and isinstance(entry.get("kind"), str)
        for entry in facts.values()
    ):
        return None
    return {
        path: LayerFacts(
            path, entry["class"], entry["kind"], entry.get("options"), entry.get("order"), entry.get("same_as")
        )
        for path, entry in facts.items()
    }
