"""The running averages of the trained parameters, float32, moved in the program of the update."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from unifit.contract.precision import EMA


class Averages(NamedTuple):
    """One average a trained parameter, and the updates that they have seen."""

    values: list[Any]
    updates: Any


def start(params: list[Any]) -> Averages:
    """Copies of the parameters: what is donated later may not be the parameters' own memory."""
    return Averages([jnp.array(p, jnp.float32, copy=True) for p in params], np.zeros((), np.int32))


def advance(averages: Averages, params: list[Any], ema: EMA) -> Averages:
    """The averages after an update that gave `params`."""
    kept: Any = ema.decay
    taken: Any = 1.0 - ema.decay  # not 1 - float32(decay), which has three digits fewer at 0.999
    if ema.warmup:
        n = averages.updates.astype(jnp.float32)
        kept, taken = jnp.minimum(kept, (1.0 + n) / (10.0 + n)), jnp.maximum(taken, 9.0 / (10.0 + n))
    values = [kept * a + taken * p.astype(jnp.float32) for a, p in zip(averages.values, params, strict=True)]
    return Averages(values, averages.updates + 1)


def to_slots(averages: Averages, paths: list[str]) -> dict[str, np.ndarray]:
    """The averages under the names of `Engine.read_slots`."""
    named = {f"ema.{path}": np.asarray(value) for path, value in zip(paths, averages.values, strict=True)}
    return named | {"ema.updates": np.asarray(averages.updates, np.int64)}


def from_slots(slots: dict[str, np.ndarray], paths: list[str]) -> Averages:
    """The inverse of `to_slots`, on the host. Raises KeyError for a missing name."""
    values = [np.asarray(slots[f"ema.{path}"], np.float32) for path in paths]
    return Averages(values, np.asarray(slots["ema.updates"], np.int32))
