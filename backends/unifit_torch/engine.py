"""The torch engine: eager micro-batches, gradients in `.grad`, DDP around model and objective on several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from unifit.contract import tree
from unifit.contract.engine import ScalingState
from unifit.contract.module import walk
from unifit.contract.objective import Scope
from unifit.contract.values import MicroBatch, Plan, Window
from unifit_torch import optimizers, random
from unifit_torch.averages import Averages
from unifit_torch.clipping import clip
from unifit_torch.distribution import Devices
from unifit_torch.flat_gradients import FlatGradients
from unifit_torch.matmul_precision import MatmulPrecision
from unifit_torch.module import Module, from_host, to_host, variable, window_casts
from unifit_torch.replica import Replica, SumOverDevices, wrap
from unifit_torch.rounding import WorkingCopies
from unifit_torch.scaling import Scaling

# What torch's allocator of host memory, its CUDA calls outside the caching allocator, and cuBLAS say.
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


_ROUNDING = -1
"""Tells the stream that rounds from those of micro-batches and devices."""


class Placed(NamedTuple):
    """A window on the device: its live micro-batches."""

    batches: list[MicroBatch]
    step: int
    full: bool


ScopeOf = Callable[[int], Scope]
"""The scope of a window's micro-batch, by its number."""


def is_out_of_memory(error: BaseException) -> bool:
    """unifit.contract.engine.IsOutOfMemory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def _keep(x: Tensor) -> None:
    """What stands in for a sum over devices where none must be waited for."""


class Engine:
    """unifit.contract.engine.Engine on PyTorch: one process a device."""

    ENGINE_SUMS = ("updates", "empty", "grad_norm", "nonfinite")
    traces = 0
    """Programs traced: none, torch runs eagerly."""

    def __init__(self, model: Module, plan: Plan, devices: Devices):
        devices.in_use = True
        self.model, self.plan, self.devices = model, plan, devices
        self.objective, self.device, self.placement = plan.objective, devices.device, devices.placement
        self._rank, self._world = devices.placement.process, devices.placement.processes
        self._on_cpu = self.device.type == "cpu"
        # Where arrays that layers and losses make from nothing are born. On CPUs that is torch's default, at no cost.
        self._passes: Any = contextlib.nullcontext() if self._on_cpu else self.device
        if plan.matmul_precision is not None:
            self._passes = MatmulPrecision(plan.matmul_precision, self._passes)
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
        self._flat: FlatGradients | None = None
        self._working: WorkingCopies | None = None
        updated = self._params
        if any(param.dtype is not torch.float32 for param in self._params):
            self._flat = FlatGradients(self._params, self.objective.num_sums, device, plan.reduction_dtype)
            self._working = WorkingCopies(self._params)
            updated = self._working.tensors
        self._optimizer = optimizers.make(plan.optimizer, updated, decayed, self._iterations)
        if self._working is not None:
            self._working.release()
        self._scaling: Any = None
        self._scale: Tensor | None = None
        if plan.skip_nonfinite or plan.loss_scale is not None:
            self._scaling = Scaling(plan.loss_scale, self._params, device)
            self._scale = self._scaling.scale
        self._averages: Any = None if plan.ema is None else Averages(plan.ema, self._params, device)
        buffers = [tensor for tensor in variables.values() if not isinstance(tensor, nn.Parameter)]
        self._buffers = optimizers.Snapshot(buffers) if buffers else None
        zeros = [0.0] * self.objective.num_sums
        # The engine's own sums after an update, and all sums after one that was skipped.
        self._own_sums = torch.tensor([1.0, 0.0, 0.0, 0.0], device=device)
        self._empty_sums = torch.tensor([*zeros, 0.0, 1.0, 0.0, 0.0], device=device)
        self._nonfinite_sums = torch.tensor([*zeros, 0.0, 0.0, 0.0, 1.0], device=device)
        self._pieces = plan.accumulation * self.placement.devices
        self._seeds: dict[float, Tensor] = {}
        self._true = torch.ones((), dtype=torch.bool, device=device)
        self.set_rates(0, np.zeros(1, np.float32))
        if self._world > 1 and self._flat is None:
            # The last layers' gradients are ready first: their bucket is on its way while the others are computed.
            params = [tensor for path, tensor in reversed(variables.items()) if path in plan.trainable]
            self._replica = Replica(self.model, self.objective, params, device)
            self._ddp, self._left = wrap(self._replica, plan.reduction_dtype)

    # The border

    def zeros(self, evaluation: bool) -> Tensor:
        objective = self.objective
        length = objective.num_evaluation_sums if evaluation else objective.num_sums + len(self.ENGINE_SUMS)
        return torch.zeros(length, device=self.device)

    def totals_of(self, sums: np.ndarray) -> Tensor:
        return torch.tensor(np.asarray(sums, np.float32), device=self.device)

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
        return Placed([MicroBatch(*pieces) for pieces in zip(*fields, strict=True)], window.step, window.full)

    def _pieces_of(self, field: Any, live: int) -> Any:
        """The live micro-batches of a tree of host arrays, on the device."""
        if isinstance(field, np.ndarray):
            return (self._on_device(field[0]),) if live == 1 else self._on_device(field[:live]).unbind(0)
        arrays = tree.map(lambda leaf: self._on_device(leaf[:live]), field)
        return [tree.map(lambda leaf: leaf[i], arrays) for i in range(live)]  # noqa: B023

    def _on_device(self, array: np.ndarray) -> Tensor:
        tensor = from_host(array)
        return tensor if self._on_cpu else tensor.pin_memory().to(self.device, non_blocking=True)

    def train(self, totals: Tensor, placed: Placed) -> Tensor:
        factor = None
        if placed.full:
            factor = self.objective.known_factor(placed.batches[0], len(placed.batches), self.plan.accumulation)
        certain = factor is not None and self._scaling is None  # that the update will be applied
        if self._buffers is not None and not certain:
            self._buffers.take()
        with self._passes:
            scope = self._window_scope(placed, self.devices.sum_in_place)
            window_casts.kept = {}
            try:
                sums, gradients = self._alone(placed, scope) if self._ddp is None else self._together(placed, scope)
            finally:
                window_casts.kept = None
            with self._no_grad:
                if self._flat is not None and self._world > 1:
                    sums = self._flat.reduce(sums)
                return self._update(totals, sums, gradients, placed.step, factor)

    def probe(self, placed: Placed) -> None:
        # Without a collective: where one process runs out of memory, no other waits for it. DDP's buckets and those of
        # its communication library were allocated when the model was wrapped.
        if self._buffers is not None:
            self._buffers.take()
        on_gpu = [] if self._on_cpu else [self.device]
        if on_gpu:
            torch.cuda.empty_cache()  # what an earlier, greater try left behind in pieces
        try:
            with torch.random.fork_rng(on_gpu), self._passes:
                scope = self._window_scope(placed, _keep)
                window_casts.kept = {}
                if self._ddp is None:
                    self._alone(placed, scope)
                else:
                    self._accumulate(list(enumerate(placed.batches)), scope)
                if on_gpu:
                    torch.cuda.synchronize(self.device)
        finally:
            window_casts.kept = None
            self._clear_gradients()
            if self._buffers is not None:
                self._buffers.restore()

    def evaluate(self, totals: Tensor, batch: MicroBatch) -> Tensor:
        with self._no_grad, self._passes:
            return totals.add_(self.objective.evaluate(self.model, self._rows(batch), self._scope()))

    def predict(self, batch: MicroBatch) -> Any:
        with self._no_grad, self._passes:
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
        named |= {name: to_host(slot) for name, slot in self._optimizer.read_native(self._paths).items()}
        return named | {"iterations": np.asarray(self.iterations(), np.int64)}

    def write_slots(self, slots: dict[str, np.ndarray]) -> None:
        values = [(slot, slots[name]) for name, slot in self._named_slots()]
        self._iterations.fill_(int(slots["iterations"]))
        for slot, value in values:
            slot.copy_(from_host(np.asarray(value)))
        native = {name: from_host(np.array(value)) for name, value in slots.items() if name.startswith("native.")}
        self._optimizer.write_native(self._paths, native)

    def scaling(self) -> ScalingState:
        return self._scaling.state()

    def nonfinite(self) -> list[str]:
        return self._scaling.nonfinite(self._paths)

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        return self._averages.in_place()

    # One update

    def _alone(self, placed: Placed, scope: ScopeOf) -> tuple[Tensor, list[Tensor]]:
        """Sums and gradients of a window on this device alone."""
        params, sums = self._params, None
        self._clear_gradients()
        for number, batch in enumerate(placed.batches):
            loss, seed, more = self.objective.train(self.model, batch, scope(number))
            if loss.requires_grad:
                loss.backward(self._start(seed))
            if self._flat is not None:
                self._flat.take()
            sums = more if sums is None else sums + more
        if self._flat is not None:
            return sums, self._flat.gradients
        # A parameter that the loss did not use has gradient zero: decay and momentum apply to it.
        return sums, [torch.zeros_like(p) if p.grad is None else p.grad for p in params]

    def _together(self, placed: Placed, scope: ScopeOf) -> tuple[Tensor, list[Tensor]]:
        """The same summed over devices: DDP reduces in the last backward pass, in its buckets."""
        *accumulated, (number, batch) = enumerate(placed.batches)
        self._clear_gradients()
        self._accumulate(accumulated, scope)
        loss = self._ddp(batch, scope(number))
        loss.backward(self._start(self._replica.seed))
        gradients = self._ddp_gradients()
        if self._left != 1:
            torch._foreach_mul_(gradients, self._left)
        return gradients[0], gradients[1:]

    def _accumulate(self, numbered: list[tuple[int, MicroBatch]], scope: ScopeOf) -> None:
        """Adds to the gradients of this process alone."""
        with self._ddp.no_sync() if numbered else contextlib.nullcontext():
            for number, batch in numbered:
                loss = self._ddp(batch, scope(number))
                loss.backward(self._start(self._replica.seed))

    def _start(self, seed: float) -> Tensor:
        """Where a backward pass starts."""
        start = self._seeds.get(seed)
        if start is None:
            start = self._seeds[seed] = torch.full((), seed, dtype=torch.float32, device=self.device)
        return start if self._scale is None else start * self._scale

    def _ddp_gradients(self) -> list[Tensor]:
        """The sums and each parameter's gradient, which are views of DDP's buckets for good."""
        return [self._replica.sums.grad, *(p.grad for p in self._params)]

    def _clear_gradients(self) -> None:
        if self._ddp is not None:
            torch._foreach_zero_(self._ddp_gradients())
            return
        if self._flat is not None:
            self._flat.clear()
        for param in self._params:
            param.grad = None

    def _update(self, totals: Tensor, sums: Tensor, gradients: list[Tensor], step: int, factor: Any = None) -> Tensor:
        """Changes parameters and slots; returns the new totals. With a `factor`, only a gradient can skip it."""
        applied = None
        if factor is None:
            factor, applied = self.objective.update(sums)
        skipped_sums = self._empty_sums
        if self._scaling is not None:
            applied = self._true if applied is None else applied
            if self._scale is not None:
                factor = factor / self._scale
            finite, nonfinite = self._scaling.finite(gradients)
            self._scaling.advance(applied, finite, nonfinite)
            skipped_sums = torch.where(applied, self._nonfinite_sums, skipped_sums)
            applied = applied.logical_and(finite)
        own_sums = self._own_sums
        if gradients:
            norm = clip(gradients, factor, self.plan)
            if norm is not None:
                own_sums = torch.cat([own_sums[:2], norm.reshape(1), own_sums[3:]])
            rate = self._only_rate
            if rate is None:
                # Picked on the device: skipped updates do not count, and only it knows them.
                rate = self._rates.take((self._iterations - self._first_rate).clamp_(0, self._last_rate))
            if self._working is not None:
                self._working.take()
            self._optimizer.update(gradients, rate, applied)
            if self._working is not None:
                # Not keyed by the device: every one rounds alike.
                self._working.put(random.stream(self.plan.seed, step, _ROUNDING))
        if self._buffers is not None and applied is not None:
            self._buffers.restore_unless(applied)
        if self._averages is not None:
            self._averages.advance(applied)
        self._iterations += 1 if applied is None else applied
        added = torch.cat([sums, own_sums])
        return totals.add_(added if applied is None else torch.where(applied, added, skipped_sums))

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
        named = {f"{name}.": slots for name, slots in self._optimizer.slots.items()}
        alone: dict[str, Tensor] = {}
        if self._scaling is not None:
            alone |= self._scaling.slots
        if self._averages is not None:
            named["ema."] = self._averages.values
            alone["ema.updates"] = self._averages.updates
        of_params = [
            (prefix + path, slot)
            for prefix, slots in named.items()
            for path, slot in zip(self._paths, slots, strict=True)
        ]
        return [*of_params, *alone.items()]
