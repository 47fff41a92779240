"""What DDP wraps on several devices: model and objective together, the objective's sums among the gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unifit.contract.objective import Objective, Scope
from unifit.contract.values import MicroBatch
from unifit_torch.module import Module

# DDP's flag that keeps buffers from being broadcast before every forward pass; releases differ in its name.
_UNSYNCED_BUFFERS = {
    name: False
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
}
if len(_UNSYNCED_BUFFERS) > 1:
    del _UNSYNCED_BUFFERS["broadcast_buffers"]


class SumOverDevices(torch.autograd.Function):
    """The sum of a tensor over all processes by `reduce`, which changes a tensor in place.

    Every process' loss depends on it, so gradients are summed as well.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, reduce: Callable[[Tensor], None]) -> Tensor:
        ctx.reduce = reduce
        total = x.clone(memory_format=torch.contiguous_format)
        reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = gradient.clone(memory_format=torch.contiguous_format)
        ctx.reduce(total)
        return total, None


class Anchor(torch.autograd.Function):
    """The loss, made to depend on every trainable parameter and on `sums_parameter`, whose gradient is `sums`.

    A parameter that the loss did not use gets no gradient through it, but DDP's reducer hears of it and fills in zeros.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, sums: Tensor, sums_parameter: Tensor, *params: Tensor) -> Tensor:
        ctx.save_for_backward(sums)
        ctx.nothing = (None,) * len(params)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None, ctx.saved_tensors[0], *ctx.nothing


class Replica(nn.Module):
    """Model and objective together, so that all that the loss uses is inside DDP's reducer.

    The objective's sums are the gradient of a parameter, and ride in DDP's own bucket.
    """

    def __init__(self, model: Module, objective: Objective, params: list[Tensor], device: torch.device):
        super().__init__()
        self.model, self.objective, self.params = model, objective, params
        self.seed = 1.0
        """Where the backward pass of the last forward pass starts."""
        self.sums = nn.Parameter(torch.zeros(objective.num_sums, device=device))

    def forward(self, batch: MicroBatch | None, scope: Scope | None) -> Tensor:
        if batch is None or scope is None:
            loss, sums = self.sums.new_zeros(()), self.sums.detach()
        else:
            loss, self.seed, sums = self.objective.train(self.model, batch, scope)
        return Anchor.apply(loss, sums, self.sums, *self.params)


def wrap(replica: Replica, reduction_dtype: str) -> tuple[DistributedDataParallel, int]:
    """The replica under DDP, and by what its reduced gradients are still to be multiplied, to be sums."""
    ddp = DistributedDataParallel(replica, gradient_as_bucket_view=True, **_UNSYNCED_BUFFERS)
    left = dist.get_world_size()  # DDP divides by it
    if reduction_dtype != "float32":
        ddp.register_comm_hook(None, _travelling_as(getattr(torch, reduction_dtype), replica.sums))
        left = 1
    # DDP lays its buckets out anew after the first backward pass. Two passes without a batch settle them before any
    # update, in the order of the parameters, so that a resumed run adds in the same order.
    for _ in range(2):
        ddp(None, None).backward()
    return ddp, left


def _travelling_as(dtype: torch.dtype, sums: nn.Parameter) -> Any:
    """A hook of DDP that sums buckets in a shorter dtype, but not the gradient of `sums`, which torch's own would."""

    # Without annotations: torch compares them with its classes, and they are text here.
    def reduce(state, bucket):
        buffer = bucket.buffer()
        short = buffer.to(dtype)
        apart = [gradient for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True) if p is sums]
        exact = [gradient.clone() for gradient in apart]
        for part in exact:
            dist.all_reduce(part)

        def widened(future: Any) -> Tensor:
            buffer.copy_(future.value()[0])
            for gradient, part in zip(apart, exact, strict=True):
                gradient.copy_(part)
            return buffer

        return dist.all_reduce(short, async_op=True).get_future().then(widened)

    return reduce
