"""Running averages of the trained weights, on the devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from unifit.contract.precision import EMA


class Averages:
    """float32 averages that start as copies of the parameters; made in the scope in which those were made."""

    def __init__(self, ema: EMA, parameters: list[tf.Variable]):
        self.ema, self.parameters = ema, parameters
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="ema_updates")
        self.values = [
            tf.Variable(np.asarray(parameter.numpy(), np.float32), trainable=False, name="average")
            for parameter in parameters
        ]

    def follow(self) -> None:
        """After an update: average = d * average + (1 - d) * weight."""
        # As a step towards the weight: the two shares add up to exactly 1, however 1 - d is rounded.
        share = tf.constant(1.0 - self.ema.decay, tf.float32)
        if self.ema.warmup:  # 1 - min(d, (1 + n) / (10 + n))
            share = tf.maximum(share, 9.0 / (10.0 + tf.cast(self.updates, tf.float32)))
        for average, parameter in zip(self.values, self.parameters, strict=True):
            average.assign_add((tf.cast(parameter, tf.float32) - average) * share)
        self.updates.assign_add(1)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Inside it the parameters hold their averages."""
        own = [tf.identity(parameter) for parameter in self.parameters]
        try:
            for parameter, average in zip(self.parameters, self.values, strict=True):
                parameter.assign(tf.cast(average, parameter.dtype))
            yield
        finally:
            for parameter, value in zip(self.parameters, own, strict=True):
                parameter.assign(value)
