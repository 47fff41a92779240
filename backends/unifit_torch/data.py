"""torch's own sources for any backend: DataLoader, map-style and iterable Dataset; and tensors as host arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from unifit.contract.data import (
    HOST_GENERATORS,
    GlobalGenerator,
    Items,
    OwnRandomness,
    Rows,
    Stream,
    item_seed,
    kept,
    refuse_batch_size,
)
from unifit.errors import ArgumentError

# The CPU's generator alone: torch.manual_seed would reach for accelerators too.
GENERATOR = GlobalGenerator(torch.default_generator.manual_seed, torch.get_rng_state, torch.set_rng_state)
_GENERATORS = (*HOST_GENERATORS, GENERATOR)
_DEFAULT_BATCH_SIZE = 32
_END = object()


def to_numpy(value: Any) -> np.ndarray | None:
    """A tensor on the host; without a copy where it lies there. bfloat16, which NumPy lacks, becomes float32."""
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided:
        raise ArgumentError(f"A tensor of layout {value.layout} cannot be read by rows; call its to_dense().")
    value = value.detach()
    if value.dtype is torch.bfloat16:
        value = value.float()
    return value.cpu().resolve_conj().resolve_neg().numpy()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """A tensor of the array's own memory."""
    return torch.from_numpy(array)


def adapt(data: Any, *, batch_size: int | None, shuffle: bool) -> Stream | Items | Rows | None:
    """A loader for a DataLoader or a Dataset; None for anything else."""
    if isinstance(data, DataLoader):
        refuse_batch_size(batch_size, "a torch DataLoader")
        return _from_loader(data)
    size = _DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    if isinstance(data, IterableDataset):
        return _as_it_is(DataLoader(data, batch_size=size))
    if isinstance(data, Dataset):
        return _rows(data, len(data), size, shuffle)
    return None


def _from_loader(loader: DataLoader) -> Stream | Items | Rows:
    """The loader's data in an order keyed (seed, epoch), where its order is one of torch's own."""
    own_iteration = type(loader).__iter__ is not DataLoader.__iter__
    if own_iteration and _is_torchdata(loader, "StatefulDataLoader"):
        own_iteration = _has_state(loader.dataset)  # without one, reading by number needs none of the loader's either
    if own_iteration or isinstance(loader.dataset, IterableDataset):
        return _as_it_is(loader)
    if loader.batch_sampler is None:
        shuffle, order, count = _order_of(loader.sampler, len(loader.dataset))
        rows = _Reader(loader.dataset, loader)
        return Items(rows.load, count, shuffle, order, read_ahead=loader.num_workers > 0, fresh=True)
    if type(loader.batch_sampler) is not BatchSampler and not _is_torchdata(loader.batch_sampler, "BatchSampler"):
        return _as_it_is(loader)
    shuffle, order, count = _order_of(loader.sampler, len(loader.dataset))
    return _rows(loader.dataset, count, loader.batch_size, shuffle, order, loader)


def _rows(
    dataset: Any, count: int, batch_size: int, shuffle: bool, order: Any = None, loader: DataLoader | None = None
) -> Rows:
    drop_last = loader is not None and loader.drop_last
    plain = loader is None or (loader.collate_fn is default_collate and not loader.num_workers)
    if type(dataset) is TensorDataset and plain:
        # Rows of tensors: one gather a batch in place of a call a row, and nothing random to seed.
        def gathered(epoch: int, seed: int, batches: Iterable[list[int]]) -> Iterator[Any]:
            return (tuple(tensor[rows] for tensor in dataset.tensors) for rows in batches)

        return Rows(gathered, count, batch_size, shuffle, drop_last, order, read_ahead=True, fresh=True)
    reader = _Reader(dataset, loader)
    ahead = loader is not None and loader.num_workers > 0
    even = loader is None or loader.collate_fn is default_collate
    return Rows(reader.load, count, batch_size, shuffle, drop_last, order, read_ahead=ahead, fresh=True, even=even)


def _order_of(sampler: Any, rows: int) -> tuple[bool, Callable[[int, int], Sequence[int]] | None, int]:
    """(whether unifit shuffles, the sampler's own order where it has one, number of rows)."""
    if type(sampler) is SequentialSampler:
        return False, None, rows
    random = type(sampler) is RandomSampler or _is_torchdata(sampler, "RandomSampler")
    if random and not sampler.replacement and sampler.num_samples == rows:
        return True, None, rows
    if getattr(sampler, "num_replicas", 1) > 1:
        raise ArgumentError(
            f"The DataLoader has a {type(sampler).__name__} for {sampler.num_replicas} processes. unifit gives each "
            "process its part of every batch by itself, each row once: pass a DataLoader with shuffle=True and the "
            "global batch_size."
        )

    def order(epoch: int, seed: int) -> Sequence[int]:
        # What a sampler draws from the global generator is keyed too, so that all processes draw the same.
        with OwnRandomness(_GENERATORS, item_seed(seed, epoch, "order")):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            return list(sampler)

    return False, order, len(sampler)


def _as_it_is(loader: DataLoader) -> Stream:
    """A loader whose order is its own; what it draws from the global generators is keyed (seed, epoch)."""
    in_workers = isinstance(loader.dataset, IterableDataset) and loader.num_workers > 0
    try:
        count = len(loader)
    except TypeError:
        count = None
    if in_workers and loader.num_workers > 1:
        count = None  # workers may each leave a short batch: the length is a guess
    told = [part for part in (loader.dataset, loader.batch_sampler, loader.sampler) if hasattr(part, "set_epoch")]
    stateful = _has_state(loader)

    def batches(epoch: int, seed: int, state: Any = None) -> _Running:
        for part in told:
            part.set_epoch(epoch)
        return _Running(loader, OwnRandomness(_GENERATORS, item_seed(seed, epoch, "loader")), state)

    return Stream(
        batches,
        count,
        read_ahead=False,
        fresh=True,
        keyed=bool(told),
        # Which worker's batch comes next follows from when each one ends.
        repeats=not in_workers or _has_state(loader.dataset),
        state=_Running.state if stateful else None,
        reopen=batches if stateful else None,
    )


class _Running:
    """A loader's batches in its own order, with random numbers of their own.

    Args:
        loader: Where they come from.
        own: The random numbers.
        state: An earlier `state()` to go on from.
    """

    def __init__(self, loader: DataLoader, own: OwnRandomness, state: Any = None):
        self.loader, self.own = loader, own
        with own:
            if state is not None:
                loader.load_state_dict(state["loader"])
            self.iterator = iter(loader)
        if state is not None:
            own.resume(state["random"])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self.own:
            return next(self.iterator)

    def state(self) -> Any:
        """Where it goes on; None where the loader knows a number of batches alone, and would read them again itself."""
        state = self.loader.state_dict()
        known = any(_entries(state, name) for name in ("dataset_state", "dataset_iter_state"))
        return {"loader": state, "random": self.own.state()} if known else None


def _has_state(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def _is_torchdata(value: Any, name: str) -> bool:
    kind = type(value)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == "torchdata"


def _entries(state: Any, name: str) -> bool:
    """Whether a dict in a loader's state has something under `name`: torchdata nests them by worker."""
    if not isinstance(state, dict):
        return False
    return state.get(name) is not None or any(_entries(value, name) for value in state.values())


class _Reader:
    """Loads rows of a map-style dataset with a DataLoader's settings (None: torch's defaults).

    One DataLoader serves all epochs, so that persistent workers persist.
    """

    def __init__(self, dataset: Any, loader: DataLoader | None):
        self.wanted = _Wanted()
        self.workers = 0 if loader is None else loader.num_workers
        settings: dict[str, Any] = {}
        if loader is not None:
            names = ("collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
            settings = {name: getattr(loader, name) for name in names}
            if self.workers:
                settings |= {name: getattr(loader, name) for name in ("prefetch_factor", "persistent_workers")}
        single = loader is not None and loader.batch_sampler is None
        sampler = {"batch_size": None, "sampler": self.wanted} if single else {"batch_sampler": self.wanted}
        # Its own generator: a DataLoader without one reads the global one at every start.
        self.loader = DataLoader(
            _Seeded(dataset), num_workers=self.workers, generator=torch.Generator(), **sampler, **settings
        )

    def load(self, epoch: int, seed: int, order: Iterable[Any]) -> Iterator[Any]:
        self.wanted.keys = (_keyed(seed, epoch, entry) for entry in order)
        self.loader.generator.manual_seed(item_seed(seed, epoch, "workers"))
        iterator = iter(self.loader)
        while True:
            if self.workers:
                raw = next(iterator, _END)
            else:
                with kept(_GENERATORS):
                    raw = next(iterator, _END)
            if raw is _END:
                return
            yield raw


def _keyed(seed: int, epoch: int, entry: Any) -> Any:
    return [(seed, epoch, row) for row in entry] if isinstance(entry, list) else (seed, epoch, entry)


class _Wanted:
    """The sampler of a _Reader: what the current epoch asks for."""

    keys: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.keys


class _Seeded(Dataset):
    """A dataset whose rows are read by (seed, epoch, row): the global generators are seeded with them before each."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __getitem__(self, key: tuple[int, int, Any]) -> Any:
        seed, epoch, row = key
        number = item_seed(seed, epoch, row)
        for generator in _GENERATORS:
            generator.seed(number)
        return self.dataset[row]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # A worker_init_fn finds the dataset's attributes here, but no __getitems__: rows are seeded one by one.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)
