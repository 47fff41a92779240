"""F scores: the weighted harmonic mean of precision and recall."""

from __future__ import annotations

from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.losses import align
from unifit.losses.shapes import Shape, check_classes
from unifit.metrics.base import Metric, figure, metrics_registry, ratio, refuse_list

AVERAGES = (None, "micro", "macro", "weighted")


@metrics_registry.register("fbeta_score")
class FBetaScore(Metric):
    """(1 + beta^2) * precision * recall / (beta^2 * precision + recall) of one-hot or multi-label predictions.

    Args:
        average: Over classes: "macro" is their mean, "weighted" their mean by number of positive labels, "micro" counts
            all classes together; None gives the list of scores, by hand only.
        beta: Weight of recall, above 0.
        threshold: What is above it is positive. None: the most probable class of each element is.
        name: Key of the metric in logs.
    """

    def __init__(
        self,
        average: str | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str | None = None,
    ):
        super().__init__(name or "fbeta_score")
        if average not in AVERAGES or beta <= 0:
            raise ArgumentError(
                f"{type(self).__name__} got average={average!r}, beta={beta}; it needs one of {AVERAGES} and beta > 0."
            )
        self.average, self.beta, self.threshold = average, beta, threshold

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        if tuple(y_true.shape) != tuple(y_pred.shape):
            self._check_shapes(tuple(y_true.shape), tuple(y_pred.shape))
        positive = ops.cast(self._positive(ops.cast(y_pred, "float32")), "float32")
        labels = ops.cast(y_true, "float32")
        if weight is not None:
            weight = align(weight, labels)
            labels = ops.where(ops.not_equal(weight, 0.0), labels, 0.0)
        axes = tuple(range(len(labels.shape) - 1))
        parts = {"labels": labels, "positives": positive, "true_positives": labels * positive}
        return {key: ops.sum(part if weight is None else part * weight, axis=axes) for key, part in parts.items()}

    def _positive(self, y_pred: Any) -> Any:
        if self.threshold is not None:
            return ops.greater(y_pred, self.threshold)
        best = ops.greater_equal(y_pred, ops.max(y_pred, axis=-1, keepdims=True))
        return ops.logical_and(best, ops.abs(y_pred) > 1e-9)  # a row of zeros decides for nothing

    def compute(self, sums: dict[str, np.ndarray]) -> Any:
        labels = sums["labels"]
        counts = [labels, sums["positives"], sums["true_positives"]]
        if self.average == "micro":
            counts = [np.sum(part) for part in counts]
        # The equation above with precision = hits / positives and recall = hits / labels, free of 0 / 0.
        scores = ratio((1 + self.beta**2) * counts[2], self.beta**2 * counts[0] + counts[1])
        if self.average == "macro":
            scores = np.mean(scores)
        elif self.average == "weighted":
            scores = ratio(np.sum(scores * labels), np.sum(labels))
        return figure(scores)

    def _check_shapes(self, y_true: Shape, y_pred: Shape) -> None:
        check_classes(f"Metric '{self.name}'", y_true, y_pred, other="sparse_categorical_accuracy")

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        if y_pred[-1:] != (1,) or y_true != y_pred:
            self._check_shapes(y_true, y_pred)
        if self.average is None:
            refuse_list(self, "average=None", "average='macro', 'micro' or 'weighted'")


@metrics_registry.register
class F1Score(FBetaScore):
    """2 * precision * recall / (precision + recall). Arguments: see FBetaScore."""

    def __init__(self, average: str | None = None, threshold: float | None = None, name: str | None = None):
        super().__init__(average, 1.0, threshold, name or "f1_score")
