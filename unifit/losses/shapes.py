"""Which shapes of labels and predictions belong together, and how labels are brought to the predictions' shape."""

from __future__ import annotations

from typing import Any

import unifit.ops as ops
from unifit.errors import ShapeError

Shape = tuple[int, ...]


def same(a: Shape, b: Shape) -> bool:
    """Equal shapes; an axis that is not known yet (None) fits any."""
    return len(a) == len(b) and all(m == n or m is None or n is None for m, n in zip(a, b, strict=True))


def is_pair(y_true: Shape, y_pred: Shape) -> bool:
    """Whether labels stand for the same elements as predictions: equal, or one has a last axis of size 1 more."""
    return (
        same(y_true, y_pred)
        or (y_pred[-1:] == (1,) and same(y_true, y_pred[:-1]))
        or (y_true[-1:] == (1,) and same(y_true[:-1], y_pred))
    )


def are_indices(y_true: Shape, y_pred: Shape) -> bool:
    """Whether labels can be class indices for predictions with the classes on the last axis."""
    return same(y_true, y_pred[:-1]) or same(y_true, (*y_pred[:-1], 1))


def check_pair(what: str, y_true: Shape, y_pred: Shape, hint: str = "") -> None:
    """Refuses labels that are not of the predictions' shape.

    Args:
        what: "Loss 'name'" or "Metric 'name'".
        y_true, y_pred: The shapes.
        hint: A further sentence.

    Raises:
        ShapeError: With both shapes and what was expected.
    """
    if not is_pair(y_true, y_pred):
        refuse(what, y_true, y_pred, f"shape {y_pred}", hint)


def check_classes(what: str, y_true: Shape, y_pred: Shape, other: str) -> None:
    """Refuses labels that are not one distribution for each prediction; `other` takes class indices."""
    if not same(y_true, y_pred):
        hint = f"For class indices use '{other}'." if are_indices(y_true, y_pred) else ""
        refuse(what, y_true, y_pred, f"shape {y_pred} (one-hot, or a probability for each class)", hint)
    refuse_one_class(what, y_true, y_pred)


def check_indices(what: str, y_true: Shape, y_pred: Shape, other: str) -> None:
    """Refuses labels that are not one class index for each prediction; `other` takes one-hot labels."""
    if not are_indices(y_true, y_pred):
        hint = f"For one-hot labels use '{other}'." if same(y_true, y_pred) else ""
        refuse(what, y_true, y_pred, f"shape {y_pred[:-1]} (class indices)", hint)
    refuse_one_class(what, y_true, y_pred)


def refuse_one_class(what: str, y_true: Shape, y_pred: Shape) -> None:
    """Refuses predictions for a single class: the most probable class would be it, whatever the model does."""
    if y_pred[-1] == 1:
        raise ShapeError(
            f"{what} got labels of shape {y_true} and predictions of shape {y_pred}, of one class only; it needs at "
            "least 2 classes. For the probability of one class use the 'binary_...' kind."
        )


def refuse(what: str, y_true: Shape, y_pred: Shape, needed: str, hint: str) -> None:
    """Raises the error about labels that do not fit."""
    raise ShapeError(
        f"{what} got labels of shape {y_true} and predictions of shape {y_pred}; it needs labels of {needed}."
        + (f" {hint}" if hint else "")
    )


def match(y_true: Any, y_pred: Any) -> Any:
    """Labels with the predictions' rank: a last axis of size 1 is added or taken away, so that nothing broadcasts."""
    extra = len(y_true.shape) - len(y_pred.shape)
    if extra == -1 and y_pred.shape[-1] == 1:
        return ops.expand_dims(y_true, -1)
    if extra == 1 and y_true.shape[-1] == 1:
        return ops.squeeze(y_true, -1)
    return y_true


def require_elements(what: str, values: Any, y_pred: Any) -> Any:
    """Returns `values`, refused when they are not per row, or are more than the predictions' elements.

    Raises:
        ShapeError: For a scalar, for another first axis than the predictions', and, where the predictions have no axis
            that could be reduced, for what is no prefix of their shape: labels were broadcast.
    """
    shape, wanted = tuple(getattr(values, "shape", ())), tuple(y_pred.shape)
    known = len(wanted) if len(wanted) == 1 or wanted[-1] == 1 else 1
    if shape and same(shape[:known], wanted[: min(known, len(shape))]) and len(shape) <= len(wanted):
        return values
    returned = f"values of shape {shape}" if shape else "a scalar"
    raise ShapeError(
        f"{what} returned {returned} for predictions of shape {wanted}; it needs one value per row or element, shape "
        f"({wanted[0]}, ...): unifit takes the mean itself, over all devices and micro-batches. Reduce over the last "
        "axis at most, as in ops.mean(values, axis=-1); labels come with as many axes as the predictions."
    )
