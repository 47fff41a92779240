"""The contract's elementwise functions, reductions and linear algebra on JAX.

Wrappers cost nothing here: they run once, when a function is traced.
"""

import jax
import jax.numpy as jnp
from jax import lax, nn


def _sum_dtype(x):
    """The dtype that sums and products have: None for "as it is"."""
    return None if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32


def floating(x):
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def is_half(x):
    return x.dtype in (jnp.bfloat16, jnp.float16)


def widened(x):
    """`x` in the dtype in which functions of many elements compute: float32 for the half types."""
    return x.astype(jnp.float32) if is_half(x) else x


def as_given(result, x):
    """A result of `widened(x)` in the dtype of `x` where that is a half type."""
    return result.astype(x.dtype) if is_half(x) else result


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
    return lax.rsqrt(floating(jnp.asarray(x)))


def clip(x, x_min, x_max):
    return jnp.clip(x, x_min, x_max)


def round(x, decimals=0):
    return jnp.round(x, decimals)


def where(condition, x1, x2):
    return jnp.where(condition, x1, x2)


# --- Reductions -------------------------------------------------------------------------------------------------------
# Half types are summed in float32: jnp's sum, mean and prod do so themselves, for the others it is said here.


def sum(x, axis=None, keepdims=False):
    return jnp.sum(x, axis, dtype=_sum_dtype(x), keepdims=keepdims)


def mean(x, axis=None, keepdims=False):
    return jnp.mean(x, axis, keepdims=keepdims)


def var(x, axis=None, keepdims=False):
    return as_given(jnp.var(widened(x), axis, keepdims=keepdims), x)


def std(x, axis=None, keepdims=False):
    return as_given(jnp.std(widened(x), axis, keepdims=keepdims), x)


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
    sums = jnp.cumsum(widened(x), axis, dtype=dtype or _sum_dtype(x))
    return sums if dtype else as_given(sums, x)


def cumprod(x, axis=None, dtype=None):
    products = jnp.cumprod(widened(x), axis, dtype=dtype or _sum_dtype(x))
    return products if dtype else as_given(products, x)


def logsumexp(x, axis=None, keepdims=False):
    return as_given(nn.logsumexp(widened(floating(x)), axis, keepdims=keepdims), x)


def count_nonzero(x, axis=None):
    return jnp.count_nonzero(x, axis)


def norm(x, ord=None, axis=None, keepdims=False):
    return as_given(jnp.linalg.norm(widened(x), ord, axis, keepdims), x)


# --- Linear algebra ---------------------------------------------------------------------------------------------------

matmul = jnp.matmul
dot = jnp.dot
einsum = jnp.einsum
outer = jnp.outer


def tensordot(x1, x2, axes=2):
    return jnp.tensordot(x1, x2, axes)


# --- Differentiation --------------------------------------------------------------------------------------------------

stop_gradient = lax.stop_gradient
