"""Arithmetic and indexing of Symbols as layers of the functional model."""

from __future__ import annotations

from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.layer import Layer, layers_registry
from unifit.symbol import Symbol, bind_operators, symbols_in

_FUNCTIONS = ("add", "subtract", "multiply", "divide", "floor_divide", "mod", "power", "matmul", "negative", "abs")


@layers_registry.register
class Operation(Layer):
    """What `a + b` and the like become where `a` or `b` is a Symbol.

    Args:
        function: Name of the function in `uf.ops`.
        constants: Operands that are no Symbols: {"0" or "1": a number or a NumPy array}. They stand in the config.

    Example:
        >>> Operation("multiply", {"1": 2.0})(ops.ones((2, 3))).shape[-1]
        3
    """

    supports_masking = True

    def __init__(self, function: str, constants: dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(**{"name": function, **kwargs})
        if function not in _FUNCTIONS:
            raise ArgumentError(f"Operation got function={function!r}; it knows {', '.join(_FUNCTIONS)}.")
        self.function = getattr(ops, function)
        self.constants = sorted((int(place), value) for place, value in (constants or {}).items())

    def call(self, *operands: Any) -> Any:
        arguments = list(operands)
        for place, value in self.constants:
            if isinstance(value, np.ndarray):
                value = ops.convert_to_tensor(value, dtype=ops.dtype(operands[0]))
            arguments.insert(place, value)
        return self.function(*arguments)


@layers_registry.register
class GetItem(Layer):
    """What `symbol[...]` becomes.

    Args:
        index: One entry an axis: a number, None, "..." or {"slice": [start, stop, step]}.

    Example:
        >>> tuple(GetItem([{"slice": [None, None, None]}, 0])(ops.ones((2, 3))).shape)
        (2,)
    """

    def __init__(self, index: list[Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.index = tuple(_entry(value) for value in index)

    def call(self, x: Any) -> Any:
        return x[self.index]

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        """The mask at the same rows, while the index keeps to the mask's axes as slices."""
        if mask is None or not all(isinstance(entry, slice) for entry in self.index):
            return None
        return mask[self.index[: len(mask.shape)]]


def _entry(value: Any) -> Any:
    if isinstance(value, dict):
        return slice(*value["slice"])
    return Ellipsis if value == "..." else value


def _described(entry: Any) -> Any:
    if isinstance(entry, slice):
        return {"slice": [_number(part) for part in (entry.start, entry.stop, entry.step)]}
    return "..." if entry is Ellipsis else _number(entry)


def _number(value: Any) -> int | None:
    if value is None or (isinstance(value, (int, np.integer)) and not isinstance(value, bool)):
        return None if value is None else int(value)
    raise ArgumentError(
        f"A Symbol was indexed with {value!r}; it takes whole numbers, slices, None and `...`. For other indices put "
        "ops.take or a mask into a Layer, such as uf.layers.Lambda."
    )


def _get_item(symbol: Symbol, index: Any) -> Any:
    return GetItem([_described(entry) for entry in (index if isinstance(index, tuple) else (index,))])(symbol)


def _apply(function: str, *operands: Any) -> Any:
    constants = {
        str(place): _constant(function, value) for place, value in enumerate(operands) if not isinstance(value, Symbol)
    }
    return Operation(function, constants or None)(*symbols_in(list(operands)))


def _constant(function: str, value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or (hasattr(value, "shape") and ops.is_tensor(value)):
        return np.asarray(ops.convert_to_numpy(value))
    raise ArgumentError(f"`{function}` of a Symbol got {value!r}; it takes Symbols, numbers and arrays.")


def _binary(function: str) -> dict[str, Any]:
    name = {"divide": "truediv", "subtract": "sub", "multiply": "mul", "floor_divide": "floordiv", "power": "pow"}
    short = name.get(function, function)
    return {
        f"__{short}__": lambda a, b: _apply(function, a, b),
        f"__r{short}__": lambda a, b: _apply(function, b, a),
    }


def _operators() -> dict[str, Any]:
    found: dict[str, Any] = {"__getitem__": _get_item}
    for function in ("add", "subtract", "multiply", "divide", "floor_divide", "mod", "power", "matmul"):
        found |= _binary(function)
    for function in ("negative", "abs"):
        found["__neg__" if function == "negative" else "__abs__"] = lambda a, function=function: _apply(function, a)
    return found


bind_operators(_operators())
