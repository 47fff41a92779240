"""Rounding at random, which keeps small updates of parameters in bfloat16 from being lost."""

from typing import Any

import tensorflow as tf

DROPPED = 16
"""Bits of a float32 that a bfloat16 does not have: the lower half of its pattern."""


def rounded_at_random(value: Any, seed: Any) -> Any:
    """A float32 tensor as bfloat16: one of its two neighbours, each with a probability that makes the mean exact.

    A float32's pattern, read as a number, grows with its size. A random number of as many bits as are dropped carries
    into the rest with just the probability dropped / 2^16. It follows from the seed alone, so all devices round alike.
    """
    noise = tf.random.stateless_uniform(tf.shape(value), seed, 0, 1 << DROPPED, tf.int32)
    bits = tf.bitwise.bitwise_and(tf.bitcast(value, tf.int32) + noise, -(1 << DROPPED))
    # An infinity's or NaN's pattern would turn into another value.
    return tf.cast(tf.where(tf.math.is_finite(value), tf.bitcast(bits, tf.float32), value), tf.bfloat16)
