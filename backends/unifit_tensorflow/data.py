"""TensorFlow's own sources for any backend: tf.data datasets; and tensors as host arrays."""

from __future__ import annotations

import os
import tempfile
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


def from_numpy(array: np.ndarray) -> Any:
    """A tensor with the array's dtype and values."""
    return tf.constant(array)


def adapt(data: Any, *, batch_size: int | None, shuffle: bool) -> Stream | None:
    """A loader for a tf.data.Dataset; None for anything else.

    Its order is its own: tf.data shuffles with the seed that its `shuffle` was given, drawn anew in each epoch. The
    iterator's state holds what is in its buffers, and where that seed's numbers go on.
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
    number: int | float | None = count
    if count == tf.data.INFINITE_CARDINALITY:
        number = ENDLESS
    elif count == tf.data.UNKNOWN_CARDINALITY:
        number = None
    return Stream(
        lambda epoch, seed: _Batches(data),
        number,
        fresh=True,
        state=_Batches.state,
        reopen=lambda epoch, seed, state: _Batches(data, state),
    )


class _Batches:
    """A dataset's batches.

    Args:
        data: The dataset.
        state: An earlier `state()` to go on from.
    """

    def __init__(self, data: Any, state: dict[str, bytes] | None = None):
        self.iterator = iter(data)
        if state is not None:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in state.items():
                    with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
                        file.write(content)
                restored = tf.train.Checkpoint(iterator=self.iterator).read(os.path.join(folder, "state"))
                restored.assert_consumed().expect_partial()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        # The end is asked for, not run into: TensorFlow's error at it, raised in the thread that reads ahead, would
        # break a step that runs on several devices at that moment.
        batch = self.iterator.get_next_as_optional()
        if not bool(batch.has_value()):
            raise StopIteration
        return batch.get_value()

    def state(self) -> dict[str, bytes] | None:
        """The files of TensorFlow's checkpoint of the iterator; None where it has none (it calls Python, or draws)."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                tf.train.Checkpoint(iterator=self.iterator).write(os.path.join(folder, "state"))
            except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError):
                return None
            files = {}
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), "rb") as file:
                    files[name] = file.read()
            return files
