"""BatchNormalization: statistics of the valid elements of a micro-batch over all devices."""

from __future__ import annotations

import math
from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.context import CallContext, context
from unifit.errors import ArgumentError, UnifitError
from unifit.layer import Layer, layers_registry


@layers_registry.register("batch_norm")
class BatchNormalization(Layer):
    """Normalises each channel over the batch: `y = gamma * (x - mean) / sqrt(variance + epsilon) + beta`.

    In training, mean and variance (divided by the count) are those of the valid elements of one micro-batch over all
    devices: padding rows and masked positions stay out. They move `moving_mean` and `moving_variance`, which stand for
    them otherwise; a micro-batch without a valid row moves nothing. A layer with `trainable=False` always uses the
    moving statistics. Statistics are float32 whatever the input's dtype.

    Args:
        axis: The axis of the channels.
        momentum: The share of the old value in a moving statistic.
        epsilon: Added to the variance.
        center: Whether there is a `beta`.
        scale: Whether there is a `gamma`.
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer: Initial values.
        beta_regularizer, gamma_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array, shape (batch, ...).
        training: Filled in.
        mask: Filled in: bool, a prefix of the shape of `x`.
        Returns: Array with the shape of `x`, in the compute dtype.

    Raises:
        ArgumentError: When `momentum` or `epsilon` is out of range, or the input has no such axis.

    Example:
        >>> tuple(BatchNormalization()(ops.ones((4, 3))).shape)
        (4, 3)

    Reference:
        Ioffe and Szegedy (2015), "Batch Normalization", arXiv:1502.03167.
    """

    supports_masking = True
    casts_inputs = False  # they are read in float32

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not 0 <= momentum <= 1:
            raise ArgumentError(f"BatchNormalization got momentum={momentum!r}; it needs a number in [0, 1].")
        if epsilon <= 0:
            raise ArgumentError(f"BatchNormalization got epsilon={epsilon!r}; it needs a number above 0.")
        self.axis, self.momentum, self.epsilon = axis, momentum, epsilon
        self.center, self.scale = center, scale
        self.beta_initializer, self.gamma_initializer = beta_initializer, gamma_initializer
        self.moving_mean_initializer = moving_mean_initializer
        self.moving_variance_initializer = moving_variance_initializer
        self.beta_regularizer, self.gamma_regularizer = beta_regularizer, gamma_regularizer

    def build(self, input_shape: tuple[int, ...]) -> None:
        shape = (input_shape[arguments.checked_axis(self, self.axis, len(input_shape))],)
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(
                shape, self.gamma_initializer, regularizer=self.gamma_regularizer, autocast=False
            )
        if self.center:
            self.beta = self.add_weight(shape, self.beta_initializer, regularizer=self.beta_regularizer, autocast=False)
        self.moving_mean = self.add_weight(shape, self.moving_mean_initializer, trainable=False)
        self.moving_variance = self.add_weight(shape, self.moving_variance_initializer, trainable=False)

    def call(self, x: Any, training: bool = False, mask: Any = None) -> Any:
        given, x = x, precision.in_float32(x)
        if training and self.trainable:
            mean, variance = self._batch_statistics(x, mask)
        else:
            mean, variance = self.moving_mean, self.moving_variance
        shape = tuple(size if axis == self.axis % len(x.shape) else 1 for axis, size in enumerate(x.shape))
        factor = ops.rsqrt(variance + self.epsilon)
        if self.gamma is not None:
            factor = factor * precision.in_float32(self.gamma)
        y = (x - ops.reshape(mean, shape)) * ops.reshape(factor, shape)
        if self.beta is not None:
            y = y + ops.reshape(precision.in_float32(self.beta), shape)
        return precision.returned(self, y, given)

    def _batch_statistics(self, x: Any, mask: Any) -> tuple[Any, Any]:
        """Mean and variance, shape (channels,), of the valid elements; moves the moving statistics."""
        ambient = context()
        if ambient is None:
            raise UnifitError("BatchNormalization.call ran outside a forward pass; call the layer itself.")
        axes = tuple(axis for axis in range(len(x.shape)) if axis != self.axis % len(x.shape))
        valid = _validity(ambient, x, mask)
        if valid is None and not ambient.spans_devices:
            mean, variance = ops.moments(x, axes)
            self._move(mean, variance)
            return mean, variance
        mean, variance, count = _moments_over_devices(ambient, x, valid, axes)
        self._move(mean, variance, None if valid is None else count > 0)
        return mean, variance

    def _move(self, mean: Any, variance: Any, where: Any = None) -> None:
        for name, value in (("moving_mean", mean), ("moving_variance", variance)):
            old = getattr(self, name)
            new = old * self.momentum + ops.stop_gradient(value) * (1.0 - self.momentum)
            self.assign(name, new if where is None else ops.where(where, new, old))


def _validity(ambient: CallContext, x: Any, mask: Any) -> Any:
    """bool with the rank of `x`: the rows' validity and the input's mask; None when all is valid."""
    given = [_with_rank(part, x) for part in (ambient.valid, mask) if part is not None]
    if not given:
        return None
    return given[0] if len(given) == 1 else ops.logical_and(*given)


def _with_rank(mask: Any, x: Any) -> Any:
    return ops.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - len(mask.shape))))


def _moments_over_devices(ambient: CallContext, x: Any, valid: Any, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Mean, variance and number of the valid elements of each channel over all devices, by two reductions.

    The second pass sums squared deviations from the mean, which is accurate where E[x^2] - E[x]^2 is not.
    """
    total = ops.sum(x if valid is None else ops.where(valid, x, 0.0), axes)
    count = ops.broadcast_to(_count(x, valid, axes), total.shape)
    total, count = ops.unstack(ambient.sum_over_devices(ops.stack([total, count])))
    divisor = ops.maximum(count, 1.0)
    mean = total / divisor
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    squares = ops.square(x - ops.reshape(mean, shape))
    squares = ops.sum(squares if valid is None else ops.where(valid, squares, 0.0), axes)
    return mean, ambient.sum_over_devices(squares) / divisor, count


def _count(x: Any, valid: Any, axes: tuple[int, ...]) -> Any:
    """Valid elements of each channel: float32, shape (1,) or (channels,)."""
    if valid is None:
        return ops.full((1,), float(math.prod(x.shape[axis] for axis in axes)), "float32")
    repeats = math.prod(x.shape[axis] for axis in axes if valid.shape[axis] == 1)
    return ops.reshape(ops.sum(ops.cast(valid, "float32"), axes), (-1,)) * float(repeats)
