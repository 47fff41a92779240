"""The only loops: epochs of windows, batches of an evaluation, batches of a prediction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from unifit.callbacks.callback_list import CallbackList
from unifit.contract import tree
from unifit.contract.values import MicroBatch, Window
from unifit.data.feed import Feed
from unifit.data.prefetch import ahead
from unifit.data.windows import padded_batch, windows
from unifit.errors import ArgumentError
from unifit.training.logs import LazyLogs
from unifit.training.trainer import Trainer


@dataclass(frozen=True)
class Epochs:
    """Which epochs a fit runs, and when it validates: every `validation_freq` epochs, or after those listed there."""

    first: int
    end: int
    validation_freq: Any = 1

    def __post_init__(self) -> None:
        freq = self.validation_freq
        limits = [("initial_epoch", self.first, 0), ("epochs", self.end, 0)]
        if not isinstance(freq, (list, tuple, set, frozenset, range, np.ndarray)):
            limits.append(("validation_freq", freq, 1))
        for name, value, least in limits:
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
                raise ArgumentError(f"{name} is {value!r}; it needs a whole number of at least {least}.")

    def validates(self, epoch: int) -> bool:
        """Whether epoch number `epoch` (from 0) ends with a validation."""
        if isinstance(self.validation_freq, (int, np.integer)):
            return (epoch + 1) % self.validation_freq == 0
        return (epoch + 1) in self.validation_freq


def run_fit(
    model: Any, trainer: Trainer, feed: Feed, epochs: Epochs, callbacks: CallbackList, validation: Feed | None
) -> None:
    """Trains; `on_train_end` runs however it ends."""
    model.stop_training = False
    logs: dict[str, float] = {}
    warned = False
    try:
        callbacks.on_train_begin({})
        for epoch in range(epochs.first, epochs.end):
            if not feed.ready(epoch):
                feed.warn_dry(0)
                break
            callbacks.on_epoch_begin(epoch, {})
            logs, empty = train_epoch(model, trainer, feed, epoch, callbacks)
            if empty and not warned:
                warned = True
                warnings.warn(
                    f"{empty} updates of epoch {epoch + 1} had no valid target and were skipped: all elements were "
                    "masked, padding, or ignored labels. Later epochs will not be warned of.",
                    stacklevel=3,
                )
            if validation is not None and epochs.validates(epoch):
                scores = run_evaluate(trainer, validation, callbacks)
                logs |= {f"val_{name}": value for name, value in scores.items()}
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
    finally:
        callbacks.on_train_end(logs)


def train_epoch(
    model: Any, trainer: Trainer, feed: Feed, epoch: int, callbacks: CallbackList
) -> tuple[dict[str, float], int]:
    """One epoch's updates; returns its figures, and how many windows had no valid target."""
    sums = None
    prepared = windows(feed.epoch(epoch), feed.slicer, trainer.accumulation, trainer.step)
    with ahead(prepared, partial(_placed, trainer.engine.place), threaded=feed.reads_ahead) as windows_ahead:
        for number, (batch, placed) in enumerate(windows_ahead):
            if sums is None:
                sums = trainer.sums(False, batch)
            if callbacks.has_on_train_batch_begin:
                callbacks.on_train_batch_begin(number, {})
            trainer.train(sums, placed)
            if callbacks.has_on_train_batch_end:
                callbacks.on_train_batch_end(number, LazyLogs(partial(trainer.training_logs, sums)))
            if model.stop_training:
                break
    if sums is None:
        raise ArgumentError(
            f"Epoch {epoch} has no batches left. A generator can be read once: pass steps_per_epoch so that epochs "
            "share it, or pass something that can be iterated again."
        )
    return trainer.training_figures(sums)


def _placed(place: Any, item: tuple[Window, int]) -> tuple[MicroBatch, Any]:
    """A window's host arrays, and the window on its way to the devices."""
    return item[0].batch, place(item[0])


def train_batch(trainer: Trainer, feed: Feed) -> dict[str, float]:
    """One update on the feed's only batch; returns its figures."""
    window, _ = next(windows(feed.again(), feed.slicer, trainer.accumulation, trainer.step))
    sums = trainer.sums(False, window.batch)
    trainer.train(sums, trainer.engine.place(window))
    return trainer.training_logs(sums)


def run_evaluate(trainer: Trainer, feed: Feed, callbacks: CallbackList) -> dict[str, float]:
    """Scores every row of the feed once."""
    callbacks.on_test_begin({})
    sums = None
    with ahead(feed.again(), partial(padded_batch, slicer=feed.slicer), threaded=feed.reads_ahead) as batches:
        for number, micro in enumerate(batches):
            if sums is None:
                sums = trainer.sums(True, micro)
            if callbacks.has_on_test_batch_begin:
                callbacks.on_test_batch_begin(number, {})
            trainer.evaluate(sums, micro)
            if callbacks.has_on_test_batch_end:
                callbacks.on_test_batch_end(number, LazyLogs(partial(trainer.evaluation_logs, sums)))
    if sums is None:
        raise ArgumentError("The evaluation data has no batches (left): a generator can be read once.")
    logs = trainer.evaluation_logs(sums)
    callbacks.on_test_end(logs)
    return logs


def run_predict(trainer: Trainer, feed: Feed, callbacks: CallbackList) -> Any:
    """The model's outputs for every row of the feed, in order: a tree of host arrays."""
    callbacks.on_predict_begin({})
    pieces = []
    for number, batch in enumerate(feed.again()):
        callbacks.on_predict_batch_begin(number, {})
        outputs = trainer.engine.predict(padded_batch(batch, feed.slicer)._replace(y=None, sample_weight=None))
        pieces.append(tree.map(lambda leaf: np.asarray(leaf)[: batch.rows], outputs))  # noqa: B023
        callbacks.on_predict_batch_end(number, {"outputs": pieces[-1]})
    callbacks.on_predict_end({})
    return tree.map(lambda *leaves: np.concatenate(leaves), *pieces)
