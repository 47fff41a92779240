"""The contract's functions on JAX. Wrappers cost nothing here: they run once, when a function is traced."""

import builtins
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

_INT32_RANGE = np.iinfo(np.int32)
_EPSILON = 1e-7


def _sum_dtype(x):
    """The dtype that sums and products have: None for "as it is"."""
    return None if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32


def _floating(x):
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _float32(x):
    return jnp.asarray(x).astype(jnp.float32)


abs = jnp.abs
add = jnp.add
subtract = jnp.subtract
multiply = jnp.multiply
divide = jnp.true_divide
floor_divide = jnp.floor_divide
mod = jnp.mod
power = jnp.power
negative = jnp.negative
sign = jnp.sign
square = jnp.square
sqrt = jnp.sqrt
reciprocal = jnp.reciprocal
maximum = jnp.maximum
minimum = jnp.minimum
exp = jnp.exp
expm1 = jnp.expm1
log = jnp.log
log1p = jnp.log1p
log2 = jnp.log2
sin = jnp.sin
cos = jnp.cos
tan = jnp.tan
sinh = jnp.sinh
cosh = jnp.cosh
tanh = jnp.tanh
arcsin = jnp.arcsin
arccos = jnp.arccos
arctan = jnp.arctan
arctan2 = jnp.arctan2
erf = jax.scipy.special.erf
floor = jnp.floor
ceil = jnp.ceil
isfinite = jnp.isfinite
isnan = jnp.isnan
isinf = jnp.isinf
equal = jnp.equal
not_equal = jnp.not_equal
greater = jnp.greater
greater_equal = jnp.greater_equal
less = jnp.less
less_equal = jnp.less_equal
logical_and = jnp.logical_and
logical_or = jnp.logical_or
logical_not = jnp.logical_not
logical_xor = jnp.logical_xor


def rsqrt(x):
    return lax.rsqrt(_floating(jnp.asarray(x)))


def clip(x, x_min, x_max):
    return jnp.clip(x, x_min, x_max)


def round(x, decimals=0):
    return jnp.round(x, decimals)


def where(condition, x1, x2):
    return jnp.where(condition, x1, x2)


# --- Activations ------------------------------------------------------------------------------------------------------

relu = nn.relu
relu6 = nn.relu6
selu = nn.selu
silu = nn.silu
sigmoid = nn.sigmoid
hard_sigmoid = nn.hard_sigmoid
hard_silu = nn.hard_silu
log_sigmoid = nn.log_sigmoid
softplus = nn.softplus
softsign = nn.soft_sign
mish = nn.mish


def leaky_relu(x, negative_slope=0.2):
    return nn.leaky_relu(x, negative_slope)


def elu(x, alpha=1.0):
    return nn.elu(x, alpha)


def gelu(x, approximate=True):
    return nn.gelu(x, approximate)


def softmax(x, axis=-1):
    return nn.softmax(_float32(x), axis).astype(x.dtype)


def log_softmax(x, axis=-1):
    return nn.log_softmax(_float32(x), axis).astype(x.dtype)


# --- Reductions -------------------------------------------------------------------------------------------------------


def sum(x, axis=None, keepdims=False):
    return jnp.sum(x, axis, dtype=_sum_dtype(x), keepdims=keepdims)


def mean(x, axis=None, keepdims=False):
    return jnp.mean(x, axis, keepdims=keepdims)


def var(x, axis=None, keepdims=False):
    return jnp.var(x, axis, keepdims=keepdims)


def std(x, axis=None, keepdims=False):
    return jnp.std(x, axis, keepdims=keepdims)


def max(x, axis=None, keepdims=False):
    return jnp.max(x, axis, keepdims=keepdims)


def min(x, axis=None, keepdims=False):
    return jnp.min(x, axis, keepdims=keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    return jnp.prod(x, axis, dtype=dtype or _sum_dtype(x), keepdims=keepdims)


def any(x, axis=None, keepdims=False):
    return jnp.any(x, axis, keepdims=keepdims)


def all(x, axis=None, keepdims=False):
    return jnp.all(x, axis, keepdims=keepdims)


def argmax(x, axis=None, keepdims=False):
    return jnp.argmax(x, axis, keepdims=keepdims)


def argmin(x, axis=None, keepdims=False):
    return jnp.argmin(x, axis, keepdims=keepdims)


def cumsum(x, axis=None, dtype=None):
    return jnp.cumsum(x, axis, dtype=dtype or _sum_dtype(x))


def cumprod(x, axis=None, dtype=None):
    return jnp.cumprod(x, axis, dtype=dtype or _sum_dtype(x))


def logsumexp(x, axis=None, keepdims=False):
    return nn.logsumexp(_floating(x), axis, keepdims=keepdims)


def count_nonzero(x, axis=None):
    return jnp.count_nonzero(x, axis)


def norm(x, ord=None, axis=None, keepdims=False):
    return jnp.linalg.norm(x, ord, axis, keepdims)


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
        indices_or_sections = [builtins.min(i if i >= 0 else n + i, n) for i in indices_or_sections]
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
    return isinstance(x, jax.Array) or (isinstance(x, (list, tuple)) and builtins.any(_holds_array(part) for part in x))


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


# --- Indexing and sorting ---------------------------------------------------------------------------------------------


def take(x, indices, axis=None):
    return jnp.take(x, jnp.asarray(indices), axis)


def take_along_axis(x, indices, axis=None):
    indices = jnp.asarray(indices)
    if axis is None:
        x, indices, axis = jnp.ravel(x), jnp.ravel(indices), 0
    return jnp.take_along_axis(x, indices, axis)


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
    return jnp.zeros(length, weights.dtype).at[x].add(weights, mode="drop")


def segment_sum(data, segment_ids, num_segments, sorted=False):
    return jax.ops.segment_sum(data, segment_ids, num_segments, indices_are_sorted=sorted)


# --- Linear algebra ---------------------------------------------------------------------------------------------------

matmul = jnp.matmul
dot = jnp.dot
einsum = jnp.einsum
outer = jnp.outer


def tensordot(x1, x2, axes=2):
    return jnp.tensordot(x1, x2, axes)


# --- Convolution and pooling ------------------------------------------------------------------------------------------

_DIMENSIONS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC")}


def _spatial(value, num_spatial):
    return (value,) * num_spatial if isinstance(value, int) else tuple(value)


def _padding_name(padding):
    if padding not in ("valid", "same"):
        raise ValueError(f"Got padding={padding!r}; it must be 'valid' or 'same'.")
    return padding.upper()


def _convolve(inputs, kernel, strides, padding, dilation_rate, groups):
    num_spatial = inputs.ndim - 2
    return lax.conv_general_dilated(
        inputs,
        kernel,
        _spatial(strides, num_spatial),
        _padding_name(padding),
        rhs_dilation=_spatial(dilation_rate, num_spatial),
        dimension_numbers=_DIMENSIONS[inputs.ndim],
        feature_group_count=groups,
    )


def conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    return _convolve(inputs, kernel, strides, padding, dilation_rate, inputs.shape[-1] // kernel.shape[-2])


def depthwise_conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    *window, channels, multiplier = kernel.shape
    kernel = kernel.reshape(*window, 1, channels * multiplier)
    return _convolve(inputs, kernel, strides, padding, dilation_rate, channels)


def conv_transpose(inputs, kernel, strides=1, padding="valid", output_padding=None, dilation_rate=1):
    num_spatial = inputs.ndim - 2
    strides, dilation = _spatial(strides, num_spatial), _spatial(dilation_rate, num_spatial)
    extras = (None,) * num_spatial if output_padding is None else _spatial(output_padding, num_spatial)
    widths = []
    for n, taps, stride, rate, extra in zip(inputs.shape[1:-1], kernel.shape, strides, dilation, extras, strict=False):
        window = (taps - 1) * rate + 1
        left, right = _transposed_cut(n, window, stride, padding, extra)
        widths.append((window - 1 - left, window - 1 - right))
    return lax.conv_transpose(
        inputs, kernel, strides, widths, dilation, _DIMENSIONS[inputs.ndim], transpose_kernel=True
    )


def _transposed_cut(n, window, stride, padding, extra):
    """How much of the full result is cut on the left and on the right (negative: zeros are added)."""
    full_size = (n - 1) * stride + window
    if _padding_name(padding) == "VALID":
        out = full_size + (builtins.max(stride - window, 0) if extra is None else extra)
    else:
        out = n * stride if extra is None else (n - 1) * stride + window % 2 + extra
    left = builtins.max(full_size - out, 0) // 2
    return left, full_size - out - left


def _reduce_windows(inputs, initial, function, windows, strides, padding):
    windows, strides = (1, *windows, 1), (1, *strides, 1)
    return lax.reduce_window(
        inputs, np.array(initial, inputs.dtype), function, windows, strides, _padding_name(padding)
    )


def max_pool(inputs, pool_size, strides=None, padding="valid"):
    windows = _spatial(pool_size, inputs.ndim - 2)
    strides = windows if strides is None else _spatial(strides, inputs.ndim - 2)
    return _reduce_windows(inputs, -np.inf, lax.max, windows, strides, padding)


def average_pool(inputs, pool_size, strides=None, padding="valid"):
    windows = _spatial(pool_size, inputs.ndim - 2)
    strides = windows if strides is None else _spatial(strides, inputs.ndim - 2)
    sums = _reduce_windows(inputs, 0, lax.add, windows, strides, padding)
    if padding == "valid":
        return sums / math.prod(windows)
    return sums / _counts_inside(inputs.shape[1:-1], windows, strides).astype(inputs.dtype)


def _counts_inside(sizes, windows, strides):
    """How many elements of each "same" window lie inside the input, shape (*out, 1)."""
    counts = np.ones((), np.float32)
    for n, window, stride in zip(sizes, windows, strides, strict=True):
        num_windows = -(-n // stride)
        before = builtins.max((num_windows - 1) * stride + window - n, 0) // 2
        start = np.arange(num_windows) * stride - before
        counts = counts[..., None] * (np.minimum(start + window, n) - np.maximum(start, 0))
    return counts[..., None]


def resize(images, size, interpolation="bilinear"):
    if interpolation == "nearest":
        for axis, new in ((1, size[0]), (2, size[1])):
            images = jnp.take(images, (2 * np.arange(new) + 1) * images.shape[axis] // (2 * new), axis)
        return images
    if interpolation != "bilinear":
        raise ValueError(f"resize got interpolation={interpolation!r}; it must be 'nearest' or 'bilinear'.")
    batch, _, _, channels = images.shape
    return jax.image.resize(_floating(images), (batch, *size, channels), "linear", antialias=False)


# --- Attention, losses, normalisation ---------------------------------------------------------------------------------

stop_gradient = lax.stop_gradient


def dot_product_attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    out = nn.dot_product_attention(query, key, value, bias, mask, scale=scale, is_causal=is_causal)
    if mask is None:
        return out
    if is_causal:
        mask = mask & np.tri(query.shape[1], key.shape[1], dtype=bool)
    seen = jnp.any(mask, -1, keepdims=True)
    seen = seen.reshape((1,) * (4 - seen.ndim) + seen.shape)
    return jnp.where(jnp.swapaxes(seen, 1, 2), out, 0)


def _same_shapes(name, target, output):
    if target.shape != output.shape:
        raise ValueError(
            f"{name} got a target of shape {target.shape} and an output of shape {output.shape}; they must be equal."
        )


def binary_crossentropy(target, output, from_logits=False):
    _same_shapes("binary_crossentropy", target, output)
    target, output = _float32(target), _float32(output)
    if from_logits:
        return jnp.maximum(output, 0) - output * target + jnp.log1p(jnp.exp(-jnp.abs(output)))
    output = jnp.clip(output, _EPSILON, 1 - _EPSILON)
    return -(target * jnp.log(output) + (1 - target) * jnp.log1p(-output))


def _log_probabilities(output, from_logits, axis):
    output = _float32(output)
    if from_logits:
        return nn.log_softmax(output, axis)
    return jnp.log(jnp.clip(output / jnp.sum(output, axis, keepdims=True), _EPSILON, 1 - _EPSILON))


def categorical_crossentropy(target, output, from_logits=False, axis=-1):
    _same_shapes("categorical_crossentropy", target, output)
    return -jnp.sum(_float32(target) * _log_probabilities(output, from_logits, axis), axis)


def sparse_categorical_crossentropy(target, output, from_logits=False, axis=-1):
    if target.ndim == output.ndim and target.shape[-1] == 1:
        target = jnp.squeeze(target, -1)
    axis = axis % output.ndim
    if target.shape != output.shape[:axis] + output.shape[axis + 1 :]:
        raise ValueError(
            f"sparse_categorical_crossentropy got a target of shape {target.shape} and an output of shape "
            f"{output.shape}; the target needs the output's shape without its class axis {axis}."
        )
    log_p = _log_probabilities(output, from_logits, axis)
    target = jnp.asarray(target).astype(jnp.int32)
    # A select and a sum, not a gather: XLA fuses them, and keeps them apart where the class axis is sharded.
    chosen = jnp.expand_dims(target, axis) == lax.broadcasted_iota(jnp.int32, log_p.shape, axis)
    loss = -jnp.sum(jnp.where(chosen, log_p, 0.0), axis)
    return jnp.where((target >= 0) & (target < log_p.shape[axis]), loss, jnp.nan)


def moments(x, axes, keepdims=False):
    return jnp.mean(x, axes, keepdims=keepdims), jnp.var(x, axes, keepdims=keepdims)


def normalize(x, axis=-1, order=2, epsilon=_EPSILON):
    x_float32 = _float32(x)
    if order == 2:
        squares = jnp.sum(jnp.square(x_float32), axis, keepdims=True)
        return (x_float32 * lax.rsqrt(jnp.maximum(squares, epsilon**2))).astype(x.dtype)
    sums = jnp.sum(jnp.abs(x_float32) ** order, axis, keepdims=True)
    length = jnp.maximum(sums, epsilon**order) ** (1 / order)
    return (x_float32 / length).astype(x.dtype)
