"""Clipping of gradients: by global norm, by each parameter's norm, or by value."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from unifit.contract.values import Plan


def clip(gradients: list[Any], plan: Plan) -> tuple[list[Any], Any]:
    """Gradients after the plan's clipping, and their global norm before it (0 where nobody asks for it).

    A norm is brought down to c by the factor min(1, c / norm).
    """
    norm = jnp.zeros(())
    if plan.clip_norm is not None:
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in gradients))
        gradients = [g * jnp.minimum(1.0, plan.clip_norm / norm) for g in gradients]
    if plan.clip_parameter_norm is not None:
        limit = plan.clip_parameter_norm
        gradients = [g * jnp.minimum(1.0, limit / jnp.sqrt(jnp.sum(jnp.square(g)))) for g in gradients]
    if plan.clip_value is not None:
        gradients = [jnp.clip(g, -plan.clip_value, plan.clip_value) for g in gradients]
    return gradients, norm
