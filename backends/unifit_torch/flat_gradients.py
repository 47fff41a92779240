"""Gradients of bfloat16 parameters: summed in float32, over micro-batches and over devices, in one buffer.

`.grad` has its parameter's dtype, and so have DDP's buckets: sums in them would lose what is small.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class FlatGradients:
    """The float32 sums of the gradients of `params`, and behind them the objective's sums.

    Attributes:
        gradients: A view for each parameter.
    """

    def __init__(self, params: list[Tensor], num_sums: int, device: torch.device, reduction_dtype: str):
        self._params, self._num_sums = params, num_sums
        self._reduction_dtype = getattr(torch, reduction_dtype)
        sizes = [param.numel() for param in params]
        self._buffer = torch.zeros(sum(sizes) + num_sums, device=device)
        *parts, self._sums = self._buffer.split([*sizes, num_sums])
        # In the parameters' own layout: fused kernels walk through both at once.
        self.gradients = [part.as_strided(p.size(), p.stride()) for part, p in zip(parts, params, strict=True)]

    def clear(self) -> None:
        """Starts from zero."""
        self._buffer.zero_()

    def take(self) -> None:
        """Adds what a backward pass left in `.grad`, and clears it."""
        used = [i for i, param in enumerate(self._params) if param.grad is not None]
        torch._foreach_add_([self.gradients[i] for i in used], [self._params[i].grad for i in used])
        for param in self._params:
            param.grad = None

    def reduce(self, sums: Tensor) -> Tensor:
        """Sums over all processes, in place; returns the objective's."""
        self._sums.copy_(sums)
        if self._reduction_dtype is torch.float32:
            dist.all_reduce(self._buffer)
        else:
            gradients = self._buffer[: self._buffer.numel() - self._num_sums]
            short = gradients.to(self._reduction_dtype)
            dist.all_reduce(short)
            gradients.copy_(short)
            dist.all_reduce(self._sums)
        return self._sums.clone()
