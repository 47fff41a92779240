"""The functional API's values: symbols that stand for arrays, and the graph of layer calls between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unifit.abstract import infer
from unifit.contract import tree
from unifit.contract.values import ArraySpec
from unifit.errors import ArgumentError

# An unknown axis is probed with two sizes; an output axis whose size follows is unknown as well.
_PROBES = ((2, 64), (3, 96))  # (batch axis, any other axis)


class Symbol:
    """An array of a functional model, before there is data: `uf.Input(...)` or a layer's output.

    Attributes:
        shape: Shape with the batch axis first; None where the size is not known.
        dtype: The dtype's name.
    """

    def __init__(self, shape: tuple[int | None, ...], dtype: str, name: str | None = None):
        self.shape = tuple(shape)
        self.dtype = dtype
        self.name = name
        self.node: Node | None = None

    def __repr__(self) -> str:
        return f"<Symbol shape={self.shape} dtype={self.dtype}>"

    def __bool__(self) -> bool:
        raise ArgumentError(
            "A Symbol has no value yet, so it cannot decide an `if`; put such code into a Layer's call."
        )


class Node:
    """One recorded call: `layer(*args, **kwargs)` with Symbols among the arguments."""

    def __init__(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any):
        self.layer = layer
        self.args = args
        self.kwargs = kwargs
        self.outputs = outputs

    @property
    def inputs(self) -> list[Symbol]:
        """The Symbols among the arguments."""
        return symbols_in(self.args, self.kwargs)


def symbols_in(*trees: Any) -> list[Symbol]:
    """The Symbols among the leaves of some trees."""
    return [leaf for one in trees for leaf in tree.leaves(one) if isinstance(leaf, Symbol)]


def probe(symbol: Symbol, batch: int, other: int) -> ArraySpec:
    """A concrete spec: unknown axes get the probe sizes."""
    sizes = tuple(
        size if size is not None else (batch if axis == 0 else other) for axis, size in enumerate(symbol.shape)
    )
    return ArraySpec(sizes, symbol.dtype)


def infer_symbols(root: Any, function: Callable[..., Any], inputs: list[Symbol]) -> Any:
    """`function` of the inputs' arrays as a tree of Symbols: inferred twice, to see which axes are unknown."""
    small, large = (infer(root, function, *(probe(symbol, *sizes) for symbol in inputs)) for sizes in _PROBES)
    return map_specs(
        lambda a, b: Symbol(tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)), a.dtype),
        small,
        large,
    )


def map_specs(function: Callable[..., Any], specs: Any, *others: Any) -> Any:
    """`tree.map` over trees whose leaves are ArraySpecs (tuples themselves)."""
    if isinstance(specs, ArraySpec):
        return function(specs, *others)
    if isinstance(specs, dict):
        return {key: map_specs(function, specs[key], *(other[key] for other in others)) for key in sorted(specs)}
    if isinstance(specs, (tuple, list)):
        return type(specs)(map_specs(function, *leaves) for leaves in zip(specs, *others, strict=True))
    return specs


def record(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a layer on Symbols: infers the outputs' shapes, builds the layer, remembers the call."""
    inputs = symbols_in(args, kwargs)

    def call(*arrays: Any) -> Any:
        values = {id(symbol): array for symbol, array in zip(inputs, arrays, strict=True)}
        return layer(*substitute(args, values), **substitute(kwargs, values))

    outputs = infer_symbols(layer, call, inputs)
    node = Node(layer, args, kwargs, outputs)
    for symbol in symbols_in(outputs):
        symbol.node = node
    return outputs


def substitute(arguments: Any, values: dict[int, Any]) -> Any:
    """The arguments with every Symbol replaced by its value."""
    return tree.map(lambda leaf: values[id(leaf)] if isinstance(leaf, Symbol) else leaf, arguments)


class Graph:
    """The calls between given inputs and outputs, in an order in which they can run.

    Raises:
        ArgumentError: When an output does not depend on the inputs alone.
    """

    def __init__(self, inputs: Any, outputs: Any):
        self.inputs = inputs
        self.outputs = outputs
        self.nodes: list[Node] = []
        known = {id(symbol) for symbol in symbols_in(inputs)}
        visited: set[int] = set()
        for symbol in symbols_in(outputs):
            self._visit(symbol, known, visited)

    def _visit(self, symbol: Symbol, known: set[int], visited: set[int]) -> None:
        if id(symbol) in known:
            return
        if symbol.node is None:
            raise ArgumentError(
                f"An output of Model(inputs, outputs) depends on the Input of shape {symbol.shape}, which is not among "
                "the inputs; add it to `inputs`."
            )
        if id(symbol.node) in visited:
            return
        visited.add(id(symbol.node))
        for source in symbol.node.inputs:
            self._visit(source, known, visited)
        self.nodes.append(symbol.node)

    @property
    def layers(self) -> list[Any]:
        """The graph's layers in the order of their first call, each once."""
        return list({id(node.layer): node.layer for node in self.nodes}.values())

    def run(self, arrays: Any) -> Any:
        """Calls the layers on real arrays: a tree like `inputs` in, a tree like `outputs` out."""
        flat = symbols_in(self.inputs)
        leaves = select(self.inputs, arrays)
        values = {id(symbol): array for symbol, array in zip(flat, leaves, strict=True)}
        for node in self.nodes:
            result = node.layer(*substitute(node.args, values), **substitute(node.kwargs, values))
            values.update(
                (id(symbol), array) for symbol, array in zip(symbols_in(node.outputs), tree.leaves(result), strict=True)
            )
        return substitute(self.outputs, values)


def select(inputs: Any, arrays: Any) -> list[Any]:
    """The arrays for a graph's inputs: by position, or by the inputs' names where a dict is given."""
    if isinstance(arrays, dict) and not isinstance(inputs, dict):
        names = [symbol.name for symbol in symbols_in(inputs)]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise ArgumentError(f"The model's inputs are named {names}; the data has {sorted(arrays)}.")
        return [arrays[name] for name in names]
    if isinstance(inputs, dict) and isinstance(arrays, dict):
        arrays = {key: arrays[key] for key in inputs}
    return tree.leaves(arrays)
