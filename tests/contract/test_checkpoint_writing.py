"""Checkpoints are written beside training: when, without holding it up, and what happens where that fails."""

import datetime
import os
import re
import threading

import numpy as np
import pytest

import checkpoint_scenarios as scenarios
import unifit as uf
import unifit.checkpoint.saver as saver
import unifit.training.checkpointing as checkpointing
from checkpoint_tools import names
from unifit.checkpoint import newest
from unifit.errors import CheckpointError

TIME_LIMIT_S = 20.0


def steps(folder):
    return [int(name.removeprefix("step-")) for name in names(folder) if name.startswith("step-")]


def ten_steps(folder, *callbacks, **options):
    """Two epochs of five updates, each with gradient 1 from w = 0."""
    x = np.ones((10, 1), np.float32)
    model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(uf.optimizers.SGD(1.0), scenarios.prediction)
    settings = {"batch_size": 2, "epochs": 2, "verbose": 0, "checkpoint_keep": None} | options
    model.fit(x, x, callbacks=list(callbacks), checkpoint_dir=folder, **settings)
    return model


class AfterStep(uf.callbacks.Callback):
    """Calls functions after steps of the run, by their number from 1."""

    def __init__(self, **functions):
        self.functions, self.step = functions, 0

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.functions.get(f"step_{self.step}", lambda: None)()


# When


@pytest.mark.parametrize(
    "every, expected", [(3, [3, 6, 9, 10]), (5, [5, 10]), (1, [*range(1, 11)]), (100, [10]), ("epoch", [5, 10])]
)
def test_one_every_so_many_steps_and_at_the_end(tmp_path, every, expected):
    ten_steps(tmp_path, checkpoint_every=every)
    assert steps(tmp_path) == expected
    assert [newest(tmp_path).state[key] for key in ("step", "finished", "epoch")] == [10, True, 2]


def test_one_every_so_much_time(tmp_path, monkeypatch):
    """A step takes 10 s and one is due every 25 s: after 30 s, and after as much again. Saving takes no time here."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(checkpointing, "time", clock)

    class Passes(uf.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            clock.now += 10.0

    ten_steps(tmp_path, Passes(), checkpoint_every=datetime.timedelta(seconds=25))
    assert steps(tmp_path) == [3, 6, 9, 10]


def test_values_are_those_of_the_step_that_they_are_saved_after(tmp_path):
    """Training goes on while they are written, and changes the weights in place: w is minus the number of steps."""
    ten_steps(tmp_path, checkpoint_every=1)
    for step in range(1, 11):
        found = newest(tmp_path) if step == 10 else uf.checkpoint.Checkpoint.open(tmp_path / f"step-{step:08d}")
        assert found.arrays("weights")["0.kernel"] == -float(step)


# Beside training


@pytest.fixture
def gate(monkeypatch):
    """Holds the writing of files back until it is opened."""
    opened, begun, write_arrays = threading.Event(), threading.Event(), saver.write_arrays

    def held(path, arrays):
        begun.set()
        assert opened.wait(TIME_LIMIT_S)
        return write_arrays(path, arrays)

    monkeypatch.setattr(saver, "write_arrays", held)
    opened.begun = begun
    yield opened
    opened.set()


def test_steps_go_on_while_one_is_written(tmp_path, gate):
    """It is begun after step 2; step 3 is made while nothing of it is on the disk, and step 4 waits for it."""
    found = []

    def look():
        assert gate.begun.wait(TIME_LIMIT_S)
        found.append(newest(tmp_path))
        gate.set()

    ten_steps(tmp_path, AfterStep(step_3=look), checkpoint_every=2)
    assert found == [None]
    assert newest(tmp_path).state["step"] == 10
    assert uf.checkpoint.Checkpoint.open(tmp_path / "step-00000002").arrays("weights")["0.kernel"] == -2.0


def test_fit_returns_when_the_last_one_is_on_the_disk(tmp_path, gate):
    opener = threading.Timer(0.3, gate.set)

    class Late(uf.callbacks.Callback):
        def on_train_end(self, logs=None):
            opener.start()

    ten_steps(tmp_path, Late(), checkpoint_every=100)
    assert gate.is_set() and newest(tmp_path).state["finished"]
    opener.join()
    assert not any(thread.name == "unifit-checkpoint" for thread in threading.enumerate())


def test_fit_that_fails_waits_for_the_one_in_flight(tmp_path, gate):
    """The error is the user's, and what was saved before it is on the disk."""
    opener = threading.Timer(0.3, gate.set)

    def fails():
        opener.start()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ten_steps(tmp_path, AfterStep(step_3=fails), checkpoint_every=2)
    opener.join()
    assert steps(tmp_path) == [2] and newest(tmp_path).state["step"] == 2


# Errors


def test_file_in_place_of_the_folder_is_named_before_training(tmp_path):
    seen = scenarios.Seen()
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(CheckpointError, match=re.escape(f"'{directory}' cannot be used")):
            ten_steps(directory, seen)
    assert seen.calls == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_named_before_training(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="cannot be used: PermissionError"):
        ten_steps(tmp_path / "run")


def test_disk_that_is_full_ends_training_with_the_earlier_checkpoint_whole(run_on, tmp_path):
    """In a worker: the limit on the sizes of files that stands for it holds for a whole process."""
    outcome = run_on(1, "disk_full", folder=str(tmp_path))[0]
    assert outcome["kind"] == "CheckpointError"
    assert "could not be written" in str(outcome["text"]) and "File too large" in str(outcome["text"])
    assert outcome["moved"] > 0  # the model is trained on
    assert names(tmp_path) == ["latest", "step-00000004"]
    found = newest(tmp_path)
    assert found.state["step"] == 4 and (tmp_path / "latest").read_text() == "step-00000004\n"
    assert found.arrays("weights")["0.kernel"].shape == outcome["kernel"].shape
    assert not np.array_equal(found.arrays("weights")["0.kernel"], outcome["kernel"])  # it keeps its own weights


def test_folder_that_vanishes_ends_training(tmp_path):
    folder = tmp_path / "run"
    outcome = scenarios.folder_gone(1, str(folder))
    assert outcome["kind"] == "CheckpointError" and str(folder) in str(outcome["text"])
    assert outcome["steps"] <= 12  # it vanished after the first of 50 epochs, and was missed at the second's end
    assert outcome["calls"].tolist() == ["train_begin", "train_end"]
    assert names(tmp_path / "elsewhere") == ["latest", "step-00000004"]
    assert newest(tmp_path / "elsewhere").state["step"] == 4


def test_error_of_the_last_one_is_raised(tmp_path, monkeypatch):
    def no_room(path, arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saver, "write_arrays", no_room)
    with pytest.raises(CheckpointError, match="No space left on device.*untouched"):
        ten_steps(tmp_path, checkpoint_every=100)
    assert names(tmp_path) == []


def test_fit_that_failed_to_save_is_gone_on_with(tmp_path, monkeypatch):
    """There is room again: it goes on from the earlier checkpoint, and ends as if nothing had been."""
    write_arrays = saver.write_arrays

    def no_room(path, arrays):
        if "step-00000004" in str(path):
            raise OSError(28, "No space left on device")
        return write_arrays(path, arrays)

    with monkeypatch.context() as patched:
        patched.setattr(saver, "write_arrays", no_room)
        with pytest.raises(CheckpointError, match="No space left"):
            ten_steps(tmp_path, checkpoint_every=2)
    assert steps(tmp_path) == [2]
    model = ten_steps(tmp_path, checkpoint_every=2)
    assert model.weights_by_path()["0.kernel"] == -10.0
