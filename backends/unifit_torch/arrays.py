"""The contract's functions that make, convert, shape, index and sort arrays, on PyTorch."""

import builtins
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
    ).split()
}
_NAMES = {value: name for name, value in DTYPES.items()}
HALVES = (torch.float16, torch.bfloat16)
"""The dtypes in which sums of many terms are not kept."""
_INT32_RANGE = np.iinfo(np.int32)


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
            return x.to(DTYPES[dtype])
        if x.dtype is torch.float64:
            return x.to(torch.float32)
        return x.to(torch.int32) if x.dtype is torch.int64 else x
    if isinstance(x, (list, tuple)) and _holds_tensor(x):
        return convert_to_tensor(torch.stack([convert_to_tensor(part) for part in x]), dtype)
    return torch.tensor(_host_array(x, dtype), dtype=None if dtype is None else DTYPES[dtype])


def _holds_tensor(x):
    return isinstance(x, Tensor) or (isinstance(x, (list, tuple)) and any(_holds_tensor(part) for part in x))


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
    return x.to(DTYPES[dtype]) if isinstance(x, Tensor) else convert_to_tensor(x, dtype)


def dtype(x):
    return _NAMES[x.dtype]


def zeros(shape, dtype="float32"):
    return torch.zeros(shape, dtype=DTYPES[dtype])


def ones(shape, dtype="float32"):
    return torch.ones(shape, dtype=DTYPES[dtype])


def full(shape, fill_value, dtype="float32"):
    if isinstance(fill_value, Tensor):
        return fill_value.to(DTYPES[dtype]).broadcast_to(shape).clone()
    return torch.full(shape, fill_value, dtype=DTYPES[dtype])


def zeros_like(x, dtype=None):
    return torch.zeros_like(x, dtype=dtype and DTYPES[dtype])


def ones_like(x, dtype=None):
    return torch.ones_like(x, dtype=dtype and DTYPES[dtype])


def full_like(x, fill_value, dtype=None):
    if isinstance(fill_value, Tensor):
        return fill_value.to(DTYPES[dtype] if dtype else x.dtype).broadcast_to(x.shape).clone()
    return torch.full_like(x, fill_value, dtype=dtype and DTYPES[dtype])


def arange(start, stop=None, step=1, dtype=None):
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = "float32" if any(isinstance(n, float) for n in (start, stop, step)) else "int32"
    return torch.arange(start, stop, step, dtype=DTYPES[dtype])


def linspace(start, stop, num=50, endpoint=True, dtype="float32", axis=0):
    return torch.tensor(np.linspace(start, stop, num, endpoint, axis=axis), dtype=DTYPES[dtype])


def eye(N, M=None, k=0, dtype="float32"):
    return (torch.arange(N)[:, None] + k == torch.arange(N if M is None else M)).to(DTYPES[dtype])


def tri(N, M=None, k=0, dtype="float32"):
    return (torch.arange(N)[:, None] + k >= torch.arange(N if M is None else M)).to(DTYPES[dtype])


def tril(x, k=0):
    return torch.tril(x, k)


def triu(x, k=0):
    return torch.triu(x, k)


def one_hot(x, num_classes, axis=-1, dtype="float32"):
    axis = axis % (x.ndim + 1)
    classes = torch.arange(num_classes, device=x.device).reshape((num_classes,) + (1,) * (x.ndim - axis))
    return (x.unsqueeze(axis) == classes).to(DTYPES[dtype])


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


# --- Indexing and sorting ---------------------------------------------------------------------------------------------


def _indices(indices, device):
    if not isinstance(indices, Tensor):
        return torch.tensor(indices, dtype=torch.int64, device=device)
    # aten reads uint8 as a mask.
    return indices if indices.dtype in (torch.int32, torch.int64) else indices.to(torch.int64)


def gathered_apart(x):
    """Whether gradients must flow through a float32 copy of what is gathered from.

    On CPUs aten adds up the gradients of an index that occurs often in the dtype itself, where they get stuck.
    """
    return x.dtype in HALVES and x.requires_grad and x.device.type == "cpu"


def take(x, indices, axis=None):
    if gathered_apart(x):
        return take(x.float(), indices, axis).to(x.dtype)
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
    return _index_sums(weights, torch.clamp(x, max=length), length + 1)[:length]


def segment_sum(data, segment_ids, num_segments, sorted=False):
    return _index_sums(data, segment_ids, num_segments)


def _index_sums(data, index, length):
    """Sums of the rows of each index; float32 where aten would add up in half precision."""
    if data.dtype in HALVES:
        return _index_sums(data.float(), index, length).to(data.dtype)
    sums = torch.zeros((length, *data.shape[1:]), dtype=data.dtype, device=data.device)
    return sums.index_add(0, index.to(torch.int64), data)
