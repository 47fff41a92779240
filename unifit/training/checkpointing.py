"""A fit's checkpoints: which one it goes on from, when it writes one, and what is in it."""

from __future__ import annotations

import datetime
import secrets
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import unifit.checkpoint.format as format
from unifit.checkpoint.folder import Folder
from unifit.checkpoint.newest import checkpoint_at
from unifit.checkpoint.reading import Checkpoint
from unifit.checkpoint.saver import Contents, Saver
from unifit.errors import ArgumentError, CheckpointError
from unifit.peers import Peers
from unifit.processes import warn
from unifit.training.run_state import Place, Run, arrays_of_run, facts_of_run, states_of
from unifit.training.stopping import StepAgreement
from unifit.training.wishes import CheckpointWishes

FLOAT_BYTES = 4

_completed: dict[Path, int] = {}
"""How many fits of this process with a directory came to their end: the number of the next one."""


def fit_number(directory: Path | None) -> int:
    """Which fit of the script the next one with this directory is."""
    return 0 if directory is None else _completed.get(directory.resolve(), 0)


def count_completed(directory: Path | None) -> None:
    """A fit with this directory has come to its end."""
    if directory is not None:
        _completed[directory.resolve()] = fit_number(directory) + 1


def find(wishes: CheckpointWishes, peers: Peers) -> Checkpoint | None:
    """The checkpoint that a fit goes on from, the same on all processes; None to start afresh.

    Makes the directory, sees whether it can be written to by all, and clears away what an interrupted process left.

    Raises:
        ArgumentError: When the directory holds checkpoints and resume is None.
        CheckpointError: When there is none and resume is "must"; when the one that was named is damaged; when the
            directory cannot be used.
    """
    folder = None if wishes.directory is None else Folder(wishes.directory, fit_number(wishes.directory))
    token = secrets.token_hex(8)
    found: dict[str, Any] = {}

    def look() -> None:
        if folder is not None:
            _make(folder, token)
        checkpoint = _chosen(wishes, folder)
        found["path"] = None if checkpoint is None else str(checkpoint.path)

    problem: Exception | None = None
    if peers.process == 0:
        try:
            look()
        except (ArgumentError, CheckpointError) as error:
            problem = error
    told = {"path": found.get("path"), "token": token, "error": None}
    if problem is not None:
        told["error"] = [isinstance(problem, ArgumentError), str(problem)]
    try:
        answer = peers.agree("checkpoint/found", told, _of_first)
        checkpoint, unseen = None, None
        try:
            if folder is not None and not (folder.path / f".seen-{answer['token']}").exists():
                unseen = str(folder.path.resolve())
            elif answer["path"] is not None:
                checkpoint = Checkpoint.open(answer["path"])
        except CheckpointError as error:
            unseen = str(error)
        peers.agree("checkpoint/seen", unseen, _all_see)
        return checkpoint
    finally:
        if folder is not None and peers.process == 0:
            with suppress(OSError):
                (folder.path / f".seen-{token}").unlink()


def _of_first(given: list[Any]) -> Any:
    if given[0]["error"] is not None:
        argument, message = given[0]["error"]
        raise ArgumentError(message) if argument else CheckpointError(message)
    return given[0]


def _all_see(given: list[Any]) -> None:
    for process, unseen in enumerate(given):
        if unseen is not None:
            raise CheckpointError(
                f"Process {process} of the job does not see the checkpoints that process 0 sees ({unseen}). "
                "checkpoint_dir needs to be on a file system that all machines of the job share."
            )


def _make(folder: Folder, token: str) -> None:
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        partial = folder.clear()
        (folder.path / f".seen-{token}").touch()
    except OSError as error:
        raise CheckpointError(
            f"checkpoint_dir '{folder.path}' cannot be used: {type(error).__name__}: {error}. Give a folder that this "
            "process may write to."
        ) from error
    for old in folder.path.glob(".seen-*"):
        if old.name != f".seen-{token}":
            old.unlink(missing_ok=True)
    for name in partial:
        warn(f"'{folder.path / name}' was not written to its end, and is passed over.", stacklevel=2)


def _chosen(wishes: CheckpointWishes, folder: Folder | None) -> Checkpoint | None:
    if isinstance(wishes.resume, Path):
        found = checkpoint_at(wishes.resume)
        later = [] if folder is None else [step for step in folder.steps() if step > found.state["step"]]
        if folder is not None and later:
            raise ArgumentError(
                f"resume='{wishes.resume}' goes on from step {found.state['step']}, and checkpoint_dir '{folder.path}' "
                f"holds later checkpoints (steps {later[-3:]}), which would stay the newest. Use resume='auto' to go "
                "on from those, another checkpoint_dir, or delete them."
            )
        return found
    if folder is None:
        return None
    if wishes.resume is None:
        if folder.steps():
            raise ArgumentError(
                f"'{folder.path}' holds checkpoints (steps {folder.steps()[-3:]}), and resume=None starts afresh: what "
                "is there would be mixed with another run. Use resume='auto' to go on from them, another "
                "checkpoint_dir, or delete them."
            )
        return None
    newest = folder.newest(lambda problem: warn(f"A checkpoint is passed over. {problem}", stacklevel=2))
    if newest is None and wishes.resume == "must":
        raise CheckpointError(
            f"resume='must', and '{folder.path}' has no complete checkpoint. resume='auto' would start afresh."
        )
    return newest


class Checkpointing:
    """When a fit writes checkpoints, and what is in them.

    Args:
        wishes: What the user asked for; with a directory.
        peers: The job's processes.
        run: The fit.
        resumed: The checkpoint that it goes on from.
    """

    def __init__(self, wishes: CheckpointWishes, peers: Peers, run: Run, resumed: Checkpoint | None):
        assert wishes.directory is not None
        states_of(run.callbacks, {})  # refuses what cannot be written, before the first step
        self.wishes, self.peers, self.run = wishes, peers, run
        self.folder = Folder(wishes.directory, run.fit)
        channel = None if peers.alone else peers.channel(despite_failure=True)
        self._saver = Saver(self.folder, wishes.keep, channel)
        self._best: tuple[float, int] | None = None
        self._resumed_step: int | None = None
        self._written: tuple[int, Place, bool] | None = None
        if resumed is not None and resumed.path.parent.resolve() == self.folder.path.resolve():
            self._resumed_step = resumed.state["step"]
            place = Place(resumed.state["epoch"], resumed.state["batches_done"], resumed.state["steps_done"])
            self._written = (self._resumed_step, place, resumed.state["finished"])
        if peers.process == 0:
            self._find_best()
        self._every = wishes.every
        self._agreements = 0
        self._timed: StepAgreement | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Checkpointing:
        self._begin_timing()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stack.close()
        if isinstance(error, KeyboardInterrupt):
            return  # at once; what was to be saved before a first Ctrl-C ended the run is written already
        try:
            self._saver.wait()
        except Exception:
            if error is None:
                raise

    @property
    def failed(self) -> bool:
        """Whether a checkpoint could not be written: the run is to stop, and `check` raises why."""
        return self._saver.failed

    def check(self) -> None:
        """Waits for what is in flight; raises its error. All processes call it after the same step."""
        self._saver.wait()

    def after_step(self, place: Place) -> None:
        """Writes one where that is due after an update."""
        step = self.run.trainer.step
        if isinstance(self._every, int):
            if step % self._every == 0:
                self._save(place)
        elif self._timed is not None:
            if self.peers.process == 0 and time.monotonic() >= self._due_at:
                self._timed.wish()
            if self._timed.due(step):
                self._save(place)
                self._begin_timing()

    def after_epoch(self, place: Place, logs: dict[str, float]) -> None:
        """Writes one where that is due after an epoch and its callbacks; `place` is the next one's start."""
        if self._every == "epoch":
            self._save(place, self._score(logs))

    def interrupted(self, place: Place) -> None:
        """Writes one from which a later run goes on."""
        self._save(place)
        self._saver.wait()

    def finished(self, place: Place) -> None:
        """Writes the fit's last one, when its callbacks have done all; returns when it is on the disk.

        Args:
            place: The start of the epoch that would come next.
        """
        self._saver.wait()
        self._save(place, finished=True)
        self._saver.wait()

    # Helpers

    def _begin_timing(self) -> None:
        if isinstance(self._every, datetime.timedelta):
            self._stack.close()
            self._due_at = time.monotonic() + self._every.total_seconds()
            self._agreements += 1
            self._timed = StepAgreement(self.peers, f"checkpoint/{self._agreements}", self.run.trainer.step)
            self._stack.enter_context(self._timed)

    def _score(self, logs: dict[str, float]) -> dict[str, Any] | None:
        monitor = self.wishes.monitor
        if monitor is None:
            return None
        if monitor not in logs:
            validated = any(name.startswith("val_") for name in logs)
            if not (monitor.startswith("val_") and not validated):
                warn(
                    f"checkpoint_monitor is '{monitor}', which is not in the logs: no checkpoint is the best. "
                    f"Available: {', '.join(logs)}.",
                    stacklevel=2,
                )
            return None
        return {"monitor": monitor, "value": format.plain(float(logs[monitor]), "", {})}

    def _find_best(self) -> None:
        """The best of those that are there already."""
        for step in self.folder.steps():
            try:
                score = Checkpoint.open(self.folder.at(step)).state.get("score")
            except CheckpointError:
                continue
            if score is not None and score["monitor"] == self.wishes.monitor:
                self._note(format.restored(score["value"], {}), step)

    def _note(self, value: float, step: int) -> bool:
        better = self.wishes.better(value, None if self._best is None else self._best[0])
        if better:
            self._best = (value, step)
        return better

    def _save(self, place: Place, score: dict[str, Any] | None = None, finished: bool = False) -> None:
        step = self.run.trainer.step
        here = (step, place._replace(position=None, sums=None), finished)
        if self._written == here:
            return  # nothing has happened since
        self._saver.wait()
        better = score is not None and self._note(format.restored(score["value"], {}), step)
        if finished and self._best is not None and self._best[1] == step:
            score = {"monitor": self.wishes.monitor, "value": format.plain(self._best[0], "", {})}
        kept = [best for best in (self._resumed_step, self._best and self._best[1]) if best is not None]
        state, groups, own = facts_of_run(self.run, place, finished, score)
        shared = not self.peers.alone and FLOAT_BYTES * self.run.model.count_params() > format.FILE_BYTES
        if shared or self.peers.process == 0:
            facts, arrays = arrays_of_run(self.run)
            state, groups = state | facts, arrays | groups
        else:
            groups = {}
        self._saver.save(Contents(state, groups, own, shared, better, tuple(kept)))
        self._written = here
