"""Functions of neural networks, part of `unifit.ops`: activations, convolution, attention, losses; rules in `ops`."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from types import FunctionType

from unifit.contract.ops import Array

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


NN_OPS: tuple[str, ...] = tuple(
    name for name, value in list(globals().items()) if isinstance(value, FunctionType) and not name.startswith("_")
)
