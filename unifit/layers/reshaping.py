"""Layers that move elements and compute nothing: Flatten, Reshape, Permute, ZeroPadding2D, UpSampling2D."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.errors import ArgumentError, ShapeError
from unifit.layer import Layer, layers_registry


@layers_registry.register
class Flatten(Layer):
    """Joins all axes but the first.

    Args:
        data_format: "channels_last" or None, which means the same.

    Call:
        x: Array, shape (batch, ...).
        Returns: Array, shape (batch, elements of a row), in the dtype of `x`.

    Example:
        >>> tuple(Flatten()(ops.ones((2, 4, 4, 3))).shape)
        (2, 48)
    """

    casts_inputs = False  # it may move whole numbers that came as floats

    def __init__(self, data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.data_format = arguments.channels_last(self, data_format)

    def call(self, x: Any) -> Any:
        return ops.reshape(x, (-1, math.prod(x.shape[1:])))


@layers_registry.register
class Reshape(Layer):
    """Gives every row another shape.

    Args:
        target_shape: Shape of a row, without the batch axis; one size may be -1.

    Call:
        x: Array, shape (batch, ...).
        Returns: Array, shape (batch, *target_shape), in the dtype of `x`.

    Raises:
        ArgumentError: When `target_shape` holds more than one -1, or no whole numbers. ShapeError: when the sizes do
            not fit the input.

    Example:
        >>> tuple(Reshape((3, -1))(ops.ones((2, 12))).shape)
        (2, 3, 4)
    """

    casts_inputs = False  # it may move whole numbers that came as floats

    def __init__(self, target_shape: Sequence[int], **kwargs: Any):
        super().__init__(**kwargs)
        self.target_shape = tuple(target_shape)
        for size in self.target_shape:
            arguments.whole(self, "target_shape", size, at_least=-1)
        if self.target_shape.count(-1) > 1:
            raise ArgumentError(f"Reshape got target_shape={self.target_shape}; at most one size may be -1.")

    def call(self, x: Any) -> Any:
        elements, known = math.prod(x.shape[1:]), math.prod(size for size in self.target_shape if size != -1)
        if elements % max(known, 1) or (-1 not in self.target_shape and elements != known):
            raise ShapeError(
                f"Reshape '{self.name}' to {self.target_shape} got an input of shape {tuple(x.shape)}: a row has "
                f"{elements} elements, and the target {'a multiple of ' if -1 in self.target_shape else ''}{known}."
            )
        row = tuple(elements // max(known, 1) if size == -1 else size for size in self.target_shape)
        return ops.reshape(x, (-1, *row))


@layers_registry.register
class Permute(Layer):
    """Puts the axes of every row into another order.

    Args:
        dims: The new order, counted from 1: `(2, 1)` exchanges the first two axes after the batch axis.

    Call:
        x: Array, shape (batch, ...).
        Returns: Array with the same elements, in the dtype of `x`.

    Raises:
        ArgumentError: When `dims` is not an order of 1 to n. ShapeError: when the input's rows have not n axes.

    Example:
        >>> tuple(Permute((2, 1))(ops.ones((2, 3, 4))).shape)
        (2, 4, 3)
    """

    casts_inputs = False  # it may move whole numbers that came as floats

    def __init__(self, dims: Sequence[int], **kwargs: Any):
        super().__init__(**kwargs)
        self.dims = tuple(dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ArgumentError(
                f"Permute got dims={self.dims}; it needs the numbers 1 to {len(self.dims)}, each once, in the new "
                "order."
            )

    def call(self, x: Any) -> Any:
        if len(x.shape) != len(self.dims) + 1:
            raise ShapeError(
                f"Permute '{self.name}' with dims={self.dims} got an input of shape {tuple(x.shape)}; it needs "
                f"{len(self.dims)} axes after the batch axis."
            )
        return ops.transpose(x, (0, *self.dims))


@layers_registry.register
class ZeroPadding2D(Layer):
    """Adds rows and columns of zeros at the edges of images.

    Args:
        padding: One number for all edges, (height, width) for both edges of each axis, or
            ((top, bottom), (left, right)).
        data_format: "channels_last" or None, which means the same.

    Call:
        x: Array, shape (batch, height, width, channels).
        Returns: Array, shape (batch, height + top + bottom, width + left + right, channels).

    Raises:
        ArgumentError: When a number is below 0. ShapeError: for an input with other than four axes.

    Example:
        >>> tuple(ZeroPadding2D(((1, 2), (0, 1)))(ops.ones((2, 4, 4, 3))).shape)
        (2, 7, 5, 3)
    """

    def __init__(self, padding: Any = (1, 1), data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        pair = tuple(padding) if isinstance(padding, Sequence) else (padding, padding)
        if len(pair) != 2:
            raise ArgumentError(f"ZeroPadding2D got padding={padding!r}; it needs one number, or a pair for two axes.")
        self.padding: Any = tuple(arguments.sizes(self, "padding", edges, 2, at_least=0) for edges in pair)
        self.data_format = arguments.channels_last(self, data_format)

    def build(self, input_shape: tuple[int, ...]) -> None:
        arguments.check_rank(self, input_shape, 4)

    def call(self, x: Any) -> Any:
        return ops.pad(x, ((0, 0), *self.padding, (0, 0)))


@layers_registry.register
class UpSampling2D(Layer):
    """Makes images larger by whole factors.

    Args:
        size: Factors of height and width, or one number for both.
        data_format: "channels_last" or None, which means the same.
        interpolation: "nearest" repeats pixels, "bilinear" interpolates.

    Call:
        x: Float array, shape (batch, height, width, channels).
        Returns: Array, shape (batch, height * size[0], width * size[1], channels).

    Raises:
        ArgumentError: For arguments that cannot be. ShapeError: for an input with other than four axes.

    Example:
        >>> tuple(UpSampling2D((2, 3))(ops.ones((2, 4, 4, 1))).shape)
        (2, 8, 12, 1)
    """

    def __init__(
        self, size: Any = (2, 2), data_format: str | None = None, interpolation: str = "nearest", **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.size = arguments.sizes(self, "size", size, 2)
        self.data_format = arguments.channels_last(self, data_format)
        self.interpolation = arguments.choice(self, "interpolation", interpolation, ("nearest", "bilinear"))

    def build(self, input_shape: tuple[int, ...]) -> None:
        arguments.check_rank(self, input_shape, 4)

    def call(self, x: Any) -> Any:
        if self.interpolation == "nearest":
            return ops.repeat(ops.repeat(x, self.size[0], axis=1), self.size[1], axis=2)
        size = (x.shape[1] * self.size[0], x.shape[2] * self.size[1])
        return precision.as_given(ops.resize(precision.widened(x), size, self.interpolation), x)
