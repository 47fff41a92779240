"""From per-element losses to sums and counts over valid elements."""

from __future__ import annotations

from typing import Any, NamedTuple

import unifit.ops as ops
from unifit.errors import ShapeError

REDUCTIONS = ("sum_over_batch_size", "mean_with_sample_weight", "sum")


class Total(NamedTuple):
    """A loss that `compute_loss` summed itself: the window's loss is the sum of sums over the sum of counts."""

    sum: Any
    count: Any


class MeanOverRows(NamedTuple):
    """A mean that `compute_loss` took itself over the rows it saw; combined over micro-batches by their valid rows."""

    value: Any


def reduce_elements(losses: Any, masks: list[Any], sample_weight: Any, reduction: str) -> tuple[Any, Any, Any]:
    """The weighted sum over valid elements, its divisor, and the number of valid elements: float32 scalars.

    Args:
        losses: Per-element losses, float32, shape (rows, ...).
        masks: bool arrays, or None, whose shapes are prefixes of the elements' shape; all must hold.
        sample_weight: None or an array; dtype bool makes it another mask.
        reduction: One of REDUCTIONS.

    Raises:
        ShapeError: When `losses` is a scalar: masks and weights could not enter any more.
    """
    if not len(losses.shape):
        raise ShapeError(
            "A loss returned a scalar; it needs one value per element, shape (rows, ...): unifit takes the mean itself "
            "over the valid elements of all devices and micro-batches. Leave out the reduction over rows."
        )
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
    """One bool array of the elements' shape, and the float32 weight broadcastable to it; each None if absent."""
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
    """Gives `value` the elements' rank: trailing size-1 axes are added, or taken away where it has too many.

    Raises:
        ShapeError: When the shape is no prefix of the elements' shape; axes of size 1 fit any size.
    """
    shape, wanted = tuple(value.shape), tuple(losses.shape)
    if shape == wanted:
        return value
    while len(shape) > len(wanted) and shape[-1] == 1:
        shape = shape[:-1]
    shape += (1,) * (len(wanted) - len(shape))
    if len(shape) > len(wanted) or any(m not in (n, 1, None) and n for m, n in zip(shape, wanted, strict=True)):
        raise ShapeError(
            f"A mask or sample_weight of shape {tuple(value.shape)} does not fit elements of shape {wanted}; "
            "it needs a prefix of that shape, such as (rows,)."
        )
    return ops.reshape(value, shape)
