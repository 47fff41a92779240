"""ReduceLROnPlateau: a smaller learning rate when a figure has stopped improving."""

from __future__ import annotations

from typing import Any

from unifit.callbacks.learning_rate_setter import LearningRateSetter
from unifit.callbacks.monitor import Monitor
from unifit.errors import ArgumentError


class ReduceLROnPlateau(Monitor, LearningRateSetter):
    """Multiplies the learning rate by `factor` when `monitor` has not improved for `patience` epochs.

    Args:
        monitor: Key of the figure in the logs.
        factor: Below 1.
        patience: Epochs without an improvement.
        verbose: 1 says what it sets.
        mode: "min", "max", or "auto", which tells it from the name.
        min_delta: An improvement is larger than this.
        cooldown: Epochs after a reduction in which nothing is counted.
        min_lr: The rate does not fall below this.

    Raises:
        ArgumentError: When `factor` is not below 1; when training begins and the optimizer has a schedule.
    """

    state_names = ("best", "wait", "cooldown_counter")

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ):
        super().__init__(monitor, mode, min_delta)
        if not 0 <= factor < 1:
            raise ArgumentError(f"ReduceLROnPlateau got factor={factor!r}; it needs a number in [0, 1).")
        self.factor, self.patience, self.verbose = factor, patience, verbose
        self.cooldown, self.min_lr = cooldown, min_lr
        self.wait = self.cooldown_counter = 0

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        if not self.resumed:
            self.best, self.wait, self.cooldown_counter = None, 0, 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        value = self.monitored(logs)
        if value is None:
            return
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.wait = 0
        if self.improves(value, self.best):
            self.best, self.wait = value, 0
        elif self.cooldown_counter == 0:
            self.wait += 1
            if self.wait >= self.patience:
                self._reduce(epoch)

    def _reduce(self, epoch: int) -> None:
        before = self.learning_rate
        if before <= self.min_lr:
            return
        self.learning_rate = max(before * self.factor, self.min_lr)
        self.cooldown_counter, self.wait = self.cooldown, 0
        if self.verbose:
            self.say(f"Epoch {epoch + 1}: {self.monitor} is on a plateau, learning rate {self.learning_rate:g}.")
