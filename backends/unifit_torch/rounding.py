"""Updates of bfloat16 parameters: computed in float32, and rounded at random, so that small ones are not lost."""

from __future__ import annotations

import torch
from torch import Tensor

from unifit_torch import random

_DROPPED_BITS = 16
_KEPT_BITS = -(1 << _DROPPED_BITS)  # as int32: ones where bfloat16 has its bits


def round_at_random(values: Tensor, stream: random.Stream) -> Tensor:
    """float32 values in bfloat16, rounded up or down with the probability that makes them right on average.

    A random number below 2^16 is added to a float's bits, and the last 16 of them are cut off: what lies at a share s
    of the way to the next bfloat16 is carried there with probability s. A value that bfloat16 has stays as it is.

    Reference: Gupta et al., 2015, "Deep Learning with Limited Numerical Precision", section 3.
    """
    bits = values.view(torch.int32)
    noise = torch.empty_like(bits).random_(0, 1 << _DROPPED_BITS, generator=stream.on(values.device))
    rounded = noise.add_(bits).bitwise_and_(_KEPT_BITS).view(torch.float32)
    # The bits of a NaN may be such that a carry makes a number of it.
    return torch.where(torch.isfinite(values), rounded, values).to(torch.bfloat16)


class WorkingCopies:
    """What an update changes in place of its parameters: float32 copies of those in bfloat16, the others themselves.

    The copies have memory only between `take` and `put`.

    Attributes:
        tensors: One for each parameter.
    """

    def __init__(self, params: list[Tensor]):
        self.tensors = [p if p.dtype is torch.float32 else p.detach().float() for p in params]
        self._copied = [(p, copy) for p, copy in zip(params, self.tensors, strict=True) if p is not copy]

    def take(self) -> None:
        """Copies the parameters as they are."""
        for param, copy in self._copied:
            copy.untyped_storage().resize_(copy.numel() * copy.element_size())
            copy.copy_(param)

    def put(self, stream: random.Stream) -> None:
        """Rounds the copies into the parameters. One that was not changed gives the value that was taken."""
        for param, copy in self._copied:
            param.copy_(round_at_random(copy, stream))
        self.release()

    def release(self) -> None:
        """Gives the copies' memory back."""
        for _, copy in self._copied:
            copy.untyped_storage().resize_(0)
