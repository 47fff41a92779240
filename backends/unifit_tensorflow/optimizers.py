"""Update rules on TensorFlow: its fused kernels where they can obey unifit.contract.optimizers, plain ops elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from unifit.contract import optimizers as rules
from unifit.errors import UnsupportedError

Step = Callable[..., None]
"""(variable, gradient, *slots in the order of the rule's `slot_names`): moves variable and slots, without decay."""


class Optimizer:
    """One rule and its slots for a list of variables; made in the scope in which the variables were made.

    Attributes:
        slots: For each name in the rule's `slot_names`, one variable a parameter.
    """

    def __init__(self, rule: rules.OptimizerRule, variables: list[tf.Variable], decayed: list[bool]):
        if isinstance(rule, rules.Native):
            raise UnsupportedError(
                f"optimizer is {rule.optimizer!r}; on tensorflow unifit takes no optimizer of the framework's own. Use "
                "a uf.optimizers object or its name, or the torch or jax backend."
            )
        self.rule, self.variables = rule, variables
        self.decay = [rule.weight_decay if chosen else 0.0 for chosen in decayed]
        initial = rule.initial_accumulator_value if isinstance(rule, rules.Adagrad) else 0.0
        self.slots = {
            name: [tf.Variable(tf.fill(v.shape, np.float32(initial)), trainable=False, name=name) for v in variables]
            for name in rule.slot_names
        }

    def apply(self, gradients: list[Any], rate: Any, iterations: Any) -> None:
        """One update with learning rate `rate`, after `iterations` others; `w` decays before it moves."""
        step = step_of(self.rule, rate, tf.cast(iterations, tf.float32) + 1.0)
        for w, g, decay, *slots in zip(self.variables, gradients, self.decay, *self.slots.values(), strict=True):
            if decay:
                w.assign_sub(rate * decay * w)
            step(w, g, *slots)


def step_of(rule: rules.OptimizerRule, rate: Any, t: Any) -> Step:
    """The rule's equation at update number `t`, from 1 (float32)."""
    match rule:
        case rules.SGD():
            return momentum(rule, rate) if rule.momentum else gradient_descent(rate)
        case rules.Adam():
            return adam(rule, rate, t)
        case rules.RMSprop():
            return rmsprop(rule, rate)
        case rules.Adagrad():
            return adagrad(rule, rate)
        case rules.Lion():
            return lion(rule, rate)
    raise UnsupportedError(f"unifit on tensorflow has no update rule for {type(rule).__name__}.")


def gradient_descent(rate: Any) -> Step:
    def step(w: Any, g: Any) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=rate, delta=g)

    return step


def momentum(rule: rules.SGD, rate: Any) -> Step:
    def step(w: Any, g: Any, velocity: Any) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=w.handle,
            accum=velocity.handle,
            lr=rate,
            grad=g,
            momentum=rule.momentum,
            use_nesterov=rule.nesterov,
        )

    return step


def adam(rule: rules.Adam, rate: Any, t: Any) -> Step:
    # The kernel's step is lr * sqrt(1 - beta2_power) / (1 - beta1_power) * m / (sqrt(v) + epsilon): epsilon before the
    # correction, and differences that lose digits in float32. With both powers 0 the corrections are ours.
    first, second = bias_correction(rule.beta_1, t), tf.sqrt(bias_correction(rule.beta_2, t))
    corrected_rate, epsilon = rate * second / first, rule.epsilon * second

    def step(w: Any, g: Any, m: Any, v: Any) -> None:
        tf.raw_ops.ResourceApplyAdam(
            var=w.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=0.0,
            beta2_power=0.0,
            lr=corrected_rate,
            beta1=rule.beta_1,
            beta2=rule.beta_2,
            epsilon=epsilon,
            grad=g,
        )

    return step


def bias_correction(beta: float, t: Any) -> Any:
    """1 - beta^t without cancellation, for the beta that the kernel sees: a moment's weights add up to exactly that."""
    rounded = float(np.float32(beta))
    return -tf.math.expm1(t * math.log(rounded)) if rounded else tf.ones_like(t)


def rmsprop(rule: rules.RMSprop, rate: Any) -> Step:
    # TensorFlow's kernels have epsilon inside the root and the rate inside the momentum.
    def step(w: Any, g: Any, *slots: Any) -> None:
        named = dict(zip(rule.slot_names, slots, strict=True))
        mean_square = blended(named["square_average"], g * g, rule.rho)
        if rule.centered:
            mean = blended(named["gradient_average"], g, rule.rho)
            mean_square = tf.maximum(mean_square - mean * mean, 0.0)
        direction = g / (tf.sqrt(mean_square) + rule.epsilon)
        if rule.momentum:
            direction = rule.momentum * named["velocity"] + direction
            named["velocity"].assign(direction)
        w.assign_sub(rate * direction)

    return step


def blended(average: Any, value: Any, decay: float) -> Any:
    """Moves a running average towards `value`; returns its new value."""
    after = decay * average + (1 - decay) * value
    average.assign(after)
    return after


def adagrad(rule: rules.Adagrad, rate: Any) -> Step:
    def step(w: Any, g: Any, square_sum: Any) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=w.handle, accum=square_sum.handle, lr=rate, epsilon=rule.epsilon, grad=g, update_slots=True
        )

    return step


def lion(rule: rules.Lion, rate: Any) -> Step:
    def step(w: Any, g: Any, m: Any) -> None:
        w.assign_sub(rate * tf.sign(rule.beta_1 * m + (1 - rule.beta_1) * g))
        blended(m, g, rule.beta_2)

    return step
