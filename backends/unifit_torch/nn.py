"""The contract's functions of neural networks on PyTorch."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from unifit_torch.arrays import gathered_apart
from unifit_torch.ops import floating

_EPSILON = 1e-7


# --- Activations ------------------------------------------------------------------------------------------------------

relu = torch.relu
relu6 = F.relu6
selu = torch.selu
silu = F.silu
sigmoid = torch.sigmoid
hard_sigmoid = F.hardsigmoid
hard_silu = F.hardswish
log_sigmoid = F.logsigmoid
softplus = F.softplus
softsign = F.softsign
mish = F.mish


def leaky_relu(x, negative_slope=0.2):
    return F.leaky_relu(x, negative_slope)


def elu(x, alpha=1.0):
    return F.elu(x, alpha)


def gelu(x, approximate=True):
    return F.gelu(x, approximate="tanh" if approximate else "none")


def softmax(x, axis=-1):
    if isinstance(axis, int):
        return torch.softmax(x, axis)
    return log_softmax(x.float(), axis).exp().to(x.dtype)


def log_softmax(x, axis=-1):
    if isinstance(axis, int):
        return torch.log_softmax(x, axis)
    x_float32 = x.float()
    return (x_float32 - torch.logsumexp(x_float32, axis, keepdim=True)).to(x.dtype)


# --- Convolution and pooling ------------------------------------------------------------------------------------------
# Permuted views are what torch calls channels_last: no copy is made for two spatial axes, and results come back
# contiguous in our layout.

_TO_CHANNELS_FIRST = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
_TO_CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
_CONV = {3: F.conv1d, 4: F.conv2d}
_CONV_TRANSPOSE = {3: F.conv_transpose1d, 4: F.conv_transpose2d}
_MAX_POOL = {3: F.max_pool1d, 4: F.max_pool2d}
_AVERAGE_POOL = {3: F.avg_pool1d, 4: F.avg_pool2d}


def _spatial(value, num_spatial):
    return (value,) * num_spatial if isinstance(value, int) else tuple(value)


def _same_padding(sizes, windows, strides):
    """(before, after) for each spatial axis."""
    pairs = []
    for n, window, stride in zip(sizes, windows, strides, strict=True):
        total = max((-(-n // stride) - 1) * stride + window - n, 0)
        pairs.append((total // 2, total - total // 2))
    return pairs


def _padded(x, padding, windows, strides, value=0.0):
    """`x` (channels first) and the symmetric padding still to be done by the kernel; the rest is done here."""
    num_spatial = x.ndim - 2
    if padding == "valid":
        return x, (0,) * num_spatial
    if padding != "same":
        raise ValueError(f"Got padding={padding!r}; it must be 'valid' or 'same'.")
    pairs = _same_padding(x.shape[2:], windows, strides)
    if all(before == after for before, after in pairs):
        return x, tuple(before for before, _ in pairs)
    return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=value), (0,) * num_spatial


def _convolve(inputs, weight, strides, padding, dilation_rate, groups):
    rank = inputs.ndim
    strides, dilation = _spatial(strides, rank - 2), _spatial(dilation_rate, rank - 2)
    windows = [(n - 1) * d + 1 for n, d in zip(weight.shape[2:], dilation, strict=True)]
    x, amount = _padded(inputs.permute(_TO_CHANNELS_FIRST[rank]), padding, windows, strides)
    return _CONV[rank](x, weight, None, strides, amount, dilation, groups).permute(_TO_CHANNELS_LAST[rank])


def conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    weight = kernel.permute((2, 1, 0) if kernel.ndim == 3 else (3, 2, 0, 1))
    return _convolve(inputs, weight, strides, padding, dilation_rate, inputs.shape[-1] // kernel.shape[-2])


def depthwise_conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    *window, channels, multiplier = kernel.shape
    weight = kernel.permute((1, 2, 0) if kernel.ndim == 3 else (2, 3, 0, 1))
    weight = weight.reshape(channels * multiplier, 1, *window)
    return _convolve(inputs, weight, strides, padding, dilation_rate, channels)


def conv_transpose(inputs, kernel, strides=1, padding="valid", output_padding=None, dilation_rate=1):
    rank = inputs.ndim
    num_spatial = rank - 2
    strides, dilation = _spatial(strides, num_spatial), _spatial(dilation_rate, num_spatial)
    extras = (None,) * num_spatial if output_padding is None else _spatial(output_padding, num_spatial)
    widths = []
    for n, taps, stride, rate, extra in zip(inputs.shape[1:-1], kernel.shape, strides, dilation, extras, strict=False):
        left, right = _transposed_cut(n, (taps - 1) * rate + 1, stride, padding, extra)
        widths.append((-left, -right))
    x = inputs.permute(_TO_CHANNELS_FIRST[rank])
    weight = kernel.permute((2, 1, 0) if num_spatial == 1 else (3, 2, 0, 1))
    if all(left == right <= 0 for left, right in widths):
        amount = tuple(-left for left, _ in widths)
        y = _CONV_TRANSPOSE[rank](x, weight, None, strides, amount, 0, 1, dilation)
    else:
        y = _CONV_TRANSPOSE[rank](x, weight, None, strides, 0, 0, 1, dilation)
        y = F.pad(y, [n for pair in reversed(widths) for n in pair])
    return y.permute(_TO_CHANNELS_LAST[rank])


def _transposed_cut(n, window, stride, padding, extra):
    """How much of the full result is cut on the left and on the right (negative: zeros are added)."""
    full_size = (n - 1) * stride + window
    if padding == "valid":
        out = full_size + (max(stride - window, 0) if extra is None else extra)
    elif padding == "same":
        out = n * stride if extra is None else (n - 1) * stride + window % 2 + extra
    else:
        raise ValueError(f"Got padding={padding!r}; it must be 'valid' or 'same'.")
    left = max(full_size - out, 0) // 2
    return left, full_size - out - left


def max_pool(inputs, pool_size, strides=None, padding="valid"):
    rank = inputs.ndim
    windows = _spatial(pool_size, rank - 2)
    strides = windows if strides is None else _spatial(strides, rank - 2)
    x, amount = _padded(inputs.permute(_TO_CHANNELS_FIRST[rank]), padding, windows, strides, -math.inf)
    return _MAX_POOL[rank](x, windows, strides, amount).permute(_TO_CHANNELS_LAST[rank])


def average_pool(inputs, pool_size, strides=None, padding="valid"):
    rank = inputs.ndim
    windows = _spatial(pool_size, rank - 2)
    strides = windows if strides is None else _spatial(strides, rank - 2)
    x = inputs.permute(_TO_CHANNELS_FIRST[rank])
    if padding == "valid":
        return _AVERAGE_POOL[rank](x, windows, strides).permute(_TO_CHANNELS_LAST[rank])
    x, amount = _padded(x, padding, windows, strides)
    y = _AVERAGE_POOL[rank](x, windows, strides, amount).permute(_TO_CHANNELS_LAST[rank])
    share = _share_inside(inputs.shape[1:-1], windows, strides)
    return y / torch.tensor(share, dtype=y.dtype, device=y.device)


def _share_inside(sizes, windows, strides):
    """The part of each "same" window that lies inside the input, shape (*out, 1)."""
    share = np.ones(())
    for n, window, stride, (before, _) in zip(
        sizes, windows, strides, _same_padding(sizes, windows, strides), strict=True
    ):
        start = np.arange(-(-n // stride)) * stride - before
        inside = np.minimum(start + window, n) - np.maximum(start, 0)
        share = share[..., None] * (inside / window)
    return share[..., None]


def resize(images, size, interpolation="bilinear"):
    _, height, width, _ = images.shape
    if interpolation == "nearest":
        if gathered_apart(images):
            return resize(images.float(), size, interpolation).to(images.dtype)
        rows, columns = (
            torch.tensor((2 * np.arange(new) + 1) * old // (2 * new), device=images.device)
            for old, new in ((height, size[0]), (width, size[1]))
        )
        return images[:, rows[:, None], columns]
    if interpolation != "bilinear":
        raise ValueError(f"resize got interpolation={interpolation!r}; it must be 'nearest' or 'bilinear'.")
    x = floating(images).permute(0, 3, 1, 2)
    return F.interpolate(x, tuple(size), mode="bilinear", align_corners=False).permute(0, 2, 3, 1)


# --- Attention, losses, normalisation ---------------------------------------------------------------------------------


def dot_product_attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    seen = None
    if is_causal and (bias is not None or mask is not None):
        causal = torch.ones((query.shape[1], key.shape[1]), dtype=torch.bool, device=query.device).tril()
        mask = causal if mask is None else mask & causal
        is_causal = False
    if mask is not None:
        # A row without keys is NaN in some of the kernels: it sees all keys, and its result is put to zero.
        seen = mask.any(-1, keepdim=True)
        mask = mask | ~seen
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    if seen is not None:
        out = out.masked_fill(~seen, 0.0)
    return out.transpose(1, 2)


_NO_CLASS = -(2**62)
"""A label that no data has: torch would pass over its default, -100, without a word."""


def _same_shapes(name, target, output):
    if target.shape != output.shape:
        raise ValueError(
            f"{name} got a target of shape {tuple(target.shape)} and an output of shape {tuple(output.shape)}; "
            "they must be equal."
        )


def binary_crossentropy(target, output, from_logits=False):
    _same_shapes("binary_crossentropy", target, output)
    target, output = target.float(), output.float()
    if from_logits:
        return F.binary_cross_entropy_with_logits(output, target, reduction="none")
    output = torch.clamp(output, _EPSILON, 1 - _EPSILON)
    return -(target * torch.log(output) + (1 - target) * torch.log1p(-output))


def _log_probabilities(output, from_logits, axis):
    output = output.float()
    if from_logits:
        return torch.log_softmax(output, axis)
    return torch.log(torch.clamp(output / output.sum(axis, keepdim=True), _EPSILON, 1 - _EPSILON))


def categorical_crossentropy(target, output, from_logits=False, axis=-1):
    _same_shapes("categorical_crossentropy", target, output)
    return -(target.float() * _log_probabilities(output, from_logits, axis)).sum(axis)


def sparse_categorical_crossentropy(target, output, from_logits=False, axis=-1):
    if target.ndim == output.ndim and target.shape[-1] == 1:
        target = target.squeeze(-1)
    axis = axis % output.ndim
    if target.shape != output.shape[:axis] + output.shape[axis + 1 :]:
        raise ValueError(
            f"sparse_categorical_crossentropy got a target of shape {tuple(target.shape)} and an output of shape "
            f"{tuple(output.shape)}; the target needs the output's shape without its class axis {axis}."
        )
    if from_logits and axis == output.ndim - 1:  # one kernel, one node of the graph
        classes = output.shape[-1]
        flat = output if output.ndim == 2 else output.reshape(-1, classes)
        losses = F.cross_entropy(flat.float(), target.reshape(-1).long(), ignore_index=_NO_CLASS, reduction="none")
        return losses if target.ndim == 1 else losses.reshape(target.shape)
    log_p = _log_probabilities(output, from_logits, axis)
    return -torch.gather(log_p, axis, target.to(torch.int64).unsqueeze(axis)).squeeze(axis)


def moments(x, axes, keepdims=False):
    variance, average = torch.var_mean(floating(x), axes, correction=0, keepdim=keepdims)
    return average, variance


def normalize(x, axis=-1, order=2, epsilon=_EPSILON):
    x_float32 = x.float()
    if order == 2:
        squares = x_float32.square().sum(axis, keepdim=True)
        return (x_float32 * torch.rsqrt(torch.clamp_min(squares, epsilon**2))).to(x.dtype)
    length = torch.linalg.vector_norm(x_float32, order, axis, keepdim=True)
    return (x_float32 / torch.clamp_min(length, epsilon)).to(x.dtype)
