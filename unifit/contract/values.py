"""The values that cross the border: batches, windows, placements, plans. Frozen, and free of any framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from unifit.contract.objective import Objective
from unifit.contract.optimizers import OptimizerRule
from unifit.contract.precision import EMA, LossScale
from unifit.contract.tree import Tree


class ArraySpec(NamedTuple):
    """Shape and dtype of an array that does not exist yet."""

    shape: tuple[int, ...]
    dtype: str


class MicroBatch(NamedTuple):
    """The rows of one forward pass. Leaves have rows on axis 0.

    `sample_weight` is None, an array, or a tree with one entry for each loss term (see `Objective`).
    `valid` has shape (rows,), dtype bool: False for padding rows. None says that every row is valid: an engine that
    runs eagerly may pass None for a full batch so that layers and losses can take their kernels without a mask.
    """

    x: Tree
    y: Tree
    sample_weight: Tree
    valid: Any


class Window(NamedTuple):
    """The host rows of one update: NumPy leaves of shape (accumulation, rows of this process, ...).

    On the row axis each of the process' devices has an equal run, in order.

    Attributes:
        batch: This process' rows. Micro-batches at and after `live` are padding throughout.
        live: Number of micro-batches that have a valid row on some process; the same on every process; at least 1.
        full: Whether the live micro-batches have no padding row on any process.
        step: Windows before this one since training began: keys the random streams.
    """

    batch: MicroBatch
    live: int
    full: bool
    step: int


class Placement(NamedTuple):
    """Which rows of a global batch a process loads.

    The batch is padded to a multiple of `devices`; each device takes an equal run of rows, in order; process p loads
    the rows of devices [p * devices / processes, (p + 1) * devices / processes).
    """

    process: int
    processes: int
    devices: int


@dataclass(frozen=True)
class Plan:
    """All that an engine needs besides the model. Values only; complete when made.

    Attributes:
        objective: The unit that the engine wraps, differentiates and compiles.
        trainable: Paths of the parameters that are trained; the others are left alone.
        optimizer: The update rule; None for an engine that only evaluates and predicts.
        decays: Trainable parameters' paths to which weight decay applies.
        accumulation: Micro-batches in a window: the leading axis of `Window.batch`'s leaves. A batch may be cut into
            several (`microbatch_size`), and a window is made of several batches (`gradient_accumulation_steps`).
        clip_norm: Clip gradients to this global norm; None for no clipping.
        clip_value: Clip gradient entries to [-clip_value, clip_value]; None for no clipping.
        clip_parameter_norm: Clip each parameter's gradient to this norm; None for no clipping.
        skip_nonfinite: Whether an update with a gradient that is not finite is skipped.
        loss_scale: The constants of the loss scale, with `skip_nonfinite`; None for no scale.
        ema: The running average of the trained parameters to keep; None for none.
        reduction_dtype: Dtype in which gradients travel between devices; sums over micro-batches are float32 anyway.
        matmul_precision: "highest", "high" or "default", of float32 matrix products; None: as the framework has it.
        seed: Keys the random streams, with the step, the micro-batch and the device.
    """

    objective: Objective
    trainable: frozenset[str] = frozenset()
    optimizer: OptimizerRule | None = None
    decays: frozenset[str] = frozenset()
    accumulation: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    clip_parameter_norm: float | None = None
    skip_nonfinite: bool = False
    loss_scale: LossScale | None = None
    ema: EMA | None = None
    reduction_dtype: str = "float32"
    matmul_precision: str | None = None
    seed: int = 0
