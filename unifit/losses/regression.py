"""Losses between real numbers."""

from __future__ import annotations

import math
from typing import Any

import unifit.ops as ops
from unifit.losses.base import PairedLoss, losses_registry

EPSILON = 1e-7


@losses_registry.register("mse")
class MeanSquaredError(PairedLoss):
    """Mean over the last axis of (y_true - y_pred)^2."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_pred - y_true), axis=-1)


@losses_registry.register("mae")
class MeanAbsoluteError(PairedLoss):
    """Mean over the last axis of abs(y_true - y_pred)."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.abs(y_pred - y_true), axis=-1)


@losses_registry.register("mape")
class MeanAbsolutePercentageError(PairedLoss):
    """Mean over the last axis of 100 * abs(y_true - y_pred) / max(abs(y_true), 1e-7)."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return 100.0 * ops.mean(ops.abs(y_true - y_pred) / ops.maximum(ops.abs(y_true), EPSILON), axis=-1)


@losses_registry.register("msle")
class MeanSquaredLogarithmicError(PairedLoss):
    """Mean over the last axis of (log(1 + y_true) - log(1 + y_pred))^2; what is below 1e-7 counts as 1e-7."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        logs = [ops.log1p(ops.maximum(y, EPSILON)) for y in (y_true, y_pred)]
        return ops.mean(ops.square(logs[1] - logs[0]), axis=-1)


@losses_registry.register
class Huber(PairedLoss):
    """Mean over the last axis of e^2 / 2 where abs(e) <= delta, else delta * abs(e) - delta^2 / 2; e = y_pred - y_true.

    Args:
        delta: Where the parabola turns into a line.
        reduction, name: See Loss.
    """

    def __init__(self, delta: float = 1.0, reduction: str = "sum_over_batch_size", name: str | None = None):
        super().__init__(reduction, name)
        self.delta = delta

    def values(self, y_true: Any, y_pred: Any) -> Any:
        error = y_pred - y_true
        size = ops.abs(error)
        line = self.delta * size - 0.5 * self.delta**2
        return ops.mean(ops.where(size <= self.delta, 0.5 * ops.square(error), line), axis=-1)


@losses_registry.register
class LogCosh(PairedLoss):
    """Mean over the last axis of log(cosh(y_pred - y_true))."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        error = y_pred - y_true
        return ops.mean(error + ops.softplus(-2.0 * error) - math.log(2.0), axis=-1)


@losses_registry.register
class Poisson(PairedLoss):
    """Mean over the last axis of y_pred - y_true * log(y_pred + 1e-7)."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(y_pred - y_true * ops.log(y_pred + EPSILON), axis=-1)


@losses_registry.register
class CosineSimilarity(PairedLoss):
    """Minus the cosine of the angle between labels and predictions: -1 for the same direction, 1 for opposite ones.

    Args:
        axis: The axis of the vectors' components.
        reduction, name: See Loss.
    """

    def __init__(self, axis: int = -1, reduction: str = "sum_over_batch_size", name: str | None = None):
        super().__init__(reduction, name)
        self.axis = axis

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return -ops.sum(ops.normalize(y_true, axis=self.axis) * ops.normalize(y_pred, axis=self.axis), axis=self.axis)
