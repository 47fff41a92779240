"""The torch engine: eager micro-batches, gradients in `.grad`, DDP around model and objective on several devices."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unifit.contract import tree
from unifit.contract.module import walk
from unifit.contract.objective import Objective, Scope
from unifit.contract.values import MicroBatch, Plan, Window
from unifit_torch import optimizers, random
from unifit_torch.distribution import Devices
from unifit_torch.module import Module, from_host, to_host, variable

# DDP's flag that keeps buffers from being broadcast before every forward pass; releases differ in its name.
_UNSYNCED_BUFFERS = {
    name: False
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
}
if len(_UNSYNCED_BUFFERS) > 1:
    del _UNSYNCED_BUFFERS["broadcast_buffers"]

# What torch's allocator of host memory, its CUDA calls outside the caching allocator, and cuBLAS say.
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


class Placed(NamedTuple):
    """A window on the device: its live micro-batches."""

    batches: list[MicroBatch]
    step: int


ScopeOf = Callable[[int], Scope]
"""The scope of a window's micro-batch, by its number."""


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
    """What DDP wraps: model and objective together, so that all that the loss uses is inside the reducer.

    The objective's sums are the gradient of a parameter, and ride in DDP's own bucket.
    """

    def __init__(self, model: Module, objective: Objective, params: list[Tensor], device: torch.device):
        super().__init__()
        self.model, self.objective, self.params = model, objective, params
        self.sums = nn.Parameter(torch.zeros(objective.num_sums, device=device))

    def forward(self, batch: MicroBatch | None, scope: Scope | None) -> Tensor:
        if batch is None or scope is None:
            loss, sums = self.sums.new_zeros(()), self.sums.detach()
        else:
            loss, sums = self.objective.train(self.model, batch, scope)
        return Anchor.apply(loss, sums, self.sums, *self.params)


def is_out_of_memory(error: BaseException) -> bool:
    """unifit.contract.engine.IsOutOfMemory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def _keep(x: Tensor) -> None:
    """What stands in for a sum over devices where none must be waited for."""


class Engine:
    """unifit.contract.engine.Engine on PyTorch: one process a device."""

    ENGINE_SUMS = ("updates", "empty", "grad_norm")
    traces = 0
    """Programs traced: none, torch runs eagerly."""

    def __init__(self, model: Module, plan: Plan, devices: Devices):
        devices.in_use = True
        self.model, self.plan, self.devices = model, plan, devices
        self.objective, self.device, self.placement = plan.objective, devices.device, devices.placement
        self._rank, self._world = devices.placement.process, devices.placement.processes
        self._on_cpu = self.device.type == "cpu"
        # Where arrays that layers and losses make from nothing are born. On CPUs that is torch's default, at no cost.
        self._default_device: Any = contextlib.nullcontext() if self._on_cpu else self.device
        self._no_grad = torch.no_grad()
        model.to(self.device)
        variables = {path: variable(owner, name) for path, owner, name in walk(model)}
        # The parameters that decay come first, so that both kinds are slices.
        self._paths = [path for path in variables if path in plan.trainable]
        self._paths.sort(key=lambda path: path not in plan.decays)
        self._params = [variables[path] for path in self._paths]
        self._iterations = torch.zeros((), dtype=torch.int64, device=self.device)
        self._ddp: Any = None
        if plan.optimizer is not None:
            self._prepare_training(variables)

    def _prepare_training(self, variables: dict[str, Tensor]) -> None:
        plan, device = self.plan, self.device
        for path, tensor in variables.items():
            tensor.grad = None
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(path in plan.trainable)
        decayed = sum(path in plan.decays for path in self._paths)
        self._optimizer = optimizers.make(plan.optimizer, self._params, decayed, self._iterations)
        buffers = [tensor for tensor in variables.values() if not isinstance(tensor, nn.Parameter)]
        self._buffers = optimizers.Snapshot(buffers) if buffers else None
        zeros = [0.0] * self.objective.num_sums
        # The engine's own sums after an update and after a skipped one; without clip_norm the norm is 0.
        self._own_sums = torch.tensor([1.0, 0.0] if plan.clip_norm is not None else [1.0, 0.0, 0.0], device=device)
        self._skipped_sums = torch.tensor([*zeros, 0.0, 1.0, 0.0], device=device)
        self._pieces = plan.accumulation * self.placement.devices
        self.set_rates(0, np.zeros(1, np.float32))
        if self._world > 1:
            # The last layers' gradients are ready first: their bucket is on its way while the others are computed.
            self._wrap([tensor for path, tensor in reversed(variables.items()) if path in plan.trainable])

    def _wrap(self, params: list[Tensor]) -> None:
        self._replica = Replica(self.model, self.objective, params, self.device)
        self._ddp = DistributedDataParallel(self._replica, gradient_as_bucket_view=True, **_UNSYNCED_BUFFERS)
        # DDP lays its buckets out anew after the first backward pass. Two passes without a batch settle them before any
        # update, in the order of `params`, so that a resumed run adds in the same order.
        for _ in range(2):
            self._ddp(None, None).backward()

    # The border

    def zeros(self, evaluation: bool) -> Tensor:
        objective = self.objective
        length = objective.num_evaluation_sums if evaluation else objective.num_sums + len(self.ENGINE_SUMS)
        return torch.zeros(length, device=self.device)

    def place(self, window: Window) -> Placed:
        x, y, weight, valid = window.batch
        live = window.live
        absent = (None,) * live
        fields = (
            self._pieces_of(x, live),
            absent if y is None else self._pieces_of(y, live),
            absent if weight is None else self._pieces_of(weight, live),
            absent if window.full else self._pieces_of(valid, live),
        )
        return Placed([MicroBatch(*pieces) for pieces in zip(*fields, strict=True)], window.step)

    def _pieces_of(self, field: Any, live: int) -> Any:
        """The live micro-batches of a tree of host arrays, on the device."""
        if isinstance(field, np.ndarray):
            return self._on_device(field[:live]).unbind(0)
        arrays = tree.map(lambda leaf: self._on_device(leaf[:live]), field)
        return [tree.map(lambda leaf: leaf[i], arrays) for i in range(live)]  # noqa: B023

    def _on_device(self, array: np.ndarray) -> Tensor:
        tensor = from_host(array)
        return tensor if self._on_cpu else tensor.pin_memory().to(self.device, non_blocking=True)

    def train(self, totals: Tensor, placed: Placed) -> Tensor:
        if self._buffers is not None:
            self._buffers.take()
        with self._default_device:
            scope = self._window_scope(placed, self.devices.sum_in_place)
            sums, gradients = self._alone(placed, scope) if self._ddp is None else self._together(placed, scope)
            with self._no_grad:
                return self._update(totals, sums, gradients)

    def probe(self, placed: Placed) -> None:
        # Without a collective: where one process runs out of memory, no other waits for it. DDP's buckets and those of
        # its communication library were allocated when the model was wrapped.
        if self._buffers is not None:
            self._buffers.take()
        on_gpu = [] if self._on_cpu else [self.device]
        if on_gpu:
            torch.cuda.empty_cache()  # what an earlier, greater try left behind in pieces
        try:
            with torch.random.fork_rng(on_gpu), self._default_device:
                scope = self._window_scope(placed, _keep)
                if self._ddp is None:
                    self._alone(placed, scope)
                else:
                    self._accumulate(list(enumerate(placed.batches)), scope)
                if on_gpu:
                    torch.cuda.synchronize(self.device)
        finally:
            self._clear_gradients()
            if self._buffers is not None:
                self._buffers.restore()

    def evaluate(self, totals: Tensor, batch: MicroBatch) -> Tensor:
        with self._no_grad, self._default_device:
            return totals.add_(self.objective.evaluate(self.model, self._rows(batch), self._scope()))

    def predict(self, batch: MicroBatch) -> Any:
        with self._no_grad, self._default_device:
            outputs = self.objective.predict(self.model, self._rows(batch), self._scope())
            return tree.map(lambda leaf: to_host(self._gathered(leaf)), outputs)

    def read(self, totals: Tensor, evaluation: bool) -> np.ndarray:
        totals = totals.double()
        if evaluation and self._world > 1:
            dist.all_reduce(totals)
        return to_host(totals)

    def iterations(self) -> int:
        return int(self._iterations)

    def set_rates(self, start: int, rates: np.ndarray) -> None:
        self._first_rate, self._last_rate = start, len(rates) - 1
        self._rates = torch.tensor(np.asarray(rates, np.float32), device=self.device)
        self._only_rate = self._rates[0] if len(rates) == 1 else None

    def read_slots(self) -> dict[str, np.ndarray]:
        named = {name: to_host(slot) for name, slot in self._named_slots()}
        return named | {"iterations": np.asarray(self.iterations(), np.int64)}

    def write_slots(self, slots: dict[str, np.ndarray]) -> None:
        values = [(slot, slots[name]) for name, slot in self._named_slots()]
        self._iterations.fill_(int(slots["iterations"]))
        for slot, value in values:
            slot.copy_(from_host(np.asarray(value)))

    # One update

    def _alone(self, placed: Placed, scope: ScopeOf) -> tuple[Tensor, list[Tensor]]:
        """Sums and gradients of a window on one device."""
        params, sums = self._params, None
        self._clear_gradients()
        for number, batch in enumerate(placed.batches):
            loss, more = self.objective.train(self.model, batch, scope(number))
            if loss.requires_grad:
                loss.backward()
            sums = more if sums is None else sums + more
        # A parameter that the loss did not use has gradient zero: decay and momentum apply to it.
        return sums, [torch.zeros_like(p) if p.grad is None else p.grad for p in params]

    def _together(self, placed: Placed, scope: ScopeOf) -> tuple[Tensor, list[Tensor]]:
        """The same summed over devices: DDP reduces in the last backward pass, in its buckets."""
        *accumulated, (number, batch) = enumerate(placed.batches)
        self._clear_gradients()
        self._accumulate(accumulated, scope)
        self._ddp(batch, scope(number)).backward()
        # DDP divides by the number of processes.
        gradients = self._ddp_gradients()
        torch._foreach_mul_(gradients, self._world)
        return gradients[0], gradients[1:]

    def _accumulate(self, numbered: list[tuple[int, MicroBatch]], scope: ScopeOf) -> None:
        """Adds to the gradients of this process alone, in the parameters' dtype: DDP's buckets are of no other."""
        with self._ddp.no_sync() if numbered else contextlib.nullcontext():
            for number, batch in numbered:
                self._ddp(batch, scope(number)).backward()

    def _ddp_gradients(self) -> list[Tensor]:
        """The sums and each parameter's gradient, which are views of DDP's buckets for good."""
        return [self._replica.sums.grad, *(p.grad for p in self._params)]

    def _clear_gradients(self) -> None:
        if self._ddp is not None:
            torch._foreach_zero_(self._ddp_gradients())
            return
        for param in self._params:
            param.grad = None

    def _update(self, totals: Tensor, sums: Tensor, gradients: list[Tensor]) -> Tensor:
        plan = self.plan
        factor, applied = self.objective.update(sums)
        rate = self._only_rate
        if rate is None:
            # Picked on the device: skipped updates do not count, and only it knows them.
            rate = self._rates.take((self._iterations - self._first_rate).clamp_(0, self._last_rate))
        parts = [sums, self._own_sums]
        if gradients:
            if plan.clip_norm is not None:
                # The norm of factor * g, where the factor is not negative; one pass multiplies by both.
                norm = factor * torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
                factor = factor * torch.clamp(plan.clip_norm / norm, max=1.0)
                parts.append(norm.reshape(1))
            torch._foreach_mul_(gradients, factor)
            if plan.clip_value is not None:
                torch._foreach_clamp_min_(gradients, -plan.clip_value)
                torch._foreach_clamp_max_(gradients, plan.clip_value)
            self._optimizer.update(gradients, rate, applied)
        elif plan.clip_norm is not None:
            parts.append(torch.zeros(1, device=self.device))
        if self._buffers is not None:
            self._buffers.restore_unless(applied)
        self._iterations += applied
        return totals.add_(torch.where(applied, torch.cat(parts), self._skipped_sums))

    # Helpers

    def _window_scope(self, placed: Placed, sum_in_place: Callable[[Tensor], None]) -> ScopeOf:
        """The scope of each of a window's micro-batches, and its divisors where the objective needs them first."""
        several = self._world > 1
        counts = None
        if self.objective.counts_first:
            scope = self._scope()
            with self._no_grad:
                counts = sum(self.objective.count(self.model, batch, scope) for batch in placed.batches)
                if several:
                    sum_in_place(counts)

        def sum_over_devices(x: Tensor) -> Tensor:
            return SumOverDevices.apply(x, sum_in_place)

        def scope_of(number: int) -> Scope:
            stream = partial(random.stream, self.plan.seed, placed.step, number, self._rank)
            return Scope(stream, sum_over_devices if several else None, self._pieces, counts)

        return scope_of

    def _scope(self) -> Scope:
        """For passes that do not train."""
        return Scope(partial(random.stream, self.plan.seed, 0, 0, self._rank))

    def _rows(self, batch: MicroBatch) -> MicroBatch:
        """A host batch on the device, without the mask where every row is valid."""
        if batch.valid is not None and batch.valid.all():
            batch = batch._replace(valid=None)
        return tree.map(self._on_device, batch)

    def _gathered(self, leaf: Tensor) -> Tensor:
        """The rows of all processes, in order."""
        if self._world == 1:
            return leaf
        # As bytes: gloo does not know every dtype.
        own = leaf.contiguous().reshape(-1).view(torch.uint8)
        parts = [torch.empty_like(own) for _ in range(self._world)]
        dist.all_gather(parts, own)
        return torch.cat(parts).view(leaf.dtype).reshape(-1, *leaf.shape[1:])

    def _named_slots(self) -> list[tuple[str, Tensor]]:
        return [
            (f"{name}.{path}", slot)
            for name, slots in self._optimizer.slots.items()
            for path, slot in zip(self._paths, slots, strict=True)
        ]
