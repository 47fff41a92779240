"""Update rules on JAX: optax's transformations where they obey docs/reference/optimizers.md, else the rule itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from unifit.contract import optimizers as rules
from unifit.errors import UnsupportedError


class Adagrad(NamedTuple):
    """Slot of Adagrad."""

    square_sum: Any


def scale_by_adagrad(initial: float, epsilon: float) -> optax.GradientTransformation:
    """g / (sqrt(sum g^2) + epsilon): epsilon outside the root, unlike optax.scale_by_rss."""

    def init(params: Any) -> Adagrad:
        return Adagrad(jax.tree.map(lambda p: jnp.full_like(p, initial), params))

    def update(gradients: Any, slots: Adagrad, params: Any = None) -> tuple[Any, Adagrad]:
        squares = jax.tree.map(lambda s, g: s + g * g, slots.square_sum, gradients)
        return jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + epsilon), gradients, squares), Adagrad(squares)

    return optax.GradientTransformation(init, update)


class Adam(NamedTuple):
    """Slots of Adam, and the number of updates."""

    m: Any
    v: Any
    count: Any


def scale_by_adam(rule: rules.Adam) -> optax.GradientTransformation:
    """Adam's step over the rate, with bias corrections that are exact in float32.

    optax.scale_by_adam takes 1 - beta^t as it stands: at t = 1 and beta = 0.999 that keeps three digits fewer.
    """

    def init(params: Any) -> Adam:
        return Adam(
            jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32)
        )

    def update(gradients: Any, slots: Adam, params: Any = None) -> tuple[Any, Adam]:
        m = jax.tree.map(lambda m, g: rule.beta_1 * m + (1 - rule.beta_1) * g, slots.m, gradients)
        v = jax.tree.map(lambda v, g: rule.beta_2 * v + (1 - rule.beta_2) * jnp.square(g), slots.v, gradients)
        t = (slots.count + 1).astype(jnp.float32)
        first, second = bias_correction(rule.beta_1, t), bias_correction(rule.beta_2, t)
        steps = jax.tree.map(lambda m, v: (m / first) / (jnp.sqrt(v / second) + rule.epsilon), m, v)
        return steps, Adam(m, v, slots.count + 1)

    return optax.GradientTransformation(init, update)


def bias_correction(beta: float, t: Any) -> Any:
    """1 - beta^t, float32, without the cancellation."""
    return -jnp.expm1(t * math.log(beta)) if beta else jnp.ones(())


class RMSprop(NamedTuple):
    """Slots of RMSprop; the last two are None where the rule does not use them."""

    square_average: Any
    gradient_average: Any
    velocity: Any


def scale_by_rmsprop(rule: rules.RMSprop) -> optax.GradientTransformation:
    """torch.optim.RMSprop's step over the rate: epsilon outside the root, the rate outside the momentum."""

    def init(params: Any) -> RMSprop:
        zeros = lambda wanted: jax.tree.map(jnp.zeros_like, params) if wanted else None  # noqa: E731
        return RMSprop(zeros(True), zeros(rule.centered), zeros(rule.momentum))

    def update(gradients: Any, slots: RMSprop, params: Any = None) -> tuple[Any, RMSprop]:
        blend = lambda old, new: jax.tree.map(lambda a, b: rule.rho * a + (1 - rule.rho) * b, old, new)  # noqa: E731
        square = blend(slots.square_average, jax.tree.map(jnp.square, gradients))
        average = blend(slots.gradient_average, gradients) if rule.centered else None
        # The difference is a variance; rounding can make it negative.
        variance = lambda s, a: jnp.maximum(s - a * a, 0.0)  # noqa: E731
        spread = jax.tree.map(variance, square, average) if rule.centered else square
        steps = jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + rule.epsilon), gradients, spread)
        velocity = jax.tree.map(lambda m, u: rule.momentum * m + u, slots.velocity, steps) if rule.momentum else None
        return velocity if rule.momentum else steps, RMSprop(square, average, velocity)

    return optax.GradientTransformation(init, update)


def direction(rule: Any) -> optax.GradientTransformation:
    """The rule without rate and decay: gradients -> the step that is multiplied by the rate and subtracted."""
    match rule:
        case rules.SGD():
            return optax.trace(rule.momentum, rule.nesterov) if rule.momentum else optax.identity()
        case rules.Adam() | rules.AdamW():
            return scale_by_adam(rule)
        case rules.RMSprop():
            return scale_by_rmsprop(rule)
        case rules.Adagrad():
            return scale_by_adagrad(rule.initial_accumulator_value, rule.epsilon)
        case rules.Lion():
            return optax.scale_by_lion(rule.beta_1, rule.beta_2)
    raise UnsupportedError(f"unifit on jax has no update rule for {type(rule).__name__}.")


class Optimizer(NamedTuple):
    """Pure functions over lists of arrays: `init(params)` and `update(gradients, slots, params, rate)`."""

    init: Callable[[list[Any]], Any]
    update: Callable[[list[Any], Any, list[Any], Any], tuple[list[Any], Any]]


def make(rule: Any, decayed: list[bool]) -> Optimizer:
    """The rule with decoupled decay, `p -= rate * decay * p` where `decayed`, and the rate as an argument."""
    if isinstance(rule, rules.Native):
        return native(rule.optimizer)
    transformation = direction(rule)

    def update(gradients: list[Any], slots: Any, params: list[Any], rate: Any) -> tuple[list[Any], Any]:
        steps, slots = transformation.update(gradients, slots, params)
        decay = [rule.weight_decay if chosen else 0.0 for chosen in decayed]
        return [
            p - rate * (u + d * p) if d else p - rate * u for p, u, d in zip(params, steps, decay, strict=True)
        ], slots

    return Optimizer(transformation.init, update)


def native(transformation: Any) -> Optimizer:
    """An optax transformation as it is: its updates are added, its rate is its own."""
    if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
        raise UnsupportedError(
            f"optimizer is {transformation!r}; on jax a native optimizer is an optax transformation, such as "
            "optax.adam(1e-3)."
        )

    def update(gradients: list[Any], slots: Any, params: list[Any], rate: Any) -> tuple[list[Any], Any]:
        updates, slots = transformation.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots

    return Optimizer(transformation.init, update)
