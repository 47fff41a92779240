"""Data at the border: batches, sources, kinds of loaders, and what a backend's `data.py` gives for its framework.

`unifit_<framework>/data.py` imports its framework, NumPy, this contract and the errors, and nothing else: it works
whichever backend is active. It is found by the root module of an object's classes and has the functions of
`DataModule`; where the framework has a global random generator, a `GENERATOR` too.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from unifit.contract.tree import Tree
from unifit.errors import ArgumentError

Slice = Callable[[int], slice]
"""From the number of rows of a global batch to the rows that this process loads of it."""

ENDLESS = math.inf
"""`num_batches` of data that never ends."""


class Padding(Protocol):
    """How arrays of a batch become longer on the axis of a sequence's positions."""

    def padded(self, batch: Batch, length: int) -> Batch:
        """The batch with `length` positions."""
        ...

    def shape_of(self, leaf: np.ndarray, batch: Batch) -> tuple[Any, ...]:
        """The shape of one of the batch's arrays without its rows, and with "*" for its positions."""
        ...


class Mark(NamedTuple):
    """A loader's own state after `batch` batches of the source's epoch, as bytes."""

    epoch: int
    batch: int
    state: bytes


class Batch(NamedTuple):
    """This process' rows of one global batch: host arrays with rows on axis 0.

    Attributes:
        x, y, sample_weight: Trees of NumPy arrays (y and sample_weight may be None).
        rows: Rows of the global batch.
        own: Rows of this process among them; the leaves hold one row more, to pad with, when it is 0.
        owns: The same of every process, where only an exchange could tell; else None.
        length: Positions that its sequences are to be padded to; 0 where it stays as it is.
        padding: How that is done; None with length 0.
        checksum: Of the global batch's arrays, where this process has read more than its own rows and may be asked
            whether the others have read the same; else None.
        mark: The loader's state after this batch, where it was asked to keep some and this is one of them; else None.
    """

    x: Tree
    y: Tree
    sample_weight: Tree
    rows: int
    own: int
    owns: tuple[int, ...] | None = None
    length: int = 0
    padding: Padding | None = None
    checksum: int | None = None
    mark: Mark | None = None


class Source(Protocol):
    """Batches in a fixed order for each (seed, epoch).

    Attributes:
        num_batches: Batches in an epoch; ENDLESS, or None when only reading can tell.
        batch_size: Rows of the largest batch; None when only reading can tell.
        restartable: Whether `epoch` can be called again.
        read_ahead: Whether a thread that makes batches ahead of the loop pays, and is safe.
    """

    num_batches: int | float | None
    batch_size: int | None
    restartable: bool
    read_ahead: bool

    def epoch(self, number: int, seed: int, own: Slice, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number`, from batch `first` on."""
        ...


# What adapters make of a framework's source. The front end adds order, slices, class weights and checks. `load` and
# `open` give raw batches: x, (x, y) or (x, y, sample_weight), as tuples or lists, nested, of arrays or tensors.


@dataclass(frozen=True)
class Stream:
    """Global batches one after another, in an order of their own.

    Attributes:
        open: From (epoch, seed) to the raw batches.
        num_batches, restartable, read_ahead: As in Source.
        fresh: Whether each batch has memory of its own; else the rows are copied as they are drawn.
        keyed: Whether an epoch follows from its (epoch, seed). Else it may follow from what was read before too: a run
            that goes on reads the earlier epochs again.
        repeats: Whether reading again gives the same batches in the same order.
        state: From an iterator that `open` or `reopen` gave to the state that it has reached, of plain values, bytes,
            arrays and tensors; None where it cannot tell. None in place of the function: it never can.
        reopen: From (epoch, seed, state) to the raw batches that come after the state.
    """

    open: Callable[[int, int], Iterator[Any]]
    num_batches: int | float | None = None
    restartable: bool = True
    read_ahead: bool = True
    fresh: bool = False
    keyed: bool = False
    repeats: bool = True
    state: Callable[[Any], Any] | None = None
    reopen: Callable[[int, int, Any], Iterator[Any]] | None = None


@dataclass(frozen=True)
class Items:
    """Global batches by number.

    Attributes:
        load: From (epoch, seed, numbers in order) to the raw batches.
        num_items: How many there are; ENDLESS where each number has one.
        shuffle: Whether each epoch takes them in an order of its own. Not where they are ENDLESS.
        order: From (epoch, seed) to the numbers, where the source has an order of its own; else None.
        read_ahead, fresh: As in Stream.
        pass_over: What an epoch does to the source besides its reading; called for those that a run that goes on has
            behind it.
    """

    load: Callable[[int, int, Iterable[int]], Iterator[Any]]
    num_items: int | float
    shuffle: bool
    order: Callable[[int, int], Sequence[int]] | None = None
    read_ahead: bool = False
    fresh: bool = False
    pass_over: Callable[[], None] | None = None


@dataclass(frozen=True)
class Rows:
    """Rows by number.

    Attributes:
        load: From (epoch, seed, lists of row numbers) to one raw batch a list, holding those rows.
        num_rows: Rows in an epoch.
        batch_size: Rows of a global batch.
        drop_last: Whether a short last batch is left out.
        shuffle, order, read_ahead, fresh: As in Items.
        even: Whether all rows have one shape. Where a `collate_fn` decides, processes agree on the shapes of a batch.
    """

    load: Callable[[int, int, Iterable[list[int]]], Iterator[Any]]
    num_rows: int
    batch_size: int
    shuffle: bool
    drop_last: bool = False
    order: Callable[[int, int], Sequence[int]] | None = None
    read_ahead: bool = False
    fresh: bool = False
    even: bool = True


class GlobalGenerator(NamedTuple):
    """A random generator that user code shares without naming it."""

    seed: Callable[[int], Any]
    state: Callable[[], Any]
    restore: Callable[[Any], Any]


class DataModule(Protocol):
    """`unifit_<framework>/data.py`."""

    def adapt(self, data: Any, *, batch_size: int | None, shuffle: bool) -> Stream | Items | Rows | None:
        """A loader for a source of this framework; None when `data` is none.

        Raises:
            ArgumentError: When the source cannot be used as it is, or `batch_size` is given and the data has batches
                already.
        """
        ...

    def to_numpy(self, value: Any) -> np.ndarray | None:
        """A tensor of this framework as a host array, without a copy where that can be; None when `value` is none."""
        ...

    def from_numpy(self, array: np.ndarray) -> Any:
        """A tensor of this framework with the array's dtype and values: states of loaders hold such."""
        ...


HOST_GENERATORS = (
    GlobalGenerator(random.seed, random.getstate, random.setstate),
    GlobalGenerator(np.random.seed, np.random.get_state, np.random.set_state),
)
"""Those of the standard library and of NumPy."""


def item_seed(seed: int, epoch: int, item: int | str) -> int:
    """The seed, 32 bits, for reading one row or item: independent of workers, processes and what was read before."""
    digest = hashlib.blake2b(f"{seed}\0item\0{epoch}\0{item}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


@contextlib.contextmanager
def kept(generators: Sequence[GlobalGenerator]) -> Iterator[None]:
    """Gives the global generators their states back at the end."""
    states = [generator.state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.restore(state)


class OwnRandomness:
    """Lends the global generators to one reader: inside `with`, they go on where this reader left them.

    Args:
        generators: The generators that are lent.
        seed: Where this reader's numbers start.
    """

    def __init__(self, generators: Sequence[GlobalGenerator], seed: int):
        self.generators, self.seed = generators, seed
        self._inner: list[Any] | None = None
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        self._outer = [generator.state() for generator in self.generators]
        for number, generator in enumerate(self.generators):
            if self._inner is None:
                generator.seed(self.seed)
            else:
                generator.restore(self._inner[number])

    def state(self) -> list[Any] | None:
        """Where this reader's numbers go on, one state a generator; None at their start."""
        return self._inner

    def resume(self, state: list[Any] | None) -> None:
        """Goes on at an earlier `state()`."""
        self._inner = state

    def __exit__(self, *exception: Any) -> None:
        self._inner = [generator.state() for generator in self.generators]
        for generator, state in zip(self.generators, self._outer, strict=True):
            generator.restore(state)


class OwnBatchesError(ArgumentError):
    """A batch size was given for data that comes in batches."""


def refuse_batch_size(batch_size: int | None, kind: str) -> None:
    """Keras' rule for data that comes in batches.

    Raises:
        OwnBatchesError: When a batch size is given.
    """
    if batch_size is not None:
        raise OwnBatchesError(
            f"batch_size={batch_size!r} was given with {kind}, which makes its own batches. Leave batch_size out, and "
            "set it there."
        )
