"""Checks and normal forms of layers' arguments: whole numbers, sizes for each axis, choices, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unifit.errors import ArgumentError, ShapeError, UnsupportedError
from unifit.layer import Layer

# What the axes of channels-last data are called in messages, by the number of axes.
_AXES = {3: "(rows, steps, channels)", 4: "(rows, height, width, channels)"}


def whole(owner: Layer, name: str, value: Any, at_least: int = 1) -> int:
    """`value` as an int.

    Raises:
        ArgumentError: When it is no whole number, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise ArgumentError(
            f"{type(owner).__name__} got {name}={value!r}; it needs a whole number of at least {at_least}."
        )
    return int(value)


def sizes(owner: Layer, name: str, value: Any, num_axes: int, at_least: int = 1) -> tuple[int, ...]:
    """One whole number for each spatial axis, from one for all or from a sequence.

    Raises:
        ArgumentError: For a sequence of another length, or an entry that is no whole number or too small.
    """
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * num_axes
    if len(values) != num_axes:
        raise ArgumentError(
            f"{type(owner).__name__} got {name}={value!r}; it needs one whole number or {num_axes} of them."
        )
    return tuple(whole(owner, name, entry, at_least) for entry in values)


def choice(owner: Layer, name: str, value: Any, choices: Sequence[Any]) -> Any:
    """`value` if it is among `choices`; strings in any case.

    Raises:
        ArgumentError: Otherwise.
    """
    value = value.lower() if isinstance(value, str) else value
    if value not in choices:
        raise ArgumentError(
            f"{type(owner).__name__} got {name}={value!r}; it needs one of {', '.join(map(repr, choices))}."
        )
    return value


def channels_last(owner: Layer, data_format: str | None) -> str:
    """The data format, of which there is one.

    Raises:
        UnsupportedError: For "channels_first".
    """
    if choice(owner, "data_format", data_format, (None, "channels_last", "channels_first")) == "channels_first":
        raise UnsupportedError(
            f"{type(owner).__name__} got data_format='channels_first'; unifit's data is channels last. Move the "
            "channels with ops.moveaxis(x, 1, -1), or Permute, once at the start of the model."
        )
    return "channels_last"


def check_rank(owner: Layer, shape: Sequence[int], rank: int) -> None:
    """Refuses inputs of another number of axes.

    Raises:
        ShapeError: With what to do about it.
    """
    if len(shape) == rank:
        return
    if len(shape) == rank - 1:
        remedy = ": add a channel axis with ops.expand_dims(x, -1)"
    else:
        remedy = "; ops.reshape or Reshape makes another number of axes"
    raise ShapeError(
        f"{type(owner).__name__} '{owner.name}' got an input of shape {tuple(shape)}; it needs {_AXES[rank]}{remedy}."
    )


def checked_axis(owner: Layer, axis: Any, rank: int) -> int:
    """`axis` counted from the front.

    Raises:
        ArgumentError: When the input has no such axis.
    """
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise ArgumentError(
            f"{type(owner).__name__} '{owner.name}' got axis={axis!r} and an input with {rank} axes; it needs a whole "
            f"number from {-rank} to {rank - 1}."
        )
    return int(axis) % rank


def checked_axes(owner: Layer, axis: Any, rank: int) -> tuple[int, ...]:
    """One axis or several, counted from the front, ascending.

    Raises:
        ArgumentError: When the input has no such axis, or one is named twice.
    """
    given = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    axes = tuple(sorted(checked_axis(owner, entry, rank) for entry in given))
    if not axes or len(set(axes)) != len(axes):
        raise ArgumentError(f"{type(owner).__name__} '{owner.name}' got axis={axis!r}; it needs different axes.")
    return axes
