"""Multi-head attention: heads that share keys and values, causal and padding masks, rotary positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import unifit.layers.arguments as arguments
import unifit.ops as ops
import unifit.random as random
from unifit.context import context
from unifit.errors import ArgumentError, ShapeError
from unifit.layer import Layer, layers_registry
from unifit.layers.core import EinsumDense
from unifit.layers.elementwise import masked_softmax

# Axes: b batch, q queries, k keys, h query heads, d size of a head, m features.


class _Projection(EinsumDense):
    supports_masking = True  # steps stay steps


@layers_registry.register
class MultiHeadAttention(Layer):
    """Each query is answered by a mean of values, weighted by how well their keys fit, in several heads.

    Args:
        num_heads: Heads of the queries.
        key_dim: Size of a head of queries and keys.
        value_dim: Size of a head of values; None is `key_dim`.
        dropout: Probability with which an attention weight is put to 0 in training.
        use_bias: Whether the projections have biases.
        output_shape: Sizes of the output's axes after the steps; None is the queries' features.
        sliding_window: A query sees only keys less than this many steps away; None is no limit.
        kernel_initializer, bias_initializer: Initial values of the projections.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; each serves as many consecutive query
            heads (grouped-query attention; 1 is multi-query attention). None is `num_heads`.
        rotary: Whether queries and keys are turned by angles that grow with their position, so that scores depend on
            distances. Element i and element i + key_dim / 2 of a head make a pair, as in GPT-NeoX and Llama.
        rotary_base: Pair i of a head turns by `position * rotary_base ** (-2 * i / key_dim)`.

    Call:
        query: Float array, shape (batch, queries, features).
        value: Float array, shape (batch, keys, features).
        key: Float array, shape (batch, keys, features); None is `value`.
        query_mask, value_mask, key_mask: bool, shape (batch, steps): False is padding. By default what the arrays
            carry.
        attention_mask: bool, shape (batch, queries, keys) or (batch, heads, queries, keys): False keeps a key from
            being seen.
        return_attention_scores: Whether the weights are returned too.
        training: Filled in.
        use_causal_mask: Whether query i sees keys 0 to i only.
        Returns: Array, shape (batch, queries, *output_shape); with `return_attention_scores` also the weights, shape
            (batch, heads, queries, keys). A query that may see no key gets weights of 0. The mask is the query's.

    Raises:
        ArgumentError: For arguments that cannot be, such as heads that do not divide, or an odd `key_dim` with
            `rotary`.
        ShapeError: On build, for inputs with other than three axes.

    Example:
        >>> x = ops.ones((2, 5, 16))
        >>> tuple(MultiHeadAttention(4, 8, num_key_value_heads=2, rotary=True)(x, x, use_causal_mask=True).shape)
        (2, 5, 16)

    Reference:
        Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762. Ainslie et al. (2023), "GQA",
        arXiv:2305.13245. Rotary positions: Su et al. (2021), "RoFormer", arXiv:2104.09864.
    """

    supports_masking = True

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        *,
        num_key_value_heads: int | None = None,
        rotary: bool = False,
        rotary_base: float = 10000.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = arguments.whole(self, "num_heads", num_heads)
        self.key_dim = arguments.whole(self, "key_dim", key_dim)
        self.value_dim = key_dim if value_dim is None else arguments.whole(self, "value_dim", value_dim)
        key_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        self.num_key_value_heads = arguments.whole(self, "num_key_value_heads", key_heads)
        if num_heads % self.num_key_value_heads:
            raise ArgumentError(
                f"{type(self).__name__} got {num_heads} heads and num_key_value_heads={num_key_value_heads}; the heads "
                "must be a multiple of those of keys and values."
            )
        if not 0 <= dropout < 1:
            raise ArgumentError(f"{type(self).__name__} got dropout={dropout!r}; it needs a number in [0, 1).")
        if rotary and key_dim % 2:
            raise ArgumentError(
                f"{type(self).__name__} got rotary=True and key_dim={key_dim}; it needs an even key_dim."
            )
        self.sliding_window = sliding_window
        if sliding_window is not None:
            arguments.whole(self, "sliding_window", sliding_window)
        self.output_shape = (output_shape,) if isinstance(output_shape, int) else output_shape
        self.dropout, self.rotary, self.rotary_base = dropout, rotary, rotary_base
        self.use_bias = use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer

    def build(  # type: ignore[override]  # the shapes of several arguments, as Layer.build allows
        self, query_shape: tuple[int, ...], value_shape: tuple[int, ...], key_shape: tuple[int, ...] | None = None
    ) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            if len(shape) != 3:
                raise ShapeError(
                    f"{type(self).__name__} '{self.name}' got a {name} of shape {tuple(shape)}; it needs (rows, steps, "
                    "features): ops.reshape joins further axes."
                )
        if value_shape[1] != key_shape[1]:
            raise ShapeError(
                f"{type(self).__name__} '{self.name}' got values of shape {tuple(value_shape)} and keys of shape "
                f"{tuple(key_shape)}; they need the same number of steps."
            )
        heads, key_heads = self.num_heads, self.num_key_value_heads
        # In Keras' order, which is the order of get_weights.
        self.query = self._projection("bqm,mhd->bqhd", (None, heads, self.key_dim), "hd")
        self.key = self._projection("bkm,mhd->bkhd", (None, key_heads, self.key_dim), "hd")
        self.value = self._projection("bkm,mhd->bkhd", (None, key_heads, self.value_dim), "hd")
        output = self.output_shape or (query_shape[-1],)
        letters = "mnopqrstuvwxyz"[: len(output)].replace("q", "")
        self.attention_output = self._projection(f"aihd,hd{letters}->ai{letters}", (None, *output), letters)
        self.query.build(query_shape)
        self.key.build(key_shape)
        self.value.build(value_shape)
        self.attention_output.build((*query_shape[:2], heads, self.value_dim))

    def _projection(self, equation: str, output_shape: tuple[int | None, ...], bias_axes: str) -> _Projection:
        return _Projection(
            equation,
            output_shape,
            bias_axes=bias_axes if self.use_bias else None,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            dtype=self.compute_dtype,
        )

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        query_mask, value_mask = _mask_of(query, query_mask), _mask_of(value, value_mask)
        key_mask = _mask_of(key, key_mask)
        key = value if key is None else key
        mask = self._visible(query.shape[1], value.shape[1], query_mask, value_mask, key_mask, attention_mask)
        q, k, v = self.query(query), self.key(key), self.value(value)
        if self.rotary:
            q, k = rotate(q, self.rotary_base), rotate(k, self.rotary_base)
        drops = training and self.dropout > 0
        scores = None
        if drops or return_attention_scores or self.value_dim != self.key_dim:
            y, scores = self._weighted(q, k, v, mask, use_causal_mask, self.dropout if drops else 0.0)
        else:
            y = ops.dot_product_attention(q, k, v, mask=mask, is_causal=use_causal_mask)
        y = self.attention_output(y)
        if not return_attention_scores:
            return y
        ambient = context()
        if query_mask is not None and ambient is not None:
            ambient.set_mask(y, query_mask)
        return y, scores

    def _visible(self, num_queries: int, num_keys: int, query: Any, value: Any, key: Any, attention: Any) -> Any:
        """bool, broadcastable to (batch, heads, queries, keys), of all that may keep a key from being seen; or None."""
        parts = []
        if query is not None:
            parts.append(ops.reshape(query, (-1, 1, num_queries, 1)))
        parts += [ops.reshape(part, (-1, 1, 1, num_keys)) for part in (value, key) if part is not None]
        if attention is not None:
            attention = ops.cast(attention, "bool")
            parts.append(ops.expand_dims(attention, -3) if len(attention.shape) < 4 else attention)
        if self.sliding_window is not None:
            distance = ops.expand_dims(ops.arange(num_queries), 1) - ops.arange(num_keys)
            parts.append(ops.reshape(ops.abs(distance) < self.sliding_window, (1, 1, num_queries, num_keys)))
        return reduce(ops.logical_and, parts) if parts else None

    def _weighted(self, q: Any, k: Any, v: Any, mask: Any, is_causal: bool, dropout: float) -> tuple[Any, Any]:
        """What `ops.dot_product_attention` computes, step by step: with dropout, and with the weights as a result."""
        shared = self.num_heads // self.num_key_value_heads
        if shared > 1:
            k, v = ops.repeat(k, shared, axis=2), ops.repeat(v, shared, axis=2)
        if is_causal:
            causal = ops.reshape(ops.tri(q.shape[1], k.shape[1], dtype="bool"), (1, 1, q.shape[1], k.shape[1]))
            mask = causal if mask is None else ops.logical_and(mask, causal)
        scores = ops.einsum("bqhd,bkhd->bhqk", q * (1.0 / math.sqrt(self.key_dim)), k)
        scores = masked_softmax(scores, mask)
        weights = random.dropout(scores, dropout) if dropout else scores
        return ops.einsum("bhqk,bkhd->bqhd", weights, v), scores


def _mask_of(array: Any, given: Any) -> Any:
    """The mask that was given, else the one that the array carries."""
    ambient = context()
    if given is None and array is not None and ambient is not None:
        given = ambient.mask_of(array)
    return None if given is None else ops.cast(given, "bool")


def rotate(x: Any, base: float) -> Any:
    """Rotary positions: the pairs (x[i], x[i + d/2]) of every head turned by position * base ** (-2 i / d).

    Args:
        x: Float array, shape (batch, steps, heads, d), d even.
        base: The larger, the slower the slowest pair turns.

    Returns:
        Array with the shape and dtype of `x`.

    Reference:
        Su et al. (2021), arXiv:2104.09864, equation 34, with the pairs of GPT-NeoX.
    """
    half = x.shape[-1] // 2
    rates = ops.exp(ops.arange(half, dtype="float32") * (-math.log(base) / half))
    angles = ops.expand_dims(ops.outer(ops.arange(x.shape[1], dtype="float32"), rates), 1)
    cos, sin = ops.cos(angles), ops.sin(angles)
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return ops.cast(turned, ops.dtype(x))


@layers_registry.register("grouped_query_attention")
class GroupQueryAttention(MultiHeadAttention):
    """MultiHeadAttention under Keras' name and arguments for heads that share keys and values.

    Args:
        head_dim: Size of a head.
        num_query_heads: Heads of the queries.
        num_key_value_heads: Heads of keys and values, a divisor of `num_query_heads`.
        dropout: Probability with which an attention weight is put to 0 in training.
        use_bias: Whether the projections have biases.
        sliding_window: A query sees only keys less than this many steps away; None is no limit.
        kernel_initializer, bias_initializer: Initial values of the projections.
        kernel_regularizer, bias_regularizer: Penalties added to the loss, or None.
        rotary, rotary_base: As in MultiHeadAttention.

    Call:
        query, value, ...: As MultiHeadAttention.
        Returns: Array, shape (batch, queries, features of the query).

    Raises:
        ArgumentError: When the query heads are no multiple of the others.

    Example:
        >>> tuple(GroupQueryAttention(8, 4, 2)(ops.ones((2, 5, 16)), ops.ones((2, 5, 16))).shape)
        (2, 5, 16)
    """

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        *,
        rotary: bool = False,
        rotary_base: float = 10000.0,
        **kwargs: Any,
    ):
        super().__init__(
            num_query_heads,
            head_dim,
            dropout=dropout,
            use_bias=use_bias,
            sliding_window=sliding_window,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            num_key_value_heads=num_key_value_heads,
            rotary=rotary,
            rotary_base=rotary_base,
            **kwargs,
        )
        self.head_dim, self.num_query_heads = head_dim, num_query_heads
