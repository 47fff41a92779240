"""Pooling over all steps or pixels at once."""

from __future__ import annotations

from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.layer import Layer, layers_registry


class GlobalPooling(Layer):
    """What the global poolings share: their arguments, the axes, the check of the input's rank."""

    num_axes: int

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.data_format = arguments.channels_last(self, data_format)
        self.keepdims = keepdims

    def build(self, input_shape: tuple[int, ...]) -> None:
        arguments.check_rank(self, input_shape, self.num_axes + 2)

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial axes."""
        return tuple(range(1, self.num_axes + 1))


@layers_registry.register("global_average_pool1d")
class GlobalAveragePooling1D(GlobalPooling):
    """The mean over the steps that are not masked.

    Args:
        data_format: "channels_last" or None, which means the same.
        keepdims: Whether the step axis stays, with size 1.

    Call:
        x: Float array, shape (batch, steps, channels).
        mask: Filled in: bool, shape (batch, steps).
        Returns: Array, shape (batch, channels); zeros where all steps are masked.

    Raises:
        ShapeError: For an input with other than three axes. UnsupportedError: For "channels_first".

    Example:
        >>> tuple(GlobalAveragePooling1D()(ops.ones((2, 10, 3))).shape)
        (2, 3)
    """

    num_axes = 1
    supports_masking = True

    def call(self, x: Any, mask: Any = None) -> Any:
        if mask is None:
            return ops.mean(x, 1, self.keepdims)
        mask = ops.expand_dims(mask, -1)
        count = ops.sum(ops.cast(mask, "float32"), 1, self.keepdims)
        total = ops.sum(ops.where(mask, precision.widened(x), 0.0), 1, self.keepdims)
        return precision.as_given(total / ops.maximum(count, 1.0), x)

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        return None


@layers_registry.register("global_average_pool2d")
class GlobalAveragePooling2D(GlobalPooling):
    """The mean over all pixels.

    Args:
        data_format: "channels_last" or None, which means the same.
        keepdims: Whether height and width stay, with size 1.

    Call:
        x: Float array, shape (batch, height, width, channels).
        Returns: Array, shape (batch, channels).

    Raises:
        ShapeError: For an input with other than four axes. UnsupportedError: For "channels_first".

    Example:
        >>> tuple(GlobalAveragePooling2D()(ops.ones((2, 4, 4, 3))).shape)
        (2, 3)
    """

    num_axes = 2

    def call(self, x: Any) -> Any:
        return ops.mean(x, self.axes, self.keepdims)


class _GlobalMaxPooling(GlobalPooling):
    def call(self, x: Any) -> Any:
        return ops.max(x, self.axes, self.keepdims)


@layers_registry.register("global_max_pool1d")
class GlobalMaxPooling1D(_GlobalMaxPooling):
    """The largest element over all steps; as in Keras, masked ones too.

    Args:
        data_format: "channels_last" or None, which means the same.
        keepdims: Whether the step axis stays, with size 1.

    Call:
        x: Float array, shape (batch, steps, channels).
        Returns: Array, shape (batch, channels).

    Raises:
        ShapeError: For an input with other than three axes. UnsupportedError: For "channels_first".

    Example:
        >>> tuple(GlobalMaxPooling1D()(ops.ones((2, 10, 3))).shape)
        (2, 3)
    """

    num_axes = 1


@layers_registry.register("global_max_pool2d")
class GlobalMaxPooling2D(_GlobalMaxPooling):
    """The largest element over all pixels.

    Args:
        data_format: "channels_last" or None, which means the same.
        keepdims: Whether height and width stay, with size 1.

    Call:
        x: Float array, shape (batch, height, width, channels).
        Returns: Array, shape (batch, channels).

    Raises:
        ShapeError: For an input with other than four axes. UnsupportedError: For "channels_first".

    Example:
        >>> tuple(GlobalMaxPooling2D()(ops.ones((2, 4, 4, 3))).shape)
        (2, 3)
    """

    num_axes = 2
