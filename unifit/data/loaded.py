"""Raw batches of a loader as a source: order and slices before, host arrays, class weights and checks after."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.data import Batch, Items, Rows, Slice, Stream
from unifit.data.arrays import check_batch_size
from unifit.data.class_weights import ClassWeights
from unifit.data.fingerprint import checksum
from unifit.data.host import host_tree, place_dtype, row_count, rows_of
from unifit.data.order import permutation
from unifit.errors import ArgumentError, ShapeError
from unifit.processes import warn

MANY_SHAPES = 4
"""So many shapes of rows in one source bring a warning: compiled backends compile each."""


class LoadedSource:
    """unifit.contract.data.Source over a loader.

    Args:
        loader: Batches in their own order, batches by number, or rows by number.
        class_weights: What multiplies the sample weights, by label.
        any_length: Whether somebody pads the batches to few shapes; else a warning tells of many.

    Raises:
        ArgumentError: When there is nothing to load.
    """

    def __init__(
        self, loader: Stream | Items | Rows, class_weights: ClassWeights | None = None, any_length: bool = False
    ):
        self.loader = loader
        self.batch_size: int | None = None
        self.restartable = loader.restartable if isinstance(loader, Stream) else True
        self.read_ahead = loader.read_ahead
        self.num_batches = _num_batches(loader)
        if isinstance(loader, Rows):
            check_batch_size(loader.batch_size)
            self.batch_size = min(loader.batch_size, max(loader.num_rows, 1))
        if self.num_batches == 0:
            raise ArgumentError(
                f"The data has no batch: {_why_empty(loader)}. There is nothing to train or evaluate on."
            )
        self.even = loader.even if isinstance(loader, Rows) else True
        self._class_weights = class_weights
        self._any_length = any_length
        self._shapes: set[Any] = set()

    def epoch(self, number: int, seed: int, own: Slice, first: int = 0) -> Iterator[Batch]:
        loader = self.loader
        if isinstance(loader, Rows):
            yield from self._by_rows(loader, number, seed, own, first)
            return
        if isinstance(loader, Stream):
            batches: Iterator[Any] = islice(loader.open(number, seed), first, None)
        else:
            batches = loader.load(number, seed, _listed(_order(loader, loader.num_items, number, seed)[first:]))
        for index, raw in enumerate(batches, first):
            x, y, weight = split(raw)
            leaves = tree.leaves((x, y, weight))
            rows = row_count(leaves, f"The arrays of batch {index}")
            if not rows:
                raise ArgumentError(f"Batch {index} of the data has no rows; leave it out.")
            part = own(rows)
            count = part.stop - part.start
            batch = self._batch(x, y, weight, part if count else slice(0, 1), rows, count)
            if index == first and count < rows:
                batch = batch._replace(checksum=checksum(leaves))
            yield batch

    def facts(self) -> dict[str, Any]:
        """What is equal in all processes that read the same data; see `fingerprint`."""
        loader = self.loader
        facts: dict[str, Any] = {"loader": type(loader).__name__}
        if isinstance(loader, Stream):
            known = loader.num_batches
            facts["num_batches"] = known if known is None or isinstance(known, int) else "endless"
        elif isinstance(loader, Items):
            facts |= {"items": loader.num_items, "shuffle": loader.shuffle}
        else:
            facts |= {"rows": loader.num_rows, "batch_size": loader.batch_size}
            facts |= {"shuffle": loader.shuffle, "drop_last": loader.drop_last}
        return facts

    def _by_rows(self, loader: Rows, number: int, seed: int, own: Slice, first: int) -> Iterator[Batch]:
        """Reads this process' rows alone."""
        order = _order(loader, loader.num_rows, number, seed)
        end_of_last = loader.num_rows - loader.num_rows % loader.batch_size if loader.drop_last else loader.num_rows
        starts = range(first * loader.batch_size, end_of_last, loader.batch_size)
        ends = [min(start + loader.batch_size, loader.num_rows) for start in starts]

        def wanted() -> Iterator[list[int]]:
            for start, end in zip(starts, ends, strict=True):
                part = own(end - start)
                some = part.stop > part.start  # without rows of its own a process reads one, to pad with
                mine = slice(start + part.start, start + part.stop) if some else slice(start, start + 1)
                yield _listed(order[mine])

        for start, end, raw in zip(starts, ends, loader.load(number, seed, wanted()), strict=True):
            x, y, weight = split(raw)
            part = own(end - start)
            count = part.stop - part.start
            loaded = row_count(tree.leaves((x, y, weight)), "The arrays of a batch")
            if loaded != max(count, 1):
                raise ShapeError(f"The data was asked for {max(count, 1)} rows and gave {loaded}.")
            yield self._batch(x, y, weight, slice(0, loaded), end - start, count)

    def _batch(self, x: Any, y: Any, weight: Any, index: slice, rows: int, count: int) -> Batch:
        x, y, weight = (self._taken(node, index) for node in (x, y, weight))
        self._watch_shapes(x)
        if self._class_weights is not None:
            weight = self._class_weights.times(y, weight)
        return Batch(x, y, weight, rows, count)

    def _taken(self, node: Any, index: slice) -> Any:
        """This process' rows in the dtypes that devices take; a copy where the loader may write to its arrays again."""
        part = rows_of(node, index)
        return tree.map(lambda leaf: _owned(leaf, self.loader.fresh), part)

    def _watch_shapes(self, x: Any) -> None:
        if self._any_length or len(self._shapes) >= MANY_SHAPES:
            return
        self._shapes.add(tuple(leaf.shape[1:] for leaf in tree.leaves(x)))
        if len(self._shapes) == MANY_SHAPES:
            warn(
                f"The data's rows come in many shapes, such as {sorted(self._shapes)}: each is compiled for itself. "
                "Pad sequences to a few lengths: uf.data.LengthBuckets(data, boundaries) does; and mask the padding.",
                stacklevel=2,
            )


def split(raw: Any) -> tuple[Any, Any, Any]:
    """A raw batch as trees of host arrays (x, y, sample_weight).

    Raises:
        ArgumentError: When a tuple has more than three parts, or a leaf is no array of numbers.
    """
    if isinstance(raw, (tuple, list)) and not hasattr(raw, "_fields"):
        if not 1 <= len(raw) <= 3:
            raise ArgumentError(
                f"A batch of the data is a {type(raw).__name__} of {len(raw)} parts; it needs to be x, (x, y) or (x, "
                "y, sample_weight). Put several inputs into one tuple: ((x1, x2), y)."
            )
        x, y, weight = (*raw, None, None)[:3]
    else:
        x, y, weight = raw, None, None
    x = host_tree(x, "A batch's x")
    if not tree.leaves(x):
        raise ArgumentError("A batch of the data has no x (None, or an empty structure).")
    return x, host_tree(y, "A batch's y"), host_tree(weight, "A batch's sample_weight")


def _owned(leaf: np.ndarray, fresh: bool) -> np.ndarray:
    placed = place_dtype(leaf)
    return placed if fresh or placed.dtype != leaf.dtype else leaf.copy()


def _order(loader: Items | Rows, count: int, number: int, seed: int) -> Any:
    if loader.order is not None:
        return loader.order(number, seed)
    return permutation(count, seed, number) if loader.shuffle else range(count)


def _listed(numbers: Any) -> list[int]:
    """Row numbers as Python's own: some data sets take no NumPy integers."""
    return numbers.tolist() if isinstance(numbers, np.ndarray) else list(numbers)


def _num_batches(loader: Stream | Items | Rows) -> int | float | None:
    if isinstance(loader, Stream):
        return loader.num_batches
    if isinstance(loader, Items):
        return loader.num_items
    full, rest = divmod(loader.num_rows, max(loader.batch_size, 1))
    return full + (rest > 0 and not loader.drop_last)


def _why_empty(loader: Stream | Items | Rows) -> str:
    if isinstance(loader, Rows) and loader.num_rows:
        return (
            f"it has {loader.num_rows} rows, batch_size is {loader.batch_size}, and drop_last (drop_remainder) leaves "
            "the short batch out; lower batch_size, or keep the last batch"
        )
    if isinstance(loader, Rows):
        return "it has 0 rows"
    return "its length is 0 (is it empty, or does drop_last or drop_remainder leave out the only batch?)"
