"""The contract's functions of neural networks on TensorFlow."""

import math

import numpy as np
import tensorflow as tf

from unifit_tensorflow.arrays import moveaxis, shape, tri
from unifit_tensorflow.ops import float32, floating, summable, unary

_EPSILON = 1e-7


# --- Activations ------------------------------------------------------------------------------------------------------

relu = tf.nn.relu
relu6 = tf.nn.relu6
selu = tf.nn.selu
silu = unary(tf.nn.silu)
sigmoid = unary(tf.sigmoid)
log_sigmoid = unary(tf.math.log_sigmoid)
softplus = unary(tf.math.softplus)
softsign = unary(tf.nn.softsign)


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
        return tf.cast(tf.nn.softmax(float32(x), axis), x.dtype)
    return tf.cast(tf.exp(log_softmax(float32(x), axis)), x.dtype)


def log_softmax(x, axis=-1):
    x_float32 = float32(x)
    if isinstance(axis, int):
        return tf.cast(tf.nn.log_softmax(x_float32, axis), x.dtype)
    return tf.cast(x_float32 - tf.reduce_logsumexp(x_float32, axis, keepdims=True), x.dtype)


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
    if max(strides) > 1 and max(dilation) > 1:
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
        total = max((-(-n // stride) - 1) * stride + window - n, 0)
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
        ends.append((n - 1) * stride + window - max(right, 0))
        widths.append((0, max(-right, 0)))
    block = tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))
    return tf.pad(y[(slice(None), *block)], [(0, 0), *widths, (0, 0)])


def _transposed_cut(n, window, stride, padding, extra):
    """How much of the full result is cut on the left and on the right (negative: zeros are added)."""
    full_size = (n - 1) * stride + window
    if _padding_name(padding) == "VALID":
        out = full_size + (max(stride - window, 0) if extra is None else extra)
    else:
        out = n * stride if extra is None else (n - 1) * stride + window % 2 + extra
    left = max(full_size - out, 0) // 2
    return left, full_size - out - left


def max_pool(inputs, pool_size, strides=None, padding="valid"):
    windows = _spatial(pool_size, inputs.shape.rank - 2)
    strides = windows if strides is None else _spatial(strides, inputs.shape.rank - 2)
    # For float16 there is no kernel over three axes on CPUs.
    wide = float32(inputs) if inputs.dtype == tf.float16 and len(windows) == 3 else inputs
    return tf.cast(tf.nn.max_pool(wide, windows, strides, _padding_name(padding)), inputs.dtype)


def average_pool(inputs, pool_size, strides=None, padding="valid"):
    windows = _spatial(pool_size, inputs.shape.rank - 2)
    strides = windows if strides is None else _spatial(strides, inputs.shape.rank - 2)
    return tf.cast(tf.nn.avg_pool(summable(inputs), windows, strides, _padding_name(padding)), inputs.dtype)


def resize(images, size, interpolation="bilinear"):
    if interpolation == "nearest":
        for axis, new in ((1, size[0]), (2, size[1])):
            images = tf.gather(images, (2 * np.arange(new) + 1) * images.shape[axis] // (2 * new), axis=axis)
        return images
    if interpolation != "bilinear":
        raise ValueError(f"resize got interpolation={interpolation!r}; it must be 'nearest' or 'bilinear'.")
    images = floating(images)
    return tf.cast(tf.image.resize(images, size, "bilinear", antialias=False), images.dtype)


# --- Attention, losses, normalisation ---------------------------------------------------------------------------------


def dot_product_attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    batch, queries, heads, head_dim = shape(query)
    _, keys, key_heads, _ = shape(key)
    if heads != key_heads:
        key, value = (tf.repeat(x, heads // key_heads, axis=2) for x in (key, value))
    scores = float32(tf.einsum("bqhd,bkhd->bhqk", query, key)) * (head_dim**-0.5 if scale is None else scale)
    if bias is not None:
        scores += float32(bias)
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
    target, output = float32(target), float32(output)
    if from_logits:
        return tf.nn.sigmoid_cross_entropy_with_logits(target, output)
    output = tf.clip_by_value(output, _EPSILON, 1 - _EPSILON)
    return -(target * tf.math.log(output) + (1 - target) * tf.math.log1p(-output))


def _log_probabilities(output, from_logits, axis):
    output = float32(output)
    if from_logits:
        return tf.nn.log_softmax(output, axis)
    return tf.math.log(tf.clip_by_value(output / tf.reduce_sum(output, axis, True), _EPSILON, 1 - _EPSILON))


def categorical_crossentropy(target, output, from_logits=False, axis=-1):
    _same_shapes("categorical_crossentropy", target, output)
    return -tf.reduce_sum(float32(target) * _log_probabilities(output, from_logits, axis), axis)


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
    x_float32 = float32(x)
    average = tf.reduce_mean(x_float32, axes, True)
    variance = tf.reduce_mean(tf.math.squared_difference(x_float32, tf.stop_gradient(average)), axes, keepdims)
    return tf.cast(average if keepdims else tf.squeeze(average, axes), x.dtype), tf.cast(variance, x.dtype)


def normalize(x, axis=-1, order=2, epsilon=_EPSILON):
    x_float32 = float32(x)
    if order == 2:
        squares = tf.reduce_sum(tf.square(x_float32), axis, True)
        return tf.cast(x_float32 * tf.math.rsqrt(tf.maximum(squares, epsilon**2)), x.dtype)
    sums = tf.reduce_sum(tf.abs(x_float32) ** order, axis, True)
    length = tf.maximum(sums, epsilon**order) ** (1 / order)
    return tf.cast(x_float32 / length, x.dtype)
