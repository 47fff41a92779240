"""LearningRateScheduler: the learning rate as a function of the epoch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from unifit.callbacks.learning_rate_setter import LearningRateSetter
from unifit.errors import ArgumentError


class LearningRateScheduler(LearningRateSetter):
    """Sets the learning rate at the beginning of each epoch. For a rate that moves with the steps use `uf.schedules`.

    Args:
        schedule: Function `schedule(epoch, learning_rate)` or `schedule(epoch)`, the epoch from 0; returns the rate.
        verbose: 1 says what it sets.

    Raises:
        ArgumentError: When training begins and the optimizer has a schedule; when `schedule` returns no rate.

    Example:
        >>> halving = LearningRateScheduler(lambda epoch, rate: rate if epoch < 10 else rate * 0.5)
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0):
        self.schedule, self.verbose = schedule, verbose
        self._takes_rate = _takes_two(schedule)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        given = self.schedule(epoch, self.learning_rate) if self._takes_rate else self.schedule(epoch)
        try:
            rate = float(given)
        except (TypeError, ValueError):
            rate = math.nan
        if not (math.isfinite(rate) and rate >= 0):
            raise ArgumentError(
                f"LearningRateScheduler's schedule returned {given!r} for epoch {epoch}; it needs a finite number "
                "of at least 0."
            )
        self.learning_rate = rate
        if self.verbose:
            self.say(f"Epoch {epoch + 1}: learning rate {rate:g}.")


def _takes_two(schedule: Callable[..., float]) -> bool:
    try:
        inspect.signature(schedule).bind(0, 0.1)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        pass
    return True
