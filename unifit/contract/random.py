"""What a backend's `random` has to provide: streams of random numbers that depend on their keys and on nothing else.

`stream(*keys)` opens a Stream; every draw takes the Stream as its last argument and advances it, so two draws differ.
The same keys give the same draws on the same backend and kind of device. No global generator is read or changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, Protocol, TypeAlias

from unifit.contract.ops import Array, Shape

Key: TypeAlias = Any
"""A Python int; on jax and tensorflow also a traced int32 scalar (a device's index, a step)."""


class Stream(Protocol):
    """A position in a sequence of random numbers; backends decide what it holds. Never shared between threads."""


def stream(*keys: Key) -> Stream:
    """The stream named by `keys`, in this order. A traced key gives the stream of the int that it holds."""
    ...


def uniform(shape: Shape, minval: float, maxval: float, dtype: str, stream: Stream) -> Array:
    """Evenly distributed floats in [minval, maxval)."""
    ...


def normal(shape: Shape, mean: float, stddev: float, dtype: str, stream: Stream) -> Array:
    """Normally distributed floats."""
    ...


def truncated_normal(shape: Shape, mean: float, stddev: float, dtype: str, stream: Stream) -> Array:
    """Normally distributed floats no further than two `stddev` from `mean` (their own deviation is 0.88 of it)."""
    ...


def bernoulli(shape: Shape, p: float, stream: Stream) -> Array:
    """Bool: True with probability `p`."""
    ...


def randint(shape: Shape, minval: int, maxval: int, dtype: str, stream: Stream) -> Array:
    """Evenly distributed integers in [minval, maxval)."""
    ...


def categorical(logits: Array, num_samples: int, dtype: str, stream: Stream) -> Array:
    """Class indices, shape (batch, num_samples), drawn with probabilities softmax(logits), logits (batch, classes)."""
    ...


def shuffle(x: Array, axis: int, stream: Stream) -> Array:
    """`x` with its slices along `axis` in a random order."""
    ...


def dropout(x: Array, rate: float, noise_shape: Sequence[int | None] | None, stream: Stream) -> Array:
    """`x` with elements put to zero with probability `rate`, the others divided by `1 - rate`.

    Args:
        x: Float array.
        rate: In [0, 1).
        noise_shape: Shape of the mask, broadcast to that of `x`; None in it means the size in `x`.
        stream: Where the mask is drawn from.
    """
    ...


RANDOM: tuple[str, ...] = tuple(
    name for name, value in list(globals().items()) if isinstance(value, FunctionType) and not name.startswith("_")
)
