"""Dense and EinsumDense: affine maps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import unifit.activations as activations
import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.backend import backend
from unifit.errors import ArgumentError, ShapeError
from unifit.layer import Layer, layers_registry

affine = backend.fused.affine


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
        x: Array of floats or integers, shape (batch, ..., in).
        Returns: Array, shape (batch, ..., units).

    Raises:
        ArgumentError: When units is below 1. ShapeError: on build, when `x` has no axis besides the rows.

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
        self.units = arguments.whole(self, "units", units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer

    def build(self, input_shape: tuple[int, ...]) -> None:
        if len(input_shape) < 2:
            raise ShapeError(
                f"Dense '{self.name}' got an input of shape {tuple(input_shape)}; it needs (rows, ..., features): add "
                "an axis with ops.expand_dims(x, -1)."
            )
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_weight(shape, self.kernel_initializer, regularizer=self.kernel_regularizer)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight((self.units,), self.bias_initializer, regularizer=self.bias_regularizer)

    def call(self, x: Any) -> Any:
        kernel, bias = self.kernel, self.bias
        x = precision.like(x, kernel)
        return self.activation(ops.matmul(x, kernel) if bias is None else affine(x, kernel, bias))


@layers_registry.register
class EinsumDense(Layer):
    """Affine map over chosen axes: `y = activation(einsum(equation, x, kernel) + bias)`.

    Args:
        equation: "input,kernel->output" in einsum's letters, such as "abc,cd->abd"; "..." may stand in front of, or
            after, the letters of input and output.
        output_shape: Shape of the output without the batch axis (and without the axes that "..." stands for); None for
            a size that the input has.
        activation: Function or registered name; None leaves `y` as it is.
        bias_axes: The letters of the output's axes along which the bias varies; None for no bias.
        kernel_initializer, bias_initializer: Initial values, by Keras' names.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.

    Call:
        x: Array of floats or integers, shape as the equation says.
        Returns: Array, shape as the equation says.

    Raises:
        ArgumentError: For an equation of another form, or sizes that it does not need or that are missing.
        ShapeError: On build, for an input that does not fit the equation.

    Example:
        >>> tuple(EinsumDense("abc,cde->abde", (None, 4, 8), bias_axes="de")(ops.ones((2, 5, 3))).shape)
        (2, 5, 4, 8)
    """

    def __init__(
        self,
        equation: str,
        output_shape: int | Sequence[int | None],
        activation: Any = None,
        bias_axes: str | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.equation, self.bias_axes = equation.replace(" ", ""), bias_axes
        _split(self.equation)
        self.output_shape = (output_shape,) if isinstance(output_shape, int) else tuple(output_shape)
        self.activation = activations.get(activation)
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer

    def build(self, input_shape: tuple[int, ...]) -> None:
        kernel_shape, bias_shape = self._weight_shapes(tuple(input_shape))
        self.kernel = self.add_weight(kernel_shape, self.kernel_initializer, regularizer=self.kernel_regularizer)
        self.bias = None
        if bias_shape is not None:
            self.bias = self.add_weight(bias_shape, self.bias_initializer, regularizer=self.bias_regularizer)

    def call(self, x: Any) -> Any:
        kernel = self.kernel
        y = ops.einsum(_spelled(self.equation, len(x.shape)), precision.like(x, kernel), kernel)
        return self.activation(y if self.bias is None else ops.add(y, self.bias))

    def _weight_shapes(self, input_shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        inputs, kernel, outputs, dots_first, dots_last = _split(self.equation)
        dots = len(input_shape) - len(inputs)
        if dots < 0 or (dots and not dots_first and not dots_last):
            raise ShapeError(
                f"EinsumDense '{self.name}' with equation '{self.equation}' got an input of shape {input_shape}; the "
                f"equation names {len(inputs)} axes."
            )
        elided = _unused_letters(self.equation, dots)
        letters = elided + inputs if dots_first else inputs + elided
        size_of = dict(zip(letters, input_shape, strict=True))
        # The output's shape lacks the batch axis, which is the first letter unless dots in front stand for it.
        named = outputs if dots_first and dots else outputs[1:]
        if len(named) != len(self.output_shape):
            raise ArgumentError(
                f"EinsumDense got output_shape={self.output_shape} for equation '{self.equation}'; for an input of "
                f"shape {input_shape} it needs the sizes of '{named}'."
            )
        for letter, size in zip(named, self.output_shape, strict=True):
            if size is not None and size_of.setdefault(letter, size) != size:
                raise ShapeError(
                    f"EinsumDense '{self.name}' with equation '{self.equation}' got an input of shape {input_shape}, "
                    f"in which '{letter}' is {size_of[letter]}; output_shape={self.output_shape} says {size}."
                )
        missing = sorted(set(kernel + outputs) - size_of.keys())
        if missing or not set(self.bias_axes or "") <= set(outputs):
            raise ArgumentError(
                f"EinsumDense got equation='{self.equation}', output_shape={self.output_shape}, "
                f"bias_axes={self.bias_axes!r}; every letter of kernel and output needs a size (missing: {missing}), "
                "and the bias' are among the output's."
            )
        kernel_shape = tuple(size_of[letter] for letter in kernel)
        if not self.bias_axes:
            return kernel_shape, None
        tail = outputs[min(outputs.index(letter) for letter in self.bias_axes) :]
        bias_shape = tuple(size_of[letter] if letter in self.bias_axes else 1 for letter in tail)
        return kernel_shape, bias_shape + (1,) * (dots if dots_last else 0)


def _unused_letters(equation: str, number: int) -> str:
    return "".join(letter for letter in ascii_letters if letter not in equation)[:number]


def _spelled(equation: str, rank: int) -> str:
    """The equation with letters for the axes that "..." stands for in an input of that rank.

    One product instead of a batch of them; of those with dots oneDNN, in TensorFlow, gives wrong numbers in float16.
    """
    if "..." not in equation:
        return equation
    dots = rank - len(_split(equation)[0])
    return equation.replace("...", _unused_letters(equation, dots))


def _split(equation: str) -> tuple[str, str, str, bool, bool]:
    """Letters of input, kernel and output; whether dots stand in front, and whether they stand after."""
    match = re.fullmatch(r"(\.{3})?([a-zA-Z]+)(\.{3})?,([a-zA-Z]+)->(\.{3})?([a-zA-Z]+)(\.{3})?", equation)
    if match is None or match[1] != match[5] or match[3] != match[7] or (match[1] and match[3]):
        raise ArgumentError(
            f"EinsumDense got equation='{equation}'; it needs 'ab,bc->ac', '...ab,bc->...ac' or 'ab...,bc->ac...'."
        )
    return match[2], match[4], match[6], bool(match[1]), bool(match[3])
