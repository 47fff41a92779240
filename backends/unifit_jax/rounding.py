"""From float32 to the dtype in which a parameter lives; to bfloat16 at random, so that small updates are not lost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from unifit_jax import random

_DROPPED_BITS = 16


def to_bfloat16(x: Any, key: Any) -> Any:
    """Rounds float32 to one of the two bfloat16 neighbours, each with the probability that makes the mean exact.

    A random number below 2^16 is added to the bits, and the lower 16 are dropped: the carry comes with the probability
    (dropped bits) / 2^16. What bfloat16 holds exactly stays as it is.
    """
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    bits = lax.bitcast_convert_type(x, jnp.uint32) + noise
    rounded = lax.bitcast_convert_type((bits >> _DROPPED_BITS).astype(jnp.uint16), jnp.bfloat16)
    # A carry would make a number of some NaN.
    return jnp.where(jnp.isnan(x), jnp.asarray(jnp.nan, jnp.bfloat16), rounded)


def stored(values: list[Any], params: list[Any], seed: int, iterations: Any) -> list[Any]:
    """New float32 values as the parameters hold them.

    The draws are keyed by (seed, iterations, number of the parameter): the same on all devices and processes.
    """

    def one(number: int, value: Any, param: Any) -> Any:
        if param.dtype == jnp.bfloat16:
            return to_bfloat16(value, random.stream(seed, iterations, number).next_key())
        return value.astype(param.dtype)

    return [one(number, *pair) for number, pair in enumerate(zip(values, params, strict=True))]
