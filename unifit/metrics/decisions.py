"""Metrics of yes-or-no decisions: counts of true and false positives and negatives, precision, recall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.losses import align
from unifit.losses.shapes import Shape, check_pair, match
from unifit.metrics.base import Metric, figure, metrics_registry, ratio, refuse_list


class DecisionMetric(Metric):
    """Base of metrics of decisions: an element is positive when its prediction lies above a threshold.

    Args:
        thresholds: A number or several; 0.5 (the default) fits probabilities, 0 fits logits. Several give a list of
            figures, by hand only.
    """

    def __init__(self, thresholds: float | Sequence[float] | None = None, name: str | None = None):
        super().__init__(name)
        self.thresholds = thresholds
        self.top_k: int | None = None
        self.class_id: int | None = None

    def decide(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Labels and decisions: bool, one shape. Several thresholds have a last axis of their own."""
        check_pair(f"Metric '{self.name}'", tuple(y_true.shape), tuple(y_pred.shape))
        labels, y_pred = ops.cast(match(y_true, y_pred), "bool"), ops.cast(y_pred, "float32")
        chosen = None
        if self.top_k is not None:
            _, places = ops.top_k(y_pred, self.top_k)
            chosen = ops.any(ops.one_hot(places, y_pred.shape[-1], dtype="bool"), axis=-2)
        if self.class_id is not None:
            labels, y_pred = labels[..., self.class_id], y_pred[..., self.class_id]
            chosen = None if chosen is None else chosen[..., self.class_id]
        thresholds = self._thresholds()
        if len(thresholds) == 1:
            positive = ops.greater(y_pred, thresholds[0])
        else:
            positive = ops.greater(
                ops.expand_dims(y_pred, -1), ops.convert_to_tensor(np.asarray(thresholds, np.float32))
            )
            labels = ops.expand_dims(labels, -1)
            chosen = None if chosen is None else ops.expand_dims(chosen, -1)
        return labels, positive if chosen is None else ops.logical_and(positive, chosen)

    def count(self, decided: Any, weight: Any) -> Any:
        """Weighted number of True, float32; shape (thresholds,) where there are several."""
        axes = tuple(range(len(decided.shape) - (len(self._thresholds()) > 1)))
        if weight is None:
            return ops.cast(ops.sum(decided, axis=axes), "float32")
        return ops.sum(ops.cast(decided, "float32") * align(weight, decided), axis=axes)

    def _thresholds(self) -> list[float]:
        if self.thresholds is None:
            return [0.5 if self.top_k is None else -math.inf]
        return [float(t) for t in np.atleast_1d(np.asarray(self.thresholds))]

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_pair(f"Metric '{self.name}'", y_true, y_pred)
        if len(self._thresholds()) > 1:
            refuse_list(self, f"{len(self._thresholds())} thresholds", "one metric for each threshold, with names")


class SelectedDecisions(DecisionMetric):
    """Base of decisions that may be limited to the best scores or to one class.

    Args:
        thresholds: See DecisionMetric; with `top_k` None means that the k best are positive whatever their scores.
        top_k: Only the k highest scores on the last axis can be positive.
        class_id: Only this place on the last axis counts.
        name: Key of the metric in logs.
    """

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
    ):
        super().__init__(thresholds, name)
        self.top_k, self.class_id = top_k, class_id


@metrics_registry.register
class Precision(SelectedDecisions):
    """Share of positive decisions whose label is positive; 0 when there is none. Arguments: see SelectedDecisions."""

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        labels, positive = self.decide(y_true, y_pred)
        hits = ops.logical_and(labels, positive)
        return {"positives": self.count(positive, weight), "true_positives": self.count(hits, weight)}

    def compute(self, sums: dict[str, np.ndarray]) -> Any:
        return figure(ratio(sums["true_positives"], sums["positives"]))


@metrics_registry.register
class Recall(SelectedDecisions):
    """Share of positive labels that are decided positive; 0 when there is none. Arguments: see SelectedDecisions."""

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        labels, positive = self.decide(y_true, y_pred)
        hits = ops.logical_and(labels, positive)
        return {"labels": self.count(labels, weight), "true_positives": self.count(hits, weight)}

    def compute(self, sums: dict[str, np.ndarray]) -> Any:
        return figure(ratio(sums["true_positives"], sums["labels"]))


class DecisionCount(DecisionMetric):
    """Base of counts of decisions of one kind: write `select`."""

    def select(self, labels: Any, positive: Any) -> Any:
        """bool: the decisions of this kind."""
        raise NotImplementedError(f"{type(self).__name__} needs a method select(self, labels, positive).")

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        return {"count": self.count(self.select(*self.decide(y_true, y_pred)), weight)}

    def compute(self, sums: dict[str, np.ndarray]) -> Any:
        return figure(sums["count"])


@metrics_registry.register
class TruePositives(DecisionCount):
    """Number of positive decisions with a positive label."""

    def select(self, labels: Any, positive: Any) -> Any:
        return ops.logical_and(labels, positive)


@metrics_registry.register
class FalsePositives(DecisionCount):
    """Number of positive decisions with a negative label."""

    def select(self, labels: Any, positive: Any) -> Any:
        return ops.logical_and(ops.logical_not(labels), positive)


@metrics_registry.register
class TrueNegatives(DecisionCount):
    """Number of negative decisions with a negative label."""

    def select(self, labels: Any, positive: Any) -> Any:
        return ops.logical_not(ops.logical_or(labels, positive))


@metrics_registry.register
class FalseNegatives(DecisionCount):
    """Number of negative decisions with a positive label."""

    def select(self, labels: Any, positive: Any) -> Any:
        return ops.logical_and(labels, ops.logical_not(positive))
