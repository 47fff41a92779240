"""The only loops: epochs of windows, batches of an evaluation, batches of a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.values import Window
from unifit.data.feed import Feed
from unifit.data.position import Position
from unifit.data.prefetch import ahead
from unifit.data.windows import padded_batch, valid_rows, windows
from unifit.errors import ArgumentError
from unifit.processes import warn
from unifit.training.checkpointing import Checkpointing
from unifit.training.hooks import Hooks
from unifit.training.logs import LazyLogs
from unifit.training.run_state import Place
from unifit.training.signals import Signals
from unifit.training.stopping import Ending, StepAgreement, agreed_ending
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


@dataclass(frozen=True)
class Session:
    """What a fit runs with besides the model, its trainer and the data.

    Attributes:
        callbacks: The hooks.
        stopping: The processes' agreement on the last step.
        signals: What has asked the process to end.
        checkpoints: Writes checkpoints; None for none.
        begun: Where the run goes on, in the middle of an epoch or at its start; None in a new run.
    """

    callbacks: Hooks
    stopping: StepAgreement
    signals: Signals
    checkpoints: Checkpointing | None = None
    begun: Place | None = None

    def wishes_to_stop(self, model: Any) -> bool:
        """Whether anything in this process asks for the end."""
        return (
            model.stop_training
            or self.signals.received is not None
            or self.callbacks.error is not None
            or (self.checkpoints is not None and self.checkpoints.failed)
        )

    def ending(self) -> Ending:
        """Why training stops, as all processes see it; errors that stopped it are raised. All call it."""
        self.callbacks.meet("stop")
        if self.checkpoints is not None:
            self.checkpoints.check()
        return agreed_ending(self.callbacks.peers, Ending(self.signals.received, self.callbacks.paused))


def run_fit(
    model: Any, trainer: Trainer, feed: Feed, epochs: Epochs, session: Session, validation: Feed | None
) -> Ending:
    """Trains; `on_train_end` runs however it ends. Returns why it stopped."""
    callbacks, checkpoints = session.callbacks, session.checkpoints
    model.stop_training = False
    logs: dict[str, float] = {}
    warned, done, ending = False, epochs.first, Ending()
    position = None if session.begun is None else session.begun.position
    try:
        callbacks.on_train_begin({})
        callbacks.meet("train_begin")
        for epoch in range(epochs.first, epochs.end):
            begun = session.begun if session.begun is not None and session.begun.epoch == epoch else None
            if (begun is None or not begun.steps) and not feed.ready(epoch):
                feed.warn_dry(0)
                break
            trainer.follow()
            callbacks.on_epoch_begin(epoch, {})
            place, stopped = train_epoch(model, trainer, feed, begun or Place(epoch), session)
            if stopped:
                ending = session.ending()
                if ending.interrupted:
                    if checkpoints is not None:
                        checkpoints.interrupted(place)
                    break
            assert place.sums is not None
            position = place.position
            logs, empty = trainer.training_figures(place.sums)
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
            stops = callbacks.meet("epoch_end", session.wishes_to_stop(model) or callbacks.paused)
            done = epoch + 1
            if checkpoints is not None:
                checkpoints.after_epoch(Place(done, position=position), logs)
            if stops:
                model.stop_training = True  # another process' wish shows here too
                ending = session.ending()
                if ending.interrupted and checkpoints is not None:
                    checkpoints.interrupted(Place(done, position=position))
                break
    finally:
        callbacks.on_train_end(logs)
    callbacks.meet("train_end")
    if checkpoints is not None and not ending.interrupted:
        checkpoints.finished(Place(done, position=position))
    return ending


def train_epoch(model: Any, trainer: Trainer, feed: Feed, begun: Place, session: Session) -> tuple[Place, bool]:
    """An epoch's updates from `begun` on; returns where the run stands then, and whether all have agreed to stop."""
    epoch, done, steps, position, sums = begun
    callbacks, stopping, checkpoints = session.callbacks, session.stopping, session.checkpoints
    padding_seen = stopped = False
    prepared = _positioned(windows(feed.epoch(epoch), feed.slicer, trainer.accumulation, trainer.step), feed)
    with ahead(
        prepared, partial(_placed, trainer.engine.place), threaded=feed.reads_ahead, in_step=feed.in_step
    ) as windows_ahead:
        for number, (window, batches, position, placed) in enumerate(windows_ahead, start=steps):
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
            done, steps = done + batches, number + 1
            if checkpoints is not None:
                checkpoints.after_step(Place(epoch, done, steps, position, sums))
            if session.wishes_to_stop(model):
                stopping.wish()
            if stopping.due(trainer.step):
                model.stop_training = stopped = True
                break
    if sums is None:
        raise ArgumentError(
            f"Epoch {epoch} has no batches left. A generator can be read once: pass steps_per_epoch so that epochs "
            "share it, or pass something that can be iterated again."
        )
    return Place(epoch, done, steps, position, sums), stopped


def _positioned(prepared: Iterator[tuple[Window, int]], feed: Feed) -> Iterator[tuple[Window, int, Position]]:
    """Windows, with the numbers of their batches and where the data goes on after them."""
    for window, batches in prepared:
        yield window, batches, feed.position


def _placed(place: Any, item: tuple[Window, int, Position]) -> tuple[Window, int, Position, Any]:
    """A window on the host with its facts, and on its way to the devices."""
    return *item, place(item[0])


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
