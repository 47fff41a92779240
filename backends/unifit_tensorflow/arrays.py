"""The contract's functions that make, convert, shape, index and sort arrays, on TensorFlow."""

import math

import numpy as np
import tensorflow as tf

from unifit_tensorflow.promotion import host_array, promote

# --- Creation and conversion ------------------------------------------------------------------------------------------


def convert_to_tensor(x, dtype=None):
    if isinstance(x, (list, tuple)) and _holds_tensor(x):
        x = tf.stack(promote(*(convert_to_tensor(part) for part in x)))
    if not tf.is_tensor(x):
        x = tf.convert_to_tensor(host_array(x, dtype))
    else:
        x = tf.convert_to_tensor(x)
        if dtype is None:
            dtype = {tf.float64: tf.float32, tf.int64: tf.int32}.get(x.dtype)
    return x if dtype is None else tf.cast(x, dtype)


def _holds_tensor(x):
    return tf.is_tensor(x) or (isinstance(x, (list, tuple)) and any(_holds_tensor(part) for part in x))


def convert_to_numpy(x):
    return np.asarray(tf.cast(x, tf.float32) if tf.is_tensor(x) and x.dtype == tf.bfloat16 else x)


def is_tensor(x):
    return tf.is_tensor(x)


def cast(x, dtype):
    return tf.cast(x, dtype) if tf.is_tensor(x) else convert_to_tensor(x, dtype)


def dtype(x):
    return x.dtype.name


def zeros(shape, dtype="float32"):
    return tf.zeros(shape, dtype)


def ones(shape, dtype="float32"):
    return tf.ones(shape, dtype)


def full(shape, fill_value, dtype="float32"):
    return tf.broadcast_to(tf.cast(fill_value, dtype), shape)


def zeros_like(x, dtype=None):
    return tf.zeros_like(x, dtype)


def ones_like(x, dtype=None):
    return tf.ones_like(x, dtype)


def full_like(x, fill_value, dtype=None):
    return tf.broadcast_to(tf.cast(fill_value, dtype or x.dtype), shape(x))


def arange(start, stop=None, step=1, dtype=None):
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = "float32" if any(isinstance(n, float) for n in (start, stop, step)) else "int32"
    return tf.cast(tf.range(start, stop, step), dtype)


def linspace(start, stop, num=50, endpoint=True, dtype="float32", axis=0):
    return tf.cast(tf.constant(np.linspace(start, stop, num, endpoint, axis=axis)), dtype)


def eye(N, M=None, k=0, dtype="float32"):
    return tf.cast(tf.range(N)[:, None] + k == tf.range(N if M is None else M), dtype)


def tri(N, M=None, k=0, dtype="float32"):
    return tf.cast(tf.range(N)[:, None] + k >= tf.range(N if M is None else M), dtype)


def tril(x, k=0):
    rows, columns = shape(x)[-2:]
    return tf.where(tri(rows, columns, k, "bool"), x, tf.zeros((), x.dtype))


def triu(x, k=0):
    rows, columns = shape(x)[-2:]
    return tf.where(tri(rows, columns, k - 1, "bool"), tf.zeros((), x.dtype), x)


def one_hot(x, num_classes, axis=-1, dtype="float32"):
    axis = axis % (x.shape.rank + 1)
    if dtype == "bool":
        return tf.one_hot(x, num_classes, True, False, axis=axis)
    return tf.one_hot(x, num_classes, axis=axis, dtype=dtype)


# --- Shape ------------------------------------------------------------------------------------------------------------


def shape(x):
    static = tuple(x.shape)
    if None not in static:
        return static
    dynamic = tf.shape(x)
    return tuple(dynamic[i] if n is None else n for i, n in enumerate(static))


def ndim(x):
    return x.shape.rank


def size(x):
    return math.prod(x.shape) if x.shape.is_fully_defined() else tf.size(x)


def reshape(x, newshape):
    return tf.reshape(x, (newshape,) if isinstance(newshape, int) else newshape)


def ravel(x):
    return tf.reshape(x, (-1,))


def transpose(x, axes=None):
    return tf.transpose(x, axes if axes is None else [axis % x.shape.rank for axis in axes])


def swapaxes(x, axis1, axis2):
    order = list(range(x.shape.rank))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return tf.transpose(x, order)


def moveaxis(x, source, destination):
    rank = x.shape.rank
    sources = [a % rank for a in ((source,) if isinstance(source, int) else source)]
    destinations = [a % rank for a in ((destination,) if isinstance(destination, int) else destination)]
    order = [axis for axis in range(rank) if axis not in sources]
    for place, axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(place, axis)
    return tf.transpose(x, order)


def expand_dims(x, axis):
    if isinstance(axis, int):
        return tf.expand_dims(x, axis)
    rank = x.shape.rank + len(axis)
    for one_axis in sorted(a % rank for a in axis):
        x = tf.expand_dims(x, one_axis)
    return x


def squeeze(x, axis=None):
    if axis == ():  # which tf.squeeze takes for all axes
        return x
    for one_axis in () if axis is None else (axis,) if isinstance(axis, int) else axis:
        if x.shape[one_axis] not in (1, None):
            raise ValueError(f"squeeze got axis {axis} and shape {tuple(x.shape)}; the axis must have size 1.")
    return tf.squeeze(x, axis)


def concatenate(xs, axis=0):
    return tf.concat(promote(*xs), axis)


def stack(x, axis=0):
    return tf.stack(promote(*x), axis)


def unstack(x, num=None, axis=0):
    if num is not None and x.shape[axis] not in (num, None):
        raise ValueError(
            f"unstack got num={num} for an axis of size {x.shape[axis]}; leave num out or make them equal."
        )
    return tf.unstack(x, num, axis)


def split(x, indices_or_sections, axis=0):
    n = x.shape[axis]
    if isinstance(indices_or_sections, int):
        if n is not None and n % indices_or_sections:
            raise ValueError(
                f"split got {indices_or_sections} sections for an axis of size {n}; it must divide evenly."
            )
        return list(tf.split(x, indices_or_sections, axis))
    bounds = [min(index if index >= 0 else n + index, n) for index in indices_or_sections]
    sizes = np.maximum(np.diff([0, *bounds, n]), 0)
    starts = [0, *bounds]
    lead = [0] * (axis % x.shape.rank)
    return [
        tf.slice(x, lead + [start] + [0] * (x.shape.rank - len(lead) - 1), _with_size(x, axis, int(part)))
        for start, part in zip(starts, sizes, strict=True)
    ]


def _with_size(x, axis, size):
    sizes = list(shape(x))
    sizes[axis] = size
    return sizes


def repeat(x, repeats, axis=None):
    return tf.repeat(x, repeats, axis)


def tile(x, repeats):
    repeats = (repeats,) if isinstance(repeats, int) else tuple(repeats)
    rank = x.shape.rank
    if len(repeats) > rank:
        x = tf.reshape(x, (1,) * (len(repeats) - rank) + shape(x))
    return tf.tile(x, (1,) * (rank - len(repeats)) + repeats)


def flip(x, axis=None):
    return tf.reverse(x, list(range(x.shape.rank)) if axis is None else [axis] if isinstance(axis, int) else list(axis))


def roll(x, shift, axis=None):
    if axis is None:
        return tf.reshape(tf.roll(ravel(x), shift, 0), shape(x))
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return tf.roll(x, shift, axis)


def pad(x, pad_width, mode="constant", constant_values=None):
    widths = np.broadcast_to(pad_width, (x.shape.rank, 2))
    if mode == "constant":
        return tf.pad(x, widths, constant_values=constant_values or 0)
    for axis, pair in enumerate(widths.tolist()):
        if pair != [0, 0]:
            x = tf.gather(x, np.pad(np.arange(x.shape[axis]), pair, mode), axis=axis)
    return x


def broadcast_to(x, shape):
    return tf.broadcast_to(x, shape)


# --- Indexing and sorting ---------------------------------------------------------------------------------------------


def _from_start(indices, size):
    """Indices in which negative ones, counted from the end, are replaced."""
    indices = convert_to_tensor(indices)
    if indices.dtype not in (tf.int32, tf.int64):
        indices = tf.cast(indices, tf.int32)
    return tf.where(indices < 0, indices + tf.cast(size, indices.dtype), indices)


def take(x, indices, axis=None):
    if axis is None:
        x, axis = ravel(x), 0
    # The gradient of gather colocates with x; under a strategy a variable's read may be pinned to another replica.
    return tf.gather(tf.identity(x), _from_start(indices, shape(x)[axis]), axis=axis)


def take_along_axis(x, indices, axis=None):
    indices = convert_to_tensor(indices)
    if axis is None:
        return take(x, ravel(indices))
    x, indices = moveaxis(x, axis, -1), moveaxis(indices, axis, -1)
    batch = tf.broadcast_static_shape(x.shape[:-1], indices.shape[:-1])
    if not batch.is_fully_defined():
        batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-1], tf.shape(indices)[:-1])
    x = tf.broadcast_to(x, tf.concat([batch, [shape(x)[-1]]], 0))
    indices = tf.broadcast_to(indices, tf.concat([batch, [shape(indices)[-1]]], 0))
    indices = _from_start(indices, shape(x)[-1])
    return moveaxis(tf.gather(x, indices, batch_dims=x.shape.rank - 1), -1, axis)


def slice(inputs, start_indices, shape):
    return tf.slice(inputs, tf.cast(tf.stack(start_indices), tf.int32), shape)


def slice_update(inputs, start_indices, updates):
    before = tf.cast(tf.stack(start_indices), tf.int32)
    widths = tf.stack([before, tf.shape(inputs) - tf.shape(updates) - before], 1)
    inside = tf.pad(tf.ones_like(updates, tf.bool), widths)
    return tf.where(inside, tf.pad(tf.cast(updates, inputs.dtype), widths), inputs)


def sort(x, axis=-1):
    return tf.sort(x, axis)


def argsort(x, axis=-1):
    return tf.argsort(x, axis, stable=True)


def top_k(x, k, sorted=True):
    values, indices = tf.math.top_k(x, k, sorted)
    return values, indices


def in_top_k(targets, predictions, k):
    at_target = take_along_axis(predictions, targets[..., None], -1)
    at_target = tf.where(tf.math.is_nan(at_target), tf.cast(-math.inf, predictions.dtype), at_target)
    return tf.reduce_sum(tf.cast(predictions > at_target, tf.int32), -1) < k


def searchsorted(sorted_sequence, values, side="left"):
    sorted_sequence, values = promote(sorted_sequence, values)
    return tf.reshape(tf.searchsorted(sorted_sequence, ravel(values), side), shape(values))


def bincount(x, weights=None, minlength=0):
    x = tf.cast(x, tf.int32)
    length = minlength or (tf.reduce_max(x) + 1 if size(x) else 0)
    if weights is None:
        weights = tf.ones_like(x)
    return tf.math.unsorted_segment_sum(weights, tf.where(x < length, x, -1), length)


def segment_sum(data, segment_ids, num_segments, sorted=False):
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments)
