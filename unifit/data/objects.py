"""Loaders for plain Python objects: indexed batches (PyDataset), indexed rows (Hugging Face), iterables, generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from unifit.contract.data import ENDLESS, Items, Rows, Stream, item_seed, kept, refuse_batch_size
from unifit.data.frameworks import global_generators
from unifit.errors import ArgumentError

LABEL_COLUMNS = ("labels", "label")

STATES = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
"""Names under which an iterator, or what it iterates over, tells its state and takes it: torch's and Grain's."""

GREATEST_LENGTH = 2**48
"""Data with so many batches never ends: a MapDataset of Grain that is repeated without end has sys.maxsize rows."""


def adapt_object(data: Any, *, batch_size: int | None, shuffle: bool) -> Stream | Items | Rows | None:
    """A loader for an object by what it can do; None when it can do nothing of it."""
    kind = type(data).__name__
    if hasattr(data, "column_names") and callable(getattr(data, "with_format", None)) and hasattr(data, "__len__"):
        return table_rows(data, batch_size, shuffle)
    if isinstance(data, type):
        return None
    if callable(getattr(data, "__getitem__", None)) and (hasattr(data, "__len__") or hasattr(data, "num_batches")):
        refuse_batch_size(batch_size, f"a {kind} (indexed batches)")
        return indexed_batches(data, shuffle)
    if hasattr(data, "__next__"):
        refuse_batch_size(batch_size, f"a {kind}")
        return iterated(data, restartable=False)
    if hasattr(data, "__iter__"):
        refuse_batch_size(batch_size, f"a {kind}")
        return iterated(data)
    if callable(data):
        refuse_batch_size(batch_size, "a function that returns batches")
        return Stream(lambda epoch, seed: _called(data))
    return None


def iterated(data: Any, restartable: bool = True) -> Stream:
    """An iterable of batches in its own order. The epochs of one with `set_epoch` follow from their numbers."""

    def begun(epoch: int) -> Iterator[Any]:
        if told:
            data.set_epoch(epoch)
        return iter(data)

    def reopened(epoch: int, seed: int, state: Any) -> Iterator[Any]:
        if told:
            data.set_epoch(epoch)
        own = _state_names(data)
        if own is not None and not hasattr(data, "__next__"):
            getattr(data, own[1])(state)
            return iter(data)
        iterator = iter(data)
        names = _state_names(iterator)
        if names is None:
            raise ArgumentError(f"A {type(iterator).__name__} takes no state.")
        getattr(iterator, names[1])(state)
        return iterator

    def state(iterator: Any) -> Any:
        for holder in (data, iterator):
            names = _state_names(holder)
            if names is not None:
                return getattr(holder, names[0])()
        return None

    told = restartable and callable(getattr(data, "set_epoch", None))
    return Stream(
        lambda epoch, seed: begun(epoch),
        _length(data) if restartable else None,
        restartable,
        keyed=told or type(data).__module__.partition(".")[0] == "grain",  # whose data sets never change
        state=state,
        reopen=reopened,
    )


def _state_names(value: Any) -> tuple[str, str] | None:
    return next((pair for pair in STATES if all(callable(getattr(value, name, None)) for name in pair)), None)


def indexed_batches(data: Any, shuffle: bool) -> Items:
    """Keras' PyDataset and its like: `data[i]` is batch i. random, NumPy and torch are seeded before each."""
    count = _length(data)
    number = ENDLESS if count is None or count >= GREATEST_LENGTH else count  # a PyDataset without one never ends
    return Items(
        lambda epoch, seed, order: _load(data, epoch, seed, order),
        number,
        shuffle and number != ENDLESS,
        pass_over=lambda: _pass_over(data),
    )


def _pass_over(data: Any) -> None:
    _notify(data, "on_epoch_begin")
    _notify(data, "on_epoch_end")


def _load(data: Any, epoch: int, seed: int, order: Iterable[int]) -> Iterator[Any]:
    generators = global_generators()
    _notify(data, "on_epoch_begin")
    for number in order:
        with kept(generators):
            for generator in generators:
                generator.seed(item_seed(seed, epoch, number))
            raw = data[number]
        yield raw
    _notify(data, "on_epoch_end")


def table_rows(data: Any, batch_size: int | None, shuffle: bool) -> Rows:
    """A Hugging Face dataset: rows are dicts of columns. The column `labels` or `label` is y, the others are x."""
    columns = list(data.column_names)
    label = next((name for name in LABEL_COLUMNS if name in columns), None)
    if label is not None and len(columns) == 1:
        raise ArgumentError(f"The dataset has no column but {label!r}: there is no input to train on.")
    numpy_rows = data if getattr(data, "format", {}).get("type") else data.with_format("numpy")

    def load(epoch: int, seed: int, batches: Iterable[list[int]]) -> Iterator[Any]:
        generators = global_generators()
        for rows in batches:
            with kept(generators):
                # One access for the whole batch: a random transform is keyed by the batch's first row.
                for generator in generators:
                    generator.seed(item_seed(seed, epoch, rows[0]))
                columns = dict(numpy_rows[rows])
            y = None if label is None else columns.pop(label)
            yield columns, y

    return Rows(load, len(data), 32 if batch_size is None else batch_size, shuffle)


def _called(data: Any) -> Iterator[Any]:
    made = data()
    if not hasattr(made, "__iter__"):
        raise ArgumentError(
            f"The function given as data returned a {type(made).__name__}; it needs to return an iterator of batches."
        )
    return iter(made)


def _length(data: Any) -> int | None:
    """`len`, PyDataset's `num_batches`, or None."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        count = getattr(data, "num_batches", None)
        return count if isinstance(count, int) else None


def _notify(data: Any, event: str) -> None:
    handler = getattr(data, event, None)
    if callable(handler):
        handler()
