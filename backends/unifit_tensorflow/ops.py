"""The contract's functions on TensorFlow, which promotes no dtypes by itself: `_promote` does it here."""

import builtins
import math

import numpy as np
import tensorflow as tf

_INT32_RANGE = np.iinfo(np.int32)
_EPSILON = 1e-7


# --- Dtypes -----------------------------------------------------------------------------------------------------------


def _is_scalar(x):
    return isinstance(x, (bool, int, float)) and not isinstance(x, np.generic)


def _promoted_dtype(values):
    """The dtype of a result of arrays and weak Python scalars."""
    dtypes = {x.dtype if tf.is_tensor(x) else tf.as_dtype(x.dtype) for x in values if not _is_scalar(x)}
    scalars = [x for x in values if _is_scalar(x)]
    floats = {d for d in dtypes if d.is_floating}
    if floats:
        widest = builtins.max(floats, key=lambda d: d.size)
        return tf.float32 if widest.size == 2 and len(floats) > 1 else widest
    if builtins.any(isinstance(x, float) for x in scalars):
        return tf.float32
    integers = {d for d in dtypes if d.is_integer}
    if not integers:
        return tf.bool if builtins.all(isinstance(x, bool) for x in scalars) else tf.int32
    if len(integers) == 1:
        return integers.pop()
    promoted = tf.as_dtype(np.result_type(*(d.as_numpy_dtype for d in integers)))
    return promoted if tf.int64 in integers or promoted.size < 8 else tf.int32


def _promote(*values):
    """Tensors of one dtype. Equal dtypes, the usual case, pass at once."""
    if builtins.all(tf.is_tensor(x) for x in values) and len({x.dtype for x in values}) == 1:
        return values
    operands = [x if tf.is_tensor(x) or _is_scalar(x) else _host_array(x, None) for x in values]
    dtype = _promoted_dtype(operands)
    return [tf.cast(x, dtype) if tf.is_tensor(x) else tf.convert_to_tensor(x, dtype) for x in operands]


def _floating(x):
    x = x if tf.is_tensor(x) else convert_to_tensor(x)
    return x if x.dtype.is_floating else tf.cast(x, tf.float32)


def _float32(x):
    return tf.cast(x, tf.float32)


def _is_half(x):
    return x.dtype in (tf.float16, tf.bfloat16)


def _summable(x):
    """`x` in the dtype in which sums and products are made."""
    if x.dtype.is_floating and not _is_half(x) or x.dtype == tf.int64:
        return x
    return tf.cast(x, tf.float32 if x.dtype.is_floating else tf.int32)


def _unary(function):
    """`function` over floats: integers become float32."""

    def op(x):
        return function(_floating(x))

    return op


def _binary(function):
    """`function` over operands promoted to one dtype."""

    def op(x1, x2):
        return function(*_promote(x1, x2))

    return op


def _numeric(function):
    """`function` over operands promoted to one dtype, bool taken as int32."""

    def op(x1, x2):
        x1, x2 = _promote(x1, x2)
        if x1.dtype == tf.bool:
            x1, x2 = tf.cast(x1, tf.int32), tf.cast(x2, tf.int32)
        return function(x1, x2)

    return op


def _logical(function):
    def op(x1, x2):
        return function(tf.cast(x1, tf.bool), tf.cast(x2, tf.bool))

    return op


# --- Elementwise ------------------------------------------------------------------------------------------------------

abs = tf.abs
negative = tf.negative
sign = tf.sign
square = tf.square
add = _numeric(tf.add)
subtract = _numeric(tf.subtract)
multiply = _numeric(tf.multiply)
floor_divide = _numeric(tf.math.floordiv)
mod = _numeric(tf.math.floormod)
power = _numeric(tf.pow)
maximum = _numeric(tf.maximum)
minimum = _numeric(tf.minimum)
sqrt = _unary(tf.sqrt)
rsqrt = _unary(tf.math.rsqrt)
reciprocal = _unary(tf.math.reciprocal)
exp = _unary(tf.exp)
expm1 = _unary(tf.math.expm1)
log = _unary(tf.math.log)
log1p = _unary(tf.math.log1p)
sin = _unary(tf.sin)
cos = _unary(tf.cos)
tan = _unary(tf.tan)
sinh = _unary(tf.sinh)
cosh = _unary(tf.cosh)
tanh = _unary(tf.tanh)
arcsin = _unary(tf.asin)
arccos = _unary(tf.acos)
arctan = _unary(tf.atan)
erf = _unary(tf.math.erf)
isfinite = _unary(tf.math.is_finite)
isnan = _unary(tf.math.is_nan)
isinf = _unary(tf.math.is_inf)
equal = _binary(tf.equal)
not_equal = _binary(tf.not_equal)
greater = _numeric(tf.greater)
greater_equal = _numeric(tf.greater_equal)
less = _numeric(tf.less)
less_equal = _numeric(tf.less_equal)
logical_and = _logical(tf.logical_and)
logical_or = _logical(tf.logical_or)
logical_xor = _logical(tf.math.logical_xor)


def logical_not(x):
    return tf.logical_not(tf.cast(x, tf.bool))


def divide(x1, x2):
    x1, x2 = _promote(x1, x2)
    return tf.divide(_floating(x1), _floating(x2))


def arctan2(x1, x2):
    x1, x2 = _promote(x1, x2)
    return tf.math.atan2(_floating(x1), _floating(x2))


def log2(x):
    x = _floating(x)
    return tf.cast(tf.math.log(_float32(x)) * (1 / math.log(2)), x.dtype)


def floor(x):
    return tf.floor(x) if x.dtype.is_floating else x


def ceil(x):
    return tf.math.ceil(x) if x.dtype.is_floating else x


def round(x, decimals=0):
    if not decimals:
        return tf.round(x)
    scale = 10.0**decimals
    return tf.cast(tf.round(_float32(x) * scale) / scale, x.dtype)


def clip(x, x_min, x_max):
    x = x if x_min is None else maximum(x, x_min)
    return x if x_max is None else minimum(x, x_max)


def where(condition, x1, x2):
    return tf.where(tf.cast(condition, tf.bool), *_promote(x1, x2))


# --- Activations ------------------------------------------------------------------------------------------------------

relu = tf.nn.relu
relu6 = tf.nn.relu6
selu = tf.nn.selu
silu = _unary(tf.nn.silu)
sigmoid = _unary(tf.sigmoid)
log_sigmoid = _unary(tf.math.log_sigmoid)
softplus = _unary(tf.math.softplus)
softsign = _unary(tf.nn.softsign)


def hard_sigmoid(x):
    return tf.nn.relu6(x + 3.0) / 6.0


def hard_silu(x):
    return x * hard_sigmoid(x)


def mish(x):
    return x * tf.tanh(tf.math.softplus(x))


def leaky_relu(x, negative_slope=0.2):
    return tf.nn.leaky_relu(x, negative_slope)


def elu(x, alpha=1.0):
    y = tf.nn.elu(x)
    return y if alpha == 1 else tf.where(x > 0, y, alpha * y)


def gelu(x, approximate=True):
    return tf.nn.gelu(x, approximate)


def softmax(x, axis=-1):
    if isinstance(axis, int):
        return tf.cast(tf.nn.softmax(_float32(x), axis), x.dtype)
    return tf.exp(log_softmax(x, axis))


def log_softmax(x, axis=-1):
    x_float32 = _float32(x)
    if isinstance(axis, int):
        return tf.cast(tf.nn.log_softmax(x_float32, axis), x.dtype)
    return tf.cast(x_float32 - tf.reduce_logsumexp(x_float32, axis, keepdims=True), x.dtype)


# --- Reductions -------------------------------------------------------------------------------------------------------


def sum(x, axis=None, keepdims=False):
    total = tf.reduce_sum(_summable(x), axis, keepdims)
    return tf.cast(total, x.dtype) if x.dtype.is_floating else total


def mean(x, axis=None, keepdims=False):
    x = _floating(x)
    return tf.cast(tf.reduce_mean(_summable(x), axis, keepdims), x.dtype)


def var(x, axis=None, keepdims=False):
    x = _floating(x)
    return tf.cast(tf.math.reduce_variance(_summable(x), axis, keepdims), x.dtype)


def std(x, axis=None, keepdims=False):
    x = _floating(x)
    return tf.cast(tf.math.reduce_std(_summable(x), axis, keepdims), x.dtype)


def max(x, axis=None, keepdims=False):
    return any(x, axis, keepdims) if x.dtype == tf.bool else tf.reduce_max(x, axis, keepdims)


def min(x, axis=None, keepdims=False):
    return all(x, axis, keepdims) if x.dtype == tf.bool else tf.reduce_min(x, axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    result = tf.reduce_prod(_summable(x) if dtype is None else tf.cast(x, dtype), axis, keepdims)
    return tf.cast(result, x.dtype) if dtype is None and x.dtype.is_floating else result


def any(x, axis=None, keepdims=False):
    return tf.reduce_any(tf.cast(x, tf.bool), axis, keepdims)


def all(x, axis=None, keepdims=False):
    return tf.reduce_all(tf.cast(x, tf.bool), axis, keepdims)


def _arg(function, x, axis, keepdims):
    x = tf.cast(x, tf.int32) if x.dtype == tf.bool else x
    index = function(ravel(x) if axis is None else x, 0 if axis is None else axis, output_type=tf.int32)
    if not keepdims:
        return index
    return tf.reshape(index, [1] * x.shape.rank) if axis is None else tf.expand_dims(index, axis)


def argmax(x, axis=None, keepdims=False):
    return _arg(tf.argmax, x, axis, keepdims)


def argmin(x, axis=None, keepdims=False):
    return _arg(tf.argmin, x, axis, keepdims)


def _cumulate(function, x, axis, dtype):
    result = function(_summable(x) if dtype is None else tf.cast(x, dtype), axis)
    return tf.cast(result, x.dtype) if dtype is None and x.dtype.is_floating else result


def cumsum(x, axis=None, dtype=None):
    return _cumulate(tf.cumsum, ravel(x) if axis is None else x, axis or 0, dtype)


def cumprod(x, axis=None, dtype=None):
    return _cumulate(tf.math.cumprod, ravel(x) if axis is None else x, axis or 0, dtype)


def logsumexp(x, axis=None, keepdims=False):
    return tf.reduce_logsumexp(_floating(x), axis, keepdims)


def count_nonzero(x, axis=None):
    return tf.math.count_nonzero(x, axis, dtype=tf.int32)


def norm(x, ord=None, axis=None, keepdims=False):
    x = _floating(x)
    if axis is None and ord is None:
        return tf.sqrt(tf.reduce_sum(tf.square(x), keepdims=keepdims))
    axes = tuple(range(x.shape.rank)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if len(axes) == 1:
        return _vector_norm(x, 2 if ord is None else ord, axes[0], keepdims)
    if len(axes) != 2:
        raise ValueError(
            f"norm got ord={ord!r}, axis={axis!r} and shape {x.shape}; give one axis, or two for matrices."
        )
    return _matrix_norm(x, "fro" if ord is None else ord, axes, keepdims)


def _vector_norm(x, ord, axis, keepdims):
    size = tf.abs(x)
    if ord == math.inf:
        return tf.reduce_max(size, axis, keepdims)
    if ord == -math.inf:
        return tf.reduce_min(size, axis, keepdims)
    if ord == 0:
        return tf.reduce_sum(tf.cast(x != 0, x.dtype), axis, keepdims)
    if ord == 1:
        return tf.reduce_sum(size, axis, keepdims)
    if ord == 2:
        return tf.sqrt(tf.reduce_sum(tf.square(x), axis, keepdims))
    return tf.reduce_sum(size**ord, axis, keepdims) ** (1 / ord)


def _matrix_norm(x, ord, axes, keepdims):
    if ord == "fro":
        return tf.sqrt(tf.reduce_sum(tf.square(x), axes, keepdims))
    rows, columns = (axis % x.shape.rank for axis in axes)
    if ord in (1, -1, math.inf, -math.inf):
        first, second = (rows, columns) if builtins.abs(ord) == 1 else (columns, rows)
        reduce = tf.reduce_max if ord > 0 else tf.reduce_min
        result = reduce(tf.reduce_sum(tf.abs(x), first, keepdims=True), second, keepdims=True)
    elif ord in ("nuc", 2, -2):
        reduce = {"nuc": tf.reduce_sum, 2: tf.reduce_max, -2: tf.reduce_min}[ord]
        result = reduce(tf.linalg.svd(moveaxis(x, (rows, columns), (-2, -1)), compute_uv=False), -1)
        result = expand_dims(result, (rows, columns))
    else:
        raise ValueError(f"norm got ord={ord!r} for matrices; it must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf.")
    return result if keepdims else tf.squeeze(result, (rows, columns))


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
    return tf.concat(_promote(*xs), axis)


def stack(x, axis=0):
    return tf.stack(_promote(*x), axis)


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
    bounds = [builtins.min(index if index >= 0 else n + index, n) for index in indices_or_sections]
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


# --- Creation and conversion ------------------------------------------------------------------------------------------


def _host_array(x, dtype):
    """A new NumPy array of `x`, in the default dtypes unless `dtype` says otherwise."""
    x = np.array(x)
    if x.dtype == np.float64:
        return x.astype(np.float32) if dtype is None else x
    if x.dtype == np.int64 and dtype in (None, "int32"):
        if x.size and (x.max() > _INT32_RANGE.max or x.min() < _INT32_RANGE.min):
            raise OverflowError(f"Integers up to {np.abs(x).max()} do not fit int32; pass dtype='int64' or 'float32'.")
        return x.astype(np.int32)
    return x


def convert_to_tensor(x, dtype=None):
    if isinstance(x, (list, tuple)) and _holds_tensor(x):
        x = tf.stack(_promote(*(convert_to_tensor(part) for part in x)))
    if not tf.is_tensor(x):
        x = tf.convert_to_tensor(_host_array(x, dtype))
    else:
        x = tf.convert_to_tensor(x)
        if dtype is None:
            dtype = {tf.float64: tf.float32, tf.int64: tf.int32}.get(x.dtype)
    return x if dtype is None else tf.cast(x, dtype)


def _holds_tensor(x):
    return tf.is_tensor(x) or (isinstance(x, (list, tuple)) and builtins.any(_holds_tensor(part) for part in x))


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
        dtype = "float32" if builtins.any(isinstance(n, float) for n in (start, stop, step)) else "int32"
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
    sorted_sequence, values = _promote(sorted_sequence, values)
    return tf.reshape(tf.searchsorted(sorted_sequence, ravel(values), side), shape(values))


def bincount(x, weights=None, minlength=0):
    x = tf.cast(x, tf.int32)
    length = minlength or (tf.reduce_max(x) + 1 if size(x) else 0)
    if weights is None:
        weights = tf.ones_like(x)
    return tf.math.unsorted_segment_sum(weights, tf.where(x < length, x, -1), length)


def segment_sum(data, segment_ids, num_segments, sorted=False):
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments)


# --- Linear algebra ---------------------------------------------------------------------------------------------------


def matmul(x1, x2):
    if x1.shape.rank == 1 or x2.shape.rank == 1:
        if x1.shape.rank == 1 and x2.shape.rank > 2:
            return tf.squeeze(tf.matmul(x1[None], x2), -2)
        return dot(x1, x2)
    return tf.matmul(x1, x2)


def dot(x1, x2):
    if x1.shape.rank == 0 or x2.shape.rank == 0:
        return x1 * x2
    return tf.tensordot(x1, x2, [[-1], [-1 if x2.shape.rank == 1 else -2]])


einsum = tf.einsum


def tensordot(x1, x2, axes=2):
    if not isinstance(axes, int):
        axes = [[a] if isinstance(a, int) else list(a) for a in axes]
    return tf.tensordot(x1, x2, axes)


def outer(x1, x2):
    return ravel(x1)[:, None] * ravel(x2)


# --- Convolution and pooling ------------------------------------------------------------------------------------------


def _spatial(value, num_spatial):
    return (value,) * num_spatial if isinstance(value, int) else tuple(value)


def _padding_name(padding):
    if padding not in ("valid", "same"):
        raise ValueError(f"Got padding={padding!r}; it must be 'valid' or 'same'.")
    return padding.upper()


def conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    num_spatial = inputs.shape.rank - 2
    strides, dilation = _spatial(strides, num_spatial), _spatial(dilation_rate, num_spatial)
    if builtins.max(strides) > 1 and builtins.max(dilation) > 1:
        kernel, dilation = _dilated(kernel, dilation), (1,) * num_spatial
    groups = inputs.shape[-1] // kernel.shape[-2]
    padding = _padding_name(padding)
    if groups == 1:
        return tf.nn.convolution(inputs, kernel, strides, padding, dilations=dilation)
    # The kernels for the CPU have no gradient for groups.
    parts = zip(tf.split(inputs, groups, -1), tf.split(kernel, groups, -1), strict=True)
    return tf.concat([tf.nn.convolution(x, k, strides, padding, dilations=dilation) for x, k in parts], -1)


def _dilated(kernel, dilation):
    """The kernel with its taps spread out by zeros, for kernels that take no dilation."""
    for axis, rate in enumerate(dilation):
        if rate > 1:
            taps = kernel.shape[axis]
            spread = tf.expand_dims(kernel, axis + 1)
            spread = tf.pad(spread, [[0, rate - 1 if i == axis + 1 else 0] for i in range(spread.shape.rank)])
            sizes = [*kernel.shape]
            sizes[axis] = taps * rate
            spread = tf.reshape(spread, sizes)
            sizes[axis] = (taps - 1) * rate + 1
            kernel = tf.slice(spread, [0] * len(sizes), sizes)
    return kernel


def depthwise_conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    num_spatial = inputs.shape.rank - 2
    strides, dilation = _spatial(strides, num_spatial), _spatial(dilation_rate, num_spatial)
    kernel = _dilated(kernel, dilation)
    if num_spatial == 1:
        inputs, kernel = tf.expand_dims(inputs, 1), tf.expand_dims(kernel, 0)
        strides = strides * 2
        if _padding_name(padding) == "SAME":  # an axis of size 1 needs none
            padding = "same"
    y = _depthwise(inputs, kernel, strides, _padding_name(padding))
    return tf.squeeze(y, 1) if num_spatial == 1 else y


def _depthwise(inputs, kernel, strides, padding):
    if strides[0] == strides[1]:
        return tf.nn.depthwise_conv2d(inputs, kernel, (1, *strides, 1), padding)
    # TensorFlow has equal strides only: take every row and column, then those that are asked for.
    if padding == "SAME":
        pairs = _same_padding(inputs.shape[1:-1], kernel.shape[:2], strides)
        inputs = tf.pad(inputs, [(0, 0), *pairs, (0, 0)])
    return tf.nn.depthwise_conv2d(inputs, kernel, (1, 1, 1, 1), "VALID")[:, :: strides[0], :: strides[1]]


def _same_padding(sizes, windows, strides):
    """(before, after) for each spatial axis."""
    pairs = []
    for n, window, stride in zip(sizes, windows, strides, strict=True):
        total = builtins.max((-(-n // stride) - 1) * stride + window - n, 0)
        pairs.append((total // 2, total - total // 2))
    return pairs


def conv_transpose(inputs, kernel, strides=1, padding="valid", output_padding=None, dilation_rate=1):
    num_spatial = inputs.shape.rank - 2
    strides = _spatial(strides, num_spatial)
    kernel = _dilated(kernel, _spatial(dilation_rate, num_spatial))
    extras = (None,) * num_spatial if output_padding is None else _spatial(output_padding, num_spatial)
    batch, *sizes, _ = shape(inputs)
    full_sizes = [(n - 1) * stride + window for n, stride, window in zip(sizes, strides, kernel.shape, strict=False)]
    y = tf.nn.conv_transpose(inputs, kernel, (batch, *full_sizes, kernel.shape[-2]), strides, "VALID")
    starts, ends, widths = [], [], []
    for n, window, stride, extra in zip(sizes, kernel.shape, strides, extras, strict=False):
        left, right = _transposed_cut(n, window, stride, padding, extra)
        starts.append(left)
        ends.append((n - 1) * stride + window - builtins.max(right, 0))
        widths.append((0, builtins.max(-right, 0)))
    block = tuple(builtins.slice(start, end) for start, end in zip(starts, ends, strict=True))
    return tf.pad(y[(builtins.slice(None), *block)], [(0, 0), *widths, (0, 0)])


def _transposed_cut(n, window, stride, padding, extra):
    """How much of the full result is cut on the left and on the right (negative: zeros are added)."""
    full_size = (n - 1) * stride + window
    if _padding_name(padding) == "VALID":
        out = full_size + (builtins.max(stride - window, 0) if extra is None else extra)
    else:
        out = n * stride if extra is None else (n - 1) * stride + window % 2 + extra
    left = builtins.max(full_size - out, 0) // 2
    return left, full_size - out - left


def max_pool(inputs, pool_size, strides=None, padding="valid"):
    windows = _spatial(pool_size, inputs.shape.rank - 2)
    strides = windows if strides is None else _spatial(strides, inputs.shape.rank - 2)
    return tf.nn.max_pool(inputs, windows, strides, _padding_name(padding))


def average_pool(inputs, pool_size, strides=None, padding="valid"):
    windows = _spatial(pool_size, inputs.shape.rank - 2)
    strides = windows if strides is None else _spatial(strides, inputs.shape.rank - 2)
    return tf.nn.avg_pool(inputs, windows, strides, _padding_name(padding))


def resize(images, size, interpolation="bilinear"):
    if interpolation == "nearest":
        for axis, new in ((1, size[0]), (2, size[1])):
            images = tf.gather(images, (2 * np.arange(new) + 1) * images.shape[axis] // (2 * new), axis=axis)
        return images
    if interpolation != "bilinear":
        raise ValueError(f"resize got interpolation={interpolation!r}; it must be 'nearest' or 'bilinear'.")
    images = _floating(images)
    return tf.cast(tf.image.resize(images, size, "bilinear", antialias=False), images.dtype)


# --- Attention, losses, normalisation ---------------------------------------------------------------------------------

stop_gradient = tf.stop_gradient


def dot_product_attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    batch, queries, heads, head_dim = shape(query)
    _, keys, key_heads, _ = shape(key)
    if heads != key_heads:
        key, value = (tf.repeat(x, heads // key_heads, axis=2) for x in (key, value))
    scores = _float32(tf.einsum("bqhd,bkhd->bhqk", query, key)) * (head_dim**-0.5 if scale is None else scale)
    if bias is not None:
        scores += _float32(bias)
    if is_causal:
        causal = tri(queries, keys, dtype="bool")
        mask = causal if mask is None else tf.logical_and(mask, causal)
    if mask is not None:
        scores = tf.where(mask, scores, scores.dtype.min)
    weights = tf.nn.softmax(scores)
    if mask is not None:
        weights = tf.where(mask, weights, 0.0)
    return tf.einsum("bhqk,bkhd->bqhd", tf.cast(weights, value.dtype), value)


def _same_shapes(name, target, output):
    if not target.shape.is_compatible_with(output.shape):
        raise ValueError(
            f"{name} got a target of shape {tuple(target.shape)} and an output of shape {tuple(output.shape)}; "
            "they must be equal."
        )


def binary_crossentropy(target, output, from_logits=False):
    _same_shapes("binary_crossentropy", target, output)
    target, output = _float32(target), _float32(output)
    if from_logits:
        return tf.nn.sigmoid_cross_entropy_with_logits(target, output)
    output = tf.clip_by_value(output, _EPSILON, 1 - _EPSILON)
    return -(target * tf.math.log(output) + (1 - target) * tf.math.log1p(-output))


def _log_probabilities(output, from_logits, axis):
    output = _float32(output)
    if from_logits:
        return tf.nn.log_softmax(output, axis)
    return tf.math.log(tf.clip_by_value(output / tf.reduce_sum(output, axis, True), _EPSILON, 1 - _EPSILON))


def categorical_crossentropy(target, output, from_logits=False, axis=-1):
    _same_shapes("categorical_crossentropy", target, output)
    return -tf.reduce_sum(_float32(target) * _log_probabilities(output, from_logits, axis), axis)


def sparse_categorical_crossentropy(target, output, from_logits=False, axis=-1):
    if target.shape.rank == output.shape.rank and target.shape[-1] == 1:
        target = tf.squeeze(target, -1)
    axis = axis % output.shape.rank
    if not target.shape.is_compatible_with(output.shape[:axis] + output.shape[axis + 1 :]):
        raise ValueError(
            f"sparse_categorical_crossentropy got a target of shape {tuple(target.shape)} and an output of shape "
            f"{tuple(output.shape)}; the target needs the output's shape without its class axis {axis}."
        )
    # Logarithms of probabilities that sum to 1 are logits with the same loss, up to the clipping: apply it here.
    log_p = moveaxis(_log_probabilities(output, from_logits, axis), axis, -1)
    target = tf.cast(target, tf.int32)
    num_classes = shape(log_p)[-1]
    inside = (target >= 0) & (target < num_classes)
    picked = tf.gather(log_p, tf.where(inside, target, 0), batch_dims=target.shape.rank)
    return tf.where(inside, -picked, math.nan)


def moments(x, axes, keepdims=False):
    x_float32 = _float32(x)
    average = tf.reduce_mean(x_float32, axes, True)
    variance = tf.reduce_mean(tf.math.squared_difference(x_float32, tf.stop_gradient(average)), axes, keepdims)
    return tf.cast(average if keepdims else tf.squeeze(average, axes), x.dtype), tf.cast(variance, x.dtype)


def normalize(x, axis=-1, order=2, epsilon=_EPSILON):
    x_float32 = _float32(x)
    if order == 2:
        squares = tf.reduce_sum(tf.square(x_float32), axis, True)
        return tf.cast(x_float32 * tf.math.rsqrt(tf.maximum(squares, epsilon**2)), x.dtype)
    sums = tf.reduce_sum(tf.abs(x_float32) ** order, axis, True)
    length = tf.maximum(sums, epsilon**order) ** (1 / order)
    return tf.cast(x_float32 / length, x.dtype)
