"""Random arrays on the active backend, with keras.random's signatures.

`seed` says where the numbers come from:

- None, inside a model's call: the pass' own stream, keyed by the script's seed, the step and the device.
- an int: the numbers depend on it alone; the same int gives the same numbers again.
- a Stream from `stream(*keys)`: the next numbers of that stream.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from unifit.backend import backend
from unifit.context import context
from unifit.contract.ops import Array, Shape
from unifit.contract.random import Stream

__all__ = [
    "bernoulli",
    "categorical",
    "dropout",
    "normal",
    "randint",
    "shuffle",
    "stream",
    "truncated_normal",
    "uniform",
]

Seed = Any
"""None, an int or a Stream."""

stream = backend.random.stream


def _stream(seed: Seed, function: str) -> Stream:
    if seed is None:
        ambient = context()
        if ambient is None:
            raise RuntimeError(
                f"uf.random.{function} got seed=None outside any model's call, where there is no stream to draw from; "
                f"pass seed=<int>, or seed=uf.random.stream(<int>) for numbers that go on from call to call."
            )
        return ambient.stream
    return stream(seed) if isinstance(seed, numbers.Integral) else seed


def uniform(shape: Shape, minval: float = 0.0, maxval: float = 1.0, dtype: str = "float32", seed: Seed = None) -> Array:
    """Evenly distributed floats in [minval, maxval)."""
    return backend.random.uniform(shape, minval, maxval, dtype, _stream(seed, "uniform"))


def normal(shape: Shape, mean: float = 0.0, stddev: float = 1.0, dtype: str = "float32", seed: Seed = None) -> Array:
    """Normally distributed floats."""
    return backend.random.normal(shape, mean, stddev, dtype, _stream(seed, "normal"))


def truncated_normal(
    shape: Shape, mean: float = 0.0, stddev: float = 1.0, dtype: str = "float32", seed: Seed = None
) -> Array:
    """Normally distributed floats no further than two `stddev` from `mean`."""
    return backend.random.truncated_normal(shape, mean, stddev, dtype, _stream(seed, "truncated_normal"))


def bernoulli(shape: Shape, p: float = 0.5, seed: Seed = None) -> Array:
    """Bool array: True with probability `p`."""
    return backend.random.bernoulli(shape, p, _stream(seed, "bernoulli"))


def randint(shape: Shape, minval: int, maxval: int, dtype: str = "int32", seed: Seed = None) -> Array:
    """Evenly distributed integers in [minval, maxval)."""
    return backend.random.randint(shape, minval, maxval, dtype, _stream(seed, "randint"))


def categorical(logits: Array, num_samples: int, dtype: str = "int32", seed: Seed = None) -> Array:
    """Class indices (batch, num_samples) drawn with probabilities softmax(logits), logits (batch, classes)."""
    return backend.random.categorical(logits, num_samples, dtype, _stream(seed, "categorical"))


def shuffle(x: Array, axis: int = 0, seed: Seed = None) -> Array:
    """`x` with its slices along `axis` in a random order."""
    return backend.random.shuffle(x, axis, _stream(seed, "shuffle"))


def dropout(inputs: Array, rate: float, noise_shape: Sequence[int | None] | None = None, seed: Seed = None) -> Array:
    """`inputs` with elements put to zero with probability `rate`, the others divided by `1 - rate`.

    Args:
        inputs: Float array.
        rate: In [0, 1). At 0 the inputs are returned as they are, and nothing is drawn.
        noise_shape: Shape of the mask, broadcast to that of `inputs`; None in it means the size in `inputs`.
        seed: None, an int or a Stream.

    Raises:
        ValueError: When `rate` is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"uf.random.dropout got rate={rate!r}; it needs a number in [0, 1).")
    return inputs if rate == 0 else backend.random.dropout(inputs, rate, noise_shape, _stream(seed, "dropout"))
