"""Update rules on TensorFlow: its fused kernels where they can obey unifit.contract.optimizers, plain ops elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from unifit.contract import optimizers as rules
from unifit.errors import UnsupportedError
from unifit_tensorflow import random
from unifit_tensorflow.equations import bias_correction, equation_of
from unifit_tensorflow.rounding import rounded_at_random

Step = Callable[..., None]
"""(variable, gradient, *slots in the order of the rule's `slot_names`): moves variable and slots, without decay."""


class Optimizer:
    """One rule and its slots for a list of variables; made in the scope in which the variables were made.

    Attributes:
        slots: For each name in the rule's `slot_names`, one variable a parameter.
    """

    def __init__(self, rule: rules.OptimizerRule, variables: list[tf.Variable], decayed: list[bool], seed: int = 0):
        """`seed` keys the rounding of parameters in bfloat16."""
        if isinstance(rule, rules.Native):
            raise UnsupportedError(
                f"optimizer is {rule.optimizer!r}; on tensorflow unifit takes no optimizer of the framework's own. Use "
                "a uf.optimizers object or its name, or the torch or jax backend."
            )
        self.rule, self.variables, self.seed = rule, variables, seed
        self.decay = [rule.weight_decay if chosen else 0.0 for chosen in decayed]
        initial = rule.initial_accumulator_value if isinstance(rule, rules.Adagrad) else 0.0
        self.slots = {
            name: [tf.Variable(tf.fill(v.shape, np.float32(initial)), trainable=False, name=name) for v in variables]
            for name in rule.slot_names
        }

    def apply(self, gradients: list[Any], rate: Any, iterations: Any) -> None:
        """One update with learning rate `rate`, after `iterations` others; `w` decays before it moves."""
        t = tf.cast(iterations, tf.float32) + 1.0
        step, equation = step_of(self.rule, rate, t), equation_of(self.rule, rate, t)
        for number, (w, g, decay, *slots) in enumerate(
            zip(self.variables, gradients, self.decay, *self.slots.values(), strict=True)
        ):
            if w.dtype == tf.bfloat16:
                seed = random.stream(self.seed, iterations, number).next_seed()
                before, lost = tf.cast(w, tf.float32), equation(g, *slots)
                w.assign(rounded_at_random(before - (lost + rate * decay * before if decay else lost), seed))
                continue
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
        case rules.Adagrad():
            return adagrad(rule, rate)
    equation = equation_of(rule, rate, t)
    return lambda w, g, *slots: w.assign_sub(equation(g, *slots))


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


def adagrad(rule: rules.Adagrad, rate: Any) -> Step:
    def step(w: Any, g: Any, square_sum: Any) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=w.handle, accum=square_sum.handle, lr=rate, epsilon=rule.epsilon, grad=g, update_slots=True
        )

    return step
