"""Metrics that are means of a loss, or follow from such a mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import unifit.losses as losses
import unifit.ops as ops
from unifit.metrics.base import LossMetric, mean_sums, metrics_registry, without_ignored


@metrics_registry.register("mse")
class MeanSquaredError(LossMetric):
    """Mean of (y_true - y_pred)^2."""

    def __init__(self, name: str | None = None):
        super().__init__(losses.MeanSquaredError(), name)


@metrics_registry.register("mae")
class MeanAbsoluteError(LossMetric):
    """Mean of abs(y_true - y_pred)."""

    def __init__(self, name: str | None = None):
        super().__init__(losses.MeanAbsoluteError(), name)


@metrics_registry.register("mape")
class MeanAbsolutePercentageError(LossMetric):
    """Mean of 100 * abs(y_true - y_pred) / max(abs(y_true), 1e-7)."""

    def __init__(self, name: str | None = None):
        super().__init__(losses.MeanAbsolutePercentageError(), name)


@metrics_registry.register("msle")
class MeanSquaredLogarithmicError(LossMetric):
    """Mean of (log(1 + y_true) - log(1 + y_pred))^2."""

    def __init__(self, name: str | None = None):
        super().__init__(losses.MeanSquaredLogarithmicError(), name)


@metrics_registry.register("rmse")
class RootMeanSquaredError(MeanSquaredError):
    """Square root of the mean of (y_true - y_pred)^2 over everything that was seen."""

    def __init__(self, name: str | None = None):
        super().__init__(name or "root_mean_squared_error")

    def compute(self, sums: dict[str, np.ndarray]) -> float:
        return math.sqrt(super().compute(sums))


@metrics_registry.register
class CosineSimilarity(LossMetric):
    """Mean cosine of the angle between labels and predictions: 1 for the same direction, -1 for opposite ones.

    Args:
        name: Key of the metric in logs.
        axis: The axis of the vectors' components.
    """

    def __init__(self, name: str | None = None, axis: int = -1):
        super().__init__(losses.CosineSimilarity(axis=axis), name)

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        if weight is not None:
            y_true = without_ignored(y_true, weight)
        return mean_sums(ops.negative(self.loss.call(y_true, y_pred)), weight)


@metrics_registry.register("bce")
class BinaryCrossentropy(LossMetric):
    """Mean binary cross-entropy.

    Args:
        name: Key of the metric in logs.
        from_logits, label_smoothing: See losses.BinaryCrossentropy.
    """

    def __init__(self, name: str | None = None, from_logits: bool = False, label_smoothing: float = 0.0):
        super().__init__(losses.BinaryCrossentropy(from_logits, label_smoothing), name)


@metrics_registry.register
class CategoricalCrossentropy(LossMetric):
    """Mean cross-entropy with one-hot labels.

    Args:
        name: Key of the metric in logs.
        from_logits, label_smoothing, axis: See losses.CategoricalCrossentropy.
    """

    def __init__(
        self, name: str | None = None, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
    ):
        super().__init__(losses.CategoricalCrossentropy(from_logits, label_smoothing, axis), name)


@metrics_registry.register
class SparseCategoricalCrossentropy(LossMetric):
    """Mean cross-entropy with class indices.

    Args:
        name: Key of the metric in logs.
        from_logits, ignore_class, axis: See losses.SparseCategoricalCrossentropy.
    """

    def __init__(
        self, name: str | None = None, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1
    ):
        super().__init__(losses.SparseCategoricalCrossentropy(from_logits, ignore_class, axis=axis), name)


@metrics_registry.register
class Perplexity(SparseCategoricalCrossentropy):
    """exp(mean cross-entropy over all valid tokens): exact over batches of any size. 0.0 when there was none.

    Args:
        name: Key of the metric in logs.
        from_logits, ignore_class: See losses.SparseCategoricalCrossentropy.
    """

    def __init__(self, name: str | None = None, from_logits: bool = False, ignore_class: int | None = None):
        super().__init__(name or "perplexity", from_logits, ignore_class)

    def compute(self, sums: dict[str, np.ndarray]) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(super().compute(sums))) if sums["count"] else 0.0
