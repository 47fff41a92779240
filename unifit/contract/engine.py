"""The engine: places rows, runs updates, evaluates and predicts on the devices of one distribution."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from unifit.contract.job import Store
from unifit.contract.module import Module
from unifit.contract.tree import Tree
from unifit.contract.values import MicroBatch, Placement, Plan, Window


class Devices(Protocol):
    """A backend's answer to an intent (`unifit.distribution`).

    `distribution.prepare(intent, job)` makes it, before any data is read. On its first call in a job of several
    processes the process joins the others: it waits for them for a bounded time (`START_TIMEOUT_S` of
    `unifit.contract.job`), and then raises a StartError that says who is missing, as far as the framework knows.

    Attributes:
        placement: Which rows this process loads. `devices` counts those of all processes.
        store: What the job's processes talk through; None when there is one process.
    """

    placement: Placement
    store: Store | None

    def scope(self) -> AbstractContextManager[Any]:
        """Variables of a model are made inside it (tensorflow: the strategy's scope)."""
        ...


class ScalingState(NamedTuple):
    """The state of a LossScale: the scale of the next update, finite updates since it last changed, and skipped updates
    altogether and in a row.
    """

    scale: float
    good: int
    skipped: int
    in_a_row: int


class Engine(Protocol):
    """`Engine(model, plan, devices)` adopts the model's variables under the distribution.

    Totals are a float32 vector on the device that lives on this side of the border: `Objective.num_sums` sums followed
    by `ENGINE_SUMS`. `train` and `evaluate` take it and return the next one; the old one is dead then (its memory may
    be reused).
    """

    ENGINE_SUMS: tuple[str, ...] = ("updates", "empty", "grad_norm", "nonfinite")
    """Updates applied; windows without a valid element; sum of gradient norms before clipping (0 without clip_norm);
    updates skipped because a gradient was not finite (0 without skip_nonfinite)."""

    devices: Devices
    """What it was made with."""

    def __init__(self, model: Module, plan: Plan, devices: Devices) -> None: ...

    def zeros(self, evaluation: bool) -> Any:
        """Fresh totals: for `train`, or for `evaluate` (without the engine's own sums)."""
        ...

    def totals_of(self, sums: np.ndarray) -> Any:
        """Totals for `train` that hold these sums, float32: the inverse of `read`."""
        ...

    def place(self, window: Window) -> Any:
        """A window on its way to the devices; may run in another thread, ahead of `train`."""
        ...

    def train(self, totals: Any, placed: Any) -> Any:
        """One update. Returns at once where the framework runs asynchronously; reads nothing back."""
        ...

    def probe(self, placed: Any) -> None:
        """The forward and backward passes of `train` on a window, to see whether they fit in memory.

        Waits until they are done. Nothing is assigned or donated: parameters, buffers, slots and iterations stay. It
        uses no collective between processes, one of which may run out of memory where the others do not: what layers
        sum over devices are sums over this process' devices, or one device's share.

        Raises:
            Exception: The framework's own when memory runs out; `is_out_of_memory` knows it.
        """
        ...

    def evaluate(self, totals: Any, batch: MicroBatch) -> Any:
        """Adds one host batch (leaves: rows of this process) in evaluation mode. No collective between processes."""
        ...

    def predict(self, batch: MicroBatch) -> Tree:
        """The model's output for the rows of the global batch, padding included, in order.

        Host arrays, the same on every process.
        """
        ...

    def read(self, totals: Any, evaluation: bool) -> np.ndarray:
        """Totals on the host, float64. With `evaluation` they are summed over processes (a collective) first."""
        ...

    def iterations(self) -> int:
        """Updates applied so far. A host read."""
        ...

    def set_rates(self, start: int, rates: np.ndarray) -> None:
        """The learning rates of updates start, start + 1, ...: float32. `train` picks its rate on the device."""
        ...

    def read_slots(self) -> dict[str, np.ndarray]:
        """Optimizer slots on the host under canonical names, `m.blocks.0.kernel`, with "iterations" (int64 scalar).

        With `Plan.skip_nonfinite` also "loss_scale.scale" (float32; 1 without a loss scale) and the int64 scalars
        "loss_scale.good", "loss_scale.skipped" and "loss_scale.in_a_row"; with `Plan.ema` "ema.<path>" (float32) of
        each trained parameter and "ema.updates" (int64). Slots of a framework's own optimizer begin with "native.", and
        may come to be with the first update only.
        """
        ...

    def write_slots(self, slots: dict[str, np.ndarray]) -> None:
        """The inverse of `read_slots`. Raises KeyError for a missing slot."""
        ...

    def scaling(self) -> ScalingState:
        """The loss scale's state. A host read. Only with `Plan.skip_nonfinite`."""
        ...

    def nonfinite(self) -> list[str]:
        """Paths of the parameters whose gradients were not finite in the last skipped update. A host read."""
        ...

    def averaged(self) -> AbstractContextManager[Any]:
        """Inside it the model's trained variables hold their running averages; afterwards their own values again.

        Only with `Plan.ema`. Nothing trains inside.
        """
        ...


class IsOutOfMemory(Protocol):
    """`engine.is_out_of_memory`, a function of each backend's engine module."""

    def __call__(self, error: BaseException) -> bool:
        """Whether the framework raised this because a device's memory (or the host's) ran out."""
        ...
