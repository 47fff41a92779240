"""What the libraries over torch share: a module, its optimizer, and the quickest DataLoader there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks import torch_models as models
from benchmarks.native_torch import optimizer_of
from benchmarks.workloads import Setting, Trained


class BatchViews(Dataset):
    """Batches as items, each a view of the arrays.

    Reference: https://docs.pytorch.org/docs/stable/data.html#disable-automatic-batching (a data set that reads whole
    batches is cheaper than one that is read row by row and collated).
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int):
        self.x, self.y = x.split(batch_size), y.split(batch_size)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, batch: int) -> tuple[Tensor, Tensor]:
        return self.x[batch], self.y[batch]


class TorchPeer:
    """The module with the given weights, its optimizer, and the running sums of its figures.

    Args:
        setting: What is measured.
        weights: Initial weights by unifit's paths.
        x: Rows of all epochs.
        y: Their labels.
    """

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray):
        self.setting = setting
        self.x, self.y = models.inputs(setting.workload, x), torch.from_numpy(y).long()
        self.module = models.make(setting.workload, weights)
        self.optimizer: Any = optimizer_of(self.module)
        self.loss_sum, self.hits = torch.zeros(()), torch.zeros((), dtype=torch.int64)

    def loader(self, first: int, steps: int) -> DataLoader:
        rows = self.setting.rows_of(first, steps)
        return DataLoader(BatchViews(self.x[rows], self.y[rows], self.setting.work.batch_size), batch_size=None)

    def add(self, loss: Tensor, hits: Tensor) -> None:
        self.loss_sum += loss.detach()
        self.hits += hits

    def clear(self) -> None:
        self.loss_sum.zero_()
        self.hits.zero_()

    def figures(self, steps: int) -> tuple[float, float]:
        """Loss and accuracy of an epoch, read once."""
        batches = steps * self.setting.accumulation
        labels = batches * self.setting.work.batch_size * int(np.prod(self.setting.work.labels, dtype=int))
        return self.loss_sum.item() / batches, self.hits.item() / labels


__all__ = ["TorchPeer", "Trained", "models"]
