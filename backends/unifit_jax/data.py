"""JAX's arrays as host arrays. JAX has no sources of its own: Grain's are read as plain objects."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from unifit.errors import UnsupportedError


def to_numpy(value: Any) -> np.ndarray | None:
    """An array on the host; without a copy where it lies there."""
    if not isinstance(value, jax.Array):
        return None
    if isinstance(value, jax.core.Tracer):
        raise UnsupportedError("A traced JAX value was given as data: call fit, evaluate and predict outside jax.jit.")
    if not value.is_fully_addressable:
        raise UnsupportedError(
            "An array that spans several processes was given as data; pass each process' full NumPy array, or a "
            "source of batches."
        )
    return np.asarray(value)


def from_numpy(array: np.ndarray) -> jax.Array:
    """An array of JAX'."""
    return jax.numpy.asarray(array)


def adapt(data: Any, *, batch_size: int | None, shuffle: bool) -> None:
    """None: JAX has no data sets."""
    return None
