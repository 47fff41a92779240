"""The contract's functions on PyTorch: aten functions bound as they are where they fit, else one call of ours."""

import builtins
import math
import operator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
    ).split()
}
_NAMES = {value: name for name, value in _DTYPES.items()}
_INT32_RANGE = np.iinfo(np.int32)
_EPSILON = 1e-7


def _tensors(x1, x2):
    """Both operands as tensors; a scalar becomes one of the dtype that it and the other promote to."""
    array = x1 if isinstance(x1, Tensor) else x2
    if not isinstance(array, Tensor):
        return convert_to_tensor(x1), convert_to_tensor(x2)
    scalar = x2 if array is x1 else x1
    if isinstance(scalar, Tensor):
        return x1, x2
    if isinstance(scalar, (bool, int, float)):
        scalar = torch.full((), scalar, dtype=torch.result_type(array, scalar), device=array.device)
    else:
        scalar = convert_to_tensor(scalar).to(array.device)
    return (x1, scalar) if array is x1 else (scalar, x2)


def _binary(function):
    """`function`, which wants two tensors, taking scalars as well."""

    def op(x1, x2):
        if isinstance(x1, Tensor) and isinstance(x2, Tensor):
            return function(x1, x2)
        return function(*_tensors(x1, x2))

    return op


def _floating(x):
    return x if x.is_floating_point() else x.to(torch.float32)


def _sum_dtype(x):
    """The dtype that sums and products have: None for "as it is"."""
    return None if x.is_floating_point() or x.dtype is torch.int64 else torch.int32


# Python's operators are C functions that take a scalar on either side, at no cost over the aten function.
add = operator.add
subtract = operator.sub
multiply = operator.mul
divide = operator.truediv
floor_divide = operator.floordiv
mod = operator.mod
power = operator.pow
equal = operator.eq
not_equal = operator.ne
greater = operator.gt
greater_equal = operator.ge
less = operator.lt
less_equal = operator.le

abs = torch.abs
negative = torch.neg
sign = torch.sign
square = torch.square
sqrt = torch.sqrt
rsqrt = torch.rsqrt
reciprocal = torch.reciprocal
exp = torch.exp
expm1 = torch.expm1
log = torch.log
log1p = torch.log1p
log2 = torch.log2
sin = torch.sin
cos = torch.cos
tan = torch.tan
sinh = torch.sinh
cosh = torch.cosh
tanh = torch.tanh
arcsin = torch.arcsin
arccos = torch.arccos
arctan = torch.arctan
arctan2 = _binary(torch.arctan2)
erf = torch.erf
floor = torch.floor
ceil = torch.ceil
isfinite = torch.isfinite
isnan = torch.isnan
isinf = torch.isinf
logical_and = _binary(torch.logical_and)
logical_or = _binary(torch.logical_or)
logical_xor = _binary(torch.logical_xor)
logical_not = torch.logical_not


def maximum(x1, x2):
    if isinstance(x1, Tensor) and isinstance(x2, (int, float)):
        return torch.clamp_min(x1, x2)
    return torch.maximum(*_tensors(x1, x2))


def minimum(x1, x2):
    if isinstance(x1, Tensor) and isinstance(x2, (int, float)):
        return torch.clamp_max(x1, x2)
    return torch.minimum(*_tensors(x1, x2))


def clip(x, x_min, x_max):
    if isinstance(x_min, Tensor) or isinstance(x_max, Tensor):
        x = x if x_min is None else maximum(x, x_min)
        return x if x_max is None else minimum(x, x_max)
    return torch.clamp(x, x_min, x_max)


def round(x, decimals=0):
    return torch.round(x, decimals=decimals)


def where(condition, x1, x2):
    if condition.dtype is not torch.bool:
        condition = condition != 0
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        x1, x2 = torch.full((), x1, device=condition.device), torch.full((), x2, device=condition.device)
        x1, x2 = (x.to(torch.int32) if x.dtype is torch.int64 else x for x in (x1, x2))
    return torch.where(condition, x1, x2)


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
    return log_softmax(x, axis).exp()


def log_softmax(x, axis=-1):
    if isinstance(axis, int):
        return torch.log_softmax(x, axis)
    x_float32 = x.float()
    return (x_float32 - torch.logsumexp(x_float32, axis, keepdim=True)).to(x.dtype)


# --- Reductions -------------------------------------------------------------------------------------------------------
# aten takes an empty tuple of axes for all axes; here, as in NumPy, it is none.


def sum(x, axis=None, keepdims=False):
    if axis == ():
        return x.to(_sum_dtype(x) or x.dtype)
    return torch.sum(x, axis, keepdims, dtype=_sum_dtype(x))


def mean(x, axis=None, keepdims=False):
    x = _floating(x)
    return x if axis == () else torch.mean(x, axis, keepdims)


def var(x, axis=None, keepdims=False):
    x = _floating(x)
    return x - x if axis == () else torch.var(x, axis, correction=0, keepdim=keepdims)


def std(x, axis=None, keepdims=False):
    x = _floating(x)
    return x - x if axis == () else torch.std(x, axis, correction=0, keepdim=keepdims)


def max(x, axis=None, keepdims=False):
    return x if axis == () else torch.amax(x, () if axis is None else axis, keepdims)


def min(x, axis=None, keepdims=False):
    return x if axis == () else torch.amin(x, () if axis is None else axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    dtype = _sum_dtype(x) if dtype is None else _DTYPES[dtype]
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    x = x.to(dtype or x.dtype)
    for one_axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = torch.prod(x, one_axis, keepdims, dtype=dtype)
    return x


def any(x, axis=None, keepdims=False):
    x = x if x.dtype is torch.bool else x != 0
    return x if axis == () else torch.any(x, axis, keepdims)


def all(x, axis=None, keepdims=False):
    x = x if x.dtype is torch.bool else x != 0
    return x if axis == () else torch.all(x, axis, keepdims)


def argmax(x, axis=None, keepdims=False):
    return torch.argmax(x.byte() if x.dtype is torch.bool else x, axis, keepdims).to(torch.int32)


def argmin(x, axis=None, keepdims=False):
    return torch.argmin(x.byte() if x.dtype is torch.bool else x, axis, keepdims).to(torch.int32)


def cumsum(x, axis=None, dtype=None):
    dtype = _sum_dtype(x) if dtype is None else _DTYPES[dtype]
    return torch.cumsum(*((x.reshape(-1), 0) if axis is None else (x, axis)), dtype=dtype)


def cumprod(x, axis=None, dtype=None):
    dtype = _sum_dtype(x) if dtype is None else _DTYPES[dtype]
    return torch.cumprod(*((x.reshape(-1), 0) if axis is None else (x, axis)), dtype=dtype)


def logsumexp(x, axis=None, keepdims=False):
    x = _floating(x)
    return x if axis == () else torch.logsumexp(x, tuple(range(x.ndim)) if axis is None else axis, keepdims)


def count_nonzero(x, axis=None):
    return (x != 0).to(torch.int32) if axis == () else torch.count_nonzero(x, axis).to(torch.int32)


def norm(x, ord=None, axis=None, keepdims=False):
    return torch.linalg.norm(_floating(x), ord, axis, keepdims)


# --- Shape ------------------------------------------------------------------------------------------------------------

swapaxes = torch.swapaxes
moveaxis = torch.moveaxis
ravel = torch.ravel


def shape(x):
    return tuple(x.shape)


def ndim(x):
    return x.ndim


def size(x):
    return x.numel()


def reshape(x, newshape):
    return torch.reshape(x, (newshape,) if isinstance(newshape, int) else newshape)


def transpose(x, axes=None):
    return torch.permute(x, tuple(range(x.ndim))[::-1] if axes is None else axes)


def expand_dims(x, axis):
    if isinstance(axis, int):
        return torch.unsqueeze(x, axis)
    num_axes = x.ndim + len(axis)
    for one_axis in sorted(a % num_axes for a in axis):
        x = torch.unsqueeze(x, one_axis)
    return x


def squeeze(x, axis=None):
    if axis is None:
        return torch.squeeze(x)
    for one_axis in (axis,) if isinstance(axis, int) else axis:
        if x.shape[one_axis] != 1:
            raise ValueError(f"squeeze got axis {axis} and shape {tuple(x.shape)}; the axis must have size 1.")
    return torch.squeeze(x, axis)


def concatenate(xs, axis=0):
    return torch.cat(xs, axis)


def stack(x, axis=0):
    return torch.stack(x, axis)


def unstack(x, num=None, axis=0):
    parts = torch.unbind(x, axis)
    if num is not None and num != len(parts):
        raise ValueError(f"unstack got num={num} for an axis of size {len(parts)}; leave num out or make them equal.")
    return list(parts)


def split(x, indices_or_sections, axis=0):
    if isinstance(indices_or_sections, int) and x.shape[axis] % indices_or_sections:
        raise ValueError(
            f"split got {indices_or_sections} sections for an axis of size {x.shape[axis]}; it must divide evenly."
        )
    if not isinstance(indices_or_sections, int):
        indices_or_sections = tuple(indices_or_sections)
    return list(torch.tensor_split(x, indices_or_sections, dim=axis))


def repeat(x, repeats, axis=None):
    if not isinstance(repeats, int):
        repeats = torch.tensor(repeats, dtype=torch.int64, device=x.device)
    return torch.repeat_interleave(x, repeats, axis)


def tile(x, repeats):
    return torch.tile(x, (repeats,) if isinstance(repeats, int) else tuple(repeats))


def flip(x, axis=None):
    return torch.flip(x, tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis)


def roll(x, shift, axis=None):
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return torch.roll(x, shift, axis)


def pad(x, pad_width, mode="constant", constant_values=None):
    widths = np.broadcast_to(pad_width, (x.ndim, 2)).tolist()
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(widths) for n in pair], value=constant_values or 0)
    for axis, pair in enumerate(widths):
        if pair != [0, 0]:
            indices = np.pad(np.arange(x.shape[axis]), pair, mode)
            x = torch.index_select(x, axis, torch.tensor(indices, device=x.device))
    return x


def broadcast_to(x, shape):
    return torch.broadcast_to(x, shape)


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
    if isinstance(x, Tensor):
        if dtype is not None:
            return x.to(_DTYPES[dtype])
        if x.dtype is torch.float64:
            return x.to(torch.float32)
        return x.to(torch.int32) if x.dtype is torch.int64 else x
    if isinstance(x, (list, tuple)) and _holds_tensor(x):
        return convert_to_tensor(torch.stack([convert_to_tensor(part) for part in x]), dtype)
    return torch.tensor(_host_array(x, dtype), dtype=None if dtype is None else _DTYPES[dtype])


def _holds_tensor(x):
    return isinstance(x, Tensor) or (isinstance(x, (list, tuple)) and builtins.any(_holds_tensor(part) for part in x))


def convert_to_numpy(x):
    if not isinstance(x, Tensor):
        return np.array(x)
    x = x.detach()
    if x.dtype is torch.bfloat16:
        return x.float().cpu().numpy()
    # A copy, because training changes parameters in place.
    return x.numpy().copy() if x.device.type == "cpu" else x.cpu().numpy()


def is_tensor(x):
    return isinstance(x, Tensor)


def cast(x, dtype):
    return x.to(_DTYPES[dtype]) if isinstance(x, Tensor) else convert_to_tensor(x, dtype)


def dtype(x):
    return _NAMES[x.dtype]


def zeros(shape, dtype="float32"):
    return torch.zeros(shape, dtype=_DTYPES[dtype])


def ones(shape, dtype="float32"):
    return torch.ones(shape, dtype=_DTYPES[dtype])


def full(shape, fill_value, dtype="float32"):
    if isinstance(fill_value, Tensor):
        return fill_value.to(_DTYPES[dtype]).broadcast_to(shape).clone()
    return torch.full(shape, fill_value, dtype=_DTYPES[dtype])


def zeros_like(x, dtype=None):
    return torch.zeros_like(x, dtype=dtype and _DTYPES[dtype])


def ones_like(x, dtype=None):
    return torch.ones_like(x, dtype=dtype and _DTYPES[dtype])


def full_like(x, fill_value, dtype=None):
    if isinstance(fill_value, Tensor):
        return fill_value.to(_DTYPES[dtype] if dtype else x.dtype).broadcast_to(x.shape).clone()
    return torch.full_like(x, fill_value, dtype=dtype and _DTYPES[dtype])


def arange(start, stop=None, step=1, dtype=None):
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = "float32" if builtins.any(isinstance(n, float) for n in (start, stop, step)) else "int32"
    return torch.arange(start, stop, step, dtype=_DTYPES[dtype])


def linspace(start, stop, num=50, endpoint=True, dtype="float32", axis=0):
    return torch.tensor(np.linspace(start, stop, num, endpoint, axis=axis), dtype=_DTYPES[dtype])


def eye(N, M=None, k=0, dtype="float32"):
    return (torch.arange(N)[:, None] + k == torch.arange(N if M is None else M)).to(_DTYPES[dtype])


def tri(N, M=None, k=0, dtype="float32"):
    return (torch.arange(N)[:, None] + k >= torch.arange(N if M is None else M)).to(_DTYPES[dtype])


def tril(x, k=0):
    return torch.tril(x, k)


def triu(x, k=0):
    return torch.triu(x, k)


def one_hot(x, num_classes, axis=-1, dtype="float32"):
    axis = axis % (x.ndim + 1)
    classes = torch.arange(num_classes, device=x.device).reshape((num_classes,) + (1,) * (x.ndim - axis))
    return (x.unsqueeze(axis) == classes).to(_DTYPES[dtype])


# --- Indexing and sorting ---------------------------------------------------------------------------------------------


def _indices(indices, device):
    if not isinstance(indices, Tensor):
        return torch.tensor(indices, dtype=torch.int64, device=device)
    # aten reads uint8 as a mask.
    return indices if indices.dtype in (torch.int32, torch.int64) else indices.to(torch.int64)


def take(x, indices, axis=None):
    indices = _indices(indices, x.device)
    if axis is None:
        x, axis = x.reshape(-1), 0
    before = (builtins.slice(None),) * (axis % x.ndim)
    if indices.ndim == 0:  # which aten would read on the host
        return x[(*before, indices[None])].squeeze(axis)
    return x[(*before, indices)]


def take_along_axis(x, indices, axis=None):
    indices = _indices(indices, x.device).to(torch.int64)
    if axis is None:
        x, indices, axis = x.reshape(-1), indices.reshape(-1), 0
    return torch.take_along_dim(x, torch.remainder(indices, x.shape[axis]), axis)


def _block(start_indices, shape):
    return tuple(builtins.slice(int(start), int(start) + n) for start, n in zip(start_indices, shape, strict=True))


def slice(inputs, start_indices, shape):
    return inputs[_block(start_indices, shape)]


def slice_update(inputs, start_indices, updates):
    inputs = inputs.clone()
    inputs[_block(start_indices, updates.shape)] = updates
    return inputs


def sort(x, axis=-1):
    return torch.sort(x, axis)[0]


def argsort(x, axis=-1):
    return torch.argsort(x, dim=axis, stable=True).to(torch.int32)


def top_k(x, k, sorted=True):
    values, indices = torch.topk(x, k, sorted=sorted)
    return values, indices.to(torch.int32)


def in_top_k(targets, predictions, k):
    at_target = torch.gather(predictions, -1, targets.to(torch.int64).unsqueeze(-1))
    at_target = torch.where(torch.isnan(at_target), -math.inf, at_target)
    return torch.sum(predictions > at_target, -1) < k


def searchsorted(sorted_sequence, values, side="left"):
    return torch.searchsorted(sorted_sequence, values, side=side, out_int32=True)


def bincount(x, weights=None, minlength=0):
    length = minlength or int(x.max()) + 1 if x.numel() or minlength else 0
    if weights is None:
        weights = torch.ones_like(x, dtype=torch.int32)
    counts = torch.zeros(length + 1, dtype=weights.dtype, device=x.device)
    return counts.index_add(0, torch.clamp(x, max=length).to(torch.int64), weights)[:length]


def segment_sum(data, segment_ids, num_segments, sorted=False):
    sums = torch.zeros((num_segments, *data.shape[1:]), dtype=data.dtype, device=data.device)
    return sums.index_add(0, segment_ids.to(torch.int64), data)


# --- Linear algebra ---------------------------------------------------------------------------------------------------

matmul = torch.matmul
einsum = torch.einsum


def dot(x1, x2):
    if x1.ndim == 0 or x2.ndim == 0:
        return x1 * x2
    return torch.tensordot(x1, x2, ([-1], [-1 if x2.ndim == 1 else -2]))


def tensordot(x1, x2, axes=2):
    if not isinstance(axes, int):
        axes = tuple([a] if isinstance(a, int) else list(a) for a in axes)
    return torch.tensordot(x1, x2, axes)


def outer(x1, x2):
    return torch.outer(x1.reshape(-1), x2.reshape(-1))


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
        total = builtins.max((-(-n // stride) - 1) * stride + window - n, 0)
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
    if builtins.all(before == after for before, after in pairs):
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
    if builtins.all(left == right <= 0 for left, right in widths):
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
        out = full_size + (builtins.max(stride - window, 0) if extra is None else extra)
    elif padding == "same":
        out = n * stride if extra is None else (n - 1) * stride + window % 2 + extra
    else:
        raise ValueError(f"Got padding={padding!r}; it must be 'valid' or 'same'.")
    left = builtins.max(full_size - out, 0) // 2
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
        rows, columns = (
            torch.tensor((2 * np.arange(new) + 1) * old // (2 * new), device=images.device)
            for old, new in ((height, size[0]), (width, size[1]))
        )
        return images[:, rows[:, None], columns]
    if interpolation != "bilinear":
        raise ValueError(f"resize got interpolation={interpolation!r}; it must be 'nearest' or 'bilinear'.")
    x = _floating(images).permute(0, 3, 1, 2)
    return F.interpolate(x, tuple(size), mode="bilinear", align_corners=False).permute(0, 2, 3, 1)


# --- Attention, losses, normalisation ---------------------------------------------------------------------------------

stop_gradient = Tensor.detach


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
    log_p = _log_probabilities(output, from_logits, axis)
    return -torch.gather(log_p, axis, target.to(torch.int64).unsqueeze(axis)).squeeze(axis)


def moments(x, axes, keepdims=False):
    variance, average = torch.var_mean(_floating(x), axes, correction=0, keepdim=keepdims)
    return average, variance


def normalize(x, axis=-1, order=2, epsilon=_EPSILON):
    x_float32 = x.float()
    if order == 2:
        squares = x_float32.square().sum(axis, keepdim=True)
        return (x_float32 * torch.rsqrt(torch.clamp_min(squares, epsilon**2))).to(x.dtype)
    length = torch.linalg.vector_norm(x_float32, order, axis, keepdim=True)
    return (x_float32 / torch.clamp_min(length, epsilon)).to(x.dtype)
