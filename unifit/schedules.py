"""Learning rates as functions of the number of updates applied: Keras' schedules, computed on the host in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unifit.config import Configurable
from unifit.errors import ArgumentError
from unifit.registry import Registry

schedules = Registry("schedule")


class LearningRateSchedule(Configurable):
    """Base of all schedules. Subclass it and override `__call__`.

    Example:
        >>> class Halving(LearningRateSchedule):
        ...     def __call__(self, step):
        ...         return 0.5**step
        >>> Halving().values(0, 3)
        array([1.  , 0.5 , 0.25], dtype=float32)
    """

    def __call__(self, step: int) -> float:
        """The rate of the update that follows `step` applied updates."""
        raise NotImplementedError(f"{type(self).__name__} must override __call__(self, step).")

    def values(self, start: int, count: int) -> np.ndarray:
        """The rates of the updates start, ..., start + count - 1, for the table on the device.

        Returns:
            Array, shape (count,), float32.

        Raises:
            ArgumentError: When a rate is not finite.
        """
        rates = self._rates(np.arange(start, start + count, dtype=np.float64))
        if not np.all(np.isfinite(rates)):
            bad = int(np.argmin(np.isfinite(rates)))
            raise ArgumentError(
                f"Schedule '{self}' gave the learning rate {rates[bad]} at step {start + bad}; a rate must be finite."
            )
        return rates.astype(np.float32)

    def __str__(self) -> str:
        return type(self).__name__

    def _rates(self, step: np.ndarray) -> np.ndarray:
        return np.array([float(self(int(one))) for one in step], np.float64)


class _Formula(LearningRateSchedule):
    """A schedule whose `_rates` is one expression over an array of steps: call and table cannot differ."""

    def __call__(self, step: int) -> float:
        return float(self._rates(np.array([step], np.float64))[0])


@schedules.register
class Constant(_Formula):
    """The same rate at every step; what a number given as `learning_rate` means.

    Args:
        learning_rate: The rate, at least 0.

    Example:
        >>> Constant(0.1)(1000)
        0.1
    """

    def __init__(self, learning_rate: float):
        self.learning_rate = _number("learning_rate", learning_rate, minimum=0.0)

    def _rates(self, step: np.ndarray) -> np.ndarray:
        return np.full(step.shape, self.learning_rate)


class _UnitDecay(_Formula):
    """A decay by units of `decay_steps` steps, whole ones only if `staircase`."""

    def __init__(self, initial_learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False):
        self.initial_learning_rate = _number("initial_learning_rate", initial_learning_rate, minimum=0.0)
        self.decay_steps = _number("decay_steps", decay_steps, above=0.0)
        self.decay_rate = _number("decay_rate", decay_rate, minimum=0.0)
        self.staircase = staircase

    def _units(self, step: np.ndarray) -> np.ndarray:
        units = step / self.decay_steps
        return np.floor(units) if self.staircase else units


@schedules.register
class ExponentialDecay(_UnitDecay):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`; the exponent is floored if `staircase`.

    Args:
        initial_learning_rate: The rate at step 0.
        decay_steps: Steps in which the rate falls by `decay_rate`, above 0.
        decay_rate: The factor, at least 0.
        staircase: Whether the rate falls in stairs.

    Example:
        >>> ExponentialDecay(0.5, decay_steps=10, decay_rate=0.25)(5)
        0.25
    """

    def _rates(self, step: np.ndarray) -> np.ndarray:
        return self.initial_learning_rate * self.decay_rate ** self._units(step)


@schedules.register
class InverseTimeDecay(_UnitDecay):
    """`initial_learning_rate / (1 + decay_rate * step / decay_steps)`; the quotient is floored if `staircase`.

    Args:
        initial_learning_rate: The rate at step 0.
        decay_steps: Steps between two units of decay, above 0.
        decay_rate: The rate of decay, at least 0.
        staircase: Whether the rate falls in stairs.

    Example:
        >>> InverseTimeDecay(0.5, decay_steps=10, decay_rate=1.0)(10)
        0.25
    """

    def _rates(self, step: np.ndarray) -> np.ndarray:
        return self.initial_learning_rate / (1.0 + self.decay_rate * self._units(step))


@schedules.register
class PolynomialDecay(_Formula):
    """`(initial - end) * (1 - step / decay_steps) ** power + end`, then `end`.

    Args:
        initial_learning_rate: The rate at step 0.
        decay_steps: Steps to the end rate, above 0.
        end_learning_rate: The rate at the end.
        power: The exponent; 1 is linear.
        cycle: Instead of ending, stretch `decay_steps` to its next multiple that is not below `step`.

    Example:
        >>> PolynomialDecay(1.0, decay_steps=4, end_learning_rate=0.0, power=2.0)(2)
        0.25
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
    ):
        self.initial_learning_rate = _number("initial_learning_rate", initial_learning_rate, minimum=0.0)
        self.decay_steps = _number("decay_steps", decay_steps, above=0.0)
        self.end_learning_rate = _number("end_learning_rate", end_learning_rate, minimum=0.0)
        self.power = _number("power", power, minimum=0.0)
        self.cycle = cycle

    def _rates(self, step: np.ndarray) -> np.ndarray:
        span = self.decay_steps * (np.maximum(np.ceil(step / self.decay_steps), 1.0) if self.cycle else 1.0)
        left = 1.0 - np.minimum(step, span) / span
        return (self.initial_learning_rate - self.end_learning_rate) * left**self.power + self.end_learning_rate


@schedules.register
class PiecewiseConstantDecay(_Formula):
    """`values[i]` for the first i with `step <= boundaries[i]`, else the last value.

    Args:
        boundaries: Increasing steps: the last ones that still have their value.
        values: The rates, one more than boundaries. (The method `values` is the table; they are kept as `rates`.)

    Example:
        >>> schedule = PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.1])
        >>> schedule(10), schedule(11), schedule(21)
        (1.0, 0.5, 0.1)
    """

    def __init__(self, boundaries: Sequence[float], values: Sequence[float]):
        self.boundaries = [_number("boundaries", boundary) for boundary in boundaries]
        self.rates = [_number("values", value, minimum=0.0) for value in values]
        if len(self.rates) != len(self.boundaries) + 1:
            raise ArgumentError(
                f"PiecewiseConstantDecay got {len(self.boundaries)} boundaries and {len(self.rates)} values; it needs "
                "one value more than boundaries."
            )
        if any(low >= high for low, high in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ArgumentError(f"PiecewiseConstantDecay got boundaries={self.boundaries}; they must increase.")

    def _rates(self, step: np.ndarray) -> np.ndarray:
        return np.array(self.rates)[np.searchsorted(self.boundaries, step, side="left")]


@schedules.register
class CosineDecay(_Formula):
    """A linear warm-up, then half a cosine down to `alpha` times the peak, then that.

    The peak is `warmup_target`, reached from `initial_learning_rate`, as in Keras. `warmup_steps` without a target
    warms up from 0 to `initial_learning_rate`; Keras ignores `warmup_steps` then.

        peak * ((1 - alpha) * (1 + cos(pi * (step - warmup_steps) / decay_steps)) / 2 + alpha)

    Reference: Loshchilov and Hutter, 2017, "SGDR"; Goyal et al., 2017, for the warm-up.

    Args:
        initial_learning_rate: The rate at step 0, or the peak where there is no target.
        decay_steps: Steps of the decay, counted from the end of the warm-up, above 0.
        alpha: The last rate as a share of the peak.
        warmup_target: The peak.
        warmup_steps: Steps of the warm-up.

    Example:
        >>> schedule = CosineDecay(0.5, decay_steps=100, warmup_steps=10)
        >>> schedule(0), schedule(5), schedule(10), schedule(110)
        (0.0, 0.25, 0.5, 0.0)
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        *,
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ):
        self.initial_learning_rate = _number("initial_learning_rate", initial_learning_rate, minimum=0.0)
        self.decay_steps = _number("decay_steps", decay_steps, above=0.0)
        self.alpha = _number("alpha", alpha, minimum=0.0)
        self.warmup_target = None if warmup_target is None else _number("warmup_target", warmup_target, minimum=0.0)
        self.warmup_steps = _number("warmup_steps", warmup_steps, minimum=0.0)

    def _rates(self, step: np.ndarray) -> np.ndarray:
        initial, target = self.initial_learning_rate, self.warmup_target
        low, peak = (0.0, initial) if target is None else (initial, target)
        warming = low + (peak - low) * step / max(self.warmup_steps, 1.0)
        done = np.minimum(step - self.warmup_steps, self.decay_steps) / self.decay_steps
        decaying = peak * ((1.0 - self.alpha) * _half_cosine(done) + self.alpha)
        return np.where(step < self.warmup_steps, warming, decaying)


@schedules.register
class CosineDecayRestarts(_Formula):
    """Half cosines one after another, each `t_mul` times longer and from `m_mul` times the height of the one before.

    A restart happens exactly at its step. (In Keras float32 logarithms may put it one step late.)

    Reference: Loshchilov and Hutter, 2017, "SGDR".

    Args:
        initial_learning_rate: The rate at step 0.
        first_decay_steps: Steps of the first period, above 0.
        t_mul: Factor of a period's length, at least 1.
        m_mul: Factor of a period's height.
        alpha: The lowest rate as a share of the initial one.

    Example:
        >>> schedule = CosineDecayRestarts(1.0, first_decay_steps=10, m_mul=0.5)
        >>> schedule(5), schedule(10), schedule(20), schedule(30)
        (0.5, 0.5, 0.25, 0.25)
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
    ):
        self.initial_learning_rate = _number("initial_learning_rate", initial_learning_rate, minimum=0.0)
        self.first_decay_steps = _number("first_decay_steps", first_decay_steps, above=0.0)
        self.t_mul = _number("t_mul", t_mul, minimum=1.0)
        self.m_mul = _number("m_mul", m_mul, minimum=0.0)
        self.alpha = _number("alpha", alpha, minimum=0.0)

    def _rates(self, step: np.ndarray) -> np.ndarray:
        periods = step / self.first_decay_steps  # in units of the first period, whose length is t_mul ** 0
        if self.t_mul == 1.0:
            restarts = np.floor(periods)
            begun, length = restarts, np.ones_like(restarts)
        else:
            restarts = np.floor(np.log1p(periods * (self.t_mul - 1.0)) / math.log(self.t_mul))
            restarts += periods >= self._begin(restarts + 1.0)  # the logarithm may be a hair too small at a restart,
            restarts -= periods < self._begin(restarts)  # or too large just before it
            begun, length = self._begin(restarts), self.t_mul**restarts
        height = self.m_mul**restarts * _half_cosine((periods - begun) / length)
        return self.initial_learning_rate * ((1.0 - self.alpha) * height + self.alpha)

    def _begin(self, restarts: np.ndarray) -> np.ndarray:
        return (self.t_mul**restarts - 1.0) / (self.t_mul - 1.0)


_COOLDOWNS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: _half_cosine(done),
    "sqrt": lambda done: 1.0 - np.sqrt(done),
}


@schedules.register("wsd")
class WarmupStableDecay(_Formula):
    """A linear warm-up from 0, a plateau, and a short decay to `alpha` times the peak: a run that can be prolonged.

    Reference: Hu et al., 2024, "MiniCPM", for the shape; Hägele et al., 2024, "Scaling Laws and Compute-Optimal
    Training Beyond Fixed Training Durations", for the decays "linear", 1 - x, and "sqrt", 1 - sqrt(x); "cosine" is half
    a cosine.

    Args:
        peak_learning_rate: The rate of the plateau.
        warmup_steps: Steps of the warm-up.
        stable_steps: Steps of the plateau.
        decay_steps: Steps of the decay, above 0.
        alpha: The last rate as a share of the peak.
        decay: Shape of the decay: "linear", "cosine" or "sqrt".

    Example:
        >>> schedule = WarmupStableDecay(1.0, warmup_steps=2, stable_steps=4, decay_steps=4)
        >>> [schedule(step) for step in (0, 1, 2, 6, 7, 10)]
        [0.0, 0.5, 1.0, 1.0, 0.75, 0.0]
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: float,
        stable_steps: float,
        decay_steps: float,
        alpha: float = 0.0,
        decay: str = "linear",
    ):
        self.peak_learning_rate = _number("peak_learning_rate", peak_learning_rate, minimum=0.0)
        self.warmup_steps = _number("warmup_steps", warmup_steps, minimum=0.0)
        self.stable_steps = _number("stable_steps", stable_steps, minimum=0.0)
        self.decay_steps = _number("decay_steps", decay_steps, above=0.0)
        self.alpha = _number("alpha", alpha, minimum=0.0)
        if decay not in _COOLDOWNS:
            raise ArgumentError(f"WarmupStableDecay got decay={decay!r}; expected one of {', '.join(_COOLDOWNS)}.")
        self.decay = decay

    def _rates(self, step: np.ndarray) -> np.ndarray:
        warming = step / max(self.warmup_steps, 1.0)
        done = np.clip((step - self.warmup_steps - self.stable_steps) / self.decay_steps, 0.0, 1.0)
        decaying = (1.0 - self.alpha) * _COOLDOWNS[self.decay](done) + self.alpha
        return self.peak_learning_rate * np.where(step < self.warmup_steps, warming, decaying)


@schedules.register
class FromFunction(LearningRateSchedule):
    """A schedule from any function step -> rate; `get` makes it. It can be saved when the function is registered.

    Args:
        function: Takes the step as an int and returns a number.

    Example:
        >>> FromFunction(lambda step: 1.0 / (1 + step))(3)
        0.25
    """

    def __init__(self, function: Callable[[int], float]):
        self.function = function

    def __call__(self, step: int) -> float:
        return float(self.function(step))

    def __str__(self) -> str:
        return str(getattr(self.function, "__name__", self.function))


def get(identifier: Any) -> LearningRateSchedule:
    """The schedule that the identifier means: a schedule, a number, a function step -> rate, or a config.

    Raises:
        ArgumentError: When it is none of these, or a rate is negative or not finite.

    Example:
        >>> get(0.1)(7), get(lambda step: 2 * step)(7)
        (0.1, 14.0)
    """
    if isinstance(identifier, LearningRateSchedule):
        return identifier
    if _is_number(identifier):
        return Constant(float(identifier))
    if isinstance(identifier, (str, dict, type)):
        found = schedules.get(identifier)
        return found if isinstance(found, LearningRateSchedule) else FromFunction(found)
    if callable(identifier):
        return FromFunction(identifier)
    raise ArgumentError(
        f"Expected a learning rate, got {identifier!r} of type {type(identifier).__name__}; pass a number, a schedule "
        "such as CosineDecay(3e-4, decay_steps=1000), or a function step -> rate."
    )


def _half_cosine(done: np.ndarray) -> np.ndarray:
    """From 1 at done = 0 to 0 at done = 1."""
    return 0.5 * (1.0 + np.cos(np.pi * done))


def _is_number(value: Any) -> bool:
    scalar = isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf"
    return scalar or (isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool))


def _number(argument: str, value: Any, minimum: float = -math.inf, above: float = -math.inf) -> float:
    if not _is_number(value) or not math.isfinite(value) or value < minimum or value <= above:
        bound = f" of at least {minimum:g}" if minimum > -math.inf else f" above {above:g}" if above > -math.inf else ""
        raise ArgumentError(f"Argument {argument}={value!r} of a schedule must be a finite number{bound}.")
    return float(value)
