"""LearningRateSetter: the base of callbacks that set the optimizer's learning rate between epochs."""

from __future__ import annotations

from typing import Any

from unifit.callbacks.base import Callback
from unifit.errors import ArgumentError


class LearningRateSetter(Callback):
    """Puts the rate of the epoch into its logs as "learning_rate".

    The state holds the rate, so that a resumed run goes on with it.
    """

    _resumed_rate: float | None = None

    @property
    def learning_rate(self) -> float:
        """The optimizer's rate.

        Raises:
            ArgumentError: When a schedule sets it.
        """
        rate = getattr(self.model.optimizer, "learning_rate", None)
        if not isinstance(rate, float):
            what = "has no learning rate that could be set" if rate is None else f"has the schedule {rate}"
            raise ArgumentError(
                f"{type(self).__name__} sets the learning rate, but the optimizer {what}. Compile with a number as "
                "learning_rate, or leave the callback out."
            )
        return rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.model.optimizer.learning_rate = rate

    def state(self) -> dict[str, Any]:
        return super().state() | {"learning_rate": None if self.model is None else self.learning_rate}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._resumed_rate = state.get("learning_rate")

    def on_train_begin(self, logs: Any = None) -> None:
        _ = self.learning_rate  # raises before the first step
        if self._resumed_rate is not None:
            self.learning_rate, self._resumed_rate = self._resumed_rate, None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["learning_rate"] = self.learning_rate

    def on_train_end(self, logs: Any = None) -> None:
        self.resumed = False
