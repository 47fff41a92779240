"""Hugging Face's Trainer as a peer, for the workloads that its users have: the GPT, and the MLP as the smallest model.

Reference: https://huggingface.co/docs/transformers/main_classes/trainer (no logging, no saving, no reports, no bar;
`optimizers`, so that all parameters decay as elsewhere; clipping off). Its loader is the quick one of the other peers.
"""

from __future__ import annotations

import tempfile
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from benchmarks.torch_peer import TorchPeer, models
from benchmarks.workloads import Setting, Trained


def make(setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray) -> list[Any]:
    """The Trainer, on torch."""
    known = setting.backend == "torch" and setting.workload in ("gpt", "mlp")
    return [TransformersRun(setting, weights, x, y)] if known else []


class WithLoss(nn.Module):
    """A model as Trainer wants it: it takes the labels and returns its loss."""

    def __init__(self, run: TorchPeer):
        super().__init__()
        self.module, self._run = run.module, [run]

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        loss, hits = models.score(self.module(x), labels)
        self._run[0].add(loss, hits)
        return {"loss": loss}


class QuickTrainer(transformers.Trainer):
    """Trainer over batches that are there already."""

    batches: Any = None

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(self.batches)


class Clock(transformers.TrainerCallback):
    """The seconds of an epoch, and the reading of its figures."""

    def __init__(self, run: TransformersRun):
        self.run, self.seconds, self.steps, self.read = run, 0.0, 0, (0.0, 0.0)

    def on_epoch_begin(self, *arguments: Any, **more: Any) -> None:
        self.began = perf_counter()
        self.run.clear()

    def on_epoch_end(self, *arguments: Any, **more: Any) -> None:
        self.read = self.run.figures(self.steps)
        self.seconds = perf_counter() - self.began


class TransformersRun(TorchPeer):
    """One Trainer, whose train is called once an epoch."""

    name = "HF Trainer"

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray):
        super().__init__(setting, weights, x, y)
        self.clock, self.folder = Clock(self), tempfile.mkdtemp(prefix="unifit_bench_")
        self.model = WithLoss(self)

    def train(self, first: int, steps: int) -> Trained:
        arguments = transformers.TrainingArguments(
            self.folder, max_steps=steps, gradient_accumulation_steps=self.setting.accumulation,
            per_device_train_batch_size=self.setting.work.batch_size, max_grad_norm=0.0, bf16=self.setting.half,
            logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        loader = self.loader(first, steps)
        constant = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        trainer = QuickTrainer(
            self.model, arguments, train_dataset=Rows(loader), optimizers=(self.optimizer, constant),
            callbacks=[self.clock],
        )  # fmt: skip
        trainer.batches = NamedBatches.over(loader)
        self.clock.steps = steps
        trainer.train()
        return Trained(*self.clock.read, self.clock.seconds)


class Rows(torch.utils.data.Dataset):
    """Stands for the data set that Trainer wants to know; the batches come from the loader."""

    def __init__(self, loader: Any):
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def __getitem__(self, batch: int) -> Any:
        return self.loader.dataset[batch]


class NamedBatches(torch.utils.data.Dataset):
    """Batches under the names of the model's arguments."""

    def __init__(self, batches: Any):
        self.batches = batches

    @classmethod
    def over(cls, loader: Any) -> Any:
        return torch.utils.data.DataLoader(cls(loader.dataset), batch_size=None)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, batch: int) -> dict[str, Any]:
        x, y = self.batches[batch]
        return {"x": x, "labels": y}
