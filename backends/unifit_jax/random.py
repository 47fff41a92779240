"""Random streams on JAX: a key, and a Python-side counter that is folded into it for every draw."""

import hashlib
import operator

import jax
import jax.numpy as jnp
from jax import random

# Keeps the keys of draws apart from those of streams with one more key.
_DRAW = 0x64726177


class Stream:
    """A position in the sequence of keys that follows from the stream's own."""

    __slots__ = ("_count", "_key")

    def __init__(self, key):
        self._key = random.fold_in(key, _DRAW)
        self._count = 0

    def next_key(self):
        """The key of the next draw."""
        self._count += 1
        return random.fold_in(self._key, self._count - 1)


def _fold_in(key, value):
    if isinstance(value, jax.Array):
        return random.fold_in(key, value)
    value = operator.index(value)
    if -(2**31) <= value < 2**32:
        return random.fold_in(key, value % 2**32)
    digest = hashlib.blake2b(str(value).encode(), digest_size=8).digest()
    for word in (digest[:4], digest[4:]):
        key = random.fold_in(key, int.from_bytes(word, "little"))
    return key


def stream(*keys):
    key = random.key(0)
    for value in keys:
        key = _fold_in(key, value)
    return Stream(key)


def uniform(shape, minval, maxval, dtype, stream):
    return random.uniform(stream.next_key(), shape, dtype, minval, maxval)


def normal(shape, mean, stddev, dtype, stream):
    return random.normal(stream.next_key(), shape, dtype) * stddev + mean


def truncated_normal(shape, mean, stddev, dtype, stream):
    return random.truncated_normal(stream.next_key(), -2, 2, shape, dtype) * stddev + mean


def bernoulli(shape, p, stream):
    return random.bernoulli(stream.next_key(), p, shape)


def randint(shape, minval, maxval, dtype, stream):
    return random.randint(stream.next_key(), shape, minval, maxval, dtype)


def categorical(logits, num_samples, dtype, stream):
    shape = (num_samples, logits.shape[0])
    return random.categorical(stream.next_key(), logits.astype(jnp.float32), shape=shape).T.astype(dtype)


def shuffle(x, axis, stream):
    return random.permutation(stream.next_key(), x, axis)


def dropout(x, rate, noise_shape, stream):
    shape = x.shape if noise_shape is None else [x.shape[i] if n is None else n for i, n in enumerate(noise_shape)]
    dropped = random.bernoulli(stream.next_key(), rate, shape)
    kept = (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)  # the factor is not exact in half precision
    return jnp.where(dropped, 0, kept)
