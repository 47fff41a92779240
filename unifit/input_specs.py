"""The inputs that a model is built for, as trees of Symbols: from shapes, from arrays, and to JSON and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from unifit.abstract import spec_of
from unifit.contract import tree
from unifit.contract.values import ArraySpec
from unifit.errors import ArgumentError
from unifit.symbol import Symbol, substitute, symbols_in


def symbols_of_shapes(shape: Any) -> Any:
    """Symbols from what a user gives to `build`: shapes (float32), Symbols, ArraySpecs, or a list or dict of them.

    Raises:
        ArgumentError: For anything else.
    """
    if isinstance(shape, Symbol):
        return Symbol(shape.shape, shape.dtype, shape.name)
    if isinstance(shape, ArraySpec):
        return Symbol(shape.shape, shape.dtype)
    if isinstance(shape, dict) and shape:
        return {key: symbols_of_shapes(value) for key, value in shape.items()}
    if isinstance(shape, (list, tuple)):
        if shape and all(isinstance(entry, (list, tuple, dict, Symbol)) for entry in shape):
            return [symbols_of_shapes(entry) for entry in shape]
        if all(entry is None or isinstance(entry, (int, np.integer)) for entry in shape):
            return Symbol(tuple(None if size is None else int(size) for size in shape), "float32")
    raise ArgumentError(
        f"build got {shape!r}; it needs a shape with the batch axis, such as (None, 5), or uf.Input(...), or a list or "
        "dict of them."
    )


def symbols_of_arrays(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Symbols from the arguments of a call. The axis that holds the batch's rows varies; the other sizes are fixed."""
    arrays = [leaf for leaf in tree.leaves(args) if hasattr(leaf, "shape") and len(leaf.shape) > 0]
    rows = arrays[0].shape[0] if arrays else None

    def symbol(leaf: Any) -> Any:
        if isinstance(leaf, Symbol) or not hasattr(leaf, "shape"):
            return leaf
        spec = spec_of(leaf)
        sizes = spec.shape
        return Symbol((None, *sizes[1:]) if sizes and sizes[0] == rows else sizes, spec.dtype)

    return tree.map(symbol, args)


def shapes_of(symbols: Any) -> Any:
    """The shapes of a tree of Symbols; a lone Symbol gives a lone tuple."""
    return tree.map(lambda leaf: leaf.shape if isinstance(leaf, Symbol) else leaf, symbols)


def fits(built: Any, asked: Any) -> bool:
    """Whether inputs like `asked` are inputs like `built`: the same tree, ranks and known sizes, whatever the batch."""
    ours, theirs = symbols_in(built), symbols_in(asked)
    return len(ours) == len(theirs) and all(
        len(a.shape) == len(b.shape)
        and all(m is None or n is None or m == n for m, n in zip(a.shape[1:], b.shape[1:], strict=True))
        for a, b in zip(ours, theirs, strict=True)
    )


def specs_to_json(symbols: Any) -> Any:
    """A tree with each Symbol as {"input": [shape, dtype, name]}, for `config.serialize`."""
    return substitute(symbols, {id(s): {"input": [list(s.shape), s.dtype, s.name]} for s in symbols_in(symbols)})


def specs_from_json(value: Any) -> Any:
    """The inverse of `specs_to_json`."""
    if isinstance(value, dict):
        if value.keys() == {"input"} and isinstance(value["input"], list):
            shape, dtype, name = value["input"]
            return Symbol(tuple(shape), dtype, name)
        return {key: specs_from_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(specs_from_json(entry) for entry in value)
    return value
