"""Functions that make, convert, shape, index and sort arrays, part of `unifit.ops`; the rules stand in `ops`."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

from unifit.contract.ops import Array, Axis, Shape

# --- Creation and conversion ------------------------------------------------------------------------------------------


def convert_to_tensor(x: Any, dtype: str | None = None) -> Array:
    """An array of the backend from an array, a NumPy array, a scalar or nested lists.

    Without `dtype`, float64 becomes float32 and int64 becomes int32 (OverflowError where host values do not fit).
    The result never shares memory with a NumPy input.
    """
    ...


def convert_to_numpy(x: Array) -> np.ndarray:
    """A NumPy array on the host; bfloat16, which NumPy lacks, becomes float32. Treat it as read-only."""
    ...


def is_tensor(x: Any) -> bool:
    """Whether `x` is an array of the active backend."""
    ...


def cast(x: Array, dtype: str) -> Array:
    """`x` in another dtype; floats are truncated on the way to integers, nonzero is True."""
    ...


def dtype(x: Array, /) -> str:
    """Name of the dtype, such as "float32"."""
    ...


def zeros(shape: Shape, dtype: str = "float32") -> Array:
    """Array of zeros."""
    ...


def ones(shape: Shape, dtype: str = "float32") -> Array:
    """Array of ones."""
    ...


def full(shape: Shape, fill_value: Array, dtype: str = "float32") -> Array:
    """Array filled with one value."""
    ...


def zeros_like(x: Array, dtype: str | None = None) -> Array:
    """Zeros with the shape of `x` and, unless given, its dtype."""
    ...


def ones_like(x: Array, dtype: str | None = None) -> Array:
    """Ones with the shape of `x` and, unless given, its dtype."""
    ...


def full_like(x: Array, fill_value: Array, dtype: str | None = None) -> Array:
    """One value with the shape of `x` and, unless given, its dtype."""
    ...


def arange(start: float, stop: float | None = None, step: float = 1, dtype: str | None = None) -> Array:
    """`start`, `start + step`, ... below `stop`; with one argument, 0 up to it. int32, or float32 from floats."""
    ...


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: str = "float32", axis: int = 0
) -> Array:
    """`num` evenly spaced values from `start` to `stop`, which are host values (Python or NumPy)."""
    ...


def eye(N: int, M: int | None = None, k: int = 0, dtype: str = "float32") -> Array:
    """(N, M) with ones on the k-th diagonal, zeros elsewhere; M defaults to N."""
    ...


def tri(N: int, M: int | None = None, k: int = 0, dtype: str = "float32") -> Array:
    """(N, M) with ones on and below the k-th diagonal, zeros above."""
    ...


def tril(x: Array, k: int = 0) -> Array:
    """The last two axes with zeros above the k-th diagonal."""
    ...


def triu(x: Array, k: int = 0) -> Array:
    """The last two axes with zeros below the k-th diagonal."""
    ...


def one_hot(x: Array, num_classes: int, axis: int = -1, dtype: str = "float32") -> Array:
    """1 at index `x` along a new `axis` of size `num_classes`, 0 elsewhere; an index outside gives all zeros."""
    ...


# --- Shape ------------------------------------------------------------------------------------------------------------


def shape(x: Array, /) -> tuple[int, ...]:
    """The static shape, a tuple of ints (tensorflow: a scalar tensor where an axis is unknown when traced)."""
    ...


def ndim(x: Array, /) -> int:
    """Number of axes."""
    ...


def size(x: Array, /) -> int:
    """Number of elements."""
    ...


def reshape(x: Array, newshape: int | Shape) -> Array:
    """`x` in another shape of equal size; one axis may be -1."""
    ...


def transpose(x: Array, axes: Sequence[int] | None = None) -> Array:
    """Axes in the order `axes`; None reverses them."""
    ...


def swapaxes(x: Array, axis1: int, axis2: int, /) -> Array:
    """Two axes exchanged."""
    ...


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Axes `source` moved to positions `destination`, the others in order."""
    ...


def expand_dims(x: Array, axis: int | tuple[int, ...]) -> Array:
    """New axes of size 1 at the positions `axis` of the result."""
    ...


def squeeze(x: Array, axis: Axis = None) -> Array:
    """Without the axes `axis`, which must have size 1; None: without all that do."""
    ...


def concatenate(xs: Sequence[Array], axis: int = 0) -> Array:
    """Arrays joined along an axis they have."""
    ...


def stack(x: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis."""
    ...


def unstack(x: Array, num: int | None = None, axis: int = 0) -> list[Array]:
    """The list of slices along `axis`, without it; `num`, if given, must be its size."""
    ...


def split(x: Array, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """A list of parts along `axis`: that many equal ones, or cut before the given indices."""
    ...


def repeat(x: Array, repeats: int | Sequence[int], axis: int | None = None) -> Array:
    """Every element along `axis` repeated in place; None flattens first. `repeats` is a Python value."""
    ...


def tile(x: Array, repeats: int | Sequence[int]) -> Array:
    """The whole array repeated `repeats` times along each axis (aligned at the last)."""
    ...


def flip(x: Array, axis: Axis = None) -> Array:
    """Order reversed along `axis`."""
    ...


def roll(x: Array, shift: int | tuple[int, ...], axis: Axis = None) -> Array:
    """Elements shifted along `axis`, wrapping round; None shifts the flattened array."""
    ...


def pad(
    x: Array,
    pad_width: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: str = "constant",
    constant_values: float | None = None,
) -> Array:
    """`x` with elements added at the ends of its axes.

    Args:
        x: Array.
        pad_width: (before, after) for each axis, or one pair, or one int, for all axes.
        mode: "constant", "reflect" (the edge is not repeated), "symmetric" (it is) or "edge".
        constant_values: The value for mode "constant"; None is 0.
    """
    ...


def broadcast_to(x: Array, shape: Shape) -> Array:
    """`x` repeated along axes of size 1 and new leading ones, to `shape`."""
    ...


def ravel(x: Array, /) -> Array:
    """`x` with one axis."""
    ...


# --- Indexing and sorting ---------------------------------------------------------------------------------------------


def take(x: Array, indices: Array, axis: int | None = None) -> Array:
    """Entries of `x` along `axis` at integer `indices` of any shape, which replaces that axis; None flattens `x`.

    Negative indices count from the end.
    """
    ...


def take_along_axis(x: Array, indices: Array, axis: int | None = None) -> Array:
    """One entry along `axis` for every index; `x` and `indices` broadcast on the other axes. None flattens both."""
    ...


def slice(inputs: Array, start_indices: Sequence[int] | Array, shape: Shape) -> Array:
    """The block of `inputs` of the given static shape whose first corner is at `start_indices`, which may be traced."""
    ...


def slice_update(inputs: Array, start_indices: Sequence[int] | Array, updates: Array) -> Array:
    """`inputs` with the block at `start_indices` replaced by `updates`."""
    ...


def sort(x: Array, axis: int = -1) -> Array:
    """Ascending order along `axis`."""
    ...


def argsort(x: Array, axis: int = -1) -> Array:
    """int32 indices that sort along `axis`; equal elements keep their order."""
    ...


def top_k(x: Array, k: int, sorted: bool = True) -> tuple[Array, Array]:
    """The k largest along the last axis, descending, and their int32 indices (of equal elements any)."""
    ...


def in_top_k(targets: Array, predictions: Array, k: int) -> Array:
    """Bool, shape of `targets`: fewer than k predictions in the row are above the target's own.

    Args:
        targets: Class indices, shape (...).
        predictions: Scores, shape (..., classes). Ties count in the target's favour; a NaN at the target is lowest.
        k: How many are looked at.
    """
    ...


def searchsorted(sorted_sequence: Array, values: Array, side: str = "left") -> Array:
    """int32 positions at which `values` (any shape) keep a 1-D ascending sequence sorted.

    `side` "left" inserts before equal elements, "right" after them.
    """
    ...


def bincount(x: Array, weights: Array | None = None, minlength: int = 0) -> Array:
    """How often each non-negative integer occurs in a 1-D array: int32 counts, or sums of `weights`.

    With `minlength` the result has exactly that length, so that it is static when compiled, and larger values are not
    counted. With 0 the length is the largest value plus one, which only works outside compiled functions.
    """
    ...


def segment_sum(data: Array, segment_ids: Array, num_segments: int, sorted: bool = False) -> Array:
    """Rows of `data` summed by segment: result[i] is the sum of data[j] with segment_ids[j] == i.

    Args:
        data: Shape (rows, ...).
        segment_ids: Integers in [0, num_segments), shape (rows,).
        num_segments: Length of the result; segments without rows are 0.
        sorted: A promise that `segment_ids` ascends, which may be faster.
    """
    ...


ARRAY_OPS: tuple[str, ...] = tuple(
    name for name, value in list(globals().items()) if isinstance(value, FunctionType) and not name.startswith("_")
)
