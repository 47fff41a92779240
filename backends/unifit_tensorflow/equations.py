"""The update rules of unifit.contract.optimizers in plain ops: where TensorFlow has no fitting kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from unifit.contract import optimizers as rules
from unifit.errors import UnsupportedError

Equation = Callable[..., Any]
"""(gradient, *slots in the order of the rule's `slot_names`) -> what the parameter loses, without decay, in float32.

It moves the slots.
"""


def equation_of(rule: rules.OptimizerRule, rate: Any, t: Any) -> Equation:
    """The rule's equation at update number `t`, from 1 (float32)."""
    match rule:
        case rules.SGD():
            return descent(rule, rate)
        case rules.Adam():
            return adam(rule, rate, t)
        case rules.RMSprop():
            return rmsprop(rule, rate)
        case rules.Adagrad():
            return adagrad(rule, rate)
        case rules.Lion():
            return lion(rule, rate)
    raise UnsupportedError(f"unifit on tensorflow has no update rule for {type(rule).__name__}.")


def descent(rule: rules.SGD, rate: Any) -> Equation:
    def lost(g: Any, *slots: Any) -> Any:
        if not slots:
            return rate * g
        (slot,) = slots
        velocity = rule.momentum * slot + g
        slot.assign(velocity)
        return rate * (g + rule.momentum * velocity if rule.nesterov else velocity)

    return lost


def adam(rule: rules.Adam, rate: Any, t: Any) -> Equation:
    first, second = bias_correction(rule.beta_1, t), bias_correction(rule.beta_2, t)

    def lost(g: Any, m: Any, v: Any) -> Any:
        mean = blended(m, g, as_float32(rule.beta_1))
        mean_square = blended(v, g * g, as_float32(rule.beta_2))
        return rate * (mean / first) / (tf.sqrt(mean_square / second) + rule.epsilon)

    return lost


def bias_correction(beta: float, t: Any) -> Any:
    """1 - beta^t without cancellation, for the beta of float32: a moment's weights add up to exactly that."""
    rounded = as_float32(beta)
    return -tf.math.expm1(t * math.log(rounded)) if rounded else tf.ones_like(t)


def as_float32(value: float) -> float:
    """The nearest number of float32."""
    return float(np.float32(value))


def rmsprop(rule: rules.RMSprop, rate: Any) -> Equation:
    # TensorFlow's kernels have epsilon inside the root and the rate inside the momentum.
    def lost(g: Any, *slots: Any) -> Any:
        named = dict(zip(rule.slot_names, slots, strict=True))
        mean_square = blended(named["square_average"], g * g, rule.rho)
        if rule.centered:
            mean = blended(named["gradient_average"], g, rule.rho)
            mean_square = tf.maximum(mean_square - mean * mean, 0.0)
        direction = g / (tf.sqrt(mean_square) + rule.epsilon)
        if rule.momentum:
            direction = rule.momentum * named["velocity"] + direction
            named["velocity"].assign(direction)
        return rate * direction

    return lost


def adagrad(rule: rules.Adagrad, rate: Any) -> Equation:
    def lost(g: Any, square_sum: Any) -> Any:
        after = square_sum + g * g
        square_sum.assign(after)
        return rate * g / (tf.sqrt(after) + rule.epsilon)

    return lost


def lion(rule: rules.Lion, rate: Any) -> Equation:
    def lost(g: Any, m: Any) -> Any:
        step = rate * tf.sign(rule.beta_1 * m + (1 - rule.beta_1) * g)
        blended(m, g, rule.beta_2)
        return step

    return lost


def blended(average: Any, value: Any, decay: float) -> Any:
    """Moves a running average towards `value`; returns its new value."""
    after = decay * average + (1 - decay) * value
    average.assign(after)
    return after
