"""Monitor: the base of callbacks that follow one figure and ask whether it got better."""

from __future__ import annotations

import math
from typing import Any

from unifit.callbacks.base import Callback
from unifit.errors import ArgumentError
from unifit.processes import warn

_LOWER_IS_BETTER = (
    "loss", "error", "crossentropy", "hinge", "poisson", "divergence", "logcosh", "log_cosh", "perplexity",
    "false_positives", "false_negatives", "mse", "mae", "mape", "msle", "rmse",
)  # fmt: skip
_HIGHER_IS_BETTER = (
    "accuracy", "acc", "auc", "precision", "recall", "score", "io_u", "iou", "similarity", "correlation", "specificity",
    "sensitivity", "true_positives", "true_negatives",
)  # fmt: skip


class Monitor(Callback):
    """Follows the figure `monitor` of the epochs' logs. NaN is never an improvement.

    Args:
        monitor: Key of the figure in the logs.
        mode: "min" or "max"; "auto" tells it from the figure's name.
        min_delta: An improvement is larger than this.

    Raises:
        ArgumentError: When `mode` is unknown, or "auto" does not know the figure.
    """

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0):
        self.monitor, self.mode, self.min_delta = monitor, mode, abs(min_delta)
        self.best: float | None = None
        self._sign = direction(type(self).__name__, monitor, mode)
        self._warned = False

    def improves(self, value: float, reference: float | None) -> bool:
        """Whether `value` is better than `reference` by more than `min_delta`; any number is better than None."""
        if math.isnan(value):
            return False
        return reference is None or self._sign * value - self.min_delta > self._sign * reference

    def monitored(self, logs: Any) -> float | None:
        """The figure, or None where this epoch has none: one warning says so, unless validation is only due later."""
        logs = logs or {}
        if self.monitor in logs:
            return float(logs[self.monitor])
        validated = any(name.startswith("val_") for name in logs)
        due_later = self.monitor.startswith("val_") and self.params.get("validation", False) and not validated
        if not due_later and not self._warned:
            self._warned = True
            hint = " It needs validation_data." if self.monitor.startswith("val_") and not validated else ""
            warn(
                f"{type(self).__name__} monitors '{self.monitor}', which is not in the logs, so it does nothing.{hint} "
                f"Available: {', '.join(logs)}.",
                stacklevel=2,
            )
        return None


def direction(owner: str, monitor: str, mode: str) -> int:
    """1 where more of a figure is better, else -1.

    Raises:
        ArgumentError: When `mode` is unknown, or "auto" does not know the figure.
    """
    if mode not in ("auto", "min", "max"):
        raise ArgumentError(f"{owner} got mode={mode!r}; expected 'auto', 'min' or 'max'.")
    if mode == "min" or (mode == "auto" and monitor.endswith(_LOWER_IS_BETTER)):
        return -1
    if mode == "max" or monitor.endswith(_HIGHER_IS_BETTER):
        return 1
    raise ArgumentError(
        f"{owner} got monitor={monitor!r} and cannot tell from the name whether more or less of it is better; "
        "pass mode='max' or mode='min'."
    )
