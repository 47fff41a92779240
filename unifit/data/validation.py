"""What fit validates on: the last rows of its arrays, or data of its own."""

from __future__ import annotations

import math
from typing import Any

from unifit.contract import tree
from unifit.contract.data import Source
from unifit.contract.values import Placement
from unifit.data.adapt import ALONE, in_rows, is_arrays, make_source
from unifit.data.host import host_tree, row_count
from unifit.errors import ArgumentError

Data = tuple[Any, Any, Any]
"""(x, y, sample_weight)."""


def split_validation(x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Data, Data]:
    """(rows to train on, rows to validate on): the last `fraction` of the rows, taken before any shuffling; views.

    Raises:
        ArgumentError: When fraction is not in [0, 1), a part would be empty, or the data are no arrays.
    """
    if not 0 <= fraction < 1:
        raise ArgumentError(f"validation_split is {fraction!r}; it needs a number from 0 up to, but below, 1.")
    if not is_arrays(x):
        raise ArgumentError(
            f"validation_split={fraction} was given with x, a {type(x).__name__}; only arrays can be split. Pass "
            "validation_data instead."
        )
    names = ("x", "y", "sample_weight")
    data = [host_tree(value, name) for value, name in zip((x, y, sample_weight), names, strict=True)]
    rows = row_count(tree.leaves(data), "x, y and sample_weight")
    kept = math.floor(rows * (1 - fraction))
    if not 0 < kept < rows:
        raise ArgumentError(
            f"validation_split={fraction} of {rows} rows leaves {kept} rows to train on and {rows - kept} to validate "
            "on; both need at least one."
        )
    first, last = ([tree.map(lambda leaf: leaf[part], node) for node in data] for part in _parts(kept))  # noqa: B023
    return tuple(first), tuple(last)


def _parts(kept: int) -> tuple[slice, slice]:
    return slice(0, kept), slice(kept, None)


def validation_source(
    data: Any, own_batch_size: int | None, batch_size: int | None, placement: Placement = ALONE
) -> Source:
    """The source for fit's `validation_data`: (x, y), (x, y, sample_weight), or anything that yields batches.

    Args:
        data: validation_data as given.
        own_batch_size: validation_batch_size as given.
        batch_size: The training data's, which arrays take when they have none of their own.
        placement: This process' place in its job.
    """
    x, y, weight = data if isinstance(data, tuple) and len(data) == 3 else _pair(data)
    if own_batch_size is None and in_rows(x):
        own_batch_size = batch_size
    try:
        return make_source(x, y, weight, batch_size=own_batch_size, placement=placement)
    except ArgumentError as error:
        raise type(error)(f"validation_data: {error}") from error


def _pair(data: Any) -> Data:
    if isinstance(data, (tuple, list)):
        if not 1 <= len(data) <= 3:
            raise ArgumentError(
                f"validation_data has {len(data)} parts; it needs (x, y) or (x, y, sample_weight), or data that yields "
                "batches."
            )
        return (*data, None, None)[:3]
    return data, None, None
