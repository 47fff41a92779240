"""Accuracies: the share of elements that are predicted right."""

from __future__ import annotations

from typing import Any

import unifit.ops as ops
from unifit.losses.base import in_float32
from unifit.losses.shapes import Shape, check_classes, check_indices, check_pair, match
from unifit.metrics.base import MeanMetric, metrics_registry


@metrics_registry.register
class Accuracy(MeanMetric):
    """Share of elements that equal their label. The name "accuracy" in compile means the kind that fits the loss."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        check_pair(f"Metric '{self.name}'", tuple(y_true.shape), tuple(y_pred.shape))
        return ops.equal(in_float32(match(y_true, y_pred)), in_float32(y_pred))

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_pair(f"Metric '{self.name}'", y_true, y_pred)


@metrics_registry.register
class BinaryAccuracy(MeanMetric):
    """Share of elements that lie above the threshold where the label is 1, and not above it where the label is 0.

    Args:
        name: Key of the metric in logs.
        threshold: 0.5 fits probabilities, 0 fits logits.
    """

    def __init__(self, name: str | None = None, threshold: float = 0.5):
        super().__init__(name)
        self.threshold = threshold

    def values(self, y_true: Any, y_pred: Any) -> Any:
        self.check(tuple(y_true.shape), tuple(y_pred.shape))
        # In float32 first: in half precision the threshold would be rounded too.
        decided = ops.cast(ops.greater(ops.cast(y_pred, "float32"), self.threshold), "float32")
        return ops.equal(ops.cast(match(y_true, y_pred), "float32"), decided)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_pair(f"Metric '{self.name}'", y_true, y_pred)


@metrics_registry.register
class CategoricalAccuracy(MeanMetric):
    """Share of elements whose most probable class is that of the one-hot label."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.equal(ops.argmax(y_true, axis=-1), ops.argmax(y_pred, axis=-1))

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_classes(f"Metric '{self.name}'", y_true, y_pred, other="sparse_categorical_accuracy")


@metrics_registry.register
class SparseCategoricalAccuracy(MeanMetric):
    """Share of elements whose class index is the most probable one."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.equal(indices(y_true, y_pred), ops.argmax(y_pred, axis=-1))

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_indices(f"Metric '{self.name}'", y_true, y_pred, other="categorical_accuracy")


@metrics_registry.register
class TopKCategoricalAccuracy(MeanMetric):
    """Share of elements whose one-hot label's class is among the k most probable ones.

    Args:
        k: How many are looked at.
        name: Key of the metric in logs.
    """

    def __init__(self, k: int = 5, name: str | None = None):
        super().__init__(name)
        self.k = k

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.in_top_k(ops.argmax(y_true, axis=-1), y_pred, self.k)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_classes(f"Metric '{self.name}'", y_true, y_pred, other="sparse_top_k_categorical_accuracy")


@metrics_registry.register
class SparseTopKCategoricalAccuracy(MeanMetric):
    """Share of elements whose class index is among the k most probable ones; an index that is no class never is.

    Args:
        k: How many are looked at.
        name: Key of the metric in logs.
    """

    def __init__(self, k: int = 5, name: str | None = None):
        super().__init__(name)
        self.k = k

    def values(self, y_true: Any, y_pred: Any) -> Any:
        labels = indices(y_true, y_pred)
        is_class = ops.logical_and(labels >= 0, labels < y_pred.shape[-1])
        return ops.logical_and(is_class, ops.in_top_k(ops.where(is_class, labels, 0), y_pred, self.k))

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_indices(f"Metric '{self.name}'", y_true, y_pred, other="top_k_categorical_accuracy")


def indices(y_true: Any, y_pred: Any) -> Any:
    """int32 class indices, one for each element."""
    if len(y_true.shape) == len(y_pred.shape):
        y_true = ops.squeeze(y_true, -1)
    return ops.cast(y_true, "int32")
