"""EarlyStopping: ends training when a figure has stopped improving, and brings the best weights back."""

from __future__ import annotations

from typing import Any

from unifit.callbacks.monitor import Monitor


class EarlyStopping(Monitor):
    """Stops when `monitor` has not improved for `patience` epochs.

    Args:
        monitor: Key of the figure in the logs.
        min_delta: An improvement is larger than this.
        patience: Epochs without an improvement after which training stops.
        verbose: 1 says when it acts.
        mode: "min", "max", or "auto", which tells it from the name.
        baseline: Only epochs better than this count as improvements for `patience`.
        restore_best_weights: At the end of training, however it ends (naturally, by any callback, an exception or an
            interrupt), the model gets the weights of the best epoch back; the optimizer's state stays that of the last
            step. A copy of the weights is kept on the host.
        start_from_epoch: Epochs before this one are not looked at.

    Attributes:
        best, best_epoch: The best value and its epoch, from 0.
        wait: Epochs since the last improvement.
        stopped_epoch: The epoch after which training was stopped; 0 when it was not.

    The state is `best`, `best_epoch`, `wait` and the best weights.
    """

    state_names = ("best", "best_epoch", "wait", "best_weights")

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ):
        super().__init__(monitor, mode, min_delta)
        self.patience, self.verbose, self.baseline = patience, verbose, baseline
        self.restore_best_weights, self.start_from_epoch = restore_best_weights, start_from_epoch
        self.best_weights: Any = None
        self.best_epoch = self.wait = self.stopped_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.stopped_epoch = 0
        if not self.resumed:
            self.best, self.best_epoch, self.wait, self.best_weights = None, 0, 0, None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        value = self.monitored(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        self.wait += 1
        if self.improves(value, self.best):
            self.best, self.best_epoch = value, epoch
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            if self.baseline is None or self.improves(value, self.baseline):
                self.wait = 0
                return
        if self.wait >= self.patience:
            self.stopped_epoch = epoch
            self.model.stop_training = True
            if self.verbose:
                self.say(f"Epoch {epoch + 1}: early stopping, {self.monitor} was best in epoch {self.best_epoch + 1}.")

    def on_train_end(self, logs: Any = None) -> None:
        self.resumed = False
        if self.best_weights is not None:
            if self.verbose:
                self.say(f"Restoring the weights of epoch {self.best_epoch + 1}.")
            self.model.set_weights(self.best_weights)
