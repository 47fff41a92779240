"""TerminateOnNaN: ends training when the loss is NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

from unifit.callbacks.base import Callback
from unifit.errors import ArgumentError, UnifitError


class NonFiniteLossError(UnifitError, RuntimeError):
    """The training loss is NaN or infinite; raised by TerminateOnNaN(raise_error=True)."""


class TerminateOnNaN(Callback):
    """Looks at the epoch's running loss every `check_every` steps, and at the end of each epoch.

    A loss that was NaN once stays in the epoch's running loss, so that no step is missed. Keras looks after each step,
    which would be a host read a step.

    Args:
        raise_error: Raise NonFiniteLossError instead of setting `model.stop_training`.
        check_every: Steps between two looks, at least 1.
    """

    def __init__(self, raise_error: bool = False, *, check_every: int = 50):
        if not isinstance(check_every, int) or check_every < 1:
            raise ArgumentError(f"TerminateOnNaN got check_every={check_every!r}; it needs a whole number above 0.")
        self.raise_error, self.check_every = raise_error, check_every

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._found = epoch, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (batch + 1) % self.check_every == 0:
            self._check(logs, f"at step {batch + 1} of epoch {self._epoch + 1}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._found:
            self._check(logs, f"at the end of epoch {epoch + 1}")

    def _check(self, logs: Any, place: str) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if math.isfinite(loss):
            return
        self._found = True
        if self.raise_error:
            raise NonFiniteLossError(f"The loss is {loss} {place}.")
        self.say(f"The loss is {loss} {place}: training stops.")
        self.model.stop_training = True
