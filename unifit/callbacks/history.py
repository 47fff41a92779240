"""History: every epoch's figures as plain floats; what `fit` returns."""

from __future__ import annotations

from typing import Any

from unifit.callbacks.base import Callback

SKIPPED_UPDATES = "skipped_updates"
"""Figure of an epoch with updates that were not applied: how many."""


class History(Callback):
    """Collects epoch logs.

    Attributes:
        epoch: The epochs' numbers, from 0.
        history: For each figure, a list with one float an epoch (for `val_` figures an epoch with validation). The
            figure "skipped_updates" is there when an epoch had some, and 0.0 in the others.
    """

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = dict(logs or {})
        if SKIPPED_UPDATES in logs:
            self.history.setdefault(SKIPPED_UPDATES, [0.0] * len(self.epoch))
        elif SKIPPED_UPDATES in self.history:
            logs[SKIPPED_UPDATES] = 0.0
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)
