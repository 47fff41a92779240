"""Losses between probability distributions: cross-entropies, their focal forms, the Kullback-Leibler divergence."""

from __future__ import annotations

from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.losses.base import Loss, PairedLoss, losses_registry, snake_name
from unifit.losses.regression import EPSILON
from unifit.losses.shapes import Shape, are_indices, check_classes, check_indices, check_pair


@losses_registry.register("bce")
class BinaryCrossentropy(PairedLoss):
    """Mean over `axis` of -y * log(p) - (1 - y) * log(1 - p).

    Args:
        from_logits: Whether `y_pred` holds logits rather than probabilities.
        label_smoothing: Share s in [0, 1]: labels become y * (1 - s) + s / 2.
        axis: The axis that is averaged.
        reduction, name: See Loss.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
    ):
        super().__init__(reduction, name)
        self.from_logits, self.axis = from_logits, axis
        self.label_smoothing = share(self, label_smoothing)

    def values(self, y_true: Any, y_pred: Any) -> Any:
        y_true = smooth(y_true, self.label_smoothing, 2)
        return ops.mean(ops.binary_crossentropy(y_true, y_pred, from_logits=self.from_logits), axis=self.axis)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        hint = "For class indices use 'sparse_categorical_crossentropy'." if are_indices(y_true, y_pred) else ""
        check_pair(f"Loss '{snake_name(self)}'", y_true, y_pred, hint)


@losses_registry.register
class BinaryFocalCrossentropy(BinaryCrossentropy):
    """Binary cross-entropy times (1 - p_t)^gamma, p_t the probability that was given to the label.

    Args:
        apply_class_balancing: Whether label 1 is weighed by alpha and label 0 by 1 - alpha.
        alpha: See there.
        gamma: How much easy elements are weighed down.
        from_logits, label_smoothing, axis: See BinaryCrossentropy.
        reduction, name: See Loss.

    Reference: Lin et al., Focal Loss for Dense Object Detection, 2017.
    """

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
    ):
        super().__init__(from_logits, label_smoothing, axis, reduction, name)
        self.apply_class_balancing, self.alpha, self.gamma = apply_class_balancing, alpha, gamma

    def values(self, y_true: Any, y_pred: Any) -> Any:
        y_true = smooth(y_true, self.label_smoothing, 2)
        losses = ops.binary_crossentropy(y_true, y_pred, from_logits=self.from_logits)
        p = ops.sigmoid(y_pred) if self.from_logits else y_pred
        losses = losses * focus(y_true * p + (1.0 - y_true) * (1.0 - p), self.gamma)
        if self.apply_class_balancing:
            losses = losses * (y_true * self.alpha + (1.0 - y_true) * (1.0 - self.alpha))
        return ops.mean(losses, axis=self.axis)


@losses_registry.register
class CategoricalCrossentropy(PairedLoss):
    """-sum(y * log(p)) over the class axis.

    Args:
        from_logits: Whether `y_pred` holds logits rather than probabilities.
        label_smoothing: Share s in [0, 1]: labels become y * (1 - s) + s / number of classes.
        axis: The class axis.
        reduction, name: See Loss.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
    ):
        super().__init__(reduction, name)
        self.from_logits, self.axis = from_logits, axis
        self.label_smoothing = share(self, label_smoothing)

    def values(self, y_true: Any, y_pred: Any) -> Any:
        y_true = smooth(y_true, self.label_smoothing, y_pred.shape[self.axis])
        return ops.categorical_crossentropy(y_true, y_pred, from_logits=self.from_logits, axis=self.axis)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        if self.axis != -1:
            y_true, y_pred = classes_last(y_true, self.axis), classes_last(y_pred, self.axis)
        check_classes(f"Loss '{snake_name(self)}'", y_true, y_pred, other="sparse_categorical_crossentropy")


@losses_registry.register
class CategoricalFocalCrossentropy(CategoricalCrossentropy):
    """-alpha * sum((1 - p)^gamma * y * log(p)) over the class axis.

    Args:
        alpha: Weight of the loss.
        gamma: How much easy elements are weighed down.
        from_logits, label_smoothing, axis: See CategoricalCrossentropy.
        reduction, name: See Loss.
    """

    def __init__(
        self,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
    ):
        super().__init__(from_logits, label_smoothing, axis, reduction, name)
        self.alpha, self.gamma = alpha, gamma

    def values(self, y_true: Any, y_pred: Any) -> Any:
        y_true = smooth(y_true, self.label_smoothing, y_pred.shape[self.axis])
        p = ops.softmax(y_pred, axis=self.axis) if self.from_logits else y_pred
        p = ops.clip(p / ops.sum(p, axis=self.axis, keepdims=True), EPSILON, 1.0 - EPSILON)
        return -self.alpha * ops.sum(focus(p, self.gamma) * y_true * ops.log(p), axis=self.axis)


@losses_registry.register
class SparseCategoricalCrossentropy(Loss):
    """Cross-entropy between class indices and predicted distributions.

    Args:
        from_logits: Whether `y_pred` holds logits rather than probabilities.
        ignore_class: Labels of this value, which need not be a class, are left out of sum and count.
        axis: The class axis of `y_pred`.
        label_smoothing: Share s in [0, 1]: the label is one-hot * (1 - s) + s / number of classes. Keras has it for
            one-hot labels only.
        reduction, name: See Loss.
    """

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str = "sum_over_batch_size",
        axis: int = -1,
        name: str | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(reduction, name)
        self.from_logits, self.ignore_class, self.axis = from_logits, ignore_class, axis
        self.label_smoothing = share(self, label_smoothing)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if self.axis != -1:
            y_pred = ops.moveaxis(y_pred, self.axis, -1)
        labels = ops.squeeze(y_true, -1) if len(y_true.shape) == len(y_pred.shape) else y_true
        # Before any gather: what is ignored may be no class at all.
        labels = ops.cast(labels, "int32")
        if self.ignore_class is not None:
            labels = ops.where(ops.equal(labels, self.ignore_class), 0, labels)
        losses = ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=self.from_logits)
        if self.label_smoothing:
            even = self._even(ops.cast(y_pred, "float32"))
            losses = (1.0 - self.label_smoothing) * losses + self.label_smoothing * even
        return losses

    def _even(self, y_pred: Any) -> Any:
        """Cross-entropy with the distribution that gives each class the same probability."""
        if self.from_logits:
            return ops.logsumexp(y_pred, axis=-1) - ops.mean(y_pred, axis=-1)
        return ops.categorical_crossentropy(ops.full_like(y_pred, 1.0 / y_pred.shape[-1]), y_pred)

    def mask(self, y_true: Any) -> Any:
        return None if self.ignore_class is None else ops.not_equal(ops.cast(y_true, "int32"), self.ignore_class)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        what = f"Loss '{snake_name(self)}'"
        check_indices(what, y_true, classes_last(y_pred, self.axis), other="categorical_crossentropy")

    def check_values(self, y_true: np.ndarray, y_pred: Shape) -> None:
        labels = y_true if self.ignore_class is None else y_true[y_true != self.ignore_class]
        classes = y_pred[self.axis]
        if labels.size and (labels.min() < 0 or labels.max() >= classes):
            raise ArgumentError(
                f"Loss '{snake_name(self)}' got labels from {labels.min()} to {labels.max()} for predictions of "
                f"{classes} classes; it needs class numbers from 0 to {classes - 1}. Leave labels out by ignore_class "
                "or a mask."
            )


@losses_registry.register("kld", "kullback_leibler_divergence")
class KLDivergence(PairedLoss):
    """sum(y * log(y / p)) over the last axis; both are clipped to [1e-7, 1]."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        y, p = ops.clip(y_true, EPSILON, 1.0), ops.clip(y_pred, EPSILON, 1.0)
        return ops.sum(y * ops.log(y / p), axis=-1)


def smooth(y_true: Any, label_smoothing: float, num_classes: int) -> Any:
    """Labels of which a share is spread evenly over the classes."""
    return y_true * (1.0 - label_smoothing) + label_smoothing / num_classes if label_smoothing else y_true


def focus(p: Any, gamma: float) -> Any:
    """(1 - p)^gamma, with finite derivatives at p = 1."""
    return ops.power(ops.maximum(1.0 - p, EPSILON), gamma)


def share(loss: Loss, label_smoothing: float) -> float:
    """`label_smoothing`, refused outside [0, 1]."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"{type(loss).__name__} got label_smoothing={label_smoothing}; it needs a value in [0, 1].")
    return label_smoothing


def classes_last(shape: Shape, axis: int) -> Shape:
    """A shape with axis `axis` moved to the end."""
    at = axis % len(shape)
    return (*shape[:at], *shape[at + 1 :], shape[at])
