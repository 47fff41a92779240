"""The base of losses: per-element values and their validity. How they become one number is the objective's law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.config import Configurable
from unifit.errors import ArgumentError
from unifit.losses.reduction import REDUCTIONS, reduce_elements
from unifit.losses.shapes import Shape, check_pair, match, require_elements, same
from unifit.names import register_serializable, snake_case
from unifit.registry import Registry

losses_registry = Registry("loss")


class Loss(Configurable):
    """Base of losses: write `call`, and `mask` when labels can be invalid.

    Args:
        reduction: Over the valid elements of a whole window (all devices, all micro-batches): "sum_over_batch_size"
            divides the weighted sum by the number of valid elements, "mean_with_sample_weight" by the sum of their
            weights, "sum" by nothing.
        name: Key of the loss in logs.

    Call:
        y_true, y_pred: Labels and predictions, rows on axis 0.
        sample_weight: None, shape (rows,) or a prefix of the elements' shape; dtype bool makes it a mask.
        Returns: The reduced loss of these rows, a float32 scalar; 0 when nothing is valid.

    Raises:
        ArgumentError: For an unknown reduction.
        ShapeError: On call, for labels that do not fit the predictions.

    Example:
        >>> float(get("mse")([[0.0], [2.0]], [[1.0], [2.0]]))
        0.5
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str | None = None):
        if reduction not in REDUCTIONS:
            raise ArgumentError(
                f"{type(self).__name__} got reduction={reduction!r}; it needs one of {REDUCTIONS}. For losses that are "
                "not reduced use its method call(y_true, y_pred)."
            )
        self.reduction = reduction
        self.name = name

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Per-element losses, shape (rows, ...)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method call(self, y_true, y_pred).")

    def mask(self, y_true: Any) -> Any:
        """bool, a prefix of the elements' shape: False where a label is to be ignored. None when all labels count."""
        return None

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        """Refuses shapes that cannot belong together; called with shapes before training starts.

        Raises:
            ShapeError: With both shapes and what was expected.
        """

    def check_values(self, y_true: np.ndarray, y_pred: Shape) -> None:
        """Refuses labels that no element can have; called with the first batch's labels before training starts.

        Raises:
            ArgumentError: With the labels found and what was expected.
        """

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true, y_pred = (in_float32(ops.convert_to_tensor(array)) for array in (y_true, y_pred))
        if sample_weight is not None:
            sample_weight = ops.convert_to_tensor(sample_weight)
        self.check(tuple(y_true.shape), tuple(y_pred.shape))
        losses = ops.cast(self.call(y_true, y_pred), "float32")
        total, divisor, _ = reduce_elements(losses, [self.mask(y_true)], sample_weight, self.reduction)
        return total / ops.maximum(divisor, 1e-30)


class PairedLoss(Loss):
    """Base of losses between labels and predictions of one shape: write `values`.

    Labels of shape (rows,) stand for (rows, 1) and the other way round; nothing else is broadcast. The elements are the
    predictions' shape without its last axis, or (rows,) for predictions of that shape.
    """

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Per-element losses from float32 labels and predictions of one shape, with at least two axes."""
        raise NotImplementedError(f"{type(self).__name__} needs a method values(self, y_true, y_pred).")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_true = ops.cast(match(y_true, y_pred), "float32")
        y_pred = ops.cast(y_pred, "float32")
        if not same(tuple(y_true.shape), tuple(y_pred.shape)):
            self.check(tuple(y_true.shape), tuple(y_pred.shape))
        if len(y_pred.shape) == 1:
            y_true, y_pred = ops.expand_dims(y_true, -1), ops.expand_dims(y_pred, -1)
        return self.values(y_true, y_pred)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        check_pair(f"Loss '{snake_name(self)}'", y_true, y_pred)


@register_serializable("unifit.loss")
class FunctionLoss(Loss):
    """A plain function (y_true, y_pred) -> per-element losses as a Loss.

    As in Keras, labels of shape (rows,) reach the function as (rows, 1) when the predictions are (rows, 1), and the
    other way round. Half-precision arrays reach it in float32; integer labels stay integers.

    Raises:
        ShapeError: On call, when the function returns a scalar or loses the rows.
    """

    def __init__(
        self, function: Callable[[Any, Any], Any], reduction: str = "sum_over_batch_size", name: str | None = None
    ):
        super().__init__(reduction, name or getattr(function, "__name__", "loss"))
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if not hasattr(y_true, "shape") or not hasattr(y_pred, "shape"):
            return self.function(y_true, y_pred)  # trees: the function knows what they are
        y_true, y_pred = in_float32(match(y_true, y_pred)), in_float32(y_pred)
        return require_elements(f"Loss '{self.name}'", self.function(y_true, y_pred), y_pred)


def in_float32(array: Any) -> Any:
    """Floats of any width as float32; integers and bool as they are."""
    return ops.cast(array, "float32") if "float" in ops.dtype(array) else array


def snake_name(obj: Any) -> str:
    """The name of a loss or metric, for messages and logs: its own, else its class' name in snake case."""
    return getattr(obj, "name", None) or snake_case(type(obj).__name__)


def get(identifier: Any) -> Loss:
    """A loss from its Keras name, a Loss, or a function (y_true, y_pred) -> per-element losses.

    Raises:
        UnknownNameError: For an unknown name, with the nearest ones.
        ArgumentError: For an object that is no loss.
    """
    loss = losses_registry.get(identifier)
    if isinstance(loss, Loss):
        return loss
    if not callable(loss) or isinstance(loss, Configurable):
        raise ArgumentError(
            f"Expected a loss, got {loss!r} of type {type(loss).__name__}; pass a name (one of "
            f"{', '.join(losses_registry.names())}), a Loss or a function (y_true, y_pred) -> per-element losses."
        )
    return FunctionLoss(loss)
