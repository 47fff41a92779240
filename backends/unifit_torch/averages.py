"""Running averages of the trained parameters, in float32 on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from unifit.contract.precision import EMA


class Averages:
    """The averages that an EMA describes; they start as copies of the parameters.

    Attributes:
        values: One for each parameter.
        updates: How many updates they have seen: an int64 scalar.
    """

    def __init__(self, ema: EMA, params: list[Tensor], device: torch.device):
        self._ema, self._params = ema, params
        self.values = [param.detach().to(torch.float32, copy=True) for param in params]
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self._decay = torch.tensor(ema.decay, dtype=torch.float32, device=device)

    def advance(self, applied: Tensor | None) -> None:
        """Takes in the parameters as they are after an update, where it was `applied`, a bool scalar (None: it was)."""
        decay = self._decay
        if self._ema.warmup:
            decay = torch.minimum(decay, (1.0 + self.updates) / (10.0 + self.updates))
        if applied is not None:
            decay = torch.where(applied, decay, 1.0)
        weights = [param if param.dtype is torch.float32 else param.float() for param in self._params]
        if weights:
            torch._foreach_mul_(self.values, decay)
            torch._foreach_add_(self.values, torch._foreach_mul(weights, 1.0 - decay))
        self.updates += 1 if applied is None else applied

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside it the parameters hold their averages."""
        own = [param.detach().clone() for param in self._params]
        try:
            self._write(self.values)
            yield
        finally:
            self._write(own)

    def _write(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            if values:
                torch._foreach_copy_(self._params, values)
