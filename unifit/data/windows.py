"""Batches to windows: the host arrays of one update, padded to one shape with rows that do not count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.values import MicroBatch, Placement, Window
from unifit.data.source import Batch
from unifit.errors import ArgumentError, ShapeError

_INT32 = np.iinfo(np.int32)


class Slicer:
    """Cuts global batches for one process: batches are padded to a multiple of the devices, each device takes an equal run.

    Args:
        placement: This process' place.
        pad: Whether short batches are padded to the largest one's shape. False on one device only.
    """

    def __init__(self, placement: Placement, batch_size: int | None, pad: bool = True):
        self.placement, self.pad = placement, pad
        self.padded = 0 if batch_size is None else self._rounded(batch_size)

    def _rounded(self, rows: int) -> int:
        return -(-rows // self.placement.devices) * self.placement.devices

    def own(self, rows: int) -> slice:
        """This process' rows of a global batch of `rows` rows."""
        self.padded = max(self.padded, self._rounded(rows)) if self.pad else rows
        share = self.local
        start = min(self.placement.process * share, rows)
        return slice(start, min(start + share, rows))

    @property
    def local(self) -> int:
        """Rows of this process in a padded batch."""
        return self.padded // self.placement.processes


def place_dtype(array: np.ndarray) -> np.ndarray:
    """Floats become float32, integers int32; bool, uint8 and half floats stay.

    Raises:
        ArgumentError: When an integer does not fit int32, or the dtype is no number.
    """
    kind = array.dtype.kind
    if array.dtype in (np.float32, np.int32, np.bool_, np.uint8):
        return array
    if kind == "f":
        return array if array.dtype == np.float16 else array.astype(np.float32)
    if kind in "iu":
        if array.size and (array.max() > _INT32.max or array.min() < _INT32.min):
            raise ArgumentError(
                f"The data holds integers from {array.min()} to {array.max()} ({array.dtype}); devices take int32. "
                "Map ids to a smaller range, or pass floats."
            )
        return array.astype(np.int32)
    if array.dtype.name == "bfloat16":
        return array
    raise ArgumentError(f"The data has an array of dtype {array.dtype}; it needs numbers or bool.")


def pad_rows(array: np.ndarray, own: int, rows: int) -> np.ndarray:
    """`rows` rows: the first `own`, then copies of the first row, so that padding can make no NaN."""
    array = place_dtype(array)
    if own == rows:
        return array
    return np.concatenate([array[:own], np.repeat(array[:1], rows - own, axis=0)])


def padded_batch(batch: Batch, slicer: Slicer) -> MicroBatch:
    """This process' rows of a batch at the padded size, with their validity."""
    rows = slicer.local
    x, y, weight = tree.map(lambda leaf: pad_rows(leaf, batch.own, rows), batch[:3])
    valid = np.zeros(rows, np.bool_)
    valid[: batch.own] = True
    return MicroBatch(x, y, weight, valid)


def windows(
    batches: Iterable[Batch], slicer: Slicer, accumulation: int = 1, first_step: int = 0
) -> Iterator[tuple[Window, int]]:
    """(window, number of batches in it): `accumulation` consecutive batches each, the last one shorter.

    Raises:
        ShapeError: When batches of one window differ in more than their rows.
    """
    group: list[Batch] = []
    step = first_step
    for batch in batches:
        group.append(batch)
        if len(group) == accumulation:
            yield window_of(group, slicer, accumulation, step), len(group)
            group, step = [], step + 1
    if group:
        yield window_of(group, slicer, accumulation, step), len(group)


def window_of(group: list[Batch], slicer: Slicer, accumulation: int, step: int) -> Window:
    """The batches of one update, stacked; missing ones at the end are padding throughout."""
    full = all(batch.rows == slicer.padded for batch in group)
    micro = [padded_batch(batch, slicer) for batch in group]
    if accumulation == 1:
        return Window(tree.map(lambda leaf: leaf[None], micro[0]), 1, full, step)
    empty = micro[0]._replace(valid=np.zeros_like(micro[0].valid))
    micro += [empty] * (accumulation - len(group))
    return Window(tree.map(lambda *leaves: _stack(leaves), *micro), len(group), full, step)


def _stack(leaves: tuple[Any, ...]) -> np.ndarray:
    shapes = {leaf.shape for leaf in leaves}
    if len(shapes) > 1:
        raise ShapeError(
            f"The batches of one accumulation window have the shapes {sorted(shapes)}; they need one shape. Pad sequences to "
            "one length and mask the padding (sample_weight of dtype bool, mask_zero, or ignore_class)."
        )
    return np.stack(leaves)
