"""What kills a job at a moment: the functions that the stages of a run are made of are wrapped, and its hooks watched.

A kill is SIGKILL to every process of the job: nothing is caught, flushed or cleaned up. Who kills writes down where it
was, then kills the others, then itself.
"""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import unifit as uf
import unifit.checkpoint.files as files
import unifit.checkpoint.saver as saver
import unifit.training.run_state as run_state
from kill_moments import REPLACING
from unifit.checkpoint.folder import Folder

DURING = 0.005  # seconds of a step, before one was timed


class Killer:
    """Kills the job at a moment; does nothing in the processes of other ranks, or without one.

    Args:
        moment: When; None for never.
        rank: The rank of this process.
        record: The file that gets a line of JSON when the job is killed; beside it lies one with the job's processes.

    Attributes:
        step: From nothing to the updates of the run so far; set when training begins.
        saving: The step whose checkpoint is being written; None before the first one.
        written: Files of it that are written.
    """

    def __init__(self, moment, rank, record):
        self.moment = moment if moment is not None and moment.rank == rank else None
        self.record = Path(record)
        self.step = lambda: 0
        self.saving, self.written = None, 0

    def is_due(self, stage, step=None):
        """Whether the job is to be killed at this stage, now."""
        due = self.moment is not None and self.moment.stage == stage
        return due and (self.step() if step is None else step) >= self.moment.step

    def at(self, stage, step=None):
        """Kills the job if it is due."""
        if self.is_due(stage, step):
            self.kill()

    def at_save(self, stage):
        """The same for a stage of the save in progress."""
        if self.saving is not None:
            self.at(stage, self.saving)

    def kill(self):
        """Writes down where the run is, and kills the job."""
        self.note()
        self.strike(self.pids())

    def pids(self):
        """The job's processes, this one last."""
        pids = json.loads(self.record.with_suffix(".pids").read_text())
        return sorted(pids, key=lambda pid: pid == os.getpid())

    def strike(self, pids):
        """Kills these processes, and lets no other thread run meanwhile: os.kill keeps the interpreter's lock."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def note(self):
        facts = self.moment._asdict() | {"reached": self.step(), "saving": self.saving}
        with open(self.record, "a") as file:
            file.write(json.dumps(facts) + "\n")

    def withdraw(self):
        """What was noted is not going to happen."""
        with open(self.record, "a") as file:
            file.write("null\n")

    def arm(self):
        """Wraps what the stages of a save, and the going on from a checkpoint, are made of."""
        _watch_files(self)
        _watch_folder(self)
        _after(run_state, "restore", lambda *_: self.at("resuming", self.moment and self.moment.step))
        _after(saver.Saver, "save", lambda _, contents: self.at("copied", contents.state["step"]))


def _around(owner, name, before=None, after=None):
    function = getattr(owner, name)

    def wrapped(*arguments, **options):
        if before is not None:
            before(*arguments, **options)
        result = function(*arguments, **options)
        if after is not None:
            after(*arguments, **options)
        return result

    setattr(owner, name, wrapped)


def _before(owner, name, act):
    _around(owner, name, before=act)


def _after(owner, name, act):
    _around(owner, name, after=act)


class _Half:
    """A file of which half of what is written to it gets there before the job is killed."""

    def __init__(self, file, killer):
        self.file, self.killer = file, killer

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.killer.kill()


def _watch_files(killer):
    def after_file(path, arrays):
        number, killer.written = killer.written, killer.written + 1
        if killer.moment is not None and number == killer.moment.part:
            if killer.is_due("in a file", killer.saving):
                os.truncate(path, os.path.getsize(path) // 2)  # as it was when half of it was written
                killer.kill()
            killer.at_save("after a file")

    atomic_file = files.atomic_file

    @contextlib.contextmanager
    def halved(path):
        with atomic_file(path) as file:
            due = killer.saving is not None and killer.is_due(f"in {path.name}", killer.saving)
            yield _Half(file, killer) if due else file

    files.atomic_file = halved
    _after(saver, "write_arrays", after_file)
    _before(saver, "write_json", lambda path, value: killer.at_save("before state.json"))


def _watch_folder(killer):
    def begun(folder, step):
        killer.saving, killer.written = step, 0
        killer.at_save("folder made")

    def deleting(path, **options):
        if ".deleted-" in str(path):
            killer.at_save("deletion begun")
            if killer.saving is not None and killer.is_due("in a deletion", killer.saving):
                next(Path(path).iterdir()).unlink()
                killer.kill()

    def renamed(source, target):
        if ".replaced-" in str(target):
            killer.at_save(REPLACING)

    _after(Folder, "begin", begun)
    _before(Folder, "commit", lambda *_: killer.at_save("before the rename"))
    _before(Folder, "point", lambda *_: killer.at_save("before latest"))
    _after(Folder, "point", lambda *_: killer.at_save("after latest"))
    _before(shutil, "rmtree", deleting)
    _after(os, "rename", renamed)


class InStep(threading.Thread):
    """Kills while `engine.train` runs: it takes aim before a call, then waits for a part of a step's time.

    Where the call has returned meanwhile, it tries an earlier moment of the next one.
    """

    def __init__(self, killer, engine):
        super().__init__(daemon=True)
        self.killer, self.part = killer, killer.moment.part
        self.wanted, self.aims = threading.Event(), threading.Event()
        self.calls, self.running, self.took = 0, False, []
        train = engine.train

        def timed(*arguments):
            if killer.is_due("in the step"):
                self.wanted.set()
                self.aims.wait()
                self.aims.clear()
            started = time.perf_counter()
            self.running, self.calls = True, self.calls + 1
            result = train(*arguments)
            self.running = False
            self.took.append(time.perf_counter() - started)
            return result

        engine.train = timed

    def run(self):
        while True:
            self.wanted.wait()
            self.wanted.clear()
            self.killer.note()
            pids = self.killer.pids()
            delay, calls = self.part * min(self.took[-5:], default=DURING), self.calls
            self.aims.set()
            while self.calls == calls:
                time.sleep(0)
            time.sleep(delay)
            if self.running:
                self.killer.strike(pids)
            self.killer.withdraw()
            self.part /= 2


class Watch(uf.callbacks.Callback):
    """Kills in hooks; the first of the callbacks, or the last one.

    Args:
        killer: What kills.
        last: Whether all other callbacks' hooks come before its own.
    """

    def __init__(self, killer, last):
        self.killer, self.last = killer, last

    def on_train_begin(self, logs=None):
        trainer = self.model.trainer
        self.killer.step = lambda: trainer.step
        if self.last and self.killer.moment is not None and self.killer.moment.stage == "in the step":
            InStep(self.killer, trainer.engine).start()

    def on_epoch_begin(self, epoch, logs=None):
        if self.last:
            self.killer.at("epoch's begin")

    def on_train_batch_begin(self, batch, logs=None):
        if self.last:
            self.killer.at("step's begin")

    def on_train_batch_end(self, batch, logs=None):
        if self.last:
            self.killer.at("step's end")

    def on_test_batch_end(self, batch, logs=None):
        if self.last and batch == 1:
            self.killer.at("validation")

    def on_epoch_end(self, epoch, logs=None):
        self.killer.at(f"epoch's end, {'after' if self.last else 'before'} the callbacks")
