"""The functional API's values: symbols that stand for arrays before there is data, and the calls that made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from unifit.abstract import infer
from unifit.contract import tree
from unifit.contract.values import ArraySpec
from unifit.errors import ArgumentError

# An unknown axis is probed with two sizes; an output axis whose size follows is unknown as well.
_PROBES = ((2, 64), (4, 96))  # (batch axis, any other axis)

_PLACED_DTYPES = {"float64": "float32", "int64": "int32"}


class SymbolHasNoValue(ArgumentError, AttributeError):
    """A function of arrays was called on a Symbol. An AttributeError as well, so that `hasattr` is false."""


class Symbol:
    """An array of a functional model, before there is data: `uf.Input(...)` or a layer's output.

    Symbols take `+ - * / ** @`, unary `-` and indexing, each of which becomes a layer of the model. Any other function
    of arrays needs a Layer around it, such as `uf.layers.Lambda`.

    Attributes:
        shape: Shape with the batch axis first; None where the size is not known.
        dtype: The dtype's name.
        name: An Input's name, or None.
        node: The call that made it; None for an Input.
    """

    __array_ufunc__ = None  # NumPy leaves `array + symbol` to the Symbol

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

    def __iter__(self) -> NoReturn:
        raise ArgumentError(f"{self!r} cannot be iterated over: index it, or do it in a Layer's call.")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ArgumentError(self._no_value())

    def _no_value(self) -> str:
        return (
            f"A function of arrays got {self!r}, which has no value yet. Functions of unifit.ops and NumPy take arrays "
            "only: put the call into a Layer, such as uf.layers.Lambda(function)(symbol)."
        )

    # Where NumPy and each backend's functions ask an unknown object for its array.
    __array__ = __tf_tensor__ = __float__ = __int__ = __index__ = _refuse
    __jax_array__ = property(_refuse)  # jax asks whether there is one, and has words of its own when it calls it

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise SymbolHasNoValue(self._no_value())

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        found = symbols_in(list(args), kwargs)
        (found[0] if found else Symbol((), "float32"))._refuse()


def Input(
    shape: tuple[int | None, ...], batch_size: int | None = None, dtype: Any = "float32", name: str | None = None
) -> Symbol:
    """An input of a functional model.

    Args:
        shape: Shape of one row, without the batch axis; None for a size that varies.
        batch_size: Size of the batch axis where it is fixed.
        dtype: float64 and int64 mean float32 and int32, as for data.
        name: The input's name: data given as a dict is matched by it.

    Raises:
        ArgumentError: When `shape` is no tuple of sizes.

    Example:
        >>> Input((28, 28, 1)).shape
        (None, 28, 28, 1)
    """
    if not isinstance(shape, (tuple, list)):
        raise ArgumentError(f"Input got shape={shape!r}; it needs a tuple without the batch axis, such as (5,).")
    sizes = (batch_size, *shape)
    if any(size is not None and (not isinstance(size, (int, np.integer)) or size < 0) for size in sizes):
        raise ArgumentError(f"Input got shape={shape!r}, batch_size={batch_size!r}; sizes are whole numbers or None.")
    dtype = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    sizes = tuple(None if size is None else int(size) for size in sizes)
    return Symbol(sizes, _PLACED_DTYPES.get(dtype, dtype), name)


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


def infer_symbols(root: Any, function: Callable[..., Any], inputs: Any) -> Any:
    """`function(*arrays)` as a tree of Symbols: inferred twice, to see which axes are unknown.

    Args:
        root: The layer whose weights are shadowed meanwhile.
        function: Of the arguments in `inputs`.
        inputs: List or tuple of trees of Symbols.
    """
    return merged(*infer_twice(root, function, inputs))


def infer_twice(root: Any, function: Callable[..., Any], inputs: Any) -> list[Any]:
    """The two trees of ArraySpec behind `infer_symbols`."""
    symbols = symbols_in(inputs)

    def body(*arrays: Any) -> Any:
        return function(*substitute(inputs, {id(s): array for s, array in zip(symbols, arrays, strict=True)}))

    return [infer(root, body, *(probe(symbol, *sizes) for symbol in symbols)) for sizes in _PROBES]


def merged(small: Any, large: Any) -> Any:
    """Symbols from the specs that two probes gave: an axis whose size differs is unknown."""
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
        children = [map_specs(function, *leaves) for leaves in zip(specs, *others, strict=True)]
        return type(specs)(*children) if hasattr(specs, "_fields") else type(specs)(children)
    return specs


def record(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a layer on Symbols: infers the outputs' shapes, builds the layer, remembers the call.

    Raises:
        ArgumentError: When arrays stand beside the Symbols.
    """
    inputs = symbols_in(args, kwargs)
    for leaf in tree.leaves((args, kwargs)):
        if not isinstance(leaf, Symbol) and hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            raise ArgumentError(
                f"Layer '{layer.name}' got Symbols and an array of shape {tuple(leaf.shape)} in one call. Make the "
                "array an Input of the model, or a weight of a Layer; or call the layer on arrays only."
            )

    def call(*arrays: Any) -> Any:
        values = {id(symbol): array for symbol, array in zip(inputs, arrays, strict=True)}
        return layer(*substitute(args, values), **substitute(kwargs, values))

    try:
        outputs = infer_symbols(layer, call, inputs)
    except Exception as error:
        error.add_note(f"while layer '{layer.name}' ({type(layer).__name__}) was called on {_shown(inputs)}")
        raise
    node = Node(layer, args, kwargs, outputs)
    for symbol in symbols_in(outputs):
        symbol.node = node
    return outputs


def _shown(symbols: list[Symbol]) -> str:
    return ", ".join(map(repr, symbols))


def substitute(arguments: Any, values: dict[int, Any]) -> Any:
    """The arguments with every Symbol replaced by its value."""
    return tree.map(lambda leaf: values[id(leaf)] if isinstance(leaf, Symbol) else leaf, arguments)


def bind_operators(operators: dict[str, Callable[..., Any]]) -> None:
    """Gives Symbols their operators. They are layers' calls, and Layer needs this module: operation.py does it."""
    for method, function in operators.items():
        setattr(Symbol, method, function)
