"""Layers that make one array of several: Add, Subtract, Multiply, Average, Maximum, Minimum, Concatenate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.errors import ShapeError
from unifit.layer import Layer, layers_registry


class Merge(Layer):
    """What the merging layers share: a list of inputs, brought to one rank, and the rule for masks.

    The output has a mask if every input has one: a position counts where it counts in any of them.
    """

    supports_masking = True

    def build(self, input_shape: Any) -> None:
        if not input_shape or not isinstance(input_shape[0], Sequence):
            raise ShapeError(
                f"{type(self).__name__} '{self.name}' got one array; it needs a list of arrays, as in "
                f"{type(self).__name__}()([a, b])."
            )

    def call(self, inputs: Sequence[Any]) -> Any:
        return self.merge(of_one_rank(inputs))

    def merge(self, inputs: Sequence[Any]) -> Any:
        """The function of the arrays."""
        raise NotImplementedError

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        return None if any(part is None for part in mask) else reduce(ops.logical_or, mask)


def of_one_rank(inputs: Sequence[Any]) -> list[Any]:
    """The arrays with axes of size 1 after the batch axis, so that all have the same number."""
    rank = max(len(x.shape) for x in inputs)
    return [ops.reshape(x, (x.shape[0], *[1] * (rank - len(x.shape)), *x.shape[1:])) for x in inputs]


@layers_registry.register
class Add(Merge):
    """The sum of several arrays.

    Call:
        inputs: List of arrays that broadcast; those with fewer axes get new ones after the batch axis.
        Returns: Their sum.

    Raises:
        ShapeError: When the input is no list.

    Example:
        >>> tuple(Add()([ops.ones((2, 3)), ops.ones((2, 3))]).shape)
        (2, 3)
    """

    def merge(self, inputs: Sequence[Any]) -> Any:
        return reduce(ops.add, inputs)


@layers_registry.register
class Subtract(Merge):
    """The difference of two arrays.

    Call:
        inputs: List of two arrays that broadcast.
        Returns: The first minus the second.

    Raises:
        ShapeError: When the input is no list of two.

    Example:
        >>> tuple(Subtract()([ops.ones((2, 3)), ops.ones((2, 3))]).shape)
        (2, 3)
    """

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        if len(input_shape) != 2:
            raise ShapeError(f"Subtract '{self.name}' got {len(input_shape)} arrays; it needs two.")

    def merge(self, inputs: Sequence[Any]) -> Any:
        return ops.subtract(*inputs)


@layers_registry.register
class Multiply(Merge):
    """The elementwise product of several arrays.

    Call:
        inputs: List of arrays that broadcast; those with fewer axes get new ones after the batch axis.
        Returns: Their product.

    Raises:
        ShapeError: When the input is no list.

    Example:
        >>> tuple(Multiply()([ops.ones((2, 3)), ops.ones((2, 3))]).shape)
        (2, 3)
    """

    def merge(self, inputs: Sequence[Any]) -> Any:
        return reduce(ops.multiply, inputs)


@layers_registry.register
class Average(Merge):
    """The elementwise mean of several arrays.

    Call:
        inputs: List of arrays that broadcast; those with fewer axes get new ones after the batch axis.
        Returns: Their sum divided by their number.

    Raises:
        ShapeError: When the input is no list.

    Example:
        >>> tuple(Average()([ops.ones((2, 3)), ops.ones((2, 3))]).shape)
        (2, 3)
    """

    def merge(self, inputs: Sequence[Any]) -> Any:
        total = reduce(ops.add, map(precision.widened, inputs))
        return precision.as_given(total / len(inputs), inputs[0])


class _Extreme(Merge):
    operation: Callable[[Any, Any], Any]

    def call(self, inputs: Sequence[Any], mask: Any = None) -> Any:
        inputs = of_one_rank(inputs)
        if mask is None or all(part is None for part in mask):
            return reduce(type(self).operation, inputs)
        # A masked element does not take part; where all are masked any may win, since the output is masked there.
        valid = [None if part is None else _over_features(part, x) for part, x in zip(mask, inputs, strict=True)]
        y, y_valid = inputs[0], valid[0]
        for x, x_valid in zip(inputs[1:], valid[1:], strict=True):
            x = x if x_valid is None else ops.where(x_valid, x, y)
            y = y if y_valid is None else ops.where(y_valid, y, x)
            y_valid = None if x_valid is None or y_valid is None else ops.logical_or(x_valid, y_valid)
            y = type(self).operation(y, x)
        return y


def _over_features(mask: Any, x: Any) -> Any:
    return ops.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - len(mask.shape))))


@layers_registry.register
class Maximum(_Extreme):
    """The elementwise maximum of several arrays; masked elements do not take part.

    Call:
        inputs: List of arrays that broadcast; those with fewer axes get new ones after the batch axis.
        mask: Filled in.
        Returns: The largest of each element.

    Raises:
        ShapeError: When the input is no list.

    Example:
        >>> tuple(Maximum()([ops.ones((2, 3)), ops.ones((2, 3))]).shape)
        (2, 3)
    """

    operation = staticmethod(ops.maximum)


@layers_registry.register
class Minimum(_Extreme):
    """The elementwise minimum of several arrays; masked elements do not take part.

    Call:
        inputs: List of arrays that broadcast; those with fewer axes get new ones after the batch axis.
        mask: Filled in.
        Returns: The smallest of each element.

    Raises:
        ShapeError: When the input is no list.

    Example:
        >>> tuple(Minimum()([ops.ones((2, 3)), ops.ones((2, 3))]).shape)
        (2, 3)
    """

    operation = staticmethod(ops.minimum)


@layers_registry.register
class Concatenate(Merge):
    """Joins arrays along an axis.

    Args:
        axis: The axis, not that of the batch.

    Call:
        inputs: List of arrays whose other axes have equal sizes.
        Returns: Array whose `axis` is as long as theirs together. Masks are joined too, a missing one counting as all
            True.

    Raises:
        ShapeError: When the input is no list, or other axes differ. ArgumentError: when there is no such axis.

    Example:
        >>> tuple(Concatenate()([ops.ones((2, 3)), ops.ones((2, 4))]).shape)
        (2, 7)
    """

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = axis

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        axis = arguments.checked_axis(self, self.axis, len(input_shape[0]))
        if len({(*shape[:axis], *shape[axis + 1 :]) for shape in input_shape}) > 1:
            raise ShapeError(
                f"Concatenate '{self.name}' along axis {self.axis} got arrays of shapes "
                f"{', '.join(str(tuple(shape)) for shape in input_shape)}; their other axes must have equal sizes."
            )

    def call(self, inputs: Sequence[Any]) -> Any:
        return ops.concatenate(inputs, self.axis)

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        axis = self.axis % len(inputs[0].shape)
        along_features = axis == len(inputs[0].shape) - 1
        if along_features and any(part is None for part in mask):
            return None
        steps = [_over_steps(part, x) for part, x in zip(mask, inputs, strict=True)]
        return reduce(ops.logical_or, steps) if along_features else ops.concatenate(steps, axis)


def _over_steps(mask: Any, x: Any) -> Any:
    """The mask, or all True, for every axis but the last."""
    if mask is None:
        return ops.ones(x.shape[:-1], "bool")
    return ops.broadcast_to(_over_features(mask, x[..., 0]), x.shape[:-1])
