"""History: every epoch's figures as plain floats; what `fit` returns."""

from __future__ import annotations

from typing import Any

from unifit.callbacks.base import Callback


class History(Callback):
    """Collects epoch logs.

    Attributes:
        epoch: The epochs' numbers.
        history: For each figure, a list with one float an epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
