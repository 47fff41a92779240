"""Embedding and Masking: where sequences with padded steps begin."""

from __future__ import annotations

from typing import Any

import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
from unifit.layer import Layer, layers_registry


@layers_registry.register
class Embedding(Layer):
    """Looks up a row of a table for each index.

    Args:
        input_dim: Rows of the table: the largest index plus one.
        output_dim: Size of a row.
        embeddings_initializer: Initial values, by Keras' names.
        embeddings_regularizer: Penalty added to the loss, or None.
        mask_zero: Whether index 0 is padding: the output then carries the mask `indices != 0`, which losses, metrics
            and the layers after it honour.

    Call:
        indices: Whole numbers in [0, input_dim), shape (batch, ...), of any dtype.
        Returns: Float array, shape (batch, ..., output_dim).

    Raises:
        ArgumentError: When a size is below 1.

    Example:
        >>> Embedding(100, 8, mask_zero=True)(ops.ones((2, 5), "int32")).shape[-1]
        8
    """

    supports_masking = True
    casts_inputs = False  # whole numbers, also those that come as floats

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.input_dim = arguments.whole(self, "input_dim", input_dim)
        self.output_dim = arguments.whole(self, "output_dim", output_dim)
        self.embeddings_initializer, self.embeddings_regularizer = embeddings_initializer, embeddings_regularizer
        self.mask_zero = self.makes_mask = mask_zero

    def build(self, input_shape: tuple[int, ...]) -> None:
        shape = (self.input_dim, self.output_dim)
        # Rows are cast, not the table: of a large one a batch needs few.
        self.embeddings = self.add_weight(
            shape, self.embeddings_initializer, regularizer=self.embeddings_regularizer, autocast=False
        )

    def call(self, indices: Any) -> Any:
        return precision.returned(self, ops.take(self.embeddings, _whole_numbers(indices), axis=0))

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        return ops.not_equal(inputs, 0) if self.mask_zero else None


def _whole_numbers(indices: Any) -> Any:
    return indices if ops.dtype(indices) == "int32" else ops.cast(indices, "int32")


@layers_registry.register
class Masking(Layer):
    """Masks the steps whose features all equal one value, and sets them to 0.

    Args:
        mask_value: The value that padding is filled with.

    Call:
        x: Array, shape (batch, steps, ..., features).
        Returns: Array of the same shape, which carries the mask (batch, steps, ...).

    Example:
        >>> tuple(Masking()(ops.zeros((2, 5, 3))).shape)
        (2, 5, 3)
    """

    supports_masking = True
    makes_mask = True
    casts_inputs = False  # a value near the mask's would become it

    def __init__(self, mask_value: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.mask_value = mask_value

    def call(self, x: Any) -> Any:
        kept = ops.any(ops.not_equal(x, self._value(x)), axis=-1, keepdims=True)
        y = ops.where(kept, x, ops.zeros_like(x))
        return precision.returned(self, y) if "float" in ops.dtype(x) else y

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        return ops.any(ops.not_equal(inputs, self._value(inputs)), axis=-1)

    def _value(self, x: Any) -> Any:
        """The mask's value as an element of `x` can hold it."""
        dtype = ops.dtype(x)
        return ops.full((), self.mask_value, dtype) if dtype in precision.HALVES else self.mask_value
