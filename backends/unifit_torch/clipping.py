"""Clipping of gradients: by global norm, by each parameter's norm, or by value."""

from __future__ import annotations

import torch
from torch import Tensor

from unifit.contract.values import Plan


def clip(gradients: list[Tensor], factor: Tensor | float, plan: Plan) -> Tensor | None:
    """Multiplies gradients by `factor`, which is not negative, and clips them as the plan says: in place.

    A norm is brought down to c by the factor min(1, c / norm). Returns the global norm before clipping where the plan
    clips by it.
    """
    norm = None
    if plan.clip_norm is not None:
        # The norm of factor * g; one pass multiplies by both.
        norm = factor * torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        factor = factor * torch.clamp(plan.clip_norm / norm, max=1.0)
    if plan.clip_parameter_norm is None:
        if isinstance(factor, Tensor) or factor != 1.0:
            torch._foreach_mul_(gradients, factor)
    else:
        norms = factor * torch.stack(torch._foreach_norm(gradients))
        factors = factor * torch.clamp(plan.clip_parameter_norm / norms, max=1.0)
        torch._foreach_mul_(gradients, factors.unbind())
    if plan.clip_value is not None:
        torch._foreach_clamp_min_(gradients, -plan.clip_value)
        torch._foreach_clamp_max_(gradients, plan.clip_value)
    return norm
