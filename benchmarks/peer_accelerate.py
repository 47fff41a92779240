"""Accelerate as a peer: the loop of its documentation, with the figures kept as in the native loop.

Reference: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation (prepare, accumulate, backward).
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import accelerate
import numpy as np

from benchmarks.torch_peer import TorchPeer, models
from benchmarks.workloads import Setting, Trained


def make(setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray) -> list[Any]:
    """The loop, on torch."""
    return [AccelerateRun(setting, weights, x, y)] if setting.backend == "torch" else []


class AccelerateRun(TorchPeer):
    """A prepared model and optimizer."""

    name = "Accelerate"

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray):
        super().__init__(setting, weights, x, y)
        self.accelerator = accelerate.Accelerator(
            cpu=True,
            mixed_precision="bf16" if setting.half else "no",
            gradient_accumulation_steps=setting.accumulation,
        )
        self.model, self.optimizer = self.accelerator.prepare(self.module, self.optimizer)

    def train(self, first: int, steps: int) -> Trained:
        accelerator, optimizer = self.accelerator, self.optimizer
        loader = accelerator.prepare(self.loader(first, steps))
        began = perf_counter()
        self.clear()
        for x, y in loader:
            with accelerator.accumulate(self.model):
                loss, hits = models.score(self.model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            self.add(loss, hits)
        return Trained(*self.figures(steps), perf_counter() - began)
