"""Batches to windows: the host arrays of one update, padded to one shape with rows that do not count."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from unifit.contract import tree
from unifit.contract.data import Batch
from unifit.contract.values import MicroBatch, Window
from unifit.data.host import place_dtype
from unifit.data.slicer import Cut, Slicer, valid_rows
from unifit.errors import ShapeError

__all__ = ["Slicer", "padded_batch", "valid_rows", "window_of", "windows"]


def padded_batch(batch: Batch, slicer: Slicer) -> MicroBatch:
    """This process' rows of a batch at the padded size, with their validity, as one micro-batch."""
    return tree.map(lambda leaf: leaf[0], _whole_batch(batch, slicer, 0).batch)


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
    """The batches of one update, cut into micro-batches, stacked and padded.

    A window has `accumulation * slicer.pieces` micro-batches: the live ones of all batches, in order, then padding.
    """
    pieces = slicer.pieces
    if accumulation == pieces == 1:
        return _whole_batch(group[0], slicer, step)
    if group[0].padding is not None:
        length = max(batch.length for batch in group)
        group = [_of_length(batch, length) for batch in group]
    cut = slicer.cut(group, pieces)
    runs, full, live = [], True, 0
    for batch in group:
        count = cut.live(slicer.most(batch))
        full = full and cut.full(slicer.least(batch), count)
        runs.append(_Run(live, count, batch.own, *(_places(cut, batch.own, count) if pieces > 1 else ())))
        live += count
    micro_batches, rows = accumulation * pieces, cut.local * cut.rows
    if accumulation == cut.local == 1 and group[0].own == pieces * rows:
        nodes = [tree.map(lambda leaf: _writable(leaf).reshape(pieces, rows, *leaf.shape[1:]), n) for n in group[0][:3]]
    else:

        def stack(*leaves: np.ndarray) -> np.ndarray:
            return _stacked(leaves, runs, micro_batches, rows)

        nodes = [tree.map(stack, *parts) for parts in zip(*(batch[:3] for batch in group), strict=True)]
    x, y, weight = nodes
    return Window(MicroBatch(x, y, weight, _validity(runs, micro_batches, rows)), live, full, step)


def _whole_batch(batch: Batch, slicer: Slicer, step: int) -> Window:
    """One batch that is not cut: a view where it is full."""
    if batch.padding is not None:
        batch = _of_length(batch, batch.length)
    rows, own = slicer.local, batch.own
    full = batch.rows == slicer.padded if batch.owns is None else min(batch.owns) == rows
    x, y, weight = _lone(batch.x, own, rows), _lone(batch.y, own, rows), _lone(batch.sample_weight, own, rows)
    valid = np.zeros((1, rows), np.bool_)
    valid[0, :own] = True
    return Window(MicroBatch(x, y, weight, valid), 1, full, step)


def _of_length(batch: Batch, length: int) -> Batch:
    return batch if batch.padding is None else batch.padding.padded(batch, length)


class _Run(NamedTuple):
    """Where a batch's rows go: micro-batches [start, start + live) of the window.

    `rows` and `valid`, of shape (live, rows of a micro-batch), say which row of the batch stands where and whether it
    counts; None where the first `own` rows stand in order.
    """

    start: int
    live: int
    own: int
    rows: np.ndarray | None = None
    valid: np.ndarray | None = None


@functools.lru_cache(maxsize=64)
def _places(cut: Cut, own: int, live: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row of the live micro-batches: the row of the batch that stands there, and whether it counts."""
    device = np.arange(cut.local)[None, :, None]
    row = np.arange(live)[:, None, None] * cut.rows + np.arange(cut.rows)  # in its device's share
    index = device * cut.share + row
    valid = (row < cut.share) & (index < own)
    return np.where(valid, index, 0).reshape(live, -1), valid.reshape(live, -1)


def _lone(node: Any, own: int, rows: int) -> Any:
    """One batch's arrays as a window's."""
    if node is None:
        return None
    if type(node) is not np.ndarray:
        return tree.map(lambda leaf: _lone(leaf, own, rows), node)
    if own != rows:
        return _stacked((node,), [_Run(0, 1, own)], 1, rows)
    return _writable(node)[None]


def _writable(leaf: np.ndarray) -> np.ndarray:
    """The array as it is placed: pages of a read-only map are read here, and torch takes no read-only memory."""
    placed = place_dtype(leaf)
    return placed if placed.flags.writeable else placed.copy()


def _stacked(leaves: tuple[np.ndarray, ...], runs: list[_Run], micro_batches: int, rows: int) -> np.ndarray:
    """Each micro-batch's rows, then copies of its batch's first row, so that padding can make no NaN."""
    leaves = tuple(place_dtype(leaf) for leaf in leaves)
    like = leaves[0]
    if any(leaf.shape[1:] != like.shape[1:] or leaf.dtype != like.dtype for leaf in leaves):
        raise ShapeError(
            f"The batches of one accumulation window have rows of shapes {[leaf.shape[1:] for leaf in leaves]} and "
            f"dtypes {sorted({str(leaf.dtype) for leaf in leaves})}; they need one of each. Sequences of several "
            "lengths: uf.data.LengthBuckets(data, boundaries) pads them; or pad them to one length, and mask the "
            "padding (sample_weight of dtype bool, mask_zero, or ignore_class)."
        )
    window = np.empty((micro_batches, rows, *like.shape[1:]), like.dtype)
    for leaf, run in zip(leaves, runs, strict=True):
        if run.rows is None:
            window[run.start, : run.own] = leaf[: run.own]
            window[run.start, run.own :] = leaf[0]
        else:
            np.take(leaf, run.rows, axis=0, out=window[run.start : run.start + run.live], mode="clip")
    window[runs[-1].start + runs[-1].live :] = window[0]
    return window


def _validity(runs: list[_Run], micro_batches: int, rows: int) -> np.ndarray:
    """Validity of a window's rows: bool, shape (micro_batches, rows)."""
    valid = np.zeros((micro_batches, rows), np.bool_)
    for run in runs:
        if run.valid is None:
            valid[run.start, : run.own] = True
        else:
            valid[run.start : run.start + run.live] = run.valid
    return valid
