"""Which source fits what the user passed, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unifit.contract.data import Items, OwnBatchesError, Rows, Source, Stream
from unifit.contract.values import Placement
from unifit.data.arrays import ArraySource, check_batch_size
from unifit.data.class_weights import ClassWeights
from unifit.data.frameworks import data_module
from unifit.data.length_buckets import BucketSource, LengthBuckets
from unifit.data.loaded import LoadedSource
from unifit.data.objects import adapt_object
from unifit.data.per_process import PerProcess, PerProcessSource, is_per_process
from unifit.errors import ArgumentError

DEFAULT_BATCH_SIZE = 32

ALONE = Placement(process=0, processes=1, devices=1)
"""The place of a process that is no job's."""


def make_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    class_weight: dict[int, float] | None = None,
    sparse_labels: bool | None = None,
    placement: Placement = ALONE,
) -> Source:
    """The source for fit's, evaluate's and predict's data arguments.

    Args:
        x: Arrays, tensors, tables, lists of numbers, or tuples, lists and dicts of them; or anything that yields
            batches.
        y, sample_weight: As x, for arrays only.
        batch_size: Rows per batch over all devices, for data that does not come in batches; None for 32.
        shuffle: Whether arrays, and data that is read by number, have an order of their own in each epoch.
        class_weight: From class number to weight.
        sparse_labels: Whether labels are class numbers; None when unknown (see ClassWeights).
        placement: This process' place in its job.

    Raises:
        ArgumentError, ShapeError: For data that cannot be trained on, and for arguments that contradict each other.
    """
    if x is None:
        raise ArgumentError(
            "x is None: pass arrays, or something that yields batches (a dataset, a loader, a generator)."
        )
    weights = None if class_weight is None else ClassWeights(class_weight, sparse_labels)
    return _Maker(batch_size, shuffle, weights, placement).source(x, y, sample_weight)


@dataclass(frozen=True)
class _Maker:
    """What make_source was told beside the data.

    `per_process` says that the data is one process' own; `any_length` that its sequences are padded to few lengths.
    """

    batch_size: int | None
    shuffle: bool
    weights: ClassWeights | None
    placement: Placement
    per_process: bool = False
    any_length: bool = False

    def source(self, x: Any, y: Any, sample_weight: Any) -> Source:
        if is_arrays(x):
            size = DEFAULT_BATCH_SIZE if self.batch_size is None else self.batch_size
            return ArraySource(
                x, y, sample_weight, batch_size=self.own(size), shuffle=self.shuffle, class_weights=self.weights
            )
        kind = f"a {type(x).__name__}"
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                hint = f"Pass PerProcess(x, y, {name}=...)" if isinstance(x, PerProcess) else f"Leave {name} out"
                raise ArgumentError(f"{name} was given with x, {kind}: it holds {name} already. {hint}.")
        if isinstance(x, PerProcess):
            if self.placement.processes == 1:
                return self.source(x.x, x.y, x.sample_weight)
            inner = replace(self, per_process=True).source(x.x, x.y, x.sample_weight)
            return inner if is_per_process(inner) else PerProcessSource(inner, self.placement.process)
        if isinstance(x, LengthBuckets):
            return BucketSource(replace(self, any_length=True).source(x.source, None, None), x.padding)
        if _is_source(x):
            if self.weights is not None:
                raise ArgumentError(f"class_weight was given with x, {kind}: its batches are ready. Weigh them there.")
            return x
        return LoadedSource(self.loader(x), self.weights, self.any_length)

    def own(self, size: int) -> int:
        """Rows that this process brings to a batch of `size` rows, where it brings rows of its own."""
        processes = self.placement.processes
        if not self.per_process:
            return size
        check_batch_size(size)
        if size % processes:
            raise ArgumentError(
                f"batch_size is {size}{' (the default)' if self.batch_size is None else ''} for PerProcess data of "
                f"{processes} processes, each of which brings an equal part; it needs a multiple of {processes}."
            )
        return size // processes

    def loader(self, x: Any) -> Stream | Items | Rows:
        """The loader that knows x."""
        if not self.per_process:
            return _adapted(x, self.batch_size, self.shuffle)
        size = DEFAULT_BATCH_SIZE if self.batch_size is None else self.batch_size
        try:
            _adapted(x, size, self.shuffle)
        except OwnBatchesError:
            return _adapted(x, self.batch_size, self.shuffle)  # refused once more where the user gave a size
        return _adapted(x, self.own(size), self.shuffle)


def _adapted(x: Any, batch_size: int | None, shuffle: bool) -> Stream | Items | Rows:
    module = data_module(x)
    loader = None if module is None else module.adapt(x, batch_size=batch_size, shuffle=shuffle)
    if loader is None:
        loader = adapt_object(x, batch_size=batch_size, shuffle=shuffle)
    if loader is None:
        raise ArgumentError(
            f"x is a {type(x).__module__}.{type(x).__qualname__}, which is no data that unifit knows. It takes arrays, "
            "tensors, tables and dicts, tuples and lists of them; tf.data datasets, torch DataLoaders and Datasets, "
            "objects with __len__ and __getitem__ (whose items are batches), iterables and generators of batches, and "
            "functions that return one."
        )
    return loader


def is_arrays(x: Any) -> bool:
    """Whether x is an array, a tensor, a table, or a tuple, list or dict: data without batches of its own."""
    return (
        isinstance(x, (np.ndarray, tuple, list, dict, int, float, str, bytes, np.generic))
        or hasattr(x, "__array__")
        or callable(getattr(x, "to_numpy", None))
    )


def in_rows(x: Any) -> bool:
    """Whether x is arrays, or arrays of each process' own."""
    return is_arrays(x.x if isinstance(x, PerProcess) else x)


def _is_source(x: Any) -> bool:
    return callable(getattr(x, "epoch", None)) and hasattr(x, "restartable") and hasattr(x, "num_batches")
