"""Initial values of weights, drawn by NumPy on the host: the same seed gives the same start on every backend."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unifit.config import Configurable
from unifit.errors import ArgumentError, ShapeError
from unifit.registry import Registry

initializers = Registry("initializer")

_CHUNK = 1 << 20
"""Elements drawn at once, so that the float64 intermediates of a large weight stay small. The values of truncated
weights depend on it, since what lies outside is drawn again chunk by chunk."""

_TRUNCATED_STDDEV = 0.87962566103423978
"""Standard deviation of a standard normal that is cut off at -2 and 2."""


class Initializer(Configurable):
    """Base of all initializers. Subclass it and override `__call__`.

    Call:
        shape: The weight's shape.
        dtype: The dtype of the values; NumPy has no bfloat16, so that gives float32 for the backend to round.
        rng: Generator keyed by the weight's path. Without one, the generator of seed 0.
        Returns: Array of that shape and dtype, computed in float64 and cast.

    Example:
        >>> class Ramp(Initializer):
        ...     def __call__(self, shape, dtype="float32", rng=None):
        ...         return np.arange(math.prod(shape), dtype=dtype).reshape(shape)
        >>> Ramp()((2, 2))
        array([[0., 1.],
               [2., 3.]], dtype=float32)
    """

    def __call__(
        self, shape: Sequence[int], dtype: Any = "float32", rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """The initial values; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must override __call__(self, shape, dtype, rng).")


class _BuiltIn(Initializer):
    """Settles dtype and generator once; a class below says how to draw."""

    seed: int | None = None

    def __call__(
        self, shape: Sequence[int], dtype: Any = "float32", rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """The initial values; see Initializer."""
        if self.seed is not None or rng is None:
            rng = np.random.default_rng(self.seed or 0)
        host_dtype = np.dtype(np.float32 if str(dtype) == "bfloat16" else dtype)
        return self._draw(tuple(shape), host_dtype, rng)

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


@initializers.register("zero")
class Zeros(_BuiltIn):
    """All zeros."""

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(shape, dtype)


@initializers.register("one")
class Ones(_BuiltIn):
    """All ones."""

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return np.ones(shape, dtype)


@initializers.register
class Constant(_BuiltIn):
    """One number everywhere, or an array of the weight's shape, such as pretrained embeddings (ShapeError otherwise).

    Args:
        value: A number, or an array that broadcasts to the shape.

    Example:
        >>> Constant(0.5)((2,))
        array([0.5, 0.5], dtype=float32)
    """

    def __init__(self, value: Any = 0.0):
        self.value = value

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        value = np.asarray(self.value)
        try:
            return np.broadcast_to(value, shape).astype(dtype)
        except ValueError:
            raise ShapeError(
                f"Constant holds a value of shape {value.shape} and the weight has shape {shape}; pass a number or an "
                "array of the weight's shape."
            ) from None


@initializers.register("identity_initializer")
class Identity(_BuiltIn):
    """`gain` times the identity matrix; for weights with two axes (ShapeError otherwise).

    Args:
        gain: Factor.

    Example:
        >>> Identity(2.0)((2, 2))
        array([[2., 0.],
               [0., 2.]], dtype=float32)
    """

    def __init__(self, gain: float = 1.0):
        self.gain = gain

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        if len(shape) != 2:
            raise ShapeError(f"Identity got the shape {shape}; it needs two axes.")
        return (self.gain * np.eye(shape[0], shape[1])).astype(dtype)


class RandomInitializer(_BuiltIn):
    """Base of those that draw.

    Args:
        seed: Draws from a generator of its own with this seed: every weight of the same shape gets the same values. By
            default the generator is keyed by the model's seed and the weight's path.
    """

    def __init__(self, seed: int | None = None):
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
            raise ArgumentError(
                f"Argument seed={seed!r} of {type(self).__name__} must be an integer of at least 0 or None."
            )
        self.seed = seed


@initializers.register("normal")
class RandomNormal(RandomInitializer):
    """Normal numbers.

    Args:
        mean: Mean.
        stddev: Standard deviation, at least 0.
        seed: See RandomInitializer.
    """

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None):
        super().__init__(seed)
        self.mean, self.stddev = mean, stddev

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return _filled(shape, dtype, lambda size: self.mean + self.stddev * rng.standard_normal(size))


@initializers.register("uniform")
class RandomUniform(RandomInitializer):
    """Uniform numbers in [minval, maxval).

    Args:
        minval: Lower end.
        maxval: Upper end.
        seed: See RandomInitializer.
    """

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None):
        super().__init__(seed)
        self.minval, self.maxval = minval, maxval

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return _filled(shape, dtype, lambda size: self.minval + (self.maxval - self.minval) * rng.random(size))


@initializers.register
class TruncatedNormal(RandomNormal):
    """Normal numbers within two standard deviations; those outside are drawn again.

    Args:
        mean: Mean.
        stddev: Standard deviation before the truncation, at least 0; after it, 0.88 times as much.
        seed: See RandomInitializer.
    """

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return _filled(shape, dtype, lambda size: self.mean + self.stddev * _truncated_normal(size, rng))


@initializers.register
class VarianceScaling(RandomInitializer):
    """Numbers whose variance is `scale / n`, n being a fan of the weight.

    Args:
        scale: The scale, above 0.
        mode: What n is: "fan_in", "fan_out" or "fan_avg", their mean.
        distribution: "truncated_normal" ("normal" is another name for it), "untruncated_normal" or "uniform".
        seed: See RandomInitializer.
        input_axes: Axes whose sizes multiply to fan_in, where the weight is no dense or convolution kernel.
        output_axes: The same for fan_out; give both or none.

    Raises:
        ArgumentError: When an argument is not one of these.

    Example:
        >>> VarianceScaling(3.0, "fan_in", "uniform")((3, 2)).shape
        (3, 2)
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ):
        super().__init__(seed)
        if scale <= 0:
            raise ArgumentError(f"Argument scale={scale!r} of {type(self).__name__} must be above 0.")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ArgumentError(f"Argument mode={mode!r} must be 'fan_in', 'fan_out' or 'fan_avg'.")
        distribution = {"normal": "truncated_normal"}.get(distribution.lower(), distribution.lower())
        if distribution not in ("truncated_normal", "untruncated_normal", "uniform"):
            raise ArgumentError(
                f"Argument distribution={distribution!r} must be 'truncated_normal', 'untruncated_normal' or 'uniform'."
            )
        if (input_axes is None) != (output_axes is None):
            raise ArgumentError(f"Got input_axes={input_axes} and output_axes={output_axes}; give both or neither.")
        self.scale, self.mode, self.distribution = scale, mode, distribution
        self.input_axes, self.output_axes = input_axes, output_axes

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        fan_in, fan_out = compute_fans(shape, self.input_axes, self.output_axes)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, fan)
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return _filled(shape, dtype, lambda size: limit * (2.0 * rng.random(size) - 1.0))
        if self.distribution == "untruncated_normal":
            return _filled(shape, dtype, lambda size: math.sqrt(variance) * rng.standard_normal(size))
        stddev = math.sqrt(variance) / _TRUNCATED_STDDEV
        return _filled(shape, dtype, lambda size: stddev * _truncated_normal(size, rng))


class _Named(VarianceScaling):
    """A VarianceScaling that has a name of its own."""

    _settings: tuple[float, str, str]

    def __init__(self, seed: int | None = None, input_axes: Any = None, output_axes: Any = None):
        super().__init__(*self._settings, seed, input_axes, output_axes)


@initializers.register("xavier_uniform")
class GlorotUniform(_Named):
    """Uniform within sqrt(6 / (fan_in + fan_out)). Reference: Glorot and Bengio, 2010."""

    _settings = (1.0, "fan_avg", "uniform")


@initializers.register("xavier_normal")
class GlorotNormal(_Named):
    """Truncated normal of variance 2 / (fan_in + fan_out). Reference: Glorot and Bengio, 2010."""

    _settings = (1.0, "fan_avg", "truncated_normal")


@initializers.register
class HeUniform(_Named):
    """Uniform within sqrt(6 / fan_in). Reference: He et al., 2015."""

    _settings = (2.0, "fan_in", "uniform")


@initializers.register
class HeNormal(_Named):
    """Truncated normal of variance 2 / fan_in. Reference: He et al., 2015."""

    _settings = (2.0, "fan_in", "truncated_normal")


@initializers.register
class LecunUniform(_Named):
    """Uniform within sqrt(3 / fan_in). Reference: LeCun et al., 1998."""

    _settings = (1.0, "fan_in", "uniform")


@initializers.register
class LecunNormal(_Named):
    """Truncated normal of variance 1 / fan_in. Reference: LeCun et al., 1998."""

    _settings = (1.0, "fan_in", "truncated_normal")


@initializers.register("orthogonal_initializer")
class Orthogonal(RandomInitializer):
    """`gain` times a random matrix with orthonormal rows or columns, whichever are fewer; the last axis is the columns.

    Reference: Saxe et al., 2014; the signs of R's diagonal make it uniform among all such matrices (Mezzadri, 2007).

    Args:
        gain: Factor.
        seed: See RandomInitializer.
    """

    def __init__(self, gain: float = 1.0, seed: int | None = None):
        super().__init__(seed)
        self.gain = gain

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        if len(shape) < 2:
            raise ShapeError(f"Orthogonal got the shape {shape}; it needs at least two axes.")
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.where(np.diag(r) < 0, -1.0, 1.0)
        return (self.gain * (q.T if rows < columns else q)).reshape(shape).astype(dtype)


@initializers.register
class FromFunction(_BuiltIn):
    """An initializer from a function (shape, dtype) -> array; `get` makes it.

    Args:
        function: Called with shape and dtype; a third parameter named `rng` gets the weight's generator.

    Example:
        >>> FromFunction(lambda shape, dtype: np.full(shape, 7, dtype))((2,))
        array([7., 7.], dtype=float32)
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self._takes_rng = "rng" in inspect.signature(function).parameters

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        values = np.asarray(self.function(shape, dtype, **({"rng": rng} if self._takes_rng else {})))
        if values.shape != shape:
            name = getattr(self.function, "__name__", self.function)
            raise ShapeError(
                f"Initializer '{name}' returned the shape {values.shape} for a weight of shape {shape}; it must return "
                "the shape that it is given."
            )
        return values.astype(dtype)


def get(identifier: Any) -> Initializer | None:
    """The initializer that the identifier means: a name, an object, a config, or a function (shape, dtype) -> array.

    Raises:
        UnknownNameError: When no initializer has that name.
        ArgumentError: When the identifier is something else.

    Example:
        >>> get("he_normal").mode
        'fan_in'
    """
    found = initializers.get(identifier)
    return found if found is None or isinstance(found, Initializer) else FromFunction(found)


def compute_fans(
    shape: Sequence[int], input_axes: Sequence[int] | None = None, output_axes: Sequence[int] | None = None
) -> tuple[int, int]:
    """Inputs and outputs of one unit of a weight, (fan_in, fan_out), as Keras counts them.

    Args:
        shape: (in, out), or (..., in, out) for a convolution, whose leading axes multiply both.
        input_axes: Axes that make fan_in instead.
        output_axes: Axes that make fan_out instead.

    Example:
        >>> compute_fans((3, 3, 16, 32))
        (144, 288)
    """
    if input_axes is not None and output_axes is not None:
        return math.prod(shape[axis] for axis in input_axes), math.prod(shape[axis] for axis in output_axes)
    if len(shape) < 2:
        fan = int(shape[0]) if len(shape) else 1
        return fan, fan
    window = math.prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


def _truncated_normal(size: int, rng: np.random.Generator) -> np.ndarray:
    """Standard normal numbers cut off at -2 and 2, by drawing again the one in 22 that lies outside."""
    values = rng.standard_normal(size)
    outside = np.flatnonzero(np.abs(values) > 2.0)
    while outside.size:
        again = rng.standard_normal(outside.size)
        values[outside] = again
        outside = outside[np.abs(again) > 2.0]
    return values


def _filled(shape: tuple[int, ...], dtype: np.dtype, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    values = np.empty(math.prod(shape), dtype)
    for start in range(0, values.size, _CHUNK):
        part = values[start : start + _CHUNK]
        part[:] = draw(part.size)
    return values.reshape(shape)
