"""Dense and its kind: affine maps of the last axis."""

from __future__ import annotations

from typing import Any

import unifit.activations as activations
import unifit.ops as ops
from unifit.errors import ArgumentError
from unifit.layer import Layer, layers_registry


@layers_registry.register
class Dense(Layer):
    """Affine map of the last axis: `y = activation(x @ kernel + bias)`.

    Args:
        units: Size of the output's last axis, at least 1.
        activation: Function or registered name; None leaves `y` as it is.
        use_bias: Whether there is a bias.
        kernel_initializer, bias_initializer: Initial values, by Keras' names.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.

    Call:
        x: Float array, shape (batch, ..., in).
        Returns: Array, shape (batch, ..., units).

    Raises:
        ArgumentError: When units is below 1, or on build when the last axis of `x` is unknown.

    Example:
        >>> Dense(3)(ops.ones((2, 5))).shape[-1]
        3
    """

    supports_masking = True

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if units < 1:
            raise ArgumentError(f"Dense got units={units!r}; it needs a whole number of at least 1.")
        self.units = units
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer

    def build(self, input_shape: tuple[int, ...]) -> None:
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_weight(shape, self.kernel_initializer, regularizer=self.kernel_regularizer)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight((self.units,), self.bias_initializer, regularizer=self.bias_regularizer)

    def call(self, x: Any) -> Any:
        y = ops.matmul(x, self.kernel)
        return self.activation(y if self.bias is None else ops.add(y, self.bias))
