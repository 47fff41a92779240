"""Network: a Layer made of layers. Its graph, its inputs, how it is built, described, configured and saved."""

from __future__ import annotations

import json
from typing import Any, Self

import unifit.saving as saving
import unifit.summary as summary
from unifit.config import deserialize, serialize
from unifit.context import CallContext, context
from unifit.contract import tree
from unifit.contract.module import RESERVED
from unifit.errors import ArgumentError, UnifitError, unknown_name
from unifit.graph import Graph, unique_names
from unifit.graph_config import graph_config, graph_from_config
from unifit.input_specs import fits, shapes_of, symbols_of_arrays, symbols_of_shapes
from unifit.layer import Layer
from unifit.names import snake_case
from unifit.operation import Operation
from unifit.sharing import reading, write
from unifit.symbol import Symbol, infer_symbols, symbols_in
from unifit.weights import children_of, records_of


class Network(Layer):
    """What Model is apart from training.

    Args:
        inputs, outputs: Trees of Symbols (`uf.Input` and what layers made of it), or None for a subclass.
        name: Shown in summaries.
    """

    supports_masking = True
    casts_inputs = False  # its layers do

    _graph: Graph | None
    _arguments: tuple[Any, ...] | None
    _keys: list[str]

    def __init__(self, inputs: Any = None, outputs: Any = None, *, name: str | None = None, trainable: bool = True):
        super().__init__(name=name, trainable=trainable)
        # _arguments: trees of Symbols, one for each positional argument that the network was built on
        self.__dict__.update(_graph=None, _arguments=None, _keys=[])
        if inputs is not None or outputs is not None:
            self._take_graph(inputs, outputs)

    def _take_graph(self, inputs: Any, outputs: Any) -> None:
        for what, given in (("inputs", inputs), ("outputs", outputs)):
            leaves = tree.leaves(given)
            if not leaves or not all(isinstance(leaf, Symbol) for leaf in leaves):
                raise ArgumentError(
                    "Model(inputs, outputs) needs uf.Input symbols and what layers made of them; "
                    f"`{what}` is {_described(given)}."
                )
        graph = Graph(inputs, outputs)
        keys = layer_keys(graph.layers)
        self.__dict__.update(_graph=graph, _keys=keys, _arguments=(inputs,), built=True)
        for key, layer in zip(keys, graph.layers, strict=True):
            self.add_module(key, layer)

    def call(self, x: Any) -> Any:
        """The model's function of its inputs. A subclass writes its own."""
        if self._graph is None:
            raise UnifitError(f"{type(self).__name__} has no call method: define `def call(self, x)`.")
        return self._graph.run(x)

    # Building

    def build(self, input_shape: Any) -> None:
        """Records all weights for inputs of this shape; no device is touched.

        Args:
            input_shape: (batch or None, ...) for float32 inputs, or `uf.Input(...)` for another dtype (integer ids); a
                list or dict of them for several inputs. None is a size that varies.

        Raises:
            ArgumentError: When the model is built for another shape already, or cannot be built on this one.
        """
        if context() is not None:
            return
        symbols = symbols_of_shapes(input_shape)
        if self.built and self._arguments is not None:
            if len(self._arguments) != 1 or not fits(self._arguments[0], symbols):
                raise ArgumentError(
                    f"{self.name} is built for inputs of shape {self.input_shape} and was asked to build for "
                    f"{shapes_of(symbols)}. Its weights fit the first; make a new model for the second."
                )
            return
        try:
            infer_symbols(self, lambda x: self(x), (symbols,))
        except Exception as error:
            hint = (
                f"{self.name}.build({input_shape!r}) failed. A bare shape means float32 inputs; where the model takes "
                'integers, such as token ids, pass uf.Input(shape, dtype="int32").'
            )
            if isinstance(error, UnifitError):
                error.add_note(hint)
                raise
            raise ArgumentError(f"{hint} {type(error).__name__}: {error}") from error
        self.__dict__["_arguments"] = (symbols,)

    def _build(self, ambient: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super()._build(ambient, args, kwargs)
        self.__dict__["_arguments"] = symbols_of_arrays(args)

    def _call_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        unknown = self._arguments is None
        result = super()._call_alone(args, kwargs)
        if unknown:
            self.__dict__["_arguments"] = symbols_of_arrays(args)
        return result

    def rebuild(self, arguments: tuple[Any, ...]) -> None:
        """Builds on the arguments that another network of this config was built on."""
        infer_symbols(self, lambda *args: self(*args), arguments)
        self.__dict__["_arguments"] = arguments

    # Structure

    @property
    def layers(self) -> list[Layer]:
        """The layers right below, in order, each once; those in lists and dicts of a subclass as well."""
        return [layer for _, layer in self.named_layers()]

    def named_layers(self) -> list[tuple[str, Layer]]:
        """(key, layer) of `layers`; the key is the first part of the paths of the layer's weights."""
        return [(path, layer) for path, layer in children_of(self) if isinstance(layer, Layer)]

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """The layer of a key (`dense_1`, `blocks.0`) or name, or at a position of `layers`.

        Raises:
            UnknownNameError: When there is none of that name.
            ArgumentError: When the index is out of range, or not exactly one of both is given.
        """
        if (name is None) == (index is None):
            raise ArgumentError(f"get_layer got name={name!r} and index={index!r}; it needs one of them.")
        found = self.named_layers()
        if index is not None:
            if not -len(found) <= index < len(found):
                raise ArgumentError(f"get_layer got index={index}; {self.name} has {len(found)} layers.")
            return found[index][1]
        by_name = {layer.name: layer for _, layer in reversed(found)} | dict(found)
        if name not in by_name:
            raise unknown_name(f"layer of {self.name}", str(name), [key for key, _ in found])
        return by_name[name]

    @property
    def inputs(self) -> list[Symbol] | None:
        """A functional model's input Symbols; None where there are none."""
        return None if self._graph is None else symbols_in(self._graph.inputs)

    @property
    def outputs(self) -> list[Symbol] | None:
        """A functional model's output Symbols; None where there are none."""
        return None if self._graph is None else symbols_in(self._graph.outputs)

    @property
    def input_shape(self) -> Any:
        """The shape (a tree of shapes for several inputs) that the model is built for; None for what varies."""
        arguments = self.arguments()
        return shapes_of(arguments[0] if len(arguments) == 1 else list(arguments))

    @property
    def output_shape(self) -> Any:
        """The shape (a tree of shapes) of the output; inferred."""
        if self._graph is not None:
            return shapes_of(self._graph.outputs)
        return shapes_of(infer_symbols(self, lambda *args: self(*args), self.arguments()))

    @property
    def output_names(self) -> list[str] | None:
        """Names of the outputs of a functional model: the keys of the layers that made them; None for a subclass."""
        if self._graph is None:
            return None
        keys = dict(zip(map(id, self._graph.layers), self._keys, strict=True))
        inputs = dict(zip(map(id, symbols_in(self._graph.inputs)), self._graph.input_names, strict=True))
        outputs = symbols_in(self._graph.outputs)
        return unique_names([inputs.get(id(s)) or keys[id(s.node.layer)] for s in outputs])  # type: ignore[union-attr]

    def arguments(self) -> tuple[Any, ...]:
        """Trees of Symbols, one for each positional argument that the model was built on.

        Raises:
            UnifitError: When it is not built.
        """
        if not self.built or not self._arguments:
            raise UnifitError(saving.not_built(self))
        return self._arguments

    def count_params(self) -> int:
        """Number of weights' elements, trainable or not.

        Raises:
            UnifitError: When the model is not built.
        """
        if not self.built:
            raise UnifitError(saving.not_built(self))
        return sum(summary.size_of(record) for *_, record in records_of(self))

    def summary(self, line_length: int | None = None, print_fn: Any = print, expand_nested: bool = False) -> None:
        """Prints the layers with their output shapes and numbers of parameters; no device is touched.

        Args:
            line_length: Width of the table; None makes it as wide as it needs.
            print_fn: Gets the whole text.
            expand_nested: Whether the layers inside of layers have rows as well.

        Raises:
            UnifitError: When the model is not built.
        """
        self.arguments()
        print_fn(summary.table(self, line_length, expand_nested))

    # Configs and files

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as a JSON value, a graph in place of inputs and outputs."""
        values = self.__dict__["_config_arguments"].values
        graph = self._graph
        if graph is None or values.get("inputs") is not graph.inputs:
            return super().get_config()
        rest = {name: serialize(value) for name, value in values.items() if name not in ("inputs", "outputs")}
        return rest | {"graph": write(lambda: graph_config(graph))}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The inverse of `get_config`."""
        with reading():
            values = {name: deserialize(value, custom_objects) for name, value in config.items()}
        if "graph" in values:
            values["inputs"], values["outputs"] = graph_from_config(values.pop("graph"))
        return super().from_config(values)

    def to_json(self) -> str:
        """The config as a JSON text, for `uf.model_from_json`: the structure without weights."""
        return json.dumps(saving.model_config(self))

    def save(
        self, filepath: Any, overwrite: bool = True, include_optimizer: bool = True, *, weights: str = "own"
    ) -> None:
        """Writes the whole model to one file, for `uf.load_model` on any backend. See `unifit.saving.save_model`.

        `weights="ema"` writes the running averages that `compile(ema=...)` keeps in place of the model's own weights.
        """
        with saving.chosen_weights(self, weights):
            saving.save_model(self, filepath, overwrite, include_optimizer)

    def save_weights(self, filepath: Any, overwrite: bool = True, *, weights: str = "own") -> None:
        """Writes the weights to one safetensors file, by path; `weights` as in `save`."""
        with saving.chosen_weights(self, weights):
            saving.save_weights(self, filepath, overwrite)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False) -> None:
        """Reads weights from a file of `save_weights` or `save`. See `unifit.saving.load_weights`."""
        saving.load_weights(self, filepath, skip_mismatch)


def layer_keys(layers: list[Layer]) -> list[str]:
    """Keys of a functional model's layers: their names where these were given, else dense, dense_1, ... by position.

    Raises:
        ArgumentError: When two layers were given one name.
    """
    names = [_usable(layer.name) for layer in layers]
    given = [name for name, layer in zip(names, layers, strict=True) if not _named_by_class(layer)]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise ArgumentError(f"Two layers of one model are named {twice}; give each its own name, or none.")
    return unique_names(names, frozenset(given))


def _named_by_class(layer: Layer) -> bool:
    return isinstance(layer, Operation) or layer.name == snake_case(type(layer).__name__)


def _usable(name: str) -> str:
    """A name as a part of a path and an attribute of a module."""
    name = name.replace(".", "_") or "layer"
    return f"{name}_" if name in RESERVED or name in ("built", "name", "stop_training") else name


def _described(given: Any) -> str:
    kinds = sorted({type(leaf).__name__ for leaf in tree.leaves(given)})
    return f"of {', '.join(kinds)}" if kinds else repr(given)
