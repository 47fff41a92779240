"""The documented surface of `unifit.ops`: elementwise functions, reductions, linear algebra; one stub per function.

Arrays are made, shaped and indexed in `arrays`; the functions of neural networks stand in `nn`. Names and
meanings are keras.ops', the same on every backend. Rules that hold in all three files, said once:

- Arrays are the active backend's. A Python scalar may stand for any operand as long as one operand is an array, and is
  weak: `float32 + 0.5` is float32, `bfloat16 + 0.5` is bfloat16, `int32 + 0.5` is float32.
- Between arrays, floats beat integers and integers beat bool; of two floats the wider wins, and bfloat16 with float16
  gives float32. `matmul`-like functions and convolutions want operands of one dtype.
- There is no float64 and no int64 unless you bring it: indices, counts and sums of bool or small integers are int32;
  functions with fractional results (mean, sqrt, divide, ...) turn integers into float32.
- A dtype is a name: "float32", "bfloat16", "float16", "int32", "int8", "uint8", "bool", ...
- `axis` may be negative. Where it says `Axis` it may be an int, a tuple of ints, or None for all axes.
- Parameters before `/` are passed by position.
- Results are new values; no function changes its arguments.
- Out-of-range indices are an error that not every backend can report; never rely on what they give.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of the active backend (or, where one operand is an array, a Python scalar)."""
Axis: TypeAlias = int | tuple[int, ...] | None
Shape: TypeAlias = Sequence[int]


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def abs(x: Array, /) -> Array:
    """Absolute value."""
    ...


def add(x1: Array, x2: Array, /) -> Array:
    """`x1 + x2`, broadcast."""
    ...


def subtract(x1: Array, x2: Array, /) -> Array:
    """`x1 - x2`, broadcast."""
    ...


def multiply(x1: Array, x2: Array, /) -> Array:
    """`x1 * x2`, broadcast."""
    ...


def divide(x1: Array, x2: Array, /) -> Array:
    """`x1 / x2`, broadcast. Integers give float32."""
    ...


def floor_divide(x1: Array, x2: Array, /) -> Array:
    """`x1 // x2`: the quotient rounded towards minus infinity. Integers stay integers."""
    ...


def mod(x1: Array, x2: Array, /) -> Array:
    """`x1 % x2`: the remainder with the sign of `x2`, as in Python."""
    ...


def power(x1: Array, x2: Array, /) -> Array:
    """`x1 ** x2`, broadcast."""
    ...


def negative(x: Array, /) -> Array:
    """`-x`."""
    ...


def sign(x: Array, /) -> Array:
    """-1, 0 or 1 by the sign of `x`."""
    ...


def square(x: Array, /) -> Array:
    """`x * x`."""
    ...


def sqrt(x: Array, /) -> Array:
    """Square root."""
    ...


def rsqrt(x: Array, /) -> Array:
    """`1 / sqrt(x)`."""
    ...


def reciprocal(x: Array, /) -> Array:
    """`1 / x`. Integers give float32."""
    ...


def maximum(x1: Array, x2: Array, /) -> Array:
    """The larger of two, elementwise; NaN wins. At ties the gradient is the framework's choice."""
    ...


def minimum(x1: Array, x2: Array, /) -> Array:
    """The smaller of two, elementwise; NaN wins. At ties the gradient is the framework's choice."""
    ...


def clip(x: Array, x_min: Array | None, x_max: Array | None) -> Array:
    """`x` limited to [x_min, x_max]; a bound of None is no bound."""
    ...


# --- Exponentials, trigonometry, rounding -----------------------------------------------------------------------------


def exp(x: Array, /) -> Array:
    """`e ** x`."""
    ...


def expm1(x: Array, /) -> Array:
    """`exp(x) - 1`, exact near 0."""
    ...


def log(x: Array, /) -> Array:
    """Natural logarithm."""
    ...


def log1p(x: Array, /) -> Array:
    """`log(1 + x)`, exact near 0."""
    ...


def log2(x: Array, /) -> Array:
    """Logarithm to base 2."""
    ...


def sin(x: Array, /) -> Array:
    """Sine."""
    ...


def cos(x: Array, /) -> Array:
    """Cosine."""
    ...


def tan(x: Array, /) -> Array:
    """Tangent."""
    ...


def sinh(x: Array, /) -> Array:
    """Hyperbolic sine."""
    ...


def cosh(x: Array, /) -> Array:
    """Hyperbolic cosine."""
    ...


def tanh(x: Array, /) -> Array:
    """Hyperbolic tangent."""
    ...


def arcsin(x: Array, /) -> Array:
    """Inverse sine, in [-pi/2, pi/2]."""
    ...


def arccos(x: Array, /) -> Array:
    """Inverse cosine, in [0, pi]."""
    ...


def arctan(x: Array, /) -> Array:
    """Inverse tangent, in [-pi/2, pi/2]."""
    ...


def arctan2(x1: Array, x2: Array, /) -> Array:
    """Angle of the point (x2, x1), in [-pi, pi]."""
    ...


def erf(x: Array, /) -> Array:
    """Gauss error function."""
    ...


def floor(x: Array, /) -> Array:
    """Largest whole number not above `x`, in the dtype of `x`."""
    ...


def ceil(x: Array, /) -> Array:
    """Smallest whole number not below `x`, in the dtype of `x`."""
    ...


def round(x: Array, decimals: int = 0) -> Array:
    """`x` rounded to `decimals` places, halves to even, in the dtype of `x` (a float)."""
    ...


# --- Comparison and logic ---------------------------------------------------------------------------------------------


def isfinite(x: Array, /) -> Array:
    """Bool: neither infinite nor NaN."""
    ...


def isnan(x: Array, /) -> Array:
    """Bool: NaN."""
    ...


def isinf(x: Array, /) -> Array:
    """Bool: plus or minus infinity."""
    ...


def equal(x1: Array, x2: Array, /) -> Array:
    """Bool: `x1 == x2`, broadcast."""
    ...


def not_equal(x1: Array, x2: Array, /) -> Array:
    """Bool: `x1 != x2`, broadcast."""
    ...


def greater(x1: Array, x2: Array, /) -> Array:
    """Bool: `x1 > x2`, broadcast."""
    ...


def greater_equal(x1: Array, x2: Array, /) -> Array:
    """Bool: `x1 >= x2`, broadcast."""
    ...


def less(x1: Array, x2: Array, /) -> Array:
    """Bool: `x1 < x2`, broadcast."""
    ...


def less_equal(x1: Array, x2: Array, /) -> Array:
    """Bool: `x1 <= x2`, broadcast."""
    ...


def logical_and(x1: Array, x2: Array, /) -> Array:
    """Bool: both are nonzero."""
    ...


def logical_or(x1: Array, x2: Array, /) -> Array:
    """Bool: one or both are nonzero."""
    ...


def logical_not(x: Array, /) -> Array:
    """Bool: `x` is zero."""
    ...


def logical_xor(x1: Array, x2: Array, /) -> Array:
    """Bool: exactly one is nonzero."""
    ...


def where(condition: Array, x1: Array, x2: Array, /) -> Array:
    """`x1` where `condition` is true (nonzero), else `x2`; all three broadcast.

    Gradients flow through both branches times 0 or 1, so a branch that is not taken but whose own derivative is
    infinite or NaN poisons the gradient: make the input safe first, `where(m, log(where(m, x, 1.0)), 0.0)`.
    """
    ...


# --- Reductions -------------------------------------------------------------------------------------------------------


def sum(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Sum over `axis`. Bool and small integers sum in int32, half floats accumulate in float32."""
    ...


def mean(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Mean over `axis`. Integers give float32, half floats accumulate in float32."""
    ...


def var(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Variance over `axis`, divided by the count (no correction)."""
    ...


def std(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """`sqrt(var(x))`. Where the variance is 0, so is the value, and the gradient is the framework's choice."""
    ...


def max(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Largest element over `axis`, which must not be empty. Ties share the gradient."""
    ...


def min(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Smallest element over `axis`, which must not be empty. Ties share the gradient."""
    ...


def prod(x: Array, axis: Axis = None, keepdims: bool = False, dtype: str | None = None) -> Array:
    """Product over `axis`. Bool and small integers multiply in int32 unless `dtype` is given."""
    ...


def any(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Bool: some element over `axis` is nonzero."""
    ...


def all(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Bool: every element over `axis` is nonzero."""
    ...


def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """int32 index of the first largest element along `axis`; None: in the flattened array."""
    ...


def argmin(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """int32 index of the first smallest element along `axis`; None: in the flattened array."""
    ...


def cumsum(x: Array, axis: int | None = None, dtype: str | None = None) -> Array:
    """Running sum along `axis`; None flattens first. Bool and small integers give int32."""
    ...


def cumprod(x: Array, axis: int | None = None, dtype: str | None = None) -> Array:
    """Running product along `axis`; None flattens first. Bool and small integers give int32."""
    ...


def logsumexp(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """`log(sum(exp(x)))` over `axis`, stable."""
    ...


def count_nonzero(x: Array, axis: Axis = None) -> Array:
    """int32 number of nonzero elements over `axis`."""
    ...


def norm(x: Array, ord: int | float | str | None = None, axis: Axis = None, keepdims: bool = False) -> Array:
    """Vector or matrix norm, as numpy.linalg.norm.

    Args:
        x: Float array; integers become float32.
        ord: For vectors a number, `inf` or `-inf`; for matrices "fro", "nuc", 1, -1, 2, -2, `inf` or `-inf`. None is
            the 2-norm of the flattened values.
        axis: int for vectors, two ints for matrices. None with an `ord` needs a 1-D or 2-D `x`.
        keepdims: Keep reduced axes with size 1.
    """
    ...


# --- Linear algebra ---------------------------------------------------------------------------------------------------


def matmul(x1: Array, x2: Array, /) -> Array:
    """Matrix product of the last two axes, the others broadcast; 1-D operands as in NumPy. One dtype for both."""
    ...


def dot(x1: Array, x2: Array, /) -> Array:
    """numpy.dot: sums over the last axis of `x1` and the second last (1-D: only) of `x2`; scalars multiply."""
    ...


def einsum(subscripts: str, /, *operands: Array) -> Array:
    """Einstein summation, such as `einsum("bqd,bkd->bqk", q, k)`."""
    ...


def tensordot(x1: Array, x2: Array, axes: int | tuple[Any, Any] = 2) -> Array:
    """Sums over the last `axes` of `x1` and first of `x2`, or over the pair of axis lists."""
    ...


def outer(x1: Array, x2: Array, /) -> Array:
    """Products of every pair of elements: (size of x1, size of x2), both flattened."""
    ...


# --- Differentiation --------------------------------------------------------------------------------------------------


def stop_gradient(variable: Array, /) -> Array:
    """The same values, a constant for differentiation."""
    ...


OPS: tuple[str, ...] = tuple(
    name for name, value in list(globals().items()) if isinstance(value, FunctionType) and not name.startswith("_")
)
