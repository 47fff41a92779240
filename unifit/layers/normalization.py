"""Normalisation within a row: LayerNormalization, RMSNormalization, GroupNormalization. Statistics are float32."""

from __future__ import annotations

from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.errors import ArgumentError, ShapeError
from unifit.layer import Layer, layers_registry


class _Affine(Layer):
    """gamma and beta along some axes."""

    supports_masking = True
    casts_inputs = False  # they are read in float32

    def __init__(
        self,
        epsilon: float,
        center: bool,
        scale: bool,
        beta_initializer: Any,
        gamma_initializer: Any,
        beta_regularizer: Any,
        gamma_regularizer: Any,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        _check_epsilon(self, epsilon)
        self.epsilon, self.center, self.scale = epsilon, center, scale
        self.beta_initializer, self.gamma_initializer = beta_initializer, gamma_initializer
        self.beta_regularizer, self.gamma_regularizer = beta_regularizer, gamma_regularizer

    def record_affine(self, shape: tuple[int, ...]) -> None:
        """Records gamma and beta, as far as they are wanted."""
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(
                shape, self.gamma_initializer, regularizer=self.gamma_regularizer, autocast=False
            )
        if self.center:
            self.beta = self.add_weight(shape, self.beta_initializer, regularizer=self.beta_regularizer, autocast=False)

    def affine(self, y: Any, axes: tuple[int, ...]) -> Any:
        """`gamma * y + beta`, along `axes`."""
        if self.gamma is not None:
            y = y * _along(self.gamma, y, axes)
        return y if self.beta is None else y + _along(self.beta, y, axes)


def _check_epsilon(owner: Layer, epsilon: float) -> None:
    if epsilon <= 0:
        raise ArgumentError(f"{type(owner).__name__} got epsilon={epsilon!r}; it needs a number above 0.")


def _along(weight: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The weight in float32 with the rank of `x`, its axes at `axes`."""
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(x.shape))
    return ops.reshape(precision.in_float32(weight), shape)


@layers_registry.register("layer_norm")
class LayerNormalization(_Affine):
    """Normalises each row over its last axis, or others: `y = gamma * (x - mean) / sqrt(variance + epsilon) + beta`.

    Args:
        axis: The axis or axes over which mean and variance are taken, and along which gamma and beta vary.
        epsilon: Added to the variance.
        center: Whether there is a `beta`.
        scale: Whether there is a `gamma`.
        beta_initializer, gamma_initializer: Initial values.
        beta_regularizer, gamma_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array, shape (batch, ...).
        Returns: Array with the shape of `x`, in the compute dtype.

    Raises:
        ArgumentError: When the input has no such axis, or `epsilon` is not above 0.

    Example:
        >>> tuple(LayerNormalization()(ops.ones((2, 5, 3))).shape)
        (2, 5, 3)

    Reference:
        Ba, Kiros and Hinton (2016), "Layer Normalization", arXiv:1607.06450.
    """

    def __init__(
        self,
        axis: Any = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(
            epsilon,
            center,
            scale,
            beta_initializer,
            gamma_initializer,
            beta_regularizer,
            gamma_regularizer,
            **kwargs,
        )
        self.axis = axis

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.axes = arguments.checked_axes(self, self.axis, len(input_shape))
        self.record_affine(tuple(input_shape[axis] for axis in self.axes))

    def call(self, x: Any) -> Any:
        values = precision.in_float32(x)
        mean, variance = ops.moments(values, self.axes, keepdims=True)
        y = self.affine((values - mean) * ops.rsqrt(variance + self.epsilon), self.axes)
        return precision.returned(self, y, x)


@layers_registry.register("rms_norm")
class RMSNormalization(Layer):
    """Divides each row by its root mean square: `y = scale * x / sqrt(mean(x^2) + epsilon)`.

    Args:
        axis: The axis or axes over which the mean is taken, and along which `scale` varies.
        epsilon: Added to the mean square.

    Call:
        x: Array, shape (batch, ...).
        Returns: Array with the shape of `x`, in the compute dtype.

    Raises:
        ArgumentError: When the input has no such axis, or `epsilon` is not above 0.

    Example:
        >>> tuple(RMSNormalization()(ops.ones((2, 5, 3))).shape)
        (2, 5, 3)

    Reference:
        Zhang and Sennrich (2019), "Root Mean Square Layer Normalization", arXiv:1910.07467.
    """

    supports_masking = True
    casts_inputs = False  # they are read in float32

    def __init__(self, axis: Any = -1, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        _check_epsilon(self, epsilon)
        self.axis, self.epsilon = axis, epsilon

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.axes = arguments.checked_axes(self, self.axis, len(input_shape))
        self.scale = self.add_weight(tuple(input_shape[axis] for axis in self.axes), "ones", autocast=False)

    def call(self, x: Any) -> Any:
        values = precision.in_float32(x)
        factor = ops.rsqrt(ops.mean(ops.square(values), self.axes, keepdims=True) + self.epsilon)
        return precision.returned(self, values * factor * _along(self.scale, values, self.axes), x)


@layers_registry.register("group_norm")
class GroupNormalization(_Affine):
    """Normalises each row over groups of channels and all other axes.

    Args:
        groups: Number of groups, a divisor of the channels; -1 makes each channel a group of its own (instance
            normalisation).
        axis: The axis of the channels.
        epsilon: Added to the variance.
        center: Whether there is a `beta` for each channel.
        scale: Whether there is a `gamma` for each channel.
        beta_initializer, gamma_initializer: Initial values.
        beta_regularizer, gamma_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array, shape (batch, ...).
        Returns: Array with the shape of `x`, in the compute dtype.

    Raises:
        ArgumentError: When `groups` is neither -1 nor above 0, or the input has no such axis.
        ShapeError: On build, when the channels are no multiple of `groups`.

    Example:
        >>> tuple(GroupNormalization(2)(ops.ones((2, 4, 4, 6))).shape)
        (2, 4, 4, 6)

    Reference:
        Wu and He (2018), "Group Normalization", arXiv:1803.08494.
    """

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(
            epsilon,
            center,
            scale,
            beta_initializer,
            gamma_initializer,
            beta_regularizer,
            gamma_regularizer,
            **kwargs,
        )
        self.groups = groups if groups == -1 else arguments.whole(self, "groups", groups)
        self.axis = axis

    def build(self, input_shape: tuple[int, ...]) -> None:
        axis = arguments.checked_axis(self, self.axis, len(input_shape))
        channels = input_shape[axis]
        if axis == 0 or channels % self.groups:
            raise ShapeError(
                f"GroupNormalization '{self.name}' with groups={self.groups} got an input of shape "
                f"{tuple(input_shape)}; its {channels} channels along axis {self.axis} must be a multiple of the "
                "groups."
            )
        self.record_affine((channels,))

    def call(self, x: Any) -> Any:
        axis = self.axis % len(x.shape)
        num_groups = x.shape[axis] if self.groups == -1 else self.groups
        grouped_shape = (-1, *x.shape[1:axis], num_groups, x.shape[axis] // num_groups, *x.shape[axis + 1 :])
        grouped = ops.reshape(precision.in_float32(x), grouped_shape)
        axes = tuple(other for other in range(1, len(grouped.shape)) if other != axis)
        mean, variance = ops.moments(grouped, axes, keepdims=True)
        y = ops.reshape((grouped - mean) * ops.rsqrt(variance + self.epsilon), (-1, *x.shape[1:]))
        return precision.returned(self, self.affine(y, (axis,)), x)
