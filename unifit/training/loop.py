"""The only loops: epochs of windows, batches of an evaluation, batches of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.values import Window
from unifit.data.feed import Feed
from unifit.data.prefetch import ahead
from unifit.data.windows import padded_batch, valid_rows, windows
from unifit.errors import ArgumentError
from unifit.processes import warn
from unifit.training.hooks import Hooks
from unifit.training.logs import LazyLogs
from unifit.training.stopping import Stopping
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

    def validations(self) -> int:
        """How many validations the epochs make."""
        return sum(map(self.validates, range(self.first, self.end)))


def run_fit(
    model: Any,
    trainer: Trainer,
    feed: Feed,
    epochs: Epochs,
    callbacks: Hooks,
    stopping: Stopping,
    validation: Feed | None,
) -> None:
    """Trains; `on_train_end` runs however it ends."""
    model.stop_training = False
    logs: dict[str, float] = {}
    warned = False
    try:
        callbacks.on_train_begin({})
        callbacks.meet("train_begin")
        for epoch in range(epochs.first, epochs.end):
            if not feed.ready(epoch):
                feed.warn_dry(0)
                break
            trainer.follow()
            callbacks.on_epoch_begin(epoch, {})
            logs, empty = train_epoch(model, trainer, feed, epoch, callbacks, stopping)
            if empty and not warned:
                warned = True
                warn(
                    f"{empty} updates of epoch {epoch + 1} had no valid target and were skipped: all elements were "
                    "masked, padding, or ignored labels. Later epochs will not be warned of.",
                    stacklevel=3,
                )
            if validation is not None and epochs.validates(epoch):
                scores = run_evaluate(trainer, validation, callbacks)
                logs |= {f"val_{name}": value for name, value in scores.items()}
            callbacks.on_epoch_end(epoch, logs)
            if callbacks.meet("epoch_end", model.stop_training):
                model.stop_training = True  # another process' wish shows here too
                break
    finally:
        callbacks.on_train_end(logs)
    callbacks.meet("train_end")


def train_epoch(
    model: Any, trainer: Trainer, feed: Feed, epoch: int, callbacks: Hooks, stopping: Stopping
) -> tuple[dict[str, float], int]:
    """One epoch's updates; returns its figures, and how many windows had no valid target."""
    sums, padding_seen = None, False
    prepared = windows(feed.epoch(epoch), feed.slicer, trainer.accumulation, trainer.step)
    with ahead(
        prepared, partial(_placed, trainer.engine.place), threaded=feed.reads_ahead, in_step=feed.in_step
    ) as windows_ahead:
        for number, (window, placed) in enumerate(windows_ahead):
            trainer.follow(sums)
            if sums is None:
                sums = trainer.sums(False, window.batch)
            if trainer.objective.sees_padding and not window.full and not padding_seen:
                padding_seen = True
                warn_of_padding()
            if callbacks.has_on_train_batch_begin:
                callbacks.on_train_batch_begin(number, {})
            trainer.train(sums, placed)
            if callbacks.has_on_train_batch_end:
                callbacks.on_train_batch_end(number, LazyLogs(partial(trainer.training_logs, sums)))
            if model.stop_training or callbacks.error is not None:
                stopping.wish()
            if stopping.due(trainer.step):
                model.stop_training = True
                break
    if sums is None:
        raise ArgumentError(
            f"Epoch {epoch} has no batches left. A generator can be read once: pass steps_per_epoch so that epochs "
            "share it, or pass something that can be iterated again."
        )
    return trainer.training_figures(sums)


def _placed(place: Any, item: tuple[Window, int]) -> tuple[Window, Any]:
    """A window on the host, and on its way to the devices."""
    return item[0], place(item[0])


def warn_of_padding() -> None:
    """Says that a loss of the user's own counted rows that are none."""
    warn(
        "compute_loss returned a sum or mean (uf.losses.Total, MeanOverRows) over rows without looking at "
        "uf.context().valid, and this window has rows that only pad a ragged end: they were counted. Leave out the "
        "rows where uf.context().valid is False, or return per-element losses.",
        stacklevel=4,
    )


def train_batch(trainer: Trainer, feed: Feed) -> dict[str, float]:
    """One update on the feed's only batch; returns its figures."""
    window, _ = next(windows(feed.again(), feed.slicer, trainer.accumulation, trainer.step))
    sums = trainer.sums(False, window.batch)
    trainer.train(sums, trainer.engine.place(window))
    return trainer.training_logs(sums)


def run_evaluate(trainer: Trainer, feed: Feed, callbacks: Hooks) -> dict[str, float]:
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


def run_predict(trainer: Trainer, feed: Feed, callbacks: Hooks, keep: bool = True) -> Any:
    """The model's outputs for every row of the feed, in order: a tree of host arrays; None unless `keep`."""
    callbacks.on_predict_begin({})
    pieces = []
    for number, batch in enumerate(feed.again()):
        callbacks.on_predict_batch_begin(number, {})
        outputs = trainer.engine.predict(padded_batch(batch, feed.slicer)._replace(y=None, sample_weight=None))
        pieces.append(tree.map(lambda leaf: np.asarray(leaf)[valid_rows(batch, len(leaf))], outputs))  # noqa: B023
        callbacks.on_predict_batch_end(number, {"outputs": pieces[-1]})
    callbacks.on_predict_end({})
    callbacks.meet("predict_end")
    return tree.map(lambda *leaves: np.concatenate(leaves), *pieces) if keep else None
