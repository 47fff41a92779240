"""The only loops: epochs of windows, batches of an evaluation, batches of a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from unifit.callbacks.base import CallbackList
from unifit.contract import tree
from unifit.data.source import Batch, Source
from unifit.data.windows import Slicer, padded_batch, windows
from unifit.errors import ArgumentError
from unifit.seed import get_seed
from unifit.training.logs import LazyLogs
from unifit.training.trainer import Trainer


class Feed:
    """A source cut for this process: its first batch can be looked at without losing it.

    Args:
        source: Where batches come from.
        slicer: Which rows are this process'.
        limit: Batches an epoch, or None for the source's own end. Under a limit an epoch of training goes on where the
            last one stopped, and starts the source again when it runs dry.
    """

    def __init__(self, source: Source, slicer: Slicer, limit: int | None = None):
        self.source, self.slicer, self.limit = source, slicer, limit
        self._first: Batch | None = None
        self._running: Iterator[Batch] | None = None
        self._number = 0

    def first(self) -> Batch:
        """The first batch, which stays in the feed.

        Raises:
            ArgumentError: When the source is empty.
        """
        if self._first is None:
            self._running = self._begin(0)
            self._first = next(self._running, None)
            if self._first is None:
                raise ArgumentError("The data yields no batch: there is nothing to train or evaluate on.")
            self._running = chain([self._first], self._running)
        return self._first

    def _begin(self, number: int) -> Iterator[Batch]:
        self._number = number + 1
        return self.source.epoch(number, get_seed(), self.slicer.own)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of training epoch `number`."""
        if self.limit is None:
            running, self._running = self._running, None
            return self._begin(number) if running is None or self._number != number + 1 else running
        return self._limited()

    def _limited(self) -> Iterator[Batch]:
        count = 0
        while count < self.limit:
            if self._running is None:
                self._running = self._begin(self._number)
            batch = next(self._running, None)
            if batch is None:
                self._running = None
                if count == 0 and not self.source.restartable:
                    return
                if not self.source.restartable:
                    return
                continue
            count += 1
            yield batch

    def again(self) -> Iterator[Batch]:
        """The batches of an evaluation: always from the start, at most `limit`."""
        running, self._running = self._running, None
        return islice(self._begin(0) if running is None else running, self.limit)


@dataclass(frozen=True)
class Epochs:
    """Which epochs a fit runs, and when it validates: every `validation_freq` epochs, or after the epochs listed there."""

    first: int
    end: int
    validation_freq: Any = 1

    def validates(self, epoch: int) -> bool:
        """Whether epoch number `epoch` (from 0) ends with a validation."""
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return (epoch + 1) in self.validation_freq


def run_fit(
    model: Any, trainer: Trainer, feed: Feed, epochs: Epochs, callbacks: CallbackList, validation: Feed | None
) -> None:
    """Trains; `on_train_end` runs however it ends."""
    model.stop_training = False
    callbacks.on_train_begin()
    logs: dict[str, float] = {}
    try:
        for epoch in range(epochs.first, epochs.end):
            callbacks.on_epoch_begin(epoch)
            logs = train_epoch(model, trainer, feed, epoch, callbacks)
            if validation is not None and epochs.validates(epoch):
                scores = run_evaluate(trainer, validation, callbacks)
                logs |= {f"val_{name}": value for name, value in scores.items()}
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
    finally:
        callbacks.on_train_end(logs)


def train_epoch(model: Any, trainer: Trainer, feed: Feed, epoch: int, callbacks: CallbackList) -> dict[str, float]:
    """One epoch's updates; returns its figures."""
    sums = None
    for number, (window, _) in enumerate(
        windows(feed.epoch(epoch), feed.slicer, trainer.spec.gradient_accumulation_steps, trainer.step)
    ):
        if sums is None:
            sums = trainer.sums(False, window.batch)
        callbacks.on_train_batch_begin(number)
        trainer.train(sums, trainer.engine.place(window))
        if callbacks.has_on_train_batch_end:
            callbacks.on_train_batch_end(number, LazyLogs(lambda: trainer.training_logs(sums)))
        if model.stop_training:
            break
    if sums is None:
        raise ArgumentError(
            f"Epoch {epoch} has no batches left. A generator can be read once: pass steps_per_epoch so that epochs share it, "
            "or pass something that can be iterated again."
        )
    return trainer.training_logs(sums)


def train_batch(trainer: Trainer, feed: Feed) -> dict[str, float]:
    """One update on the feed's only batch; returns its figures."""
    window, _ = next(windows(feed.again(), feed.slicer, trainer.spec.gradient_accumulation_steps, trainer.step))
    sums = trainer.sums(False, window.batch)
    trainer.train(sums, trainer.engine.place(window))
    return trainer.training_logs(sums)


def run_evaluate(trainer: Trainer, feed: Feed, callbacks: CallbackList) -> dict[str, float]:
    """Scores every row of the feed once."""
    callbacks.on_test_begin()
    sums = None
    for number, batch in enumerate(feed.again()):
        micro = padded_batch(batch, feed.slicer)
        if sums is None:
            sums = trainer.sums(True, micro)
        callbacks.on_test_batch_begin(number)
        trainer.evaluate(sums, micro)
        if callbacks.has_on_test_batch_end:
            callbacks.on_test_batch_end(number, LazyLogs(lambda: trainer.evaluation_logs(sums)))
    if sums is None:
        raise ArgumentError("The evaluation data has no batches (left): a generator can be read once.")
    logs = trainer.evaluation_logs(sums)
    callbacks.on_test_end(logs)
    return logs


def run_predict(trainer: Trainer, feed: Feed, callbacks: CallbackList) -> Any:
    """The model's outputs for every row of the feed, in order: a tree of host arrays."""
    callbacks.on_predict_begin()
    pieces = []
    for number, batch in enumerate(feed.again()):
        callbacks.on_predict_batch_begin(number)
        outputs = trainer.engine.predict(padded_batch(batch, feed.slicer)._replace(y=None, sample_weight=None))
        pieces.append(tree.map(lambda leaf: np.asarray(leaf)[: batch.rows], outputs))  # noqa: B023
        callbacks.on_predict_batch_end(number, {"outputs": pieces[-1]})
    callbacks.on_predict_end()
    return tree.map(lambda *leaves: np.concatenate(leaves), *pieces)
