"""Intersection over union, for segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.losses import align
from unifit.losses.shapes import Shape, refuse, same
from unifit.metrics.base import Metric, metrics_registry, ratio


@metrics_registry.register("iou")
class IoU(Metric):
    """Mean over the target classes that occur of intersection / union of labelled and predicted elements.

    Elements whose label or prediction is no class are left out. Weights may be fractions (Keras truncates them).

    Args:
        num_classes: Number of classes.
        target_class_ids: The classes whose mean is taken.
        name: Key of the metric in logs.
        ignore_class: Labels of this value are left out.
        sparse_y_true: Whether labels are class indices; else the largest value on `axis` decides.
        sparse_y_pred: The same for predictions: set it to False for a model's probabilities or logits.
        axis: The class axis of what is not sparse.
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ):
        super().__init__(name)
        if not target_class_ids or not all(0 <= c < num_classes for c in target_class_ids):
            raise ArgumentError(
                f"{type(self).__name__} got target_class_ids={list(target_class_ids)}; it needs classes in "
                f"[0, {num_classes})."
            )
        self.num_classes, self.target_class_ids = num_classes, list(target_class_ids)
        self.ignore_class, self.axis = ignore_class, axis
        self.sparse_y_true, self.sparse_y_pred = sparse_y_true, sparse_y_pred

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        labels = ops.cast(y_true, "int32") if self.sparse_y_true else ops.argmax(y_true, axis=self.axis)
        chosen = ops.cast(y_pred, "int32") if self.sparse_y_pred else ops.argmax(y_pred, axis=self.axis)
        self._check(tuple(labels.shape), tuple(chosen.shape))
        if weight is not None:
            weight = ops.ravel(ops.broadcast_to(align(weight, labels), labels.shape))
        labels, chosen = ops.ravel(labels), ops.ravel(chosen)
        valid = ops.logical_and(self._is_class(labels), self._is_class(chosen))
        if self.ignore_class is not None:
            valid = ops.logical_and(valid, ops.not_equal(labels, self.ignore_class))
        places = ops.where(valid, labels * self.num_classes + chosen, 0)
        counts = ops.cast(valid, "float32")
        counts = counts if weight is None else ops.where(valid, weight, 0.0)
        confusion = ops.segment_sum(counts, places, self.num_classes**2)
        return {"confusion": ops.reshape(confusion, (self.num_classes, self.num_classes))}

    def _is_class(self, index: Any) -> Any:
        return ops.logical_and(index >= 0, index < self.num_classes)

    def compute(self, sums: dict[str, np.ndarray]) -> float:
        confusion = sums["confusion"]
        both = np.diag(confusion)[self.target_class_ids]
        either = (confusion.sum(axis=0) + confusion.sum(axis=1))[self.target_class_ids] - both
        return float(ratio(np.sum(ratio(both, either)), np.sum(either > 0)))

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        self._check(self._elements(y_true, self.sparse_y_true), self._elements(y_pred, self.sparse_y_pred))

    def _elements(self, shape: Shape, sparse: bool) -> Shape:
        at = self.axis % len(shape)
        return shape if sparse else (*shape[:at], *shape[at + 1 :])

    def _check(self, labels: Shape, chosen: Shape) -> None:
        if not (same(labels, chosen) or same(labels, (*chosen, 1)) or same((*labels, 1), chosen)):
            hint = (
                "Set sparse_y_pred=False where predictions hold a score for each class." if self.sparse_y_pred else ""
            )
            refuse(
                f"Metric '{self.name}'", labels, chosen, f"shape {chosen} (after argmax of what is not sparse)", hint
            )


@metrics_registry.register("mean_iou")
class MeanIoU(IoU):
    """IoU over all classes that occur. Arguments: see IoU."""

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ):
        super().__init__(num_classes, range(num_classes), name, ignore_class, sparse_y_true, sparse_y_pred, axis)
