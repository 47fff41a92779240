"""The contract's functions that make, convert, shape, index and sort arrays, on JAX."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from unifit_jax.ops import as_given, widened

_INT32_RANGE = np.iinfo(np.int32)


# --- Creation and conversion ------------------------------------------------------------------------------------------


def _host_array(x, dtype):
    """A NumPy array of `x`, in the default dtypes unless `dtype` says otherwise."""
    x = np.asarray(x)
    if x.dtype == np.float64:
        return x.astype(np.float32) if dtype is None else x
    if x.dtype == np.int64 and dtype in (None, "int32"):
        if x.size and (x.max() > _INT32_RANGE.max or x.min() < _INT32_RANGE.min):
            raise OverflowError(f"Integers up to {np.abs(x).max()} do not fit int32; pass dtype='int64' or 'float32'.")
        return x.astype(np.int32)
    return x


def convert_to_tensor(x, dtype=None):
    if isinstance(x, jax.Array):
        return x if dtype is None else x.astype(dtype)
    if isinstance(x, (list, tuple)) and _holds_array(x):
        return jnp.asarray(x, dtype)
    return jnp.array(_host_array(x, dtype), dtype)


def _holds_array(x):
    return isinstance(x, jax.Array) or (isinstance(x, (list, tuple)) and any(_holds_array(part) for part in x))


def convert_to_numpy(x):
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == jnp.bfloat16 else x


def is_tensor(x):
    return isinstance(x, jax.Array)


def cast(x, dtype):
    return x.astype(dtype) if isinstance(x, jax.Array) else convert_to_tensor(x, dtype)


def dtype(x):
    return x.dtype.name


def zeros(shape, dtype="float32"):
    return jnp.zeros(shape, dtype)


def ones(shape, dtype="float32"):
    return jnp.ones(shape, dtype)


def full(shape, fill_value, dtype="float32"):
    return jnp.full(shape, fill_value, dtype)


def zeros_like(x, dtype=None):
    return jnp.zeros_like(x, dtype)


def ones_like(x, dtype=None):
    return jnp.ones_like(x, dtype)


def full_like(x, fill_value, dtype=None):
    return jnp.full_like(x, fill_value, dtype)


def arange(start, stop=None, step=1, dtype=None):
    return jnp.arange(start, stop, step, dtype)


def linspace(start, stop, num=50, endpoint=True, dtype="float32", axis=0):
    return jnp.array(np.linspace(start, stop, num, endpoint, axis=axis).astype(dtype))


def eye(N, M=None, k=0, dtype="float32"):
    return jnp.eye(N, M, k, dtype)


def tri(N, M=None, k=0, dtype="float32"):
    return jnp.tri(N, M, k, dtype)


def tril(x, k=0):
    return jnp.tril(x, k)


def triu(x, k=0):
    return jnp.triu(x, k)


def one_hot(x, num_classes, axis=-1, dtype="float32"):
    return nn.one_hot(x, num_classes, dtype=dtype, axis=axis)


# --- Shape ------------------------------------------------------------------------------------------------------------

swapaxes = jnp.swapaxes
moveaxis = jnp.moveaxis
ravel = jnp.ravel
ndim = jnp.ndim
size = jnp.size


def shape(x):
    return x.shape


def reshape(x, newshape):
    return jnp.reshape(x, newshape)


def transpose(x, axes=None):
    return jnp.transpose(x, axes)


def expand_dims(x, axis):
    return jnp.expand_dims(x, axis)


def squeeze(x, axis=None):
    return jnp.squeeze(x, axis)


def concatenate(xs, axis=0):
    return jnp.concatenate(xs, axis)


def stack(x, axis=0):
    return jnp.stack(x, axis)


def unstack(x, num=None, axis=0):
    if num is not None and num != x.shape[axis]:
        raise ValueError(
            f"unstack got num={num} for an axis of size {x.shape[axis]}; leave num out or make them equal."
        )
    return list(jnp.unstack(x, axis=axis))


def split(x, indices_or_sections, axis=0):
    if not isinstance(indices_or_sections, int):
        n = x.shape[axis]
        indices_or_sections = [min(i if i >= 0 else n + i, n) for i in indices_or_sections]
    return list(jnp.split(x, indices_or_sections, axis))


def repeat(x, repeats, axis=None):
    return jnp.repeat(x, repeats if isinstance(repeats, int) else np.asarray(repeats), axis)


def tile(x, repeats):
    return jnp.tile(x, repeats)


def flip(x, axis=None):
    return jnp.flip(x, axis)


def roll(x, shift, axis=None):
    return jnp.roll(x, shift, axis)


def pad(x, pad_width, mode="constant", constant_values=None):
    if mode == "constant":
        return jnp.pad(x, pad_width, constant_values=constant_values or 0)
    return jnp.pad(x, pad_width, mode)


def broadcast_to(x, shape):
    return jnp.broadcast_to(x, shape)


# --- Indexing and sorting ---------------------------------------------------------------------------------------------


# The gradient of what is picked several times is a sum of many, which needs float32: half types are picked in it.


def take(x, indices, axis=None):
    return as_given(jnp.take(widened(x), jnp.asarray(indices), axis), x)


def take_along_axis(x, indices, axis=None):
    indices = jnp.asarray(indices)
    if axis is None:
        x, indices, axis = jnp.ravel(x), jnp.ravel(indices), 0
    return as_given(jnp.take_along_axis(widened(x), indices, axis), x)


def slice(inputs, start_indices, shape):
    return lax.dynamic_slice(inputs, start_indices, shape)


def slice_update(inputs, start_indices, updates):
    return lax.dynamic_update_slice(inputs, updates, start_indices)


def sort(x, axis=-1):
    return jnp.sort(x, axis)


def argsort(x, axis=-1):
    return jnp.argsort(x, axis)


def top_k(x, k, sorted=True):
    values, indices = lax.top_k(x, k)
    return values, indices


def in_top_k(targets, predictions, k):
    at_target = jnp.take_along_axis(predictions, targets[..., None], -1)
    at_target = jnp.where(jnp.isnan(at_target), -jnp.inf, at_target)
    return jnp.sum(predictions > at_target, -1) < k


def searchsorted(sorted_sequence, values, side="left"):
    return jnp.searchsorted(sorted_sequence, values, side=side)


def bincount(x, weights=None, minlength=0):
    length = minlength or (int(jnp.max(x)) + 1 if x.size else 0)
    if weights is None:
        weights = jnp.ones(x.shape, jnp.int32)
    wide = widened(weights)
    return as_given(jnp.zeros(length, wide.dtype).at[x].add(wide, mode="drop"), weights)


def segment_sum(data, segment_ids, num_segments, sorted=False):
    sums = jax.ops.segment_sum(widened(data), segment_ids, num_segments, indices_are_sorted=sorted)
    return as_given(sums, data)
