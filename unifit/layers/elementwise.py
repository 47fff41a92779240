"""Layers that treat every element alike: Activation, ReLU, LeakyReLU, Softmax, Rescaling, Identity."""

from __future__ import annotations

from typing import Any

import numpy as np

import unifit.activations as activations
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.layer import Layer, layers_registry


@layers_registry.register
class Activation(Layer):
    """Applies an activation function.

    Args:
        activation: Function or registered name.

    Call:
        x: Float array.
        Returns: Array with the shape of `x`.

    Raises:
        UnknownNameError: For an unknown name.

    Example:
        >>> tuple(Activation("relu")(ops.ones((2, 3))).shape)
        (2, 3)
    """

    supports_masking = True

    def __init__(self, activation: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.activation = activations.get(activation)

    def call(self, x: Any) -> Any:
        return self.activation(x)


@layers_registry.register
class ReLU(Layer):
    """`x` between `threshold` and `max_value`, `max_value` above, `negative_slope * (x - threshold)` below.

    Args:
        max_value: Upper bound, at least 0; None for none.
        negative_slope: At least 0.
        threshold: At least 0.

    Call:
        x: Float array.
        Returns: Array with the shape of `x`.

    Raises:
        ArgumentError: When an argument is below 0.

    Example:
        >>> tuple(ReLU(max_value=6.0)(ops.ones((2, 3))).shape)
        (2, 3)
    """

    supports_masking = True

    def __init__(
        self, max_value: float | None = None, negative_slope: float = 0.0, threshold: float = 0.0, **kwargs: Any
    ):
        super().__init__(**kwargs)
        for name, value in (("max_value", max_value), ("negative_slope", negative_slope), ("threshold", threshold)):
            if value is not None and value < 0 or value is None and name != "max_value":
                raise ArgumentError(f"ReLU got {name}={value!r}; it needs a number of at least 0.")
        self.max_value, self.negative_slope, self.threshold = max_value, negative_slope, threshold

    def call(self, x: Any) -> Any:
        if self.negative_slope == 0 and self.threshold == 0:
            y = ops.relu(x)
        else:
            y = ops.where(x >= self.threshold, x, self.negative_slope * (x - self.threshold))
        return y if self.max_value is None else ops.minimum(y, self.max_value)


@layers_registry.register
class LeakyReLU(Layer):
    """`x` where positive, else `negative_slope * x`.

    Args:
        negative_slope: At least 0.

    Call:
        x: Float array.
        Returns: Array with the shape of `x`.

    Raises:
        ArgumentError: When `negative_slope` is below 0.

    Example:
        >>> tuple(LeakyReLU()(ops.ones((2, 3))).shape)
        (2, 3)
    """

    supports_masking = True

    def __init__(self, negative_slope: float = 0.3, **kwargs: Any):
        super().__init__(**kwargs)
        if negative_slope < 0:
            raise ArgumentError(f"LeakyReLU got negative_slope={negative_slope!r}; it needs a number of at least 0.")
        self.negative_slope = negative_slope

    def call(self, x: Any) -> Any:
        return ops.leaky_relu(x, self.negative_slope)


@layers_registry.register
class Softmax(Layer):
    """`exp(x) / sum(exp(x))` over an axis or several, leaving out masked elements.

    Args:
        axis: Axis, or list of axes.

    Call:
        x: Float array.
        mask: bool; False leaves an element out, which becomes 0. It broadcasts to `x`; with fewer axes than `x` its
            shape is the front of that of `x`.
        Returns: Array with the shape of `x`; zeros where everything along `axis` is masked.

    Example:
        >>> tuple(Softmax()(ops.ones((2, 4))).shape)
        (2, 4)
    """

    supports_masking = True

    def __init__(self, axis: Any = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, x: Any, mask: Any = None) -> Any:
        axis = tuple(self.axis) if isinstance(self.axis, (list, tuple)) else self.axis
        if mask is not None:
            mask = ops.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - len(mask.shape))))
        return masked_softmax(x, mask, axis)


def masked_softmax(x: Any, mask: Any, axis: int | tuple[int, ...] = -1) -> Any:
    """Softmax over the elements where `mask` is True; 0 elsewhere, and in rows without any."""
    if mask is None:
        return ops.softmax(x, axis)
    lowest = -65504.0 if ops.dtype(x) == "float16" else -1e9  # finite, so that a row without elements gives no NaN
    return ops.where(mask, ops.softmax(ops.where(mask, x, lowest), axis), 0.0)


@layers_registry.register
class Rescaling(Layer):
    """`x * scale + offset`, for instance `Rescaling(1 / 255)` for images of bytes.

    Args:
        scale: Factor: a number, or a list of one for each channel.
        offset: Added after that: the same.

    Call:
        x: Array of any dtype.
        Returns: Array with the shape of `x`, in the compute dtype; it is float32 inside.

    Example:
        >>> tuple(Rescaling(1 / 255)(ops.ones((2, 4, 4, 3), "uint8")).shape)
        (2, 4, 4, 3)
    """

    supports_masking = True
    casts_inputs = False  # what comes may be larger than a half can hold

    def __init__(self, scale: Any, offset: Any = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale, self.offset = scale, offset

    def call(self, x: Any) -> Any:
        y = precision.in_float32(x) * _operand(self.scale) + _operand(self.offset)
        return precision.returned(self, y, x)


def _operand(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else ops.convert_to_tensor(np.asarray(value, "float32"))


@layers_registry.register("identity_layer")
class Identity(Layer):
    """Returns its input.

    Call:
        x: Anything.
        Returns: `x`, in its own dtype.

    Example:
        >>> tuple(Identity()(ops.ones((2, 3))).shape)
        (2, 3)
    """

    supports_masking = True
    casts_inputs = False

    def call(self, x: Any) -> Any:
        return x
