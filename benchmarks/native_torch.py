"""The loop that one writes by hand in PyTorch: eager or torch.compile, fused AdamW, DDP on several processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from benchmarks import torch_models as models
from benchmarks import workloads as sizes
from benchmarks.loaders import torch_loader
from benchmarks.workloads import Setting, Trained


def optimizer_of(module: torch.nn.Module) -> torch.optim.Optimizer:
    """Reference: https://pytorch.org/docs/stable/generated/torch.optim.AdamW.html (fused, the fastest of the three)."""
    trained = [p for p in module.parameters() if p.requires_grad]
    betas = (sizes.BETA_1, sizes.BETA_2)
    return torch.optim.AdamW(
        trained, sizes.LEARNING_RATE, betas, sizes.EPSILON, weight_decay=sizes.WEIGHT_DECAY, fused=True
    )


class NativeTorch:
    """An epoch of updates.

    Args:
        setting: What is measured. On several devices this process is one of a job whose process group is made.
        weights: Initial weights by unifit's paths.
        x: Rows of all epochs.
        y: Their labels.
        compiled: Whether forward pass, loss and figures go through torch.compile.
    """

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray, compiled: bool = False):
        self.name = "torch.compile" if compiled else "native"
        self.setting, self.host_x, self.host_y = setting, x, y
        self.x, self.y = models.inputs(setting.workload, x), torch.from_numpy(y).long()
        module = models.make(setting.workload, weights)
        self.optimizer = optimizer_of(module)
        self.model: Any = module
        if setting.devices > 1:
            self.model = DistributedDataParallel(module, gradient_as_bucket_view=True, broadcast_buffers=False)
        self.forward = torch.compile(self._forward) if compiled else self._forward
        self.loss_sum, self.hits = torch.zeros(()), torch.zeros((), dtype=torch.int64)

    def _forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not self.setting.half:
            return models.score(self.model(x), y)
        with torch.autocast("cpu", torch.bfloat16):
            return models.score(self.model(x), y)

    def train(self, first: int, steps: int) -> Trained:
        began = perf_counter()
        self.loss_sum.zero_()
        self.hits.zero_()
        windows = self._loaded(first, steps) if self.setting.data == "loader" else self._slices(first, steps)
        for window in windows:
            self._step(window)
        figures = torch.stack([self.loss_sum.double(), self.hits.double()])
        if self.setting.devices > 1:
            dist.all_reduce(figures)
        loss, hits = figures.tolist()
        batches = steps * self.setting.accumulation
        labels = batches * self.setting.work.batch_size * int(np.prod(self.setting.work.labels, dtype=int))
        return Trained(loss / batches / self.setting.devices, hits / labels, perf_counter() - began)

    def _step(self, window: list[tuple[Tensor, Tensor]]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        last = len(window) - 1
        for number, (x, y) in enumerate(window):
            together = number == last or self.setting.devices == 1
            with contextlib.nullcontext() if together else self.model.no_sync():
                loss, hits = self.forward(x, y)
                (loss / len(window) if last else loss).backward()
            self.loss_sum += loss.detach()
            self.hits += hits
        self.optimizer.step()

    def _slices(self, first: int, steps: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        share = self.setting.work.batch_size // self.setting.devices
        offset = share * dist.get_rank() if self.setting.devices > 1 else 0
        for step in range(first, first + steps):
            yield [
                (self.x[rows.start + offset :][:share], self.y[rows.start + offset :][:share])
                for rows in self.setting.batches_of(step)
            ]

    def _loaded(self, first: int, steps: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        rows = self.setting.rows_of(first, steps)
        x, y = self.host_x[rows], self.host_y[rows]
        sampler = DistributedSampler(range(len(x)), shuffle=False) if self.setting.devices > 1 else None
        window = []
        for x_batch, y_batch in torch_loader(x, y, self.setting.work.batch_size // self.setting.devices, sampler):
            if self.setting.workload == "cnn":
                x_batch = x_batch.permute(0, 3, 1, 2)
            window.append((x_batch, y_batch.long()))
            if len(window) == self.setting.accumulation:
                yield window
                window = []


LOOP = NativeTorch


def make(setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray, compiled: bool = False) -> list[NativeTorch]:
    """The native loops of torch."""
    return [NativeTorch(setting, weights, x, y, kind) for kind in ([False, True] if compiled else [False])]
