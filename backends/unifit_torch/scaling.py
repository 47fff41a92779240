"""The loss scale and the skipped updates: the state machine of unifit.contract.precision.LossScale on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unifit.contract.engine import ScalingState
from unifit.contract.precision import LossScale

_NO_SCALE = LossScale(1.0, 1.0, 1.0, None, minimum=1.0, maximum=1.0)


class Scaling:
    """Scale, counts, and whose gradients were not finite in the last skipped update. Nothing here reads a device value.

    Args:
        constants: Those of the scale; None where the loss is not scaled.
        params: The trained parameters.
        device: Where the state lives.

    Attributes:
        scale: What the loss is to be multiplied by; None for nothing.
        slots: The state by its name in checkpoints.
    """

    def __init__(self, constants: LossScale | None, params: list[Tensor], device: torch.device):
        self._constants = constants or _NO_SCALE
        self._scale = torch.tensor(self._constants.initial, dtype=torch.float32, device=device)
        self._good, self._skipped, self._in_a_row = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)
        )
        self.scale = None if constants is None else self._scale
        self.slots = {
            "loss_scale.scale": self._scale,
            "loss_scale.good": self._good,
            "loss_scale.skipped": self._skipped,
            "loss_scale.in_a_row": self._in_a_row,
        }
        # What has no element has no greatest one.
        self._filled = [i for i, param in enumerate(params) if param.numel()]
        self._nonfinite = torch.zeros(len(self._filled), dtype=torch.bool, device=device)

    def finite(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Whether all elements of all gradients are finite, and for which gradients they are not."""
        if not self._filled:
            return torch.ones((), dtype=torch.bool, device=self._scale.device), self._nonfinite
        # The greatest magnitudes: they are NaN or infinite where an element is. A sum of squares overflows before.
        greatest = torch.stack(torch._foreach_norm([gradients[i] for i in self._filled], math.inf))
        nonfinite = torch.isfinite(greatest).logical_not_()
        return nonfinite.any().logical_not_(), nonfinite

    def advance(self, valid: Tensor, finite: Tensor, nonfinite: Tensor) -> None:
        """Counts an update; one without a valid element changes nothing."""
        constants = self._constants
        skip = valid.logical_and(finite.logical_not())
        torch.where(skip, nonfinite, self._nonfinite, out=self._nonfinite)
        self._skipped += skip
        torch.where(valid, torch.where(finite, 0, self._in_a_row + 1), self._in_a_row, out=self._in_a_row)
        good, scale = torch.where(finite, self._good + 1, 0), self._scale
        if constants.growth_interval is not None:
            grows = good == constants.growth_interval
            good = torch.where(grows, 0, good)
            scale = torch.where(grows, (scale * constants.growth_factor).clamp_max_(constants.maximum), scale)
        reduced = (self._scale * constants.backoff_factor).clamp_min_(constants.minimum)
        torch.where(valid, good, self._good, out=self._good)
        torch.where(valid, torch.where(finite, scale, reduced), self._scale, out=self._scale)

    def state(self) -> ScalingState:
        """The state on the host."""
        return ScalingState(float(self._scale), int(self._good), int(self._skipped), int(self._in_a_row))

    def nonfinite(self, paths: list[str]) -> list[str]:
        """Those of the parameters' paths whose gradients were not finite in the last skipped update."""
        return [paths[i] for i, bad in zip(self._filled, self._nonfinite.tolist(), strict=True) if bad]
