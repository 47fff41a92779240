"""Losses: per-element values and their validity. How they become one number is the objective's law (training/objective.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import unifit.ops as ops
from unifit.errors import ArgumentError, ShapeError
from unifit.registry import Configurable, Registry, snake_case

losses_registry = Registry("loss")

REDUCTIONS = ("sum_over_batch_size", "mean_with_sample_weight", "sum")


class Total(NamedTuple):
    """A loss that `compute_loss` summed itself: the window's loss is the sum of sums over the sum of counts."""

    sum: Any
    count: Any


class MeanOverRows(NamedTuple):
    """A mean that `compute_loss` took itself over the rows it saw; combined over micro-batches by their valid rows."""

    value: Any


class Loss(Configurable):
    """Base of losses: write `call`, and `mask` when labels can be invalid.

    Args:
        reduction: Over the valid elements of a whole window (all devices, all micro-batches): "sum_over_batch_size" divides
            the weighted sum by the number of valid elements, "mean_with_sample_weight" by the sum of their weights, "sum"
            by nothing.
        name: Key of the loss in logs.

    Call:
        y_true, y_pred: Labels and predictions, rows on axis 0.
        sample_weight: None, shape (rows,) or a prefix of the elements' shape; dtype bool makes it a mask.
        Returns: The reduced loss of these rows, a float32 scalar.

    Raises:
        ArgumentError: For an unknown reduction.
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str | None = None):
        if reduction not in REDUCTIONS:
            raise ArgumentError(f"{type(self).__name__} got reduction={reduction!r}; it needs one of {REDUCTIONS}.")
        self.reduction = reduction
        self.name = name

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Per-element losses, shape (rows, ...)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method call(self, y_true, y_pred).")

    def mask(self, y_true: Any) -> Any:
        """bool, a prefix of the elements' shape: False where a label is to be ignored. None when all labels count."""
        return None

    def check(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        """Refuses shapes that cannot belong together; called with shapes before training starts.

        Raises:
            ShapeError: With both shapes and what was expected.
        """

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        losses = ops.cast(self.call(y_true, y_pred), "float32")
        total, divisor, _ = reduce_elements(losses, [self.mask(y_true)], sample_weight, self.reduction)
        return total / ops.maximum(divisor, 1e-30)


def same_shape(loss: Loss, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
    """The check of losses between arrays of one shape."""
    if y_true != y_pred:
        raise ShapeError(
            f"Loss '{snake_name(loss)}' got labels of shape {y_true} and predictions of shape {y_pred}; it needs labels of "
            f"shape {y_pred}."
        )


def snake_name(obj: Any) -> str:
    """The registered name of a loss or metric, for messages and logs."""
    return getattr(obj, "name", None) or snake_case(type(obj).__name__)


def reduce_elements(losses: Any, masks: list[Any], sample_weight: Any, reduction: str) -> tuple[Any, Any, Any]:
    """The weighted sum over valid elements, its divisor, and the number of valid elements: float32 scalars.

    Args:
        losses: Per-element losses, float32, shape (rows, ...).
        masks: bool arrays, or None, whose shapes are prefixes of the elements' shape; all must hold.
        sample_weight: None or an array; dtype bool makes it another mask.
        reduction: One of REDUCTIONS.
    """
    valid, weight = validity_and_weight(losses, masks, sample_weight)
    weighted = losses if weight is None else losses * weight
    if valid is not None:
        weighted = ops.where(valid, weighted, 0.0)
    total, count = ops.sum(weighted), count_valid(losses, valid)
    if reduction == "mean_with_sample_weight" and weight is not None:
        weights = ops.broadcast_to(weight, losses.shape)
        return total, ops.sum(weights if valid is None else ops.where(valid, weights, 0.0)), count
    return total, ops.ones((), "float32") if reduction == "sum" else count, count


def validity_and_weight(losses: Any, masks: list[Any], sample_weight: Any) -> tuple[Any, Any]:
    """One bool array of the elements' shape, and the float32 weight broadcastable to it; None for each that is absent."""
    weight = None
    if sample_weight is not None:
        if ops.dtype(sample_weight) == "bool":
            masks = [*masks, sample_weight]
        else:
            weight = align(ops.cast(sample_weight, "float32"), losses)
    valid = None
    for mask in masks:
        if mask is not None:
            mask = align(ops.cast(mask, "bool"), losses)
            valid = mask if valid is None else ops.logical_and(valid, mask)
    return None if valid is None else ops.broadcast_to(valid, losses.shape), weight


def count_valid(losses: Any, valid: Any) -> Any:
    """Number of valid elements, float32 scalar."""
    if valid is None:
        return ops.full((), float(ops.size(losses)), "float32")
    return ops.sum(ops.cast(valid, "float32"))


def align(value: Any, losses: Any) -> Any:
    """Gives `value` the elements' rank: trailing size-1 axes are added, or taken away where it has too many."""
    shape = tuple(value.shape)
    while len(shape) > len(losses.shape) and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) > len(losses.shape):
        raise ShapeError(
            f"A mask or sample_weight of shape {tuple(value.shape)} does not fit losses of shape {tuple(losses.shape)}; "
            "it needs a prefix of that shape, such as (rows,)."
        )
    return ops.reshape(value, shape + (1,) * (len(losses.shape) - len(shape)))


class FunctionLoss(Loss):
    """A plain function (y_true, y_pred) -> per-element losses as a Loss."""

    def __init__(
        self, function: Callable[[Any, Any], Any], reduction: str = "sum_over_batch_size", name: str | None = None
    ):
        super().__init__(reduction, name or getattr(function, "__name__", "loss"))
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(y_true, y_pred)


@losses_registry.register("mse", "mean_squared_error")
class MeanSquaredError(Loss):
    """Mean over the last axis of (y_true - y_pred)^2."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_pred - ops.cast(y_true, ops.dtype(y_pred))), axis=-1)

    def check(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        same_shape(self, y_true, y_pred)


@losses_registry.register("sparse_categorical_crossentropy")
class SparseCategoricalCrossentropy(Loss):
    """Cross-entropy between class indices and predicted distributions over the last axis.

    Args:
        from_logits: Whether `y_pred` holds logits rather than probabilities.
        ignore_class: Labels of this value are left out of sum and count.
    """

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
    ):
        super().__init__(reduction, name)
        self.from_logits = from_logits
        self.ignore_class = ignore_class

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels = self._labels(y_true, y_pred)
        if self.ignore_class is not None:
            labels = ops.where(ops.equal(labels, self.ignore_class), 0, labels)
        return ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=self.from_logits)

    def mask(self, y_true: Any) -> Any:
        return None if self.ignore_class is None else ops.not_equal(y_true, self.ignore_class)

    def check(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        if y_true not in (y_pred[:-1], (*y_pred[:-1], 1)):
            raise ShapeError(
                f"Loss 'sparse_categorical_crossentropy' got labels of shape {y_true} and predictions of shape {y_pred}; it "
                f"needs labels of shape {y_pred[:-1]} (class indices). For one-hot labels use 'categorical_crossentropy'."
            )

    @staticmethod
    def _labels(y_true: Any, y_pred: Any) -> Any:
        return ops.squeeze(y_true, -1) if len(y_true.shape) == len(y_pred.shape) else y_true


def get(identifier: Any) -> Loss:
    """A loss from its Keras name, a Loss, or a function (y_true, y_pred) -> per-element losses.

    Raises:
        UnknownNameError: For an unknown name, with the nearest ones.
    """
    loss = losses_registry.get(identifier)
    return loss if isinstance(loss, Loss) else FunctionLoss(loss)
