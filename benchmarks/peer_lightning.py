"""Lightning's Trainer as a peer: with its own logging of the epoch's means, and in barebones mode.

Reference: https://lightning.ai/docs/pytorch/stable/common/trainer.html (`barebones`: all features that may impact raw
speed are disabled), and Lightning's pull request 16854, which made that mode for comparisons of raw speed. Logger,
checkpoints, progress bar and model summary are off in both.
"""

from __future__ import annotations

import logging
import warnings
from time import perf_counter
from typing import Any

import lightning
import numpy as np

from benchmarks.torch_peer import TorchPeer, models
from benchmarks.workloads import Setting, Trained


def make(setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray) -> list[Any]:
    """Both ways of running the Trainer, on torch."""
    if setting.backend != "torch":
        return []
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # Few workers: batches are views, and a worker would copy them.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    return [LightningRun(setting, weights, x, y, barebones) for barebones in (False, True)]


class LightningRun(TorchPeer):
    """A LightningModule, trained by a Trainer of one epoch an epoch."""

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray, barebones: bool):
        super().__init__(setting, weights, x, y)
        self.name = "Lightning barebones" if barebones else "Lightning"
        self.barebones = barebones
        self.task = Task(self)

    def train(self, first: int, steps: int) -> Trained:
        off = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=self.setting.accumulation,
            precision="bf16-mixed" if self.setting.half else "32-true", barebones=self.barebones,
            **({} if self.barebones else {"logger": False, **off}),
        )  # fmt: skip
        self.task.steps = steps
        trainer.fit(self.task, self.loader(first, steps))
        return Trained(*self.task.read, self.task.seconds)


class Task(lightning.LightningModule):
    """The module's training step. The clock runs from the epoch's begin to the reading of its figures."""

    def __init__(self, run: LightningRun):
        super().__init__()
        self.module = run.module
        self._run, self.steps, self.seconds = [run], 0, 0.0
        self.read = (0.0, 0.0)

    def training_step(self, batch: Any, batch_index: int) -> Any:
        x, y = batch
        loss, hits = models.score(self.module(x), y)
        if self._run[0].barebones:
            self._run[0].add(loss, hits)
        else:
            means = {"loss": loss, "accuracy": hits / y.numel()}
            self.log_dict(means, on_step=False, on_epoch=True, batch_size=len(x))
        return loss

    def configure_optimizers(self) -> Any:
        return self._run[0].optimizer

    def on_train_epoch_start(self) -> None:
        self.began = perf_counter()
        self._run[0].clear()

    def on_train_end(self) -> None:
        if self._run[0].barebones:
            self.read = self._run[0].figures(self.steps)
        else:
            self.read = tuple(self.trainer.callback_metrics[name].item() for name in ("loss", "accuracy"))
        self.seconds = perf_counter() - self.began
