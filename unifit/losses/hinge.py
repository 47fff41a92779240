"""Losses that want a margin between the right class and the others."""

from __future__ import annotations

from typing import Any

import unifit.ops as ops
from unifit.losses.base import PairedLoss, losses_registry


@losses_registry.register
class Hinge(PairedLoss):
    """Mean over the last axis of max(1 - y_true * y_pred, 0); labels are -1 and 1, and a label 0 counts as -1.

    Keras turns 0 into -1 only if all labels of the batch are 0 or 1; here each label speaks for itself, so that the
    result does not depend on how batches are cut.
    """

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(margins(y_true, y_pred), axis=-1)


@losses_registry.register
class SquaredHinge(PairedLoss):
    """Mean over the last axis of max(1 - y_true * y_pred, 0)^2; labels as for Hinge."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(margins(y_true, y_pred)), axis=-1)


@losses_registry.register
class CategoricalHinge(PairedLoss):
    """max(neg - pos + 1, 0) with pos = sum(y_true * y_pred), neg = max((1 - y_true) * y_pred) over the last axis."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        right = ops.sum(y_true * y_pred, axis=-1)
        wrong = ops.max((1.0 - y_true) * y_pred, axis=-1)
        return ops.maximum(wrong - right + 1.0, 0.0)


def margins(y_true: Any, y_pred: Any) -> Any:
    """By how much each prediction misses the margin of 1."""
    signs = ops.where(ops.equal(y_true, 0.0), -1.0, y_true)
    return ops.maximum(1.0 - signs * y_pred, 0.0)
