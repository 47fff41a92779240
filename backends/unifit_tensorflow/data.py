"""TensorFlow's own sources for any backend: tf.data datasets; and tensors as host arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from unifit.contract.data import ENDLESS, Stream, refuse_batch_size
from unifit.errors import ArgumentError, ShapeError


def to_numpy(value: Any) -> np.ndarray | None:
    """An eager tensor or variable on the host."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise ArgumentError(
            f"A {type(value).__name__} has no rows of one shape; convert it with to_tensor() or tf.sparse.to_dense(), "
            "and mask the padding."
        )
    if isinstance(value, (tf.Tensor, tf.Variable)):
        return np.asarray(value.numpy())
    return None


def adapt(data: Any, *, batch_size: int | None, shuffle: bool) -> Stream | None:
    """A loader for a tf.data.Dataset; None for anything else.

    Its order is its own: tf.data shuffles with the seed that its `shuffle` was given, drawn anew in each epoch.
    """
    if isinstance(data, tf.distribute.DistributedDataset):
        raise ArgumentError(
            "x is a DistributedDataset; pass the tf.data.Dataset that it was made of: unifit gives each device its "
            "rows."
        )
    if not isinstance(data, tf.data.Dataset):
        return None
    refuse_batch_size(batch_size, "a tf.data.Dataset")
    if any(getattr(spec, "shape", None) == () for spec in tf.nest.flatten(data.element_spec)):
        raise ShapeError(
            "The tf.data.Dataset yields single rows (its elements hold scalars); call .batch(batch_size) on it."
        )
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return Stream(lambda epoch, seed: _batches(data), ENDLESS, fresh=True)
    known = count != tf.data.UNKNOWN_CARDINALITY
    return Stream(lambda epoch, seed: _batches(data), count if known else None, fresh=True)


def _batches(data: Any) -> Iterator[Any]:
    # The end is asked for, not run into: TensorFlow's error at it, raised in the thread that reads ahead, would break a
    # step that runs on several devices at that moment.
    iterator = iter(data)
    while True:
        batch = iterator.get_next_as_optional()
        if not bool(batch.has_value()):
            return
        yield batch.get_value()
