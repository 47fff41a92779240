"""Arrays, memmaps and trees of them as a source: rows are picked by an order keyed (seed, epoch); nothing is copied whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.data.source import Batch, Slice
from unifit.errors import ArgumentError, ShapeError
from unifit.seed import generator


def permutation(rows: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch's rows: the same on every backend, process and device count. int64, shape (rows,)."""
    return generator(seed, "shuffle", epoch).permutation(rows)


class ArraySource:
    """unifit.data.source.Source over arrays of equal length.

    Args:
        x, y, sample_weight: Trees of arrays with rows on axis 0; y and sample_weight may be None.
        batch_size: Rows per batch over all devices.
        shuffle: Whether each epoch has an order of its own.

    Raises:
        ArgumentError: When there are no rows, or batch_size is below 1.
        ShapeError: When lengths differ.
    """

    restartable = True

    def __init__(
        self, x: Any, y: Any = None, sample_weight: Any = None, *, batch_size: int = 32, shuffle: bool = False
    ):
        if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
            raise ArgumentError(f"batch_size is {batch_size!r}; it needs a whole number of at least 1.")
        lengths = [len(leaf) for leaf in tree.leaves((x, y, sample_weight))]
        if not lengths or not lengths[0]:
            raise ArgumentError("The data has no rows (x is empty): there is nothing to train or evaluate on.")
        if len(set(lengths)) > 1:
            raise ShapeError(
                f"x, y and sample_weight have different numbers of rows: {lengths}; they need to be equal."
            )
        self.rows = lengths[0]
        self.shuffle = shuffle
        self.batch_size = min(int(batch_size), self.rows)
        self.num_batches = -(-self.rows // self.batch_size)
        self._arrays = (x, y, sample_weight)

    def epoch(self, number: int, seed: int, own: Slice) -> Iterator[Batch]:
        order = permutation(self.rows, seed, number) if self.shuffle else None
        for start in range(0, self.rows, self.batch_size):
            rows = min(self.batch_size, self.rows - start)
            part = own(rows)
            count = part.stop - part.start
            mine = slice(start + part.start, start + part.stop) if count else slice(start, start + 1)
            # Fancy indexing copies the batch's rows and nothing else; unshuffled batches are views.
            index = mine if order is None else order[mine]
            x, y, weight = tree.map(lambda leaf: np.asarray(leaf[index]), self._arrays)  # noqa: B023
            yield Batch(x, y, weight, rows, count)
