"""Batches to windows: the host arrays of one update, padded to one shape with rows that do not count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.data import Batch
from unifit.contract.values import MicroBatch, Placement, Window
from unifit.data.host import place_dtype
from unifit.errors import ShapeError


class Slicer:
    """Cuts global batches for one process: batches are padded to a multiple of the devices, each device takes an equal
    run.

    Args:
        placement: This process' place.
        pad: Whether short batches are padded to the largest one's shape. False on one device only.
    """

    def __init__(self, placement: Placement, batch_size: int | None, pad: bool = True):
        self.placement, self.pad = placement, pad
        self.padded = 0 if batch_size is None else self._rounded(batch_size)
        self._all_valid = np.zeros((0, 0), np.bool_)

    def _rounded(self, rows: int) -> int:
        return -(-rows // self.placement.devices) * self.placement.devices

    def own(self, rows: int) -> slice:
        """This process' rows of a global batch of `rows` rows."""
        if rows > self.padded or not self.pad:
            self.padded = self._rounded(rows)
        share = self.padded // self.placement.processes
        start = min(self.placement.process * share, rows)
        return slice(start, min(start + share, rows))

    @property
    def local(self) -> int:
        """Rows of this process in a padded batch."""
        return self.padded // self.placement.processes

    def valid(self, owns: list[int], accumulation: int, rows: int) -> np.ndarray:
        """Validity of a window's rows: bool, shape (accumulation, rows); the first `owns[i]` of micro-batch i.

        One array stands for all windows without padding; whoever gets it does not write to it.
        """
        whole = len(owns) == accumulation and all(own == rows for own in owns)
        if whole and self._all_valid.shape == (accumulation, rows):
            return self._all_valid
        valid = np.zeros((accumulation, rows), np.bool_)
        for number, own in enumerate(owns):
            valid[number, :own] = True
        if whole:
            self._all_valid = valid
        return valid


def padded_batch(batch: Batch, slicer: Slicer) -> MicroBatch:
    """This process' rows of a batch at the padded size, with their validity."""
    window = window_of([batch], slicer, 1, 0)
    return tree.map(lambda leaf: leaf[0], window.batch)


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
            yield window_of(group, slicer, accumulation, step), accumulation
            group, step = [], step + 1
    if group:
        yield window_of(group, slicer, accumulation, step), len(group)


def window_of(group: list[Batch], slicer: Slicer, accumulation: int, step: int) -> Window:
    """The batches of one update, stacked and padded; missing ones at the end are padding throughout.

    Full batches at accumulation 1 are views; else each leaf is written once, into the window's own array.
    """
    first = group[0]
    if accumulation == 1:
        rows, owns, full = slicer.local, [first.own], first.rows == slicer.padded
        x, y, weight = (
            _lone(first.x, first.own, rows),
            _lone(first.y, first.own, rows),
            _lone(first.sample_weight, first.own, rows),
        )
    else:
        padded = max(slicer.padded, *(slicer._rounded(batch.rows) for batch in group))
        rows, owns = padded // slicer.placement.processes, [batch.own for batch in group]
        full = all(batch.rows == padded for batch in group)

        def stack(*leaves: np.ndarray) -> np.ndarray:
            return _stacked(leaves, owns, accumulation, rows)

        x, y, weight = (tree.map(stack, *nodes) for nodes in zip(*(batch[:3] for batch in group), strict=True))
    return Window(MicroBatch(x, y, weight, slicer.valid(owns, accumulation, rows)), len(group), full, step)


def _lone(node: Any, own: int, rows: int) -> Any:
    """One batch's arrays as a window's."""
    if node is None:
        return None
    if type(node) is not np.ndarray:
        return tree.map(lambda leaf: _lone(leaf, own, rows), node)
    placed = place_dtype(node)
    if own != rows:
        return _stacked((placed,), [own], 1, rows)
    if not placed.flags.writeable:  # pages of a read-only map are read here, and torch takes no read-only memory
        placed = placed.copy()
    return placed[None]


def _stacked(leaves: tuple[np.ndarray, ...], owns: list[int], accumulation: int, rows: int) -> np.ndarray:
    """Each micro-batch's rows, then copies of its first row, so that padding can make no NaN."""
    leaves = tuple(place_dtype(leaf) for leaf in leaves)
    like = leaves[0]
    if any(leaf.shape[1:] != like.shape[1:] or leaf.dtype != like.dtype for leaf in leaves):
        raise ShapeError(
            f"The batches of one accumulation window have rows of shapes {[leaf.shape[1:] for leaf in leaves]} and "
            f"dtypes {sorted({str(leaf.dtype) for leaf in leaves})}; they need one of each. Pad sequences to one "
            "length and mask the padding (sample_weight of dtype bool, mask_zero, or ignore_class)."
        )
    window = np.empty((accumulation, rows, *like.shape[1:]), like.dtype)
    for number, (leaf, own) in enumerate(zip(leaves, owns, strict=True)):
        window[number, :own] = leaf[:own]
        window[number, own:] = leaf[0]
    window[len(leaves) :] = window[0]
    return window
