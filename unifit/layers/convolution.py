"""Convolutions over one or two spatial axes: Conv1D, Conv2D, DepthwiseConv2D."""

from __future__ import annotations

from typing import Any

import unifit.activations as activations
import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.errors import ArgumentError, ShapeError
from unifit.layer import Layer, layers_registry


class Convolution(Layer):
    """What the convolutions share: the window's arguments, the bias, the activation."""

    num_axes: int

    def __init__(
        self,
        kernel_size: Any,
        strides: Any,
        padding: str,
        data_format: str | None,
        dilation_rate: Any,
        activation: Any,
        use_bias: bool,
        bias_initializer: Any,
        bias_regularizer: Any,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kernel_size = arguments.sizes(self, "kernel_size", kernel_size, self.num_axes)
        self.strides = arguments.sizes(self, "strides", strides, self.num_axes)
        self.dilation_rate = arguments.sizes(self, "dilation_rate", dilation_rate, self.num_axes)
        paddings = ("valid", "same", "causal") if type(self).__name__ == "Conv1D" else ("valid", "same")
        self.padding = arguments.choice(self, "padding", padding, paddings)
        self.data_format = arguments.channels_last(self, data_format)
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            raise ArgumentError(
                f"{type(self).__name__} got strides={strides} and dilation_rate={dilation_rate}; one of them must be 1."
            )
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.bias_initializer, self.bias_regularizer = bias_initializer, bias_regularizer

    def finish(self, y: Any) -> Any:
        """Bias and activation."""
        return self.activation(y if self.bias is None else ops.add(y, self.bias))

    def record_bias(self, size: int) -> None:
        """Records the bias, if there is one."""
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight((size,), self.bias_initializer, regularizer=self.bias_regularizer)

    def channels_of(self, input_shape: tuple[int, ...]) -> int:
        """The input's channels, once its number of axes is right."""
        arguments.check_rank(self, input_shape, self.num_axes + 2)
        return input_shape[-1]


class _Conv(Convolution):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer,
            bias_regularizer,
            **kwargs,
        )
        self.filters = arguments.whole(self, "filters", filters)
        self.groups = arguments.whole(self, "groups", groups)
        if filters % groups:
            raise ArgumentError(
                f"{type(self).__name__} got filters={filters} and groups={groups}; the filters must be a multiple of "
                "the groups."
            )
        self.kernel_initializer, self.kernel_regularizer = kernel_initializer, kernel_regularizer

    def build(self, input_shape: tuple[int, ...]) -> None:
        channels = self.channels_of(input_shape)
        if channels % self.groups:
            raise ShapeError(
                f"{type(self).__name__} '{self.name}' with groups={self.groups} got an input of shape {input_shape}; "
                f"its {channels} channels must be a multiple of the groups."
            )
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        self.kernel = self.add_weight(shape, self.kernel_initializer, regularizer=self.kernel_regularizer)
        self.record_bias(self.filters)

    def call(self, x: Any) -> Any:
        padding, kernel = self.padding, self.kernel
        x = precision.like(x, kernel)
        if padding == "causal":
            x = ops.pad(x, ((0, 0), (self.dilation_rate[0] * (self.kernel_size[0] - 1), 0), (0, 0)))
            padding = "valid"
        return self.finish(ops.conv(x, kernel, self.strides, padding, self.dilation_rate))


@layers_registry.register("convolution1d")
class Conv1D(_Conv):
    """Convolution over the steps of a sequence: `y = activation(conv(x, kernel) + bias)`.

    Args:
        filters: Channels of the output, a multiple of `groups`.
        kernel_size: Steps in the window.
        strides: Distance between windows.
        padding: "valid", "same" (zeros, so that there are ceil(steps / strides) windows), or "causal" (zeros in front,
            so that a step sees none after it).
        data_format: "channels_last" or None, which means the same.
        dilation_rate: Distance between the steps of a window.
        groups: The channels are cut into this many groups, each with filters of its own.
        activation: Function or registered name; None leaves `y` as it is.
        use_bias: Whether there is a bias.
        kernel_initializer, bias_initializer: Initial values, by Keras' names.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array of floats or integers, shape (batch, steps, channels).
        Returns: Array, shape (batch, windows, filters).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: on build, for an input with other than three axes, or
            whose channels are no multiple of `groups`. UnsupportedError: For "channels_first".

    Example:
        >>> tuple(Conv1D(4, 3, padding="causal")(ops.ones((2, 10, 5))).shape)
        (2, 10, 4)
    """

    num_axes = 1


@layers_registry.register("convolution2d")
class Conv2D(_Conv):
    """Convolution over images: `y = activation(conv(x, kernel) + bias)`.

    Args:
        filters: Channels of the output, a multiple of `groups`.
        kernel_size: Height and width of the window, or one number for both.
        strides: Distance between windows.
        padding: "valid" or "same" (zeros, so that there are ceil(size / strides) windows along each axis).
        data_format: "channels_last" or None, which means the same.
        dilation_rate: Distance between the pixels of a window.
        groups: The channels are cut into this many groups, each with filters of its own.
        activation: Function or registered name; None leaves `y` as it is.
        use_bias: Whether there is a bias.
        kernel_initializer, bias_initializer: Initial values, by Keras' names.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array of floats or integers, shape (batch, height, width, channels).
        Returns: Array, shape (batch, new height, new width, filters).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: on build, for an input with other than four axes, or
            whose channels are no multiple of `groups`. UnsupportedError: For "channels_first".

    Example:
        >>> tuple(Conv2D(4, 3, activation="relu")(ops.ones((2, 8, 8, 1))).shape)
        (2, 6, 6, 4)
    """

    num_axes = 2


@layers_registry.register("depthwise_convolution2d")
class DepthwiseConv2D(Convolution):
    """Convolution of each channel of images with kernels of its own.

    Args:
        kernel_size: Height and width of the window, or one number for both.
        strides: Distance between windows; the same along both axes.
        padding: "valid" or "same".
        depth_multiplier: Output channels for each input channel.
        data_format: "channels_last" or None, which means the same.
        dilation_rate: Distance between the pixels of a window.
        activation: Function or registered name; None leaves `y` as it is.
        use_bias: Whether there is a bias.
        depthwise_initializer, bias_initializer: Initial values, by Keras' names.
        depthwise_regularizer, bias_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array of floats or integers, shape (batch, height, width, channels).
        Returns: Array, shape (batch, new height, new width, channels * depth_multiplier).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: on build, for an input with other than four axes.

    Example:
        >>> tuple(DepthwiseConv2D(3, depth_multiplier=2)(ops.ones((2, 8, 8, 5))).shape)
        (2, 6, 6, 10)
    """

    num_axes = 2

    def __init__(
        self,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer,
            bias_regularizer,
            **kwargs,
        )
        self.depth_multiplier = arguments.whole(self, "depth_multiplier", depth_multiplier)
        self.depthwise_initializer, self.depthwise_regularizer = depthwise_initializer, depthwise_regularizer

    def build(self, input_shape: tuple[int, ...]) -> None:
        channels = self.channels_of(input_shape)
        shape = (*self.kernel_size, channels, self.depth_multiplier)
        self.kernel = self.add_weight(shape, self.depthwise_initializer, regularizer=self.depthwise_regularizer)
        self.record_bias(channels * self.depth_multiplier)

    def call(self, x: Any) -> Any:
        kernel = self.kernel
        x = precision.like(x, kernel)
        return self.finish(ops.depthwise_conv(x, kernel, self.strides, self.padding, self.dilation_rate))
