"""The area under a curve of decisions over all thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.losses import align
from unifit.losses.shapes import Shape, check_pair, match
from unifit.metrics.base import Metric, metrics_registry, ratio

CURVES = ("ROC", "PR")
METHODS = ("interpolation", "minoring", "majoring")
EPSILON = 1e-7


@metrics_registry.register
class AUC(Metric):
    """Area under the ROC or precision-recall curve of probabilities, from a histogram of them.

    Args:
        num_thresholds: Number of thresholds, evenly spaced over [0, 1], at which the curve is known.
        curve: "ROC" or "PR".
        summation_method: "interpolation" (straight lines for ROC, Davis and Goadrich's curves for PR), "minoring" or
            "majoring" (the lower or upper sum).
        name: Key of the metric in logs.
        thresholds: Thresholds inside (0, 1) of your own, instead of `num_thresholds`.
        from_logits: Whether `y_pred` holds logits rather than probabilities.

    Reference: Davis and Goadrich, The Relationship Between Precision-Recall and ROC Curves, 2006, section 4.
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        thresholds: Sequence[float] | None = None,
        from_logits: bool = False,
    ):
        super().__init__(name)
        if curve not in CURVES or summation_method not in METHODS or num_thresholds < 2:
            raise ArgumentError(
                f"AUC got num_thresholds={num_thresholds}, curve={curve!r}, summation_method={summation_method!r}; it "
                f"needs at least 2, one of {CURVES} and one of {METHODS}."
            )
        self.curve, self.summation_method, self.from_logits = curve, summation_method, from_logits
        self.thresholds = None if thresholds is None else sorted(float(t) for t in thresholds)
        self.num_thresholds = num_thresholds if thresholds is None else len(thresholds) + 2

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        check_pair(f"Metric '{self.name}'", tuple(y_true.shape), tuple(y_pred.shape))
        labels, y_pred = ops.cast(match(y_true, y_pred), "bool"), ops.cast(y_pred, "float32")
        if weight is not None:
            weight = ops.ravel(ops.broadcast_to(align(weight, y_pred), y_pred.shape))
        p = ops.ravel(ops.sigmoid(y_pred) if self.from_logits else y_pred)
        # All labels of 0 and then all of 1, each by the last threshold that the prediction exceeds.
        places = self._place(p) + self.num_thresholds * ops.cast(ops.ravel(labels), "int32")
        weight = ops.ones_like(p) if weight is None else weight
        histogram = ops.segment_sum(weight, places, 2 * self.num_thresholds)
        return {"histogram": ops.reshape(histogram, (2, self.num_thresholds))}

    def _place(self, p: Any) -> Any:
        """int32 in [0, num_thresholds): the last threshold below `p`; 0 where there is none, any for NaN."""
        last = self.num_thresholds - 1
        if self.thresholds is None:
            above = ops.cast(ops.ceil(ops.clip(p, 0.0, 1.0) * float(last)), "int32")
            return ops.clip(above, 1, last) - 1  # a second time, because a NaN passes the first
        thresholds = np.asarray([-EPSILON, *self.thresholds, 1.0 + EPSILON], np.float32)
        above = ops.searchsorted(ops.convert_to_tensor(thresholds), p, side="left")
        return ops.clip(above, 1, last + 1) - 1

    def compute(self, sums: dict[str, np.ndarray]) -> float:
        # Number of decisions above each threshold, by label.
        false_positives, true_positives = np.cumsum(sums["histogram"][:, ::-1], axis=1)[:, ::-1]
        negatives, positives = false_positives[0], true_positives[0]
        if self.curve == "PR" and self.summation_method == "interpolation":
            return interpolated_pr(true_positives, true_positives + false_positives, positives)
        recall = ratio(true_positives, positives)
        if self.curve == "ROC":
            x, y = ratio(false_positives, negatives), recall
        else:
            x, y = recall, ratio(true_positives, true_positives + false_positives)
        left, right = y[:-1], y[1:]
        heights = {
            "interpolation": (left + right) / 2.0,
            "minoring": np.minimum(left, right),
            "majoring": np.maximum(left, right),
        }[self.summation_method]
        return float(np.sum((x[:-1] - x[1:]) * heights))

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_pair(f"Metric '{self.name}'", y_true, y_pred, "It scores one probability for each label.")


def interpolated_pr(true_positives: np.ndarray, decided: np.ndarray, positives: float) -> float:
    """Area under the precision-recall curve when true positives (tp) grow linearly with positive decisions (p).

    On an interval, precision = tp / p and tp = slope * p + intercept, so the integral of precision over tp is
    slope * (dtp + intercept * log(p_left / p_right)).
    """
    dtp = true_positives[:-1] - true_positives[1:]
    dp = decided[:-1] - decided[1:]
    slope = ratio(dtp, np.maximum(dp, 0.0))
    intercept = true_positives[1:] - slope * decided[1:]
    both = (decided[:-1] > 0) & (decided[1:] > 0)
    growth = np.where(both, ratio(decided[:-1], decided[1:]), 1.0)
    growth = np.where(growth > 0, growth, 1.0)
    return float(np.sum(ratio(slope * (dtp + intercept * np.log(growth)), positives)))
