"""The loader that users of a framework reach for, over the same rows and in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def loader(backend: str, x: np.ndarray, y: np.ndarray, batch_size: int) -> Any:
    """A DataLoader over a map-style dataset on torch, a tf.data pipeline on tensorflow, an iterable on jax."""
    if backend == "torch":
        return torch_loader(x, y, batch_size)
    return tensorflow_loader(x, y, batch_size) if backend == "tensorflow" else Batches(x, y, batch_size)


def torch_loader(x: np.ndarray, y: np.ndarray, batch_size: int, sampler: Any = None) -> Any:
    """A call of Python a row, as where rows are decoded or augmented."""
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, row: int) -> tuple[np.ndarray, Any]:
            return x[row], y[row]

    return DataLoader(Rows(), batch_size=batch_size, shuffle=False, sampler=sampler, num_workers=0)


def tensorflow_loader(x: np.ndarray, y: np.ndarray, batch_size: int) -> Any:
    """Reference: https://www.tensorflow.org/guide/data_performance (prefetching)."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


class Batches:
    """Batches of NumPy arrays, again and again."""

    def __init__(self, x: np.ndarray, y: np.ndarray, batch_size: int):
        self.x, self.y, self.batch_size = x, y, batch_size

    def __len__(self) -> int:
        return len(self.x) // self.batch_size

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self.x), self.batch_size):
            yield self.x[start : start + self.batch_size], self.y[start : start + self.batch_size]
