"""The coefficient of determination."""

from __future__ import annotations

from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.losses import align
from unifit.losses.shapes import Shape, check_pair, match
from unifit.metrics.base import Metric, figure, metrics_registry, ratio, refuse_list

AGGREGATIONS = (None, "uniform_average", "variance_weighted_average")


@metrics_registry.register
class R2Score(Metric):
    """1 - sum((y_true - y_pred)^2) / sum((y_true - mean(y_true))^2) for each output; the mean is over everything seen.

    The spread follows from sums of float32 labels and their squares: where their mean is hundreds of times their spread
    or more, shift the labels. An output whose labels are all equal has score 0.

    Args:
        class_aggregation: "uniform_average" or "variance_weighted_average" of the outputs' scores; None gives their
            list, by hand only.
        num_regressors: Number of inputs for the adjusted score; 0 is the plain one, and so is a number that leaves no
            degree of freedom.
        name: Key of the metric in logs.
    """

    def __init__(
        self, class_aggregation: str | None = "uniform_average", num_regressors: int = 0, name: str | None = None
    ):
        super().__init__(name)
        if class_aggregation not in AGGREGATIONS or num_regressors < 0:
            raise ArgumentError(
                f"R2Score got class_aggregation={class_aggregation!r}, num_regressors={num_regressors}; it needs one "
                f"of {AGGREGATIONS} and at least 0."
            )
        self.class_aggregation, self.num_regressors = class_aggregation, num_regressors

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        check_pair(f"Metric '{self.name}'", tuple(y_true.shape), tuple(y_pred.shape))
        y_true, y_pred = ops.cast(match(y_true, y_pred), "float32"), ops.cast(y_pred, "float32")
        if len(y_pred.shape) == 1:
            y_true, y_pred = ops.expand_dims(y_true, -1), ops.expand_dims(y_pred, -1)
        weight = ops.ones_like(y_true) if weight is None else ops.broadcast_to(align(weight, y_true), y_true.shape)
        counts = ops.not_equal(weight, 0.0)
        y_true, y_pred = ops.where(counts, y_true, 0.0), ops.where(counts, y_pred, 0.0)
        axes = tuple(range(len(y_true.shape) - 1))
        return {
            "labels": ops.sum(weight * y_true, axis=axes),
            "residuals": ops.sum(weight * ops.square(y_true - y_pred), axis=axes),
            "rows": ops.sum(ops.cast(counts, "float32"), axis=axes),
            "squares": ops.sum(weight * ops.square(y_true), axis=axes),
            "weights": ops.sum(weight, axis=axes),
        }

    def compute(self, sums: dict[str, np.ndarray]) -> Any:
        spread = sums["squares"] - sums["labels"] * ratio(sums["labels"], sums["weights"])
        scores: Any = np.where(spread > 0, 1.0 - ratio(sums["residuals"], np.maximum(spread, 0.0)), 0.0)
        if self.class_aggregation == "uniform_average":
            scores = np.mean(scores)
        elif self.class_aggregation == "variance_weighted_average":
            scores = ratio(np.sum(spread * scores), np.sum(spread))
        rows = float(np.max(sums["rows"]))
        freedom = rows - self.num_regressors - 1.0
        if self.num_regressors and freedom > 0:
            scores = 1.0 - (1.0 - scores) * (rows - 1.0) / freedom
        return figure(scores)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_pair(f"Metric '{self.name}'", y_true, y_pred)
        if self.class_aggregation is None:
            refuse_list(self, "class_aggregation=None", "class_aggregation='uniform_average'")
