"""The loss scale and the updates that are skipped: one state machine on the device (decision 0006)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from unifit.contract.engine import ScalingState
from unifit.contract.precision import LossScale


class Scaling(NamedTuple):
    """The fields of `ScalingState`; of each trained parameter whether its gradient was not finite in the last skip."""

    scale: Any
    good: Any
    skipped: Any
    in_a_row: Any
    nonfinite: Any


def start(constants: LossScale | None, num_params: int) -> Scaling:
    """The state before the first update, on the host."""
    scale = 1.0 if constants is None else constants.initial
    count = np.zeros((), np.int32)
    return Scaling(np.asarray(scale, np.float32), count, count, count, np.zeros(num_params, np.bool_))


def are_finite(gradients: list[Any]) -> Any:
    """Of each gradient whether all of it is finite: bool vector. Element by element, as a sum of squares overflows."""
    return jnp.stack([jnp.all(jnp.isfinite(g)) for g in gradients]) if gradients else jnp.ones(0, jnp.bool_)


def advance(state: Scaling, are_finite: Any, has_elements: Any, constants: LossScale | None) -> Scaling:
    """The state after an update.

    Args:
        state: The state before it.
        are_finite: Bool vector over the trained parameters.
        has_elements: Whether the window had a valid element; without one the state stays.
        constants: None: the updates are counted, and the scale stays.
    """
    finite, one = jnp.all(are_finite), jnp.ones((), jnp.int32)
    scale, good = state.scale, jnp.where(finite, state.good + one, 0)
    if constants is not None:
        lower = jnp.maximum(scale * constants.backoff_factor, constants.minimum)
        kept = scale
        if constants.growth_interval is not None:
            is_due = good == constants.growth_interval
            kept = jnp.where(is_due, jnp.minimum(scale * constants.growth_factor, constants.maximum), scale)
            good = jnp.where(is_due, 0, good)
        scale = jnp.where(finite, kept, lower)
    after = Scaling(
        scale,
        good,
        jnp.where(finite, state.skipped, state.skipped + one),
        jnp.where(finite, 0, state.in_a_row + one),
        jnp.where(finite, state.nonfinite, ~are_finite),
    )
    return Scaling(*(jnp.where(has_elements, new, old) for new, old in zip(after, state, strict=True)))


def read(state: Scaling) -> ScalingState:
    """The state on the host."""
    scale, *counts = (np.asarray(value) for value in state[:4])
    return ScalingState(float(scale), *map(int, counts))


def to_slots(state: Scaling) -> dict[str, np.ndarray]:
    """The state under the names of `Engine.read_slots`."""
    scale, *counts = read(state)
    named = {"loss_scale.scale": np.asarray(scale, np.float32)}
    for name, count in zip(ScalingState._fields[1:], counts, strict=True):
        named[f"loss_scale.{name}"] = np.asarray(count, np.int64)
    return named


def from_slots(slots: dict[str, np.ndarray], num_params: int) -> Scaling:
    """The inverse of `to_slots`, on the host. Raises KeyError for a missing name."""
    scale, *counts = (slots[f"loss_scale.{name}"] for name in ScalingState._fields)
    good, skipped, in_a_row = (np.asarray(count, np.int32) for count in counts)
    return Scaling(np.asarray(scale, np.float32), good, skipped, in_a_row, np.zeros(num_params, np.bool_))
