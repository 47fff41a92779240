"""Pooling over windows of one or two spatial axes."""

from __future__ import annotations

from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.layer import Layer, layers_registry


class Pooling(Layer):
    """What the window poolings share: their arguments, and the check of the input's rank."""

    num_axes: int

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: str = "valid",
        data_format: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.pool_size = arguments.sizes(self, "pool_size", pool_size, self.num_axes)
        self.strides = self.pool_size if strides is None else arguments.sizes(self, "strides", strides, self.num_axes)
        self.padding = arguments.choice(self, "padding", padding, ("valid", "same"))
        self.data_format = arguments.channels_last(self, data_format)

    def build(self, input_shape: tuple[int, ...]) -> None:
        arguments.check_rank(self, input_shape, self.num_axes + 2)


class _MaxPooling(Pooling):
    def call(self, x: Any) -> Any:
        return ops.max_pool(x, self.pool_size, self.strides, self.padding)


class _AveragePooling(Pooling):
    def call(self, x: Any) -> Any:
        # In float32: sums of halves lose what is small, or overflow.
        y = ops.average_pool(precision.widened(x), self.pool_size, self.strides, self.padding)
        return precision.as_given(y, x)


@layers_registry.register("max_pool1d")
class MaxPooling1D(_MaxPooling):
    """The largest element of every window of steps.

    Args:
        pool_size: Steps in a window.
        strides: Distance between windows; None is `pool_size`.
        padding: "valid" or "same"; padding never wins.
        data_format: "channels_last" or None, which means the same.

    Call:
        x: Float array, shape (batch, steps, channels).
        Returns: Array, shape (batch, windows, channels).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: for an input with other than three axes.

    Example:
        >>> tuple(MaxPooling1D()(ops.ones((2, 10, 3))).shape)
        (2, 5, 3)
    """

    num_axes = 1


@layers_registry.register("max_pool2d")
class MaxPooling2D(_MaxPooling):
    """The largest element of every window of pixels.

    Args:
        pool_size: Height and width of a window, or one number for both.
        strides: Distance between windows; None is `pool_size`.
        padding: "valid" or "same"; padding never wins.
        data_format: "channels_last" or None, which means the same.

    Call:
        x: Float array, shape (batch, height, width, channels).
        Returns: Array, shape (batch, new height, new width, channels).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: for an input with other than four axes.

    Example:
        >>> tuple(MaxPooling2D()(ops.ones((2, 8, 8, 3))).shape)
        (2, 4, 4, 3)
    """

    num_axes = 2


@layers_registry.register("average_pool1d")
class AveragePooling1D(_AveragePooling):
    """The mean of every window of steps, over those inside the input only.

    Args:
        pool_size: Steps in a window.
        strides: Distance between windows; None is `pool_size`.
        padding: "valid" or "same"; padding is not counted.
        data_format: "channels_last" or None, which means the same.

    Call:
        x: Float array, shape (batch, steps, channels).
        Returns: Array, shape (batch, windows, channels).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: for an input with other than three axes.

    Example:
        >>> tuple(AveragePooling1D(2)(ops.ones((2, 10, 3))).shape)
        (2, 5, 3)
    """

    num_axes = 1


@layers_registry.register("average_pool2d")
class AveragePooling2D(_AveragePooling):
    """The mean of every window of pixels, over those inside the input only.

    Args:
        pool_size: Height and width of a window, or one number for both.
        strides: Distance between windows; None is `pool_size`.
        padding: "valid" or "same"; padding is not counted.
        data_format: "channels_last" or None, which means the same.

    Call:
        x: Float array, shape (batch, height, width, channels).
        Returns: Array, shape (batch, new height, new width, channels).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: for an input with other than four axes.

    Example:
        >>> tuple(AveragePooling2D(2)(ops.ones((2, 8, 8, 3))).shape)
        (2, 4, 4, 3)
    """

    num_axes = 2
