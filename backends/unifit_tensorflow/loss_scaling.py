"""The loss scale and the skipped updates, as a state machine of variables on the devices."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unifit.contract.engine import ScalingState
from unifit.contract.precision import LossScale

UNSCALED = LossScale(1.0, 1.0, 1.0, None, minimum=1.0, maximum=1.0)
"""For updates that may be skipped without a loss scale: only the counts move."""


class LossScaling:
    """The state of a LossScale (unifit.contract.precision) and which gradients were not finite at the last skip.

    Made in the scope in which the parameters were made. Every device moves its own copy in the same way.
    """

    def __init__(self, constants: LossScale | None, num_parameters: int):
        self.is_scaled = constants is not None
        self.constants = constants or UNSCALED
        self.scale = tf.Variable(self.constants.initial, dtype=tf.float32, trainable=False, name="scale")
        self.good, self.skipped, self.in_a_row = (
            tf.Variable(0, dtype=tf.int64, trainable=False, name=name) for name in ("good", "skipped", "in_a_row")
        )
        self._nonfinite = tf.Variable(tf.zeros(num_parameters, tf.bool), trainable=False, name="nonfinite")

    def named(self) -> list[tuple[str, tf.Variable]]:
        """(canonical name, variable) of all that a checkpoint keeps."""
        fields = [self.scale, self.good, self.skipped, self.in_a_row]
        return [(f"loss_scale.{name}", field) for name, field in zip(ScalingState._fields, fields, strict=True)]

    def read(self) -> tuple[ScalingState, list[bool]]:
        """The state, and for each parameter whether its gradient was not finite in the last skipped update."""
        counts = (int(variable.numpy()) for variable in (self.good, self.skipped, self.in_a_row))
        return ScalingState(float(self.scale.numpy()), *counts), self._nonfinite.numpy().tolist()

    def succeed(self) -> None:
        """After an update whose gradients are finite."""
        scale, good = self.scale.read_value(), self.good + 1
        if self.constants.growth_interval is not None:
            grown = tf.minimum(scale * self.constants.growth_factor, self.constants.maximum)
            is_due = good >= self.constants.growth_interval
            self.scale.assign(tf.where(is_due, grown, scale))
            good = tf.where(is_due, tf.zeros_like(good), good)
        self.good.assign(good)
        self.in_a_row.assign(0)

    def fail(self, finite: Any, counts: Any) -> None:
        """After a skipped update; nothing moves where it does not count, because the window had no valid element.

        `finite` says so of each parameter's gradient.
        """

        def move(variable: tf.Variable, value: Any) -> None:
            variable.assign(tf.where(counts, value, variable))

        move(self.scale, tf.maximum(self.scale * self.constants.backoff_factor, self.constants.minimum))
        move(self.good, tf.zeros((), tf.int64))
        move(self.skipped, self.skipped + 1)
        move(self.in_a_row, self.in_a_row + 1)
        move(self._nonfinite, tf.logical_not(finite))
