"""TimeLimit: ends a run in time, for a later one to go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from unifit.callbacks.base import Callback
from unifit.errors import ArgumentError

PROCESS, TRAINING = "process", "training"

_IMPORTED_AT = time.monotonic()
_START_TIME_FIELD = 19  # of those after the command's name in /proc/self/stat


class TimeLimit(Callback):
    """Stops training after the step in which the time is over; fit saves, where it has a checkpoint_dir, and returns.

    The run is not finished: the same script goes on from there. The clock is looked at after every step and every
    epoch, not inside of a validation. In a job it is enough that one process' time is over: all stop after the same
    step.

    The time counts from the process' start: what a batch system gives a job, less what saving may take (say 5 minutes).
    Reading data and compiling is within it, and so are earlier fits.

    Args:
        max_time_s: Seconds, above 0.
        since: "process", or "training" to count from the fit's first step, in a notebook say.

    Attributes:
        paused: Whether the time was over.

    Example:
        >>> TimeLimit(4 * 3600 - 300)  # for `#SBATCH --time=4:00:00`
        TimeLimit(14100 s)
    """

    def __init__(self, max_time_s: float, since: str = PROCESS):
        if isinstance(max_time_s, bool) or not isinstance(max_time_s, (int, float)) or not max_time_s > 0:
            raise ArgumentError(f"TimeLimit got max_time_s={max_time_s!r}; it needs a number of seconds above 0.")
        if since not in (PROCESS, TRAINING):
            raise ArgumentError(f"TimeLimit got since={since!r}; it needs '{PROCESS}' or '{TRAINING}'.")
        self.max_time_s, self.since = max_time_s, since

    def __repr__(self) -> str:
        return f"TimeLimit({self.max_time_s:g} s)"

    def on_train_begin(self, logs: Any = None) -> None:
        self.paused = False
        self._ends_at = (time.monotonic() if self.since == TRAINING else process_started()) + self.max_time_s

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._look()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 != self.params.get("epochs"):  # else nothing is left to do
            self._look()

    def _look(self) -> None:
        if self.paused or time.monotonic() < self._ends_at:
            return
        self.paused = True
        self.model.stop_training = True
        self.say(f"unifit: the {self.max_time_s:g} s since the {self.since}'s start are over: training stops here.")


def process_started() -> float:
    """When this process was started, on `time.monotonic`'s clock; where the system does not say, unifit's import."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_START_TIME_FIELD])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return _IMPORTED_AT
    return min(time.monotonic() - age_s, _IMPORTED_AT)
