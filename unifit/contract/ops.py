"""The documented surface of `unifit.ops`: one stub per function, the same on every backend.

Names and meanings are keras.ops'. Rules that hold for all of them, said once:

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

import numpy as np

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


# --- Activations ------------------------------------------------------------------------------------------------------


def relu(x: Array, /) -> Array:
    """`max(x, 0)`; the gradient at 0 is 0."""
    ...


def relu6(x: Array, /) -> Array:
    """`min(max(x, 0), 6)`."""
    ...


def leaky_relu(x: Array, negative_slope: float = 0.2) -> Array:
    """`x` where positive, else `negative_slope * x`."""
    ...


def elu(x: Array, alpha: float = 1.0) -> Array:
    """`x` where positive, else `alpha * (exp(x) - 1)`."""
    ...


def selu(x: Array, /) -> Array:
    """Scaled elu: 1.0507 * elu(x, 1.6733), which keeps mean 0 and variance 1 (Klambauer et al., 2017)."""
    ...


def gelu(x: Array, approximate: bool = True) -> Array:
    """`x * Phi(x)`, Phi the normal distribution function; `approximate` uses the tanh formula."""
    ...


def silu(x: Array, /) -> Array:
    """`x * sigmoid(x)`, also called swish."""
    ...


def sigmoid(x: Array, /) -> Array:
    """`1 / (1 + exp(-x))`."""
    ...


def hard_sigmoid(x: Array, /) -> Array:
    """`relu6(x + 3) / 6`."""
    ...


def hard_silu(x: Array, /) -> Array:
    """`x * hard_sigmoid(x)`, also called hard swish."""
    ...


def log_sigmoid(x: Array, /) -> Array:
    """`log(sigmoid(x))`, stable for large negative `x`."""
    ...


def softplus(x: Array, /) -> Array:
    """`log(1 + exp(x))`, stable for large `x`."""
    ...


def softsign(x: Array, /) -> Array:
    """`x / (1 + abs(x))`."""
    ...


def mish(x: Array, /) -> Array:
    """`x * tanh(softplus(x))`."""
    ...


def softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """`exp(x) / sum(exp(x))` over `axis`, stable; accumulated in float32, returned in the dtype of `x`."""
    ...


def log_softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """`log(softmax(x))`, stable; accumulated in float32, returned in the dtype of `x`."""
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


# --- Shape ------------------------------------------------------------------------------------------------------------


def shape(x: Array, /) -> tuple[int, ...]:
    """The static shape, a tuple of ints (tensorflow: a scalar tensor where an axis is unknown when traced)."""
    ...


def ndim(x: Array, /) -> int:
    """Number of axes."""
    ...


def size(x: Array, /) -> int:
    """Number of elements."""
    ...


def reshape(x: Array, newshape: int | Shape) -> Array:
    """`x` in another shape of equal size; one axis may be -1."""
    ...


def transpose(x: Array, axes: Sequence[int] | None = None) -> Array:
    """Axes in the order `axes`; None reverses them."""
    ...


def swapaxes(x: Array, axis1: int, axis2: int, /) -> Array:
    """Two axes exchanged."""
    ...


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Axes `source` moved to positions `destination`, the others in order."""
    ...


def expand_dims(x: Array, axis: int | tuple[int, ...]) -> Array:
    """New axes of size 1 at the positions `axis` of the result."""
    ...


def squeeze(x: Array, axis: Axis = None) -> Array:
    """Without the axes `axis`, which must have size 1; None: without all that do."""
    ...


def concatenate(xs: Sequence[Array], axis: int = 0) -> Array:
    """Arrays joined along an axis they have."""
    ...


def stack(x: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis."""
    ...


def unstack(x: Array, num: int | None = None, axis: int = 0) -> list[Array]:
    """The list of slices along `axis`, without it; `num`, if given, must be its size."""
    ...


def split(x: Array, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """A list of parts along `axis`: that many equal ones, or cut before the given indices."""
    ...


def repeat(x: Array, repeats: int | Sequence[int], axis: int | None = None) -> Array:
    """Every element along `axis` repeated in place; None flattens first. `repeats` is a Python value."""
    ...


def tile(x: Array, repeats: int | Sequence[int]) -> Array:
    """The whole array repeated `repeats` times along each axis (aligned at the last)."""
    ...


def flip(x: Array, axis: Axis = None) -> Array:
    """Order reversed along `axis`."""
    ...


def roll(x: Array, shift: int | tuple[int, ...], axis: Axis = None) -> Array:
    """Elements shifted along `axis`, wrapping round; None shifts the flattened array."""
    ...


def pad(
    x: Array,
    pad_width: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: str = "constant",
    constant_values: float | None = None,
) -> Array:
    """`x` with elements added at the ends of its axes.

    Args:
        x: Array.
        pad_width: (before, after) for each axis, or one pair, or one int, for all axes.
        mode: "constant", "reflect" (the edge is not repeated), "symmetric" (it is) or "edge".
        constant_values: The value for mode "constant"; None is 0.
    """
    ...


def broadcast_to(x: Array, shape: Shape) -> Array:
    """`x` repeated along axes of size 1 and new leading ones, to `shape`."""
    ...


def ravel(x: Array, /) -> Array:
    """`x` with one axis."""
    ...


# --- Creation and conversion ------------------------------------------------------------------------------------------


def convert_to_tensor(x: Any, dtype: str | None = None) -> Array:
    """An array of the backend from an array, a NumPy array, a scalar or nested lists.

    Without `dtype`, float64 becomes float32 and int64 becomes int32 (OverflowError where host values do not fit).
    The result never shares memory with a NumPy input.
    """
    ...


def convert_to_numpy(x: Array) -> np.ndarray:
    """A NumPy array on the host; bfloat16, which NumPy lacks, becomes float32. Treat it as read-only."""
    ...


def is_tensor(x: Any) -> bool:
    """Whether `x` is an array of the active backend."""
    ...


def cast(x: Array, dtype: str) -> Array:
    """`x` in another dtype; floats are truncated on the way to integers, nonzero is True."""
    ...


def dtype(x: Array, /) -> str:
    """Name of the dtype, such as "float32"."""
    ...


def zeros(shape: Shape, dtype: str = "float32") -> Array:
    """Array of zeros."""
    ...


def ones(shape: Shape, dtype: str = "float32") -> Array:
    """Array of ones."""
    ...


def full(shape: Shape, fill_value: Array, dtype: str = "float32") -> Array:
    """Array filled with one value."""
    ...


def zeros_like(x: Array, dtype: str | None = None) -> Array:
    """Zeros with the shape of `x` and, unless given, its dtype."""
    ...


def ones_like(x: Array, dtype: str | None = None) -> Array:
    """Ones with the shape of `x` and, unless given, its dtype."""
    ...


def full_like(x: Array, fill_value: Array, dtype: str | None = None) -> Array:
    """One value with the shape of `x` and, unless given, its dtype."""
    ...


def arange(start: float, stop: float | None = None, step: float = 1, dtype: str | None = None) -> Array:
    """`start`, `start + step`, ... below `stop`; with one argument, 0 up to it. int32, or float32 from floats."""
    ...


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: str = "float32", axis: int = 0
) -> Array:
    """`num` evenly spaced values from `start` to `stop`, which are host values (Python or NumPy)."""
    ...


def eye(N: int, M: int | None = None, k: int = 0, dtype: str = "float32") -> Array:
    """(N, M) with ones on the k-th diagonal, zeros elsewhere; M defaults to N."""
    ...


def tri(N: int, M: int | None = None, k: int = 0, dtype: str = "float32") -> Array:
    """(N, M) with ones on and below the k-th diagonal, zeros above."""
    ...


def tril(x: Array, k: int = 0) -> Array:
    """The last two axes with zeros above the k-th diagonal."""
    ...


def triu(x: Array, k: int = 0) -> Array:
    """The last two axes with zeros below the k-th diagonal."""
    ...


def one_hot(x: Array, num_classes: int, axis: int = -1, dtype: str = "float32") -> Array:
    """1 at index `x` along a new `axis` of size `num_classes`, 0 elsewhere; an index outside gives all zeros."""
    ...


# --- Indexing and sorting ---------------------------------------------------------------------------------------------


def take(x: Array, indices: Array, axis: int | None = None) -> Array:
    """Entries of `x` along `axis` at integer `indices` of any shape, which replaces that axis; None flattens `x`.

    Negative indices count from the end.
    """
    ...


def take_along_axis(x: Array, indices: Array, axis: int | None = None) -> Array:
    """One entry along `axis` for every index; `x` and `indices` broadcast on the other axes. None flattens both."""
    ...


def slice(inputs: Array, start_indices: Sequence[int] | Array, shape: Shape) -> Array:
    """The block of `inputs` of the given static shape whose first corner is at `start_indices`, which may be traced."""
    ...


def slice_update(inputs: Array, start_indices: Sequence[int] | Array, updates: Array) -> Array:
    """`inputs` with the block at `start_indices` replaced by `updates`."""
    ...


def sort(x: Array, axis: int = -1) -> Array:
    """Ascending order along `axis`."""
    ...


def argsort(x: Array, axis: int = -1) -> Array:
    """int32 indices that sort along `axis`; equal elements keep their order."""
    ...


def top_k(x: Array, k: int, sorted: bool = True) -> tuple[Array, Array]:
    """The k largest along the last axis, descending, and their int32 indices (of equal elements any)."""
    ...


def in_top_k(targets: Array, predictions: Array, k: int) -> Array:
    """Bool, shape of `targets`: fewer than k predictions in the row are above the target's own.

    Args:
        targets: Class indices, shape (...).
        predictions: Scores, shape (..., classes). Ties count in the target's favour; a NaN at the target is lowest.
        k: How many are looked at.
    """
    ...


def searchsorted(sorted_sequence: Array, values: Array, side: str = "left") -> Array:
    """int32 positions at which `values` (any shape) keep a 1-D ascending sequence sorted.

    `side` "left" inserts before equal elements, "right" after them.
    """
    ...


def bincount(x: Array, weights: Array | None = None, minlength: int = 0) -> Array:
    """How often each non-negative integer occurs in a 1-D array: int32 counts, or sums of `weights`.

    With `minlength` the result has exactly that length, so that it is static when compiled, and larger values are not
    counted. With 0 the length is the largest value plus one, which only works outside compiled functions.
    """
    ...


def segment_sum(data: Array, segment_ids: Array, num_segments: int, sorted: bool = False) -> Array:
    """Rows of `data` summed by segment: result[i] is the sum of data[j] with segment_ids[j] == i.

    Args:
        data: Shape (rows, ...).
        segment_ids: Integers in [0, num_segments), shape (rows,).
        num_segments: Length of the result; segments without rows are 0.
        sorted: A promise that `segment_ids` ascends, which may be faster.
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


# --- Convolution and pooling ------------------------------------------------------------------------------------------
# Data is channels last: (batch, *spatial, channels), one or two spatial axes. Sizes may be an int for all spatial axes
# or a tuple. "valid" pads nothing: out = floor((n - window) / stride) + 1. "same" gives out = ceil(n / stride) with
# total = max((out - 1) * stride + window - n, 0) zeros, total // 2 of them before and the rest after
# (window: (kernel - 1) * dilation + 1).


def conv(
    inputs: Array,
    kernel: Array,
    strides: int | tuple[int, ...] = 1,
    padding: str = "valid",
    dilation_rate: int | tuple[int, ...] = 1,
) -> Array:
    """Convolution (cross-correlation) over one or two spatial axes.

    Args:
        inputs: Shape (batch, *spatial, channels).
        kernel: Shape (*window, channels // groups, filters), dtype of `inputs`; the number of groups follows from it.
        strides: Step of the window.
        padding: "valid" or "same".
        dilation_rate: Distance between the taps of the kernel.

    Returns:
        Array, shape (batch, *out, filters).
    """
    ...


def conv_transpose(
    inputs: Array,
    kernel: Array,
    strides: int | tuple[int, ...] = 1,
    padding: str = "valid",
    output_padding: int | tuple[int, ...] | None = None,
    dilation_rate: int | tuple[int, ...] = 1,
) -> Array:
    """Transposed convolution: the gradient of `conv` with respect to its inputs.

    Every input element adds kernel * element at position index * stride of a result of size
    `full = (n - 1) * stride + window`, which is then cut (or padded with zeros on the right) to `out`:

    - "valid": out = full + output_padding; None: max(window - stride, 0) + n * stride.
    - "same": out = (n - 1) * stride + window % 2 + output_padding; None: n * stride. Half of what is too much, rounded
      down, is cut on the left.

    Args:
        inputs: Shape (batch, *spatial, channels).
        kernel: Shape (*window, filters, channels), dtype of `inputs`.
        strides: Factor by which the result is larger.
        padding: "valid" or "same".
        output_padding: Extra size of the result; None gives the sizes above.
        dilation_rate: Distance between the taps of the kernel.

    Returns:
        Array, shape (batch, *out, filters).
    """
    ...


def depthwise_conv(
    inputs: Array,
    kernel: Array,
    strides: int | tuple[int, ...] = 1,
    padding: str = "valid",
    dilation_rate: int | tuple[int, ...] = 1,
) -> Array:
    """Convolution of each channel with kernels of its own.

    Args:
        inputs: Shape (batch, *spatial, channels).
        kernel: Shape (*window, channels, multiplier), dtype of `inputs`.
        strides: Step of the window.
        padding: "valid" or "same".
        dilation_rate: Distance between the taps of the kernel.

    Returns:
        Array, shape (batch, *out, channels * multiplier); channel c has the places c * multiplier, ....
    """
    ...


def max_pool(
    inputs: Array,
    pool_size: int | tuple[int, ...],
    strides: int | tuple[int, ...] | None = None,
    padding: str = "valid",
) -> Array:
    """Largest element of every window; padding never wins.

    Args:
        inputs: Float array, shape (batch, *spatial, channels).
        pool_size: Size of the window.
        strides: Step of the window; None is `pool_size`.
        padding: "valid" or "same".
    """
    ...


def average_pool(
    inputs: Array,
    pool_size: int | tuple[int, ...],
    strides: int | tuple[int, ...] | None = None,
    padding: str = "valid",
) -> Array:
    """Mean of every window, over the elements inside the input only: padding is not counted.

    Args:
        inputs: Float array, shape (batch, *spatial, channels).
        pool_size: Size of the window.
        strides: Step of the window; None is `pool_size`.
        padding: "valid" or "same".
    """
    ...


def resize(images: Array, size: tuple[int, int], interpolation: str = "bilinear") -> Array:
    """Images in another size, pixel centres at half integers, no antialiasing.

    Args:
        images: Shape (batch, height, width, channels).
        size: New (height, width).
        interpolation: "nearest" keeps the dtype; "bilinear" keeps a float dtype and makes integers float32.
    """
    ...


# --- Attention, losses, normalisation ---------------------------------------------------------------------------------


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    scale: float | None = None,
    is_causal: bool = False,
) -> Array:
    """`softmax(scale * query @ key.T + bias) @ value` for every head, by the framework's fused kernel.

    Args:
        query: Shape (batch, queries, heads, head_dim).
        key: Shape (batch, keys, key_heads, head_dim); `heads` is a multiple of `key_heads`, and query heads share key
            heads in consecutive groups (grouped-query attention).
        value: Shape and dtype of `key`.
        bias: Added to the scores, broadcastable to (batch, heads, queries, keys). May be given together with `mask`.
        mask: Bool, broadcastable to (batch, heads, queries, keys); False keeps a key from being seen.
        scale: None is `1 / sqrt(head_dim)`.
        is_causal: Query i sees keys 0 to i only, besides what `mask` says.

    Returns:
        Array with the shape and dtype of `query`. A query whose keys are all masked gets zeros, and no gradient.
    """
    ...


def binary_crossentropy(target: Array, output: Array, from_logits: bool = False) -> Array:
    """`-target * log(p) - (1 - target) * log(1 - p)`, elementwise, in float32.

    Args:
        target: Values in [0, 1] of any dtype, the shape of `output`.
        output: Probabilities p, clipped to [1e-7, 1 - 1e-7]; or, with `from_logits`, p = sigmoid(output), exact for all
            sizes of logits.
        from_logits: Whether `output` holds logits.

    Returns:
        float32 array with the shape of `output`.

    Raises:
        ValueError: The shapes differ.
    """
    ...


def categorical_crossentropy(target: Array, output: Array, from_logits: bool = False, axis: int = -1) -> Array:
    """`-sum(target * log(p))` over the class axis, in float32.

    Args:
        target: Class probabilities (one-hot or soft) of any dtype, the shape of `output`.
        output: Probabilities, divided by their sum and clipped to [1e-7, 1 - 1e-7]; or logits.
        from_logits: Whether `output` holds logits.
        axis: The class axis.

    Returns:
        float32 array, shape of `output` without the class axis.

    Raises:
        ValueError: The shapes differ.
    """
    ...


def sparse_categorical_crossentropy(target: Array, output: Array, from_logits: bool = False, axis: int = -1) -> Array:
    """`-log(p[target])`: categorical cross-entropy with class indices, in float32.

    Args:
        target: Class indices of any dtype, shape of `output` without the class axis; a last axis of size 1 is dropped.
        output: Probabilities, divided by their sum and clipped to [1e-7, 1 - 1e-7]; or logits.
        from_logits: Whether `output` holds logits.
        axis: The class axis.

    Returns:
        float32 array, shape of `output` without the class axis. An index outside [0, classes) raises or gives NaN.

    Raises:
        ValueError: The shapes do not fit.
    """
    ...


def moments(x: Array, axes: int | tuple[int, ...], keepdims: bool = False) -> tuple[Array, Array]:
    """Mean and variance over `axes`, computed in float32 and returned in the dtype of `x`."""
    ...


def normalize(x: Array, axis: int | tuple[int, ...] = -1, order: int = 2, epsilon: float = 1e-7) -> Array:
    """`x / max(norm, epsilon)` with the `order`-norm over `axis`; zeros stay zeros, with a finite gradient."""
    ...


def stop_gradient(variable: Array, /) -> Array:
    """The same values, a constant for differentiation."""
    ...


OPS: tuple[str, ...] = tuple(
    name for name, value in list(globals().items()) if isinstance(value, FunctionType) and not name.startswith("_")
)
