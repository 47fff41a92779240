"""Transposed convolutions over one or two spatial axes."""

from __future__ import annotations

from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.layer import layers_registry
from unifit.layers.convolution import Convolution


class _ConvTranspose(Convolution):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        output_padding: Any = None,
        data_format: str | None = None,
        dilation_rate: Any = 1,
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
        self.output_padding = None
        if output_padding is not None:
            self.output_padding = arguments.sizes(self, "output_padding", output_padding, self.num_axes, at_least=0)
        self.kernel_initializer, self.kernel_regularizer = kernel_initializer, kernel_regularizer

    def build(self, input_shape: tuple[int, ...]) -> None:
        shape = (*self.kernel_size, self.filters, self.channels_of(input_shape))
        self.kernel = self.add_weight(shape, self.kernel_initializer, regularizer=self.kernel_regularizer)
        self.record_bias(self.filters)

    def call(self, x: Any) -> Any:
        window = (self.strides, self.padding, self.output_padding, self.dilation_rate)
        kernel = self.kernel
        return self.finish(ops.conv_transpose(precision.like(x, kernel), kernel, *window))


@layers_registry.register("convolution1d_transpose")
class Conv1DTranspose(_ConvTranspose):
    """Transposed convolution of sequences, which makes them longer: the gradient of Conv1D with respect to its input.

    Args:
        filters: Channels of the output.
        kernel_size: Steps in the window.
        strides: Factor by which the sequence becomes longer.
        padding: "valid" or "same".
        output_padding: Steps added to the output, below `strides`; None gives `steps * strides` for "same" and
            `steps * strides + max(kernel_size - strides, 0)` for "valid".
        data_format: "channels_last" or None, which means the same.
        dilation_rate: Distance between the steps of a window.
        activation: Function or registered name; None leaves `y` as it is.
        use_bias: Whether there is a bias.
        kernel_initializer, bias_initializer: Initial values, by Keras' names.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array of floats or integers, shape (batch, steps, channels).
        Returns: Array, shape (batch, new steps, filters).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: on build, for an input with other than three axes.

    Example:
        >>> tuple(Conv1DTranspose(4, 3, strides=2, padding="same")(ops.ones((2, 5, 3))).shape)
        (2, 10, 4)
    """

    num_axes = 1


@layers_registry.register("convolution2d_transpose")
class Conv2DTranspose(_ConvTranspose):
    """Transposed convolution of images, which makes them larger: the gradient of Conv2D with respect to its input.

    Args:
        filters: Channels of the output.
        kernel_size: Height and width of the window, or one number for both.
        strides: Factors by which the image becomes larger.
        padding: "valid" or "same".
        output_padding: Rows and columns added to the output, below `strides`; None gives `size * strides` for "same"
            and `size * strides + max(kernel_size - strides, 0)` for "valid".
        data_format: "channels_last" or None, which means the same.
        dilation_rate: Distance between the pixels of a window.
        activation: Function or registered name; None leaves `y` as it is.
        use_bias: Whether there is a bias.
        kernel_initializer, bias_initializer: Initial values, by Keras' names.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array of floats or integers, shape (batch, height, width, channels).
        Returns: Array, shape (batch, new height, new width, filters).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: on build, for an input with other than four axes.

    Example:
        >>> tuple(Conv2DTranspose(4, 3, strides=2, padding="same")(ops.ones((2, 5, 6, 3))).shape)
        (2, 10, 12, 4)
    """

    num_axes = 2
