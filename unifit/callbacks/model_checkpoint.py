"""ModelCheckpoint: saves the model or its weights after epochs or steps, all of them or the best."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unifit.callbacks.monitor import Monitor
from unifit.errors import ArgumentError

SUFFIXES = {False: ".unifit", True: ".safetensors"}
"""By save_weights_only."""


class ModelCheckpoint(Monitor):
    """Saves by `model.save`, or `model.save_weights`, which write on the main process.

    Args:
        filepath: Where to; may hold `{epoch}` (from 1), `{batch}` (from 1, with save_freq in steps) and figures of the
            logs, with format specifications: "best-{epoch:02d}-{val_loss:.2f}.unifit".
        monitor: Key of the figure in the logs, for `save_best_only`.
        verbose: 1 says what was saved.
        save_best_only: Save only when `monitor` is better than ever before. The best value is kept from one fit to the
            next and is the callback's state, so that a resumed run does not overwrite a better file.
        save_weights_only: Save the weights (".safetensors") instead of the whole model (".unifit").
        mode: "min", "max", or "auto", which tells it from the name.
        save_freq: "epoch", or a number of steps; then the figures are those of the epoch so far.
        initial_value_threshold: Value that the first best one has to beat.
        weights: "own", or "ema" for the running averages that `compile(ema=...)` keeps, in place of the model's own.

    Raises:
        ArgumentError: When `filepath` has another suffix, or `save_freq` another value.
    """

    state_names = ("best", "steps_since_save")

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
        weights: str = "own",
    ):
        # Without save_best_only the figure is not looked at, so its direction need not be known.
        super().__init__(monitor, mode if save_best_only or mode != "auto" else "min")
        self.filepath = os.fspath(filepath)
        self.verbose, self.save_best_only, self.save_weights_only = verbose, save_best_only, save_weights_only
        self.save_freq, self.best = save_freq, initial_value_threshold
        self.steps_since_save, self.weights = 0, weights
        suffix = SUFFIXES[bool(save_weights_only)]
        if not self.filepath.endswith(suffix):
            raise ArgumentError(
                f"ModelCheckpoint got filepath={self.filepath!r}; with save_weights_only={bool(save_weights_only)} it "
                f"needs the suffix '{suffix}'."
            )
        if weights not in ("own", "ema"):
            raise ArgumentError(f"ModelCheckpoint got weights={weights!r}; expected 'own' or 'ema'.")
        if save_freq != "epoch" and (not isinstance(save_freq, int) or isinstance(save_freq, bool) or save_freq < 1):
            raise ArgumentError(
                f"ModelCheckpoint got save_freq={save_freq!r}; expected 'epoch' or a number of steps of at least 1."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if isinstance(self.save_freq, int):
            self.steps_since_save += 1
            if self.steps_since_save >= self.save_freq:
                self.steps_since_save = 0
                self._save(logs or {}, {"epoch": self._epoch + 1, "batch": batch + 1})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.save_freq == "epoch":
            self._save(logs or {}, {"epoch": epoch + 1})

    def on_train_end(self, logs: Any = None) -> None:
        self.resumed = False

    def _save(self, logs: Mapping[str, float], place: dict[str, int]) -> None:
        value = self.monitored(logs) if self.save_best_only else None
        if self.save_best_only and (value is None or not self.improves(value, self.best)):
            return
        path = self._path(logs, place)
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # on every process: each checks that the folder is there
        if self.save_weights_only:
            self.model.save_weights(path, weights=self.weights)
        else:
            self.model.save(path, weights=self.weights)
        if self.verbose:
            better = f": {self.monitor} {value:.5g}, best so far {self._best_text()}" if self.save_best_only else ""
            self.say(f"Epoch {place['epoch']}{better}: saved {path}")
        if self.save_best_only:
            self.best = value

    def _best_text(self) -> str:
        return "none" if self.best is None else f"{self.best:.5g}"

    def _path(self, logs: Mapping[str, float], place: dict[str, int]) -> str:
        if "{" not in self.filepath:
            return self.filepath
        known = {**logs, **place}
        try:
            return self.filepath.format(**known)
        except (KeyError, IndexError, ValueError) as error:
            raise ArgumentError(
                f"ModelCheckpoint cannot fill in filepath={self.filepath!r} ({type(error).__name__}: {error}); "
                f"available: {', '.join(known)}."
            ) from None
