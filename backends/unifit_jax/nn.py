"""The contract's functions of neural networks on JAX."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from unifit_jax.arrays import take
from unifit_jax.ops import as_given, floating, widened

_EPSILON = 1e-7


def _float32(x):
    return jnp.asarray(x).astype(jnp.float32)


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
        out = full_size + (max(stride - window, 0) if extra is None else extra)
    else:
        out = n * stride if extra is None else (n - 1) * stride + window % 2 + extra
    left = max(full_size - out, 0) // 2
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
    sums = _reduce_windows(widened(inputs), 0, lax.add, windows, strides, padding)
    if padding == "valid":
        return as_given(sums / math.prod(windows), inputs)
    return as_given(sums / _counts_inside(inputs.shape[1:-1], windows, strides).astype(sums.dtype), inputs)


def _counts_inside(sizes, windows, strides):
    """How many elements of each "same" window lie inside the input, shape (*out, 1)."""
    counts = np.ones((), np.float32)
    for n, window, stride in zip(sizes, windows, strides, strict=True):
        num_windows = -(-n // stride)
        before = max((num_windows - 1) * stride + window - n, 0) // 2
        start = np.arange(num_windows) * stride - before
        counts = counts[..., None] * (np.minimum(start + window, n) - np.maximum(start, 0))
    return counts[..., None]


def resize(images, size, interpolation="bilinear"):
    if interpolation == "nearest":
        for axis, new in ((1, size[0]), (2, size[1])):
            images = take(images, (2 * np.arange(new) + 1) * images.shape[axis] // (2 * new), axis)
        return images
    if interpolation != "bilinear":
        raise ValueError(f"resize got interpolation={interpolation!r}; it must be 'nearest' or 'bilinear'.")
    batch, _, _, channels = images.shape
    return jax.image.resize(floating(images), (batch, *size, channels), "linear", antialias=False)


# --- Attention, losses, normalisation ---------------------------------------------------------------------------------


def dot_product_attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    def attend(query, key, value):
        return nn.dot_product_attention(query, key, value, bias, mask, scale=scale, is_causal=is_causal)

    def attend_in_float32(*arrays):
        return attend(*map(widened, arrays)).astype(query.dtype)

    if query.dtype == jnp.float16:  # jax asks for a product that only GPUs have
        out = lax.platform_dependent(query, key, value, cuda=attend, rocm=attend, default=attend_in_float32)
    else:
        out = attend(query, key, value)
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
    wide = widened(x)
    mean, variance = jnp.mean(wide, axes, keepdims=keepdims), jnp.var(wide, axes, keepdims=keepdims)
    return as_given(mean, x), as_given(variance, x)


def normalize(x, axis=-1, order=2, epsilon=_EPSILON):
    x_float32 = _float32(x)
    if order == 2:
        squares = jnp.sum(jnp.square(x_float32), axis, keepdims=True)
        return (x_float32 * lax.rsqrt(jnp.maximum(squares, epsilon**2))).astype(x.dtype)
    sums = jnp.sum(jnp.abs(x_float32) ** order, axis, keepdims=True)
    length = jnp.maximum(sums, epsilon**order) ** (1 / order)
    return (x_float32 / length).astype(x.dtype)
