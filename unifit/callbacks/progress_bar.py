"""ProgressBar: a live line on a terminal or in a notebook, one plain line at each epoch's end elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from unifit.callbacks.base import Callback
from unifit.callbacks.history import SKIPPED_UPDATES
from unifit.errors import ArgumentError

REDRAW_S = 0.5
"""Seconds between two looks at the running figures; each is a host read."""

LAYOUT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"


class ProgressBar(Callback):
    """Shows steps, rate, remaining time and figures on standard output, on the main process. `fit` makes one itself.

    A step costs a look at the clock. In training the running figures are read at most every half second; an evaluation
    shows its figures at the end, since reading them earlier would communicate at moments that the clock chose.

    Args:
        verbose: 0 is silent, 1 a live bar, 2 a plain line at the end of each epoch, evaluation or prediction, right for
            log files; "auto" is 1 on an interactive terminal or in a notebook and 2 elsewhere.

    Raises:
        ArgumentError: When `verbose` is none of these.
    """

    def __init__(self, verbose: Any = "auto"):
        self.verbose = verbosity(verbose)
        self._in_fit = False
        self._bar: Any = None
        self._redraw_at = math.inf
        self._title, self._done, self._before = "", 0, 0
        self._began = 0.0
        self._took_s: float | None = None

    # Training

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_fit = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        resumed = self.params.get("resumed_at")
        done = resumed[1] if resumed is not None and resumed[0] == epoch else 0
        self._begin(f"Epoch {epoch + 1}/{self.params['epochs']}", done)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done = batch + 1
        if perf_counter() >= self._redraw_at:
            self._redraw(figures_text(logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._finish(logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._in_fit = False
        self._close()

    # Evaluation: silent inside fit, where its figures come with the epoch's

    def on_test_begin(self, logs: Any = None) -> None:
        if self._in_fit:
            self._stop_clock()
        else:
            self._begin("Evaluate")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._in_fit:
            self._advance(batch)

    def on_test_end(self, logs: Any = None) -> None:
        if not self._in_fit:
            self._finish(logs)

    # Prediction

    def on_predict_begin(self, logs: Any = None) -> None:
        self._begin("Predict")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._advance(batch)

    def on_predict_end(self, logs: Any = None) -> None:
        self._finish(None)

    # Drawing

    def _begin(self, title: str, done: int = 0) -> None:
        self._title, self._done, self._before, self._took_s = title, done, done, None
        self._began = perf_counter()
        if self.verbose == 1 and self.on_main_process:
            from tqdm.auto import tqdm  # here: only a live bar needs it, and it imports asyncio

            # The bar is redrawn when this class says so: without intervals and without tqdm's monitoring thread.
            live = type("LiveBar", (tqdm,), {"monitor_interval": 0})
            self._bar = live(
                desc=title, total=self.params.get("steps"), initial=done, unit=" steps", bar_format=LAYOUT,
                file=sys.stdout, dynamic_ncols=True, mininterval=0, miniters=1,
            )  # fmt: skip
            self._redraw_at = self._began + REDRAW_S

    def _advance(self, batch: int) -> None:
        self._done = batch + 1
        if perf_counter() >= self._redraw_at:
            self._redraw("")

    def _redraw(self, text: str) -> None:
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(self._done - self._bar.n)
        self._redraw_at = perf_counter() + REDRAW_S

    def _stop_clock(self) -> None:
        """The steps are done and their figures were read: what follows is not their time."""
        if self._took_s is None:
            self._took_s = perf_counter() - self._began

    def _finish(self, logs: Any) -> None:
        self._stop_clock()
        text = figures_text(logs or {})
        if self._bar is not None:
            self._bar.n = self._bar.total = self._done
            self._bar.set_postfix_str(text, refresh=False)
            self._close()
        elif self.verbose:
            seconds = self._took_s
            done = self._done - self._before
            rate = done / seconds if seconds else 0.0
            steps = "1 step" if done == 1 else f"{done} steps"
            line = f"{self._title}: {steps} in {seconds:.1f} s ({rate:.1f} steps/s)"
            self.say(f"{line} - {text}" if text else line)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar, self._redraw_at = None, math.inf


def verbosity(verbose: Any) -> int:
    """0, 1 or 2; "auto" asks standard output.

    Raises:
        ArgumentError: For anything else.
    """
    if verbose == "auto":
        return 1 if "ipykernel" in sys.modules or sys.stdout.isatty() else 2
    if verbose not in (0, 1, 2):
        raise ArgumentError(
            f"verbose={verbose!r}; expected 'auto', 0 (silent), 1 (live bar) or 2 (one line an epoch, for log files)."
        )
    return int(verbose)


def figures_text(logs: Mapping[str, float]) -> str:
    """The figures as `loss: 0.5000 - accuracy: 0.9000`."""
    return " - ".join(f"{name}: {_figure(name, value)}" for name, value in logs.items())


def _figure(name: str, value: float) -> str:
    if name == SKIPPED_UPDATES:
        return str(int(value))
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.4e}"
