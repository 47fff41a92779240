"""Which source fits what the user passed, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from unifit.contract.data import Source
from unifit.data.arrays import ArraySource
from unifit.data.class_weights import ClassWeights
from unifit.data.frameworks import data_module
from unifit.data.loaded import LoadedSource
from unifit.data.objects import adapt_object
from unifit.errors import ArgumentError

DEFAULT_BATCH_SIZE = 32


def make_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    class_weight: dict[int, float] | None = None,
    sparse_labels: bool | None = None,
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

    Raises:
        ArgumentError, ShapeError: For data that cannot be trained on, and for arguments that contradict each other.
    """
    if x is None:
        raise ArgumentError(
            "x is None: pass arrays, or something that yields batches (a dataset, a loader, a generator)."
        )
    weights = None if class_weight is None else ClassWeights(class_weight, sparse_labels)
    if is_arrays(x):
        size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        return ArraySource(x, y, sample_weight, batch_size=size, shuffle=shuffle, class_weights=weights)
    kind = f"a {type(x).__name__}"
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ArgumentError(f"{name} was given with x, {kind}: its batches hold {name} already. Leave {name} out.")
    if _is_source(x):
        if weights is not None:
            raise ArgumentError(f"class_weight was given with x, {kind}: its batches are ready. Weigh them there.")
        return x
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
    return LoadedSource(loader, weights)


def is_arrays(x: Any) -> bool:
    """Whether x is an array, a tensor, a table, or a tuple, list or dict: data without batches of its own."""
    return (
        isinstance(x, (np.ndarray, tuple, list, dict, int, float, str, bytes, np.generic))
        or hasattr(x, "__array__")
        or callable(getattr(x, "to_numpy", None))
    )


def _is_source(x: Any) -> bool:
    return callable(getattr(x, "epoch", None)) and hasattr(x, "restartable") and hasattr(x, "num_batches")
