"""The contract's elementwise functions, reductions and linear algebra on TensorFlow."""

import builtins
import math

import tensorflow as tf

from unifit_tensorflow.arrays import convert_to_tensor, expand_dims, moveaxis, ravel
from unifit_tensorflow.promotion import promote


def floating(x):
    x = x if tf.is_tensor(x) else convert_to_tensor(x)
    return x if x.dtype.is_floating else tf.cast(x, tf.float32)


def float32(x):
    return tf.cast(x, tf.float32)


def _is_half(x):
    return x.dtype in (tf.float16, tf.bfloat16)


def summable(x):
    """`x` in the dtype in which sums and products are made."""
    if x.dtype.is_floating and not _is_half(x) or x.dtype == tf.int64:
        return x
    return tf.cast(x, tf.float32 if x.dtype.is_floating else tf.int32)


def unary(function):
    """`function` over floats: integers become float32."""

    def op(x):
        return function(floating(x))

    return op


def _binary(function):
    """`function` over operands promoted to one dtype."""

    def op(x1, x2):
        return function(*promote(x1, x2))

    return op


def _numeric(function):
    """`function` over operands promoted to one dtype, bool taken as int32."""

    def op(x1, x2):
        x1, x2 = promote(x1, x2)
        if x1.dtype == tf.bool:
            x1, x2 = tf.cast(x1, tf.int32), tf.cast(x2, tf.int32)
        elif x1.dtype == tf.float16 and x1.shape.rank and x2.shape.rank and x1.shape != x2.shape:
            return _broadcast(function, x1, x2)
        return function(x1, x2)

    return op


def _broadcast(function, x1, x2):
    """`function` over float16 operands of different shapes. Their gradients are sums over the axes along which they are
    repeated, and TensorFlow's sum over leading axes on CPUs adds in float16: 4096 ones are 2048.
    """
    if function is tf.add and x2.shape.rank == 1 < x1.shape.rank < 6 and x1.shape[-1] == x2.shape[0]:
        return tf.nn.bias_add(x1, x2)  # whose gradient adds in float32
    return tf.cast(function(float32(x1), float32(x2)), x1.dtype)


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
sqrt = unary(tf.sqrt)
rsqrt = unary(tf.math.rsqrt)
reciprocal = unary(tf.math.reciprocal)
exp = unary(tf.exp)
expm1 = unary(tf.math.expm1)
log = unary(tf.math.log)
log1p = unary(tf.math.log1p)
sin = unary(tf.sin)
cos = unary(tf.cos)
tan = unary(tf.tan)
sinh = unary(tf.sinh)
cosh = unary(tf.cosh)
tanh = unary(tf.tanh)
arcsin = unary(tf.asin)
arccos = unary(tf.acos)
arctan = unary(tf.atan)
erf = unary(tf.math.erf)
isfinite = unary(tf.math.is_finite)
isnan = unary(tf.math.is_nan)
isinf = unary(tf.math.is_inf)
equal = _binary(tf.equal)
not_equal = _binary(tf.not_equal)
greater = _numeric(tf.greater)
greater_equal = _numeric(tf.greater_equal)
less = _numeric(tf.less)
less_equal = _numeric(tf.less_equal)
_divide = _numeric(tf.divide)
logical_and = _logical(tf.logical_and)
logical_or = _logical(tf.logical_or)
logical_xor = _logical(tf.math.logical_xor)


def logical_not(x):
    return tf.logical_not(tf.cast(x, tf.bool))


def divide(x1, x2):
    x1, x2 = promote(x1, x2)
    return _divide(floating(x1), floating(x2))


def arctan2(x1, x2):
    x1, x2 = promote(x1, x2)
    return tf.math.atan2(floating(x1), floating(x2))


def log2(x):
    x = floating(x)
    return tf.cast(tf.math.log(float32(x)) * (1 / math.log(2)), x.dtype)


def floor(x):
    return tf.floor(x) if x.dtype.is_floating else x


def ceil(x):
    return tf.math.ceil(x) if x.dtype.is_floating else x


def round(x, decimals=0):
    if not decimals:
        return tf.round(x)
    scale = 10.0**decimals
    return tf.cast(tf.round(float32(x) * scale) / scale, x.dtype)


def clip(x, x_min, x_max):
    x = x if x_min is None else maximum(x, x_min)
    return x if x_max is None else minimum(x, x_max)


def where(condition, x1, x2):
    return tf.where(tf.cast(condition, tf.bool), *promote(x1, x2))


# --- Reductions -------------------------------------------------------------------------------------------------------


def sum(x, axis=None, keepdims=False):
    total = tf.reduce_sum(summable(x), axis, keepdims)
    return tf.cast(total, x.dtype) if x.dtype.is_floating else total


def mean(x, axis=None, keepdims=False):
    x = floating(x)
    return tf.cast(tf.reduce_mean(summable(x), axis, keepdims), x.dtype)


def var(x, axis=None, keepdims=False):
    x = floating(x)
    return tf.cast(tf.math.reduce_variance(summable(x), axis, keepdims), x.dtype)


def std(x, axis=None, keepdims=False):
    x = floating(x)
    return tf.cast(tf.math.reduce_std(summable(x), axis, keepdims), x.dtype)


def max(x, axis=None, keepdims=False):
    return any(x, axis, keepdims) if x.dtype == tf.bool else tf.reduce_max(x, axis, keepdims)


def min(x, axis=None, keepdims=False):
    return all(x, axis, keepdims) if x.dtype == tf.bool else tf.reduce_min(x, axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    result = tf.reduce_prod(summable(x) if dtype is None else tf.cast(x, dtype), axis, keepdims)
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
    result = function(summable(x) if dtype is None else tf.cast(x, dtype), axis)
    return tf.cast(result, x.dtype) if dtype is None and x.dtype.is_floating else result


def cumsum(x, axis=None, dtype=None):
    return _cumulate(tf.cumsum, ravel(x) if axis is None else x, axis or 0, dtype)


def cumprod(x, axis=None, dtype=None):
    return _cumulate(tf.math.cumprod, ravel(x) if axis is None else x, axis or 0, dtype)


def logsumexp(x, axis=None, keepdims=False):
    x = floating(x)
    return tf.cast(tf.reduce_logsumexp(summable(x), axis, keepdims), x.dtype)


def count_nonzero(x, axis=None):
    return tf.math.count_nonzero(x, axis, dtype=tf.int32)


def norm(x, ord=None, axis=None, keepdims=False):
    x = floating(x)
    return tf.cast(_norm(summable(x), ord, axis, keepdims), x.dtype)


def _norm(x, ord, axis, keepdims):
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


def einsum(subscripts, *operands):
    if "..." in subscripts and builtins.any(operand.dtype == tf.float16 for operand in operands):
        # On CPUs TensorFlow 2.21 gives wrong numbers for dots in float16 (oneDNN).
        wide = [tf.cast(operand, tf.float32) for operand in operands]
        return tf.cast(tf.einsum(subscripts, *wide), tf.float16)
    return tf.einsum(subscripts, *operands)


def tensordot(x1, x2, axes=2):
    if not isinstance(axes, int):
        axes = [[a] if isinstance(a, int) else list(a) for a in axes]
    return tf.tensordot(x1, x2, axes)


def outer(x1, x2):
    return ravel(x1)[:, None] * ravel(x2)


# --- Differentiation --------------------------------------------------------------------------------------------------

stop_gradient = tf.stop_gradient
