"""unifit.contract.recurrent on JAX: a `lax.scan` over the steps, with the inputs' products taken out as one.

Jitted, because a scan that runs by itself is compiled anew at every call.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, nn


@partial(jax.jit, static_argnames="reverse")
def lstm(x, h0, c0, kernel, recurrent_kernel, bias, mask=None, reverse=False):
    def cell(projected, states):
        h, c = states
        i, f, g, o = jnp.split(projected + h @ recurrent_kernel, 4, axis=-1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        return nn.sigmoid(o) * jnp.tanh(c), c

    states = _initial(h0, x, recurrent_kernel), _initial(c0, x, recurrent_kernel)
    outputs, (h, c) = _scan(cell, x, states, kernel, bias, mask, reverse)
    return outputs, h, c


@partial(jax.jit, static_argnames="reverse")
def gru(x, h0, kernel, recurrent_kernel, bias, mask=None, reverse=False):
    def cell(projected, states):
        (h,) = states
        recurrent = h @ recurrent_kernel
        xz, xr, xn = jnp.split(projected, 3, axis=-1)
        hz, hr, hn = jnp.split(recurrent if bias is None else recurrent + bias[1], 3, axis=-1)
        z = nn.sigmoid(xz + hz)
        return (z * h + (1 - z) * jnp.tanh(xn + nn.sigmoid(xr + hr) * hn),)

    states, input_bias = (_initial(h0, x, recurrent_kernel),), None if bias is None else bias[0]
    outputs, (h,) = _scan(cell, x, states, kernel, input_bias, mask, reverse)
    return outputs, h


def _initial(state, x, recurrent_kernel):
    return jnp.zeros((x.shape[0], recurrent_kernel.shape[0]), x.dtype) if state is None else state


def _scan(cell, x, states, kernel, bias, mask, reverse):
    """Every step's first state, and the last states, of `cell(x_t @ kernel + bias, states) -> states`."""
    if reverse:
        x, mask = jnp.flip(x, 1), None if mask is None else jnp.flip(mask, 1)
    if mask is not None:
        x = jnp.where(mask[..., None], x, 0)
    projected = x @ kernel if bias is None else x @ kernel + bias

    def step(states, inputs):
        projected, is_valid = inputs
        after = cell(projected, states)
        if is_valid is not None:
            after = tuple(jnp.where(is_valid[:, None], *pair) for pair in zip(after, states, strict=True))
        return after, after[0]

    by_step = jnp.swapaxes(projected, 0, 1), None if mask is None else mask.T
    states, outputs = lax.scan(step, states, by_step)
    outputs = jnp.swapaxes(outputs, 0, 1)
    if mask is not None:
        outputs = jnp.where(jnp.cumsum(mask, 1)[..., None] > 0, outputs, 0)
    return outputs, states
