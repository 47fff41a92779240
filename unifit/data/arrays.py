"""Arrays, memmaps and trees of them as a source: rows in an order keyed (seed, epoch); nothing is copied whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.data import Batch, Slice
from unifit.data.class_weights import ClassWeights
from unifit.data.fingerprint import array_facts
from unifit.data.host import check_int32, host_tree, placed_dtype, row_count
from unifit.data.order import permutation
from unifit.errors import ArgumentError

__all__ = ["ArraySource", "permutation"]

READ_AHEAD_BYTES = 2**20
"""Batches of arrays in memory from this size on are made in a thread: gathering them (about 100 us a MiB and more) then
outweighs the hand-over between threads (some 10 us with a busy interpreter). Smaller ones are made in the loop."""


class ArraySource:
    """unifit.contract.data.Source over arrays of equal length.

    Args:
        x, y, sample_weight: Whatever `host_tree` takes, with rows on axis 0; y and sample_weight may be None.
        batch_size: Rows per batch over all devices.
        shuffle: Whether each epoch has an order of its own.
        class_weights: What multiplies the sample weights, by label.

    Raises:
        ArgumentError: When there are no rows, batch_size is below 1, or values cannot be placed on a device.
        ShapeError: When lengths differ.
    """

    restartable = True

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int = 32,
        shuffle: bool = False,
        class_weights: ClassWeights | None = None,
    ):
        check_batch_size(batch_size)
        names = ("x", "y", "sample_weight")
        given = [host_tree(value, name) for value, name in zip((x, y, sample_weight), names, strict=True)]
        leaves = tree.leaves(given)
        self.rows = row_count(leaves, "x, y and sample_weight") if tree.leaves(given[0]) else 0
        if not self.rows:
            raise ArgumentError("The data has no rows (x is empty): there is nothing to train or evaluate on.")
        self.shuffle = shuffle
        size = min(int(batch_size), self.rows)
        self.batch_size: int | None = size
        self.num_batches: int | float | None = -(-self.rows // size)
        self._size = size
        self._columns = [tree.map(Column, node) for node in given]
        self._class_weights = class_weights
        row_bytes = sum(leaf.nbytes for leaf in leaves) // self.rows
        on_disk = any(_on_disk(leaf) for leaf in leaves)
        self.read_ahead = size < self.rows and (on_disk or row_bytes * size >= READ_AHEAD_BYTES)

    def epoch(self, number: int, seed: int, own: Slice, first: int = 0) -> Iterator[Batch]:
        order = permutation(self.rows, seed, number) if self.shuffle else None
        x_columns, y_columns, weight_columns = self._columns
        for start in range(first * self._size, self.rows, self._size):
            rows = min(self._size, self.rows - start)
            part = own(rows)
            count = part.stop - part.start
            mine = slice(start + part.start, start + part.stop) if count else slice(start, start + 1)
            index = mine if order is None else order[mine]
            x, y, weight = _pick(x_columns, index), _pick(y_columns, index), _pick(weight_columns, index)
            if self._class_weights is not None:
                weight = self._class_weights.times(y, weight)
            yield Batch(x, y, weight, rows, count)

    def facts(self) -> dict[str, Any]:
        """What is equal in all processes that read the same arrays; see `fingerprint`."""
        columns = tree.leaves(self._columns)
        return {
            "rows": self.rows,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "arrays": [array_facts(column.array) for column in columns],
        }


class Column:
    """One array, read by rows in the dtype that devices take.

    Integers in memory are checked here, once; those on disk as they are read.
    """

    def __init__(self, array: np.ndarray):
        self.array = array
        self.cast = placed_dtype(array.dtype) if placed_dtype(array.dtype) != array.dtype else None
        self.check = self.cast == np.int32
        if self.check and not _on_disk(array):
            check_int32(array)
            self.check = False

    def rows(self, index: Any) -> np.ndarray:
        """The rows of a slice, as a view where that can be, or of an array of numbers."""
        part = self.array[index] if type(index) is slice else self.array.take(index, axis=0)
        if self.check:
            check_int32(part)
        return part if self.cast is None else part.astype(self.cast)


def _pick(node: Any, index: Any) -> Any:
    if type(node) is Column:
        return node.rows(index)
    return None if node is None else tree.map(lambda column: column.rows(index), node)


def _on_disk(array: Any) -> bool:
    """Whether an array is a view into a memory map."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def check_batch_size(batch_size: Any) -> None:
    """Refuses what is no number of rows.

    Raises:
        ArgumentError: When it is no whole number of at least 1.
    """
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
        raise ArgumentError(f"batch_size is {batch_size!r}; it needs a whole number of at least 1.")
