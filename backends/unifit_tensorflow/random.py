"""Random streams on TensorFlow: stateless functions, and a Python-side counter folded into the seed for every draw."""

import hashlib
import operator

import tensorflow as tf

# Keeps the seeds of draws apart from those of streams with one more key.
_DRAW = 0x64726177


class Stream:
    """A position in the sequence of seeds that follows from the stream's own."""

    __slots__ = ("_count", "_seed")

    def __init__(self, seed):
        self._seed = tf.random.fold_in(seed, _DRAW)
        self._count = 0

    def next_seed(self):
        """The seed of the next draw."""
        self._count += 1
        return tf.random.fold_in(self._seed, self._count - 1)


def _fold_in(seed, value):
    if tf.is_tensor(value):
        return tf.random.fold_in(seed, tf.cast(value, tf.int32))
    value = operator.index(value)
    if -(2**31) <= value < 2**32:
        return tf.random.fold_in(seed, _as_int32(value))
    digest = hashlib.blake2b(str(value).encode(), digest_size=8).digest()
    for word in (digest[:4], digest[4:]):
        seed = tf.random.fold_in(seed, _as_int32(int.from_bytes(word, "little")))
    return seed


def _as_int32(value):
    return value - 2**32 if value >= 2**31 else value


def stream(*keys):
    seed = tf.zeros(2, tf.int32)
    for value in keys:
        seed = _fold_in(seed, value)
    return Stream(seed)


def _draw_dtype(dtype):
    """float32 where `dtype` is too short for good random numbers."""
    return tf.float32 if tf.as_dtype(dtype).size < 4 else dtype


def uniform(shape, minval, maxval, dtype, stream):
    x = tf.random.stateless_uniform(shape, stream.next_seed(), minval, maxval, _draw_dtype(dtype))
    return tf.cast(x, dtype)


def normal(shape, mean, stddev, dtype, stream):
    return tf.cast(tf.random.stateless_normal(shape, stream.next_seed(), mean, stddev, _draw_dtype(dtype)), dtype)


def truncated_normal(shape, mean, stddev, dtype, stream):
    x = tf.random.stateless_truncated_normal(shape, stream.next_seed(), mean, stddev, _draw_dtype(dtype))
    return tf.cast(x, dtype)


def bernoulli(shape, p, stream):
    return tf.random.stateless_uniform(shape, stream.next_seed()) < p


def randint(shape, minval, maxval, dtype, stream):
    draw_dtype = tf.int64 if dtype in ("int64", "uint32") else tf.int32
    return tf.cast(tf.random.stateless_uniform(shape, stream.next_seed(), minval, maxval, draw_dtype), dtype)


def categorical(logits, num_samples, dtype, stream):
    logits = tf.cast(logits, tf.float32)
    return tf.cast(tf.random.stateless_categorical(logits, num_samples, stream.next_seed(), tf.int32), dtype)


def shuffle(x, axis, stream):
    n = tf.shape(x)[axis]
    return tf.gather(x, tf.random.experimental.stateless_shuffle(tf.range(n), stream.next_seed()), axis=axis)


def dropout(x, rate, noise_shape, stream):
    sizes = tf.shape(x)
    if noise_shape is not None:
        sizes = [sizes[i] if n is None else n for i, n in enumerate(noise_shape)]
    elif x.shape.is_fully_defined():
        sizes = x.shape
    dropped = tf.random.stateless_uniform(sizes, stream.next_seed()) < rate
    kept = tf.cast(tf.cast(x, tf.float32) * (1 / (1 - rate)), x.dtype)  # the factor is not exact in half precision
    return tf.where(dropped, tf.zeros((), x.dtype), kept)
