"""Dtypes in which layers compute and return: halves to float32, inputs to a weight's dtype, results to the policy's.

`Layer.run` casts float inputs to the compute dtype. A layer with `casts_inputs = False` gets them as they are, because
it moves elements only, indexes by them, or computes in float32: a cast would lose what half types cannot hold, such as
odd class numbers above 256 (bfloat16) and 2048 (float16), or values above 65504 (float16).
"""

from __future__ import annotations

from typing import Any

import unifit.ops as ops
from unifit.context import context
from unifit.layer import Layer

HALVES = ("bfloat16", "float16")


def in_float32(x: Any) -> Any:
    """`x` as float32."""
    return x if ops.dtype(x) == "float32" else ops.cast(x, "float32")


def widened(x: Any) -> Any:
    """`x` as float32 if it is a half, else as it is."""
    return ops.cast(x, "float32") if ops.dtype(x) in HALVES else x


def like(x: Any, weight: Any) -> Any:
    """`x` in the dtype of a weight that it is multiplied with."""
    return x if x.dtype == weight.dtype else ops.cast(x, ops.dtype(weight))


def returned(owner: Layer, y: Any, x: Any = None) -> Any:
    """`y` in the layer's compute dtype; without a policy in the dtype of `x` if that is a half, else as it is."""
    ambient = context()
    dtype = None if ambient is None else owner.reads_in(ambient.compute)
    if dtype is None and x is not None and ops.dtype(x) in HALVES:
        dtype = ops.dtype(x)
    return y if dtype is None or ops.dtype(y) == dtype else ops.cast(y, dtype)


def as_given(y: Any, x: Any) -> Any:
    """`y` in the dtype of `x` if that is a half."""
    return ops.cast(y, ops.dtype(x)) if ops.dtype(x) in HALVES else y
