"""The contract's elementwise functions, reductions and linear algebra on PyTorch.

aten functions are bound as they are where they fit; elsewhere one call of ours.
"""

import operator

import torch
from torch import Tensor

from unifit_torch.arrays import DTYPES, HALVES, convert_to_tensor


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


def floating(x):
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


# --- Reductions -------------------------------------------------------------------------------------------------------
# aten takes an empty tuple of axes for all axes; here, as in NumPy, it is none. Its sums, means and variances of half
# precision add up in float32 by themselves; what does not is computed in float32 here.


def sum(x, axis=None, keepdims=False):
    if axis == ():
        return x.to(_sum_dtype(x) or x.dtype)
    return torch.sum(x, axis, keepdims, dtype=_sum_dtype(x))


def mean(x, axis=None, keepdims=False):
    x = floating(x)
    return x if axis == () else torch.mean(x, axis, keepdims)


def var(x, axis=None, keepdims=False):
    x = floating(x)
    return x - x if axis == () else torch.var(x, axis, correction=0, keepdim=keepdims)


def std(x, axis=None, keepdims=False):
    x = floating(x)
    return x - x if axis == () else torch.std(x, axis, correction=0, keepdim=keepdims)


def max(x, axis=None, keepdims=False):
    return x if axis == () else torch.amax(x, () if axis is None else axis, keepdims)


def min(x, axis=None, keepdims=False):
    return x if axis == () else torch.amin(x, () if axis is None else axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    if x.dtype in HALVES:
        return prod(x.float(), axis, keepdims).to(x.dtype if dtype is None else DTYPES[dtype])
    dtype = _sum_dtype(x) if dtype is None else DTYPES[dtype]
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
    dtype = _sum_dtype(x) if dtype is None else DTYPES[dtype]
    return torch.cumsum(*((x.reshape(-1), 0) if axis is None else (x, axis)), dtype=dtype)


def cumprod(x, axis=None, dtype=None):
    dtype = _sum_dtype(x) if dtype is None else DTYPES[dtype]
    return torch.cumprod(*((x.reshape(-1), 0) if axis is None else (x, axis)), dtype=dtype)


def logsumexp(x, axis=None, keepdims=False):
    if x.dtype in HALVES:
        return logsumexp(x.float(), axis, keepdims).to(x.dtype)
    x = floating(x)
    return x if axis == () else torch.logsumexp(x, tuple(range(x.ndim)) if axis is None else axis, keepdims)


def count_nonzero(x, axis=None):
    return (x != 0).to(torch.int32) if axis == () else torch.count_nonzero(x, axis).to(torch.int32)


def norm(x, ord=None, axis=None, keepdims=False):
    if x.dtype in HALVES:
        return norm(x.float(), ord, axis, keepdims).to(x.dtype)
    return torch.linalg.norm(floating(x), ord, axis, keepdims)


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


# --- Differentiation --------------------------------------------------------------------------------------------------

stop_gradient = Tensor.detach
