"""fit, from its arguments to its History: devices, data, a checkpoint to go on from, an engine, and the loop."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import unifit.training.run_state as run_state
from unifit.callbacks import BackupAndRestore, History
from unifit.callbacks.callback_list import CallbackList, fit_callbacks
from unifit.callbacks.progress_bar import verbosity
from unifit.checkpoint.folder import Folder
from unifit.checkpoint.reading import Checkpoint
from unifit.contract.distribution import DataParallel
from unifit.data.adapt import make_source
from unifit.data.class_weights import labels_are_sparse
from unifit.data.feed import Feed
from unifit.data.validation import split_validation, validation_source
from unifit.errors import ArgumentError
from unifit.launch.interruption import end_of
from unifit.peers import Peers, peers_of
from unifit.training.binding import Binding
from unifit.training.checkpointing import Checkpointing, count_completed, find, fit_number
from unifit.training.hooks import Hooks
from unifit.training.loop import Epochs, Session, run_fit
from unifit.training.run import make_feed, require_same_run
from unifit.training.run_state import Place, Run
from unifit.training.signals import Signals
from unifit.training.spec import TrainingSpec
from unifit.training.stopping import Ending, StepAgreement, agreed_ending
from unifit.training.trainer import naming_out_of_memory
from unifit.training.wishes import CheckpointWishes, make_wishes


@dataclass(frozen=True)
class FitArguments:
    """What fit was given; see Model.fit."""

    x: Any
    y: Any
    sample_weight: Any
    batch_size: int | None
    epochs: int
    verbose: Any
    callbacks: Any
    validation_split: float
    validation_data: Any
    shuffle: bool
    class_weight: dict[int, float] | None
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: Any
    distribution: DataParallel | None
    checkpoints: CheckpointWishes


def fit(model: Any, binding: Binding, spec: TrainingSpec, given: FitArguments) -> History:
    """Trains; see Model.fit."""
    observing, history = fit_callbacks(given.callbacks, given.verbose)
    schedule = Epochs(given.initial_epoch, given.epochs, given.validation_freq)
    backup = next((callback for callback in observing if isinstance(callback, BackupAndRestore)), None)
    wishes = given.checkpoints if backup is None else _wishes_of(backup, given.checkpoints)
    devices = binding.training_devices(given.distribution)
    peers = peers_of(devices)
    told = verbosity(given.verbose) > 0
    with peers.guard(), ExitStack() as stack:
        resumed = find(wishes, peers)
        if resumed is not None:
            schedule = _epochs_left(resumed, schedule, told and peers.process == 0)
            run_state.prepare_model(resumed, model)
        feed, validation = _feeds(given, spec, devices, schedule)
        arguments = {"epochs": [given.initial_epoch, given.epochs], "validation_freq": str(given.validation_freq)}
        require_same_run(peers, "fit", arguments, spec, {"data": feed, "validation data": validation})
        begun = None if resumed is None else _resume_feed(resumed, feed, spec, wishes, schedule)
        if wishes.directory is not None:
            feed.keep_marks()
            if wishes.resume == "must":
                feed.require_exact()
        if validation is not None and validation.source.num_batches is None:
            validation.first()
        trainer = binding.trainer_for(spec, devices, feed, trains=True, told=told)
        if validation is not None:
            validation.slicer.pad = feed.slicer.pad
        initial_rate = run_state.rate_facts(spec.optimizer)
        if resumed is not None:
            if begun is not None:
                begun = begun._replace(sums=run_state.sums_of(resumed, trainer.engine))
            run_state.restore(resumed, model, trainer)
            run_state.restore_rate(resumed, spec.optimizer)
        params = {
            "epochs": given.epochs,
            "steps": _steps(feed.source, given.steps_per_epoch, spec),
            "verbose": verbosity(given.verbose),
            "validation": validation is not None,
            "process": devices.placement.process,
        }
        if begun is not None and begun.steps:
            params["resumed_at"] = (begun.epoch, begun.steps)
        hooks = Hooks(CallbackList(observing, model, params), peers)
        if resumed is not None:
            hooks.load_states(run_state.callback_states(resumed))
        run = Run(model, trainer, feed, hooks, given.epochs, fit_number(wishes.directory), initial_rate)
        checkpoints = None
        if wishes.directory is not None:
            checkpoints = stack.enter_context(Checkpointing(wishes, peers, run, resumed))
        stopping = stack.enter_context(StepAgreement(peers, "stop", trainer.step))
        signals = stack.enter_context(Signals(saves=checkpoints is not None))
        with naming_out_of_memory(feed.slicer):
            session = Session(hooks, stopping, signals, checkpoints, begun)
            ending = run_fit(model, trainer, feed, schedule, session, validation)
        # One that came when training had ended by itself; on one process, perhaps, and all end by it.
        late = None if ending.interrupted else agreed_ending(peers, Ending(signals.received)).signal
    if not ending.interrupted:
        count_completed(wishes.directory)
        if backup is not None and backup.delete_checkpoint:
            _delete_backup(wishes, run, peers)
    number = ending.signal if late is None else late
    if number is not None:
        raise end_of(number)
    return history


def _feeds(given: FitArguments, spec: TrainingSpec, devices: Any, schedule: Epochs) -> tuple[Feed, Feed | None]:
    """The training data, and the validation data where there are some."""
    x, y, sample_weight, validation_data = given.x, given.y, given.sample_weight, given.validation_data
    if given.validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split_validation(x, y, sample_weight, given.validation_split)
    source = make_source(
        x,
        y,
        sample_weight,
        batch_size=given.batch_size,
        shuffle=given.shuffle,
        class_weight=given.class_weight,
        sparse_labels=labels_are_sparse(spec.loss),
        placement=devices.placement,
    )
    feed = make_feed(source, devices, given.steps_per_epoch, schedule.first)
    if given.steps_per_epoch is None:
        feed.require(schedule.end - schedule.first, "The training data")
    if validation_data is None:
        return feed, None
    scored = validation_source(validation_data, given.validation_batch_size, given.batch_size, devices.placement)
    validation = make_feed(scored, devices, given.validation_steps)
    validation.require(schedule.validations(), "The validation data")
    return feed, validation


def _epochs_left(resumed: Checkpoint, schedule: Epochs, told: bool) -> Epochs:
    """The epochs that a run has left which goes on from a checkpoint."""
    state = resumed.state
    over = state["finished"] and schedule.end <= state["epochs"]
    first = schedule.end if over else min(state["epoch"], schedule.end)
    if told:
        where = f"epoch {state['epoch'] + 1}, {state['steps_done']} of its steps done" if not over else "its end"
        left = "" if first < schedule.end else ": nothing is left to train"
        print(f"unifit: goes on from '{resumed.path}' (step {state['step']}, {where}){left}", file=sys.stderr)
    return replace(schedule, first=first)


def _resume_feed(
    resumed: Checkpoint, feed: Feed, spec: TrainingSpec, wishes: CheckpointWishes, schedule: Epochs
) -> Place | None:
    """Has the data go on where the checkpoint lies; returns that place, or None where no data was read before it."""
    state = resumed.state
    run_state.require_same_data(resumed, feed, spec.gradient_accumulation_steps)
    feed.slicer.resume(state["padded"], state["first_padded"])
    position = run_state.position_of(resumed, feed.slicer.placement.process)
    if position is None:
        return None
    if schedule.first < schedule.end and run_state.is_data_of(resumed, feed):
        if wishes.resume == "must":
            feed.require_exact()
        feed.resume(state["epoch"], state["batches_done"], position)
    return Place(state["epoch"], state["batches_done"], state["steps_done"], position)


def _wishes_of(backup: BackupAndRestore, given: CheckpointWishes) -> CheckpointWishes:
    if given.directory is not None:
        raise ArgumentError("fit got checkpoint_dir and a BackupAndRestore callback, which has one itself; pass one.")
    return make_wishes(backup.backup_dir, backup.save_freq, 1, None, "auto", "auto")


def _delete_backup(wishes: CheckpointWishes, run: Run, peers: Peers) -> None:
    def delete() -> None:
        folder = Folder(wishes.directory, run.fit)
        for step in folder.steps():
            folder.delete(step)

    with peers.guard():
        peers.on_main("backup", delete)


def _steps(source: Any, limit: int | None, spec: TrainingSpec) -> int | None:
    batches = source.num_batches if limit is None else limit
    return None if batches is None else -(-batches // spec.gradient_accumulation_steps)
