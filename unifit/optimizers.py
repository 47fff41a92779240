"""Optimizers as the user names them: Keras' constructors over the update rules of `unifit.contract.optimizers`.

An optimizer here is a rule, a learning rate and the choice of the weights that decay. It holds no array: slots and the
count of updates live in the engine.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import unifit.schedules as schedules
from unifit.config import Configurable, serialize
from unifit.contract import optimizers as rules
from unifit.errors import ArgumentError, unknown_name
from unifit.rate_scaling import scale_lr as scale_lr
from unifit.registry import Registry
from unifit.schedules import LearningRateSchedule

optimizers = Registry("optimizer")

Exclusion = str | Sequence[str] | Callable[[str], bool] | None

_ELSEWHERE = {
    "clipnorm": "unifit clips the norm of all gradients together: use compile(clip_norm=...)",
    "global_clipnorm": "use compile(clip_norm=...)",
    "clipvalue": "use compile(clip_value=...)",
    "clip_norm": "use compile(clip_norm=...)",
    "clip_value": "use compile(clip_value=...)",
    "gradient_accumulation_steps": "use compile(gradient_accumulation_steps=...)",
    "use_ema": "the moving average of the weights is set in compile, not in the optimizer",
    "ema_momentum": "the moving average of the weights is set in compile, not in the optimizer",
    "ema_overwrite_frequency": "the moving average of the weights is set in compile, not in the optimizer",
    "loss_scale_factor": "the loss scale belongs to the precision: use compile(precision='mixed_float16')",
    "amsgrad": "unifit has no AMSGrad; pass a native optimizer to compile",
    "decay": "use a schedule, such as learning_rate=InverseTimeDecay(...)",
}
"""Keras' arguments that are set somewhere else here. Their Keras defaults are accepted, since they ask for nothing."""

_ASKS_FOR_NOTHING = {"ema_momentum": 0.99}

_BIAS_AND_NORM_NAMES = ("bias", "beta", "gamma", "scale", "offset")


class Optimizer(Configurable):
    """What all optimizers share. Make one of the classes below.

    Args:
        learning_rate: A number, a schedule, or a function step -> rate.
        rule: The update rule.
        exclude_from_weight_decay: Weights that do not decay: None (all decay, as in Keras), "norms_and_biases" (weights
            of at most one axis or named as a bias, scale or offset), a list of substrings of paths, or a function
            path -> bool.
        name: Shown in messages; the class' name in lower case when None.
        keras_arguments: Keras' other arguments, refused with their place in unifit.

    Raises:
        ArgumentError: When an argument has no such value, or belongs elsewhere.
    """

    def __init__(
        self,
        learning_rate: Any,
        rule: rules.OptimizerRule,
        exclude_from_weight_decay: Exclusion = None,
        name: str | None = None,
        keras_arguments: dict[str, Any] | None = None,
    ):
        self.name = name or type(self).__name__.lower()
        _refuse(type(self), keras_arguments or {})
        self._rule = _checked(type(self).__name__, rule)
        self._schedule = schedules.get(learning_rate)
        self._learning_rate_version = 0
        self.exclude_from_weight_decay = _check_exclusion(exclude_from_weight_decay)

    @property
    def rule(self) -> rules.OptimizerRule:
        """The update rule with its hyper-parameters: the value that crosses to the backend."""
        return self._rule

    @property
    def weight_decay(self) -> float:
        """The decay d of `w -= lr * d * w`."""
        return self._rule.weight_decay

    @property
    def learning_rate(self) -> float | LearningRateSchedule:
        """The rate as a float where it is constant, else the schedule. Setting a number replaces a schedule.

        Example:
            >>> optimizer = SGD(lambda step: 1.0 / (1 + step))
            >>> optimizer.learning_rate = 0.5
            >>> optimizer.learning_rate, optimizer.rates(7, 2), optimizer.learning_rate_version
            (0.5, array([0.5, 0.5], dtype=float32), 1)
        """
        return self._schedule.learning_rate if isinstance(self._schedule, schedules.Constant) else self._schedule

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._schedule = schedules.get(value)
        self._learning_rate_version += 1

    @property
    def learning_rate_version(self) -> int:
        """How often the learning rate was set: a change tells the loop that its table of rates is stale."""
        return self._learning_rate_version

    def rates(self, start: int, count: int) -> np.ndarray:
        """The learning rates of the updates start, ..., start + count - 1.

        Returns:
            Array, shape (count,), float32.
        """
        return self._schedule.values(start, count)

    def decays(self, path: str, shape: Sequence[int]) -> bool:
        """Whether weight decay applies to the parameter.

        Args:
            path: The parameter's path, such as `blocks.0.attention.query.kernel`.
            shape: Its shape.

        Example:
            >>> optimizer = AdamW(exclude_from_weight_decay="norms_and_biases")
            >>> optimizer.decays("dense.kernel", (4, 3)), optimizer.decays("dense.bias", (3,))
            (True, False)
        """
        excluded = self.exclude_from_weight_decay
        if self.weight_decay == 0 or excluded is None:
            return self.weight_decay != 0
        if callable(excluded):
            return not excluded(path)
        if isinstance(excluded, str):
            return len(shape) > 1 and not path.rpartition(".")[2].endswith(_BIAS_AND_NORM_NAMES)
        return not any(part in path for part in excluded)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, with the learning rate as it is now."""
        config = super().get_config()
        if self._learning_rate_version:
            config["learning_rate"] = serialize(self.learning_rate)
        return config


@optimizers.register
class SGD(Optimizer):
    """Gradient descent, with momentum or without. Equations: `unifit.contract.optimizers.SGD`.

    Args:
        learning_rate: See Optimizer.
        momentum: Share of the velocity kept a step, in [0, 1].
        nesterov: Look ahead along the velocity.
        weight_decay: Decoupled decay, at least 0; None is 0.
        exclude_from_weight_decay: See Optimizer.
        name: See Optimizer.

    Example:
        >>> SGD(0.1, momentum=0.9).rule
        SGD(momentum=0.9, nesterov=False, weight_decay=0.0)
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | None = None,
        *,
        exclude_from_weight_decay: Exclusion = None,
        name: str | None = None,
        **keras_arguments: Any,
    ):
        # Without momentum there is no velocity to look along, and torch.optim refuses the pair.
        rule = rules.SGD(momentum, bool(nesterov) and momentum != 0, weight_decay or 0.0)
        super().__init__(learning_rate, rule, exclude_from_weight_decay, name, keras_arguments)


@optimizers.register
class Adam(Optimizer):
    """Adam. Equations: `unifit.contract.optimizers.Adam`.

    Args:
        learning_rate: See Optimizer.
        beta_1: Decay rate of the first moment, in [0, 1).
        beta_2: Decay rate of the second moment, in [0, 1).
        epsilon: Added to the root after the bias correction, at least 0.
        weight_decay: Decoupled decay, at least 0; None is 0.
        exclude_from_weight_decay: See Optimizer.
        name: See Optimizer.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        weight_decay: float | None = None,
        exclude_from_weight_decay: Exclusion = None,
        name: str | None = None,
        **keras_arguments: Any,
    ):
        rule = rules.Adam(beta_1, beta_2, epsilon, weight_decay or 0.0)
        super().__init__(learning_rate, rule, exclude_from_weight_decay, name, keras_arguments)


@optimizers.register
class AdamW(Optimizer):
    """Adam with weight decay. Equations: `unifit.contract.optimizers.Adam`.

    Args:
        learning_rate: See Optimizer.
        weight_decay: Decoupled decay, at least 0; None is 0.
        beta_1: Decay rate of the first moment, in [0, 1).
        beta_2: Decay rate of the second moment, in [0, 1).
        epsilon: Added to the root after the bias correction, at least 0.
        exclude_from_weight_decay: See Optimizer.
        name: See Optimizer.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float | None = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        exclude_from_weight_decay: Exclusion = None,
        name: str | None = None,
        **keras_arguments: Any,
    ):
        rule = rules.AdamW(beta_1, beta_2, epsilon, weight_decay or 0.0)
        super().__init__(learning_rate, rule, exclude_from_weight_decay, name, keras_arguments)


@optimizers.register
class RMSprop(Optimizer):
    """Gradient over its running root mean square. Equations: `unifit.contract.optimizers.RMSprop`.

    Args:
        learning_rate: See Optimizer.
        rho: Decay rate of the averages, in [0, 1).
        momentum: Share of the velocity kept a step, in [0, 1].
        epsilon: Added to the root, at least 0. Keras adds it to the mean square under the root.
        centered: Divide by the standard deviation instead.
        weight_decay: Decoupled decay, at least 0; None is 0.
        exclude_from_weight_decay: See Optimizer.
        name: See Optimizer.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        weight_decay: float | None = None,
        *,
        exclude_from_weight_decay: Exclusion = None,
        name: str | None = None,
        **keras_arguments: Any,
    ):
        rule = rules.RMSprop(rho, momentum, epsilon, bool(centered), weight_decay or 0.0)
        super().__init__(learning_rate, rule, exclude_from_weight_decay, name, keras_arguments)


@optimizers.register
class Adagrad(Optimizer):
    """Gradient over the root of the sum of its squares. Equations: `unifit.contract.optimizers.Adagrad`.

    Args:
        learning_rate: See Optimizer.
        initial_accumulator_value: Start of the sum, at least 0.
        epsilon: Added to the root, at least 0. Keras adds it to the sum under the root.
        weight_decay: Decoupled decay, at least 0; None is 0.
        exclude_from_weight_decay: See Optimizer.
        name: See Optimizer.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        *,
        exclude_from_weight_decay: Exclusion = None,
        name: str | None = None,
        **keras_arguments: Any,
    ):
        rule = rules.Adagrad(initial_accumulator_value, epsilon, weight_decay or 0.0)
        super().__init__(learning_rate, rule, exclude_from_weight_decay, name, keras_arguments)


@optimizers.register
class Lion(Optimizer):
    """The sign of an interpolated momentum. Equations: `unifit.contract.optimizers.Lion`.

    Args:
        learning_rate: See Optimizer.
        beta_1: Share of the momentum in the step, in [0, 1).
        beta_2: Decay rate of the momentum, in [0, 1).
        weight_decay: Decoupled decay, at least 0; None is 0.
        exclude_from_weight_decay: See Optimizer.
        name: See Optimizer.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        weight_decay: float | None = None,
        *,
        exclude_from_weight_decay: Exclusion = None,
        name: str | None = None,
        **keras_arguments: Any,
    ):
        rule = rules.Lion(beta_1, beta_2, weight_decay or 0.0)
        super().__init__(learning_rate, rule, exclude_from_weight_decay, name, keras_arguments)


class Native(Optimizer):
    """An optimizer of the active framework, which is an optax transformation on jax.

    On torch it is a function of the parameters: `lambda params: torch.optim.X(params)`. tensorflow refuses it.

    Its learning rate and schedule are its own, so callbacks cannot set the rate. It sees the window's finished
    gradient, clipped as compile says. On torch it costs one host read a step (whether the window had any valid
    element), and its slots start anew when the engine is made again.

    Args:
        optimizer: The transformation, or the function from parameters to an optimizer.
    """

    def __init__(self, optimizer: Any):
        super().__init__(1.0, rules.Native(optimizer))

    @property
    def learning_rate(self) -> float | LearningRateSchedule:
        """1.0: a native optimizer scales its own updates."""
        return 1.0

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        raise ArgumentError("A native optimizer keeps its own learning rate; give it a schedule of its framework.")


def get(identifier: Any) -> Optimizer:
    """The optimizer that the identifier means: a name, an object, a class or a config.

    A native optimizer becomes a `Native`: a function (torch: parameters -> optimizer) or a pair of `init` and `update`
    (optax). Whether the backend takes it is the backend's to say.

    Raises:
        UnknownNameError: When no optimizer has that name.
        ArgumentError: When the identifier is something else.

    Example:
        >>> get("adamw").rule.weight_decay
        0.004
    """
    if isinstance(identifier, Optimizer):
        return identifier
    is_optax = (
        hasattr(identifier, "init") and hasattr(identifier, "update") and not isinstance(identifier, (dict, type))
    )
    found = identifier if is_optax else optimizers.get(identifier)
    return found if isinstance(found, Optimizer) else Native(found)


def _refuse(kind: type[Optimizer], arguments: dict[str, Any]) -> None:
    owner = kind.__name__
    for argument, value in arguments.items():
        if argument not in _ELSEWHERE:
            known = set(inspect.signature(kind).parameters) - {"keras_arguments"}
            raise unknown_name(f"argument of {owner}", argument, known)
        if value is not None and value is not False and value != _ASKS_FOR_NOTHING.get(argument):
            raise ArgumentError(f"{owner} got {argument}={value!r}, which is no argument here: {_ELSEWHERE[argument]}.")


def _checked(owner: str, rule: rules.OptimizerRule) -> rules.OptimizerRule:
    """The rule with plain floats, once its values are found in order."""
    if isinstance(rule, rules.Native):
        return rule
    numbers = {argument: value for argument, value in vars(rule).items() if argument not in ("nesterov", "centered")}
    for argument, value in numbers.items():
        below_one = argument in ("beta_1", "beta_2", "rho")
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0 or (below_one and value >= 1):
            bound = "in [0, 1)" if below_one else "of at least 0"
            raise ArgumentError(f"{owner} got {argument}={value!r}; expected a number {bound}.")
        if argument == "momentum" and value > 1:
            raise ArgumentError(f"{owner} got momentum={value!r}; expected a number in [0, 1].")
    floats: dict[str, Any] = {argument: float(value) for argument, value in numbers.items()}
    return dataclasses.replace(rule, **floats)


def _check_exclusion(value: Exclusion) -> Exclusion:
    if isinstance(value, str) and value != "norms_and_biases":
        raise ArgumentError(
            f"Got exclude_from_weight_decay={value!r}; expected 'norms_and_biases', a list of substrings such as "
            f"[{value!r}], a function path -> bool, or None."
        )
    if value is None or isinstance(value, str) or callable(value):
        return value
    if not isinstance(value, Sequence) or not all(isinstance(part, str) and part for part in value):
        raise ArgumentError(f"Got exclude_from_weight_decay={value!r}; a list must hold substrings of parameter paths.")
    return tuple(value)
