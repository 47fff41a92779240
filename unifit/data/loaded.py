"""Raw batches of a loader as a source: order and slices before, host arrays, class weights and checks after."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as counted
from itertools import islice
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.data import ENDLESS, Batch, Items, Mark, Rows, Slice, Stream
from unifit.data.arrays import check_batch_size
from unifit.data.class_weights import ClassWeights
from unifit.data.fingerprint import checksum
from unifit.data.host import host_tree, place_dtype, row_count, rows_of
from unifit.data.loader_state import decode, encode
from unifit.data.order import permutation
from unifit.data.position import Position
from unifit.data.resuming import POSITION, REPLAY, STATE, UNSAFE, Resumed, by_number, warn_of_replay
from unifit.errors import ArgumentError, ShapeError
from unifit.processes import warn

MANY_SHAPES = 4
"""So many shapes of rows in one source bring a warning: compiled backends compile each."""

MARK_EVERY = 32
"""Batches between two of a loader's states that are kept. Taking one may cost some milliseconds (a tf.data iterator's)
and more with large buffers; a run that goes on reads and drops fewer than so many batches."""


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
        self._marking = False

    @property
    def resumes(self) -> str:
        """See unifit.data.resuming.resumes."""
        if not isinstance(self.loader, Stream):
            return POSITION
        if not self.loader.repeats:
            return UNSAFE
        return REPLAY if self.loader.state is None else STATE

    def keep_marks(self) -> None:
        """Has every MARK_EVERYth batch of an epoch, and the first that is read of it, carry the loader's state."""
        self._marking = isinstance(self.loader, Stream) and self.loader.state is not None

    def resume(self, position: Position, seed: int, own: Slice) -> Resumed:
        """See unifit.data.resuming.resume."""
        if isinstance(self.loader, Stream):
            return self._streamed_on(self.loader, position, seed, own)
        for number in range(position.begun, position.epoch):  # what a whole run would have done to the source
            if self.loader.order is not None:
                self.loader.order(number, seed)
            if isinstance(self.loader, Items) and self.loader.pass_over is not None:
                self.loader.pass_over()
        return by_number(self, position, seed, own)

    def epoch(self, number: int, seed: int, own: Slice, first: int = 0) -> Iterator[Batch]:
        loader = self.loader
        if isinstance(loader, Rows):
            yield from self._by_rows(loader, number, seed, own, first)
            return
        if isinstance(loader, Stream):
            raws = loader.open(number, seed)
            for _ in islice(raws, first):
                pass
            yield from self._by_batches(raws, number, own, first)
        elif loader.num_items == ENDLESS:
            yield from self._by_batches(loader.load(number, seed, counted(first)), number, own, first)
        else:
            order = _listed(_order(loader, int(loader.num_items), number, seed)[first:])
            yield from self._by_batches(loader.load(number, seed, order), number, own, first)

    def facts(self) -> dict[str, Any]:
        """What is equal in all processes that read the same data; see `fingerprint`."""
        loader = self.loader
        facts: dict[str, Any] = {"loader": type(loader).__name__}
        if isinstance(loader, Stream):
            known = loader.num_batches
            facts["num_batches"] = known if known is None or isinstance(known, int) else "endless"
        elif isinstance(loader, Items):
            facts |= {"items": "endless" if loader.num_items == ENDLESS else loader.num_items}
            facts |= {"shuffle": loader.shuffle}
        else:
            facts |= {"rows": loader.num_rows, "batch_size": loader.batch_size}
            facts |= {"shuffle": loader.shuffle, "drop_last": loader.drop_last}
        return facts

    def _by_batches(self, raws: Iterator[Any], number: int, own: Slice, first: int) -> Iterator[Batch]:
        """Reads batches, of which this process keeps its rows; `first` is the number of the first one."""
        for index, raw in enumerate(raws, first):
            batch, leaves = self._own_part(raw, index, own)
            if index == first and batch.own < batch.rows:
                batch = batch._replace(checksum=checksum(leaves))
            if self._marking and (index == first or index % MARK_EVERY == 0):
                batch = batch._replace(mark=self._mark(raws, number, index + 1))
            yield batch

    def _own_part(self, raw: Any, index: int, own: Slice) -> tuple[Batch, list[np.ndarray]]:
        """This process' rows of a raw batch, and the arrays of all of them."""
        x, y, weight = split(raw)
        leaves = tree.leaves((x, y, weight))
        rows = row_count(leaves, f"The arrays of batch {index}")
        if not rows:
            raise ArgumentError(f"Batch {index} of the data has no rows; leave it out.")
        part = own(rows)
        count = part.stop - part.start
        return self._batch(x, y, weight, part if count else slice(0, 1), rows, count), leaves

    def _mark(self, raws: Iterator[Any], epoch: int, batch: int) -> Mark | None:
        """The loader's state after `batch` batches; None, now and later on, where it has none that can be written."""
        assert isinstance(self.loader, Stream) and self.loader.state is not None
        try:
            state = self.loader.state(raws)
            if state is not None:
                # Each process has a state of its own, and says itself where it was taken.
                return Mark(epoch, batch, encode({"epoch": epoch, "batch": batch, "state": state}))
        except Exception as error:
            warn(
                f"The data's state cannot be kept in checkpoints ({type(error).__name__}: {error}): a run that goes on "
                "will read again, and drop, what was read before.",
                stacklevel=2,
            )
        self._marking = False
        return None

    def _streamed_on(self, loader: Stream, position: Position, seed: int, own: Slice) -> Resumed:
        """A stream at a position: by its loader's state, or by reading again. Nothing is exchanged with others."""
        number, done, raws, refused = position.begun, 0, None, ""
        if position.mark is not None and loader.reopen is not None:
            marked = decode(position.mark.state)
            try:
                raws = iter(loader.reopen(marked["epoch"], seed, marked["state"]))
                number, done = marked["epoch"], marked["batch"]
            except Exception as error:
                refused = f"The data does not take its state from the checkpoint ({type(error).__name__}: {error}). "
        if raws is None:
            if loader.keyed:
                number = position.epoch
            warn_of_replay(position, number, not loader.repeats, refused)
            raws = loader.open(number, seed)
        while number < position.epoch:
            for _ in raws:
                pass
            number, done = number + 1, 0
            raws = loader.open(number, seed)
        passed = None
        for passed in islice(raws, position.batch - done):  # noqa: B007
            done += 1
        last = None if passed is None else self._own_part(passed, done - 1, own)[0]
        return Resumed(last, self._by_batches(raws, number, own, position.batch), done)

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
