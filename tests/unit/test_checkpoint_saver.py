"""Writing checkpoints: in a thread, one at a time, whole or not at all, and which are kept."""

import errno
import itertools
import os
import shutil
import threading

import numpy as np
import pytest

import checkpoint_tools as tools
import unifit.checkpoint.format as format
import unifit.checkpoint.saver as saver_module
from unifit.checkpoint import Checkpoint, newest
from unifit.checkpoint.folder import Folder
from unifit.checkpoint.saver import Saver
from unifit.errors import CheckpointError

TIME_LIMIT_S = tools.TIME_LIMIT_S


def steps(folder):
    return Folder(folder).steps()


# Which are kept


@pytest.mark.parametrize("keep, left", [(1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])])
def test_newest_ones_are_kept(tmp_path, keep, left):
    tools.write(tmp_path, 1, 2, 3, 4, 5, keep=keep)
    assert steps(tmp_path) == left
    assert tools.names(tmp_path) == sorted(["latest", *map(format.folder_name, left)])
    assert (tmp_path / "latest").read_text() == "step-00000005\n"


def test_kept_ones_are_kept_besides(tmp_path):
    tools.write(tmp_path, 1, 2, 3, 4, 5, keep=2, kept=(1, 3))
    assert steps(tmp_path) == [1, 3, 4, 5]


def test_checkpoint_of_a_step_is_replaced_at_once(tmp_path):
    tools.write(tmp_path, 1, 2)
    saver = Saver(Folder(tmp_path), 3)
    new = tools.contents(2)
    new.state["finished"] = True
    saver.save(new)
    saver.wait()
    assert Checkpoint.open(tmp_path / "step-00000002").state["finished"]
    assert tools.names(tmp_path) == ["latest", "step-00000001", "step-00000002"]


def test_what_a_killed_process_left_is_cleared(tmp_path):
    """A save begun; a deletion begun; a checkpoint that was to be replaced, the only one of its step; half a file."""
    folder = tools.write(tmp_path, 1, 2, 3)
    folder.begin(4)
    os.rename(tmp_path / "step-00000001", tmp_path / ".step-00000001.deleted-0f")
    os.rename(tmp_path / "step-00000002", tmp_path / ".step-00000002.replaced-0f")
    shutil.copytree(tmp_path / "step-00000003", tmp_path / ".step-00000003.replaced-0f")
    for name in ("latest", "best"):
        (tmp_path / f".{name}.77-0f.tmp").write_text("step-000")
    assert folder.steps() == [3]
    assert folder.clear() == ["step-00000004"]
    assert tools.names(tmp_path) == ["latest", "step-00000002", "step-00000003"]
    for step in (2, 3):
        Checkpoint.open(folder.at(step)).verify()


# In a thread


@pytest.fixture
def gate(monkeypatch):
    """Holds each writing of a file back until it is opened; counts those under way."""
    opened, begun, write_arrays = threading.Event(), threading.Semaphore(0), saver_module.write_arrays
    running = []

    def held(path, arrays):
        running.append(path.parent.name)
        begun.release()
        assert opened.wait(TIME_LIMIT_S)
        return write_arrays(path, arrays)

    monkeypatch.setattr(saver_module, "write_arrays", held)
    opened.begun, opened.running = begun, running
    yield opened
    opened.set()


def test_save_returns_before_the_files_are_written(tmp_path, gate):
    saver = Saver(Folder(tmp_path), 3)
    saver.save(tools.contents(1))
    assert gate.begun.acquire(timeout=TIME_LIMIT_S)
    assert steps(tmp_path) == [] and newest(tmp_path) is None
    gate.set()
    saver.wait()
    assert newest(tmp_path).state["step"] == 1


def test_one_is_in_flight_at_a_time(tmp_path, gate):
    saver = Saver(Folder(tmp_path), 3)
    saver.save(tools.contents(1))
    assert gate.begun.acquire(timeout=TIME_LIMIT_S)
    second = threading.Thread(target=lambda: saver.save(tools.contents(2)))
    second.start()
    second.join(0.2)
    assert second.is_alive()  # it waits for the first
    assert len({name.partition(".tmp-")[0] for name in gate.running}) == 1
    gate.set()
    second.join(TIME_LIMIT_S)
    saver.wait()
    assert steps(tmp_path) == [1, 2]


# Errors


def no_room(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def second_file(write_arrays):
    numbers = itertools.count()

    def write(path, arrays):
        return no_room() if next(numbers) == 1 else write_arrays(path, arrays)

    return write


@pytest.mark.parametrize("stage", ["begin", "first file", "later file", "state", "commit", "sync"])
def test_error_of_writing_leaves_the_earlier_ones_whole(tmp_path, monkeypatch, stage):
    folder = tools.write(tmp_path, 1)
    saver = Saver(folder, 1)
    with monkeypatch.context() as patched:
        if stage == "begin":
            patched.setattr(folder, "begin", no_room)
        elif stage == "first file":
            patched.setattr(saver_module, "write_arrays", no_room)
        elif stage == "later file":
            patched.setattr(saver_module, "write_arrays", second_file(saver_module.write_arrays))
        elif stage == "state":
            patched.setattr(saver_module, "write_json", no_room)
        elif stage == "sync":
            patched.setattr(os, "fsync", no_room)
        else:
            patched.setattr(folder, "commit", no_room)
        saver.save(tools.contents(2))
        with pytest.raises(CheckpointError, match="No space left on device") as caught:
            saver.wait()
    assert isinstance(caught.value.__cause__, OSError)
    assert str(tmp_path) in str(caught.value)
    assert tools.names(tmp_path) == ["latest", "step-00000001"]
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    assert tools.step_held(newest(tmp_path)) == 1
    saver.save(tools.contents(3))  # there is room again
    saver.wait()
    assert steps(tmp_path) == [3]


@pytest.mark.parametrize("stage", ["point", "keep"])
def test_error_after_the_rename_leaves_the_new_one_whole_too(tmp_path, monkeypatch, stage):
    folder = tools.write(tmp_path, 1)
    monkeypatch.setattr(folder, stage, no_room)
    saver = Saver(folder, 1)
    saver.save(tools.contents(2))
    with pytest.raises(CheckpointError, match="No space left on device"):
        saver.wait()
    assert steps(tmp_path) == [1, 2]
    assert tools.step_held(newest(tmp_path)) == 2


def test_error_is_known_before_the_next_save_and_raised_by_it(tmp_path, monkeypatch):
    saver = Saver(Folder(tmp_path), 3)
    with monkeypatch.context() as patched:
        patched.setattr(saver_module, "write_arrays", no_room)
        saver.save(tools.contents(1))
        saver._thread.join(TIME_LIMIT_S)
    assert saver.failed
    with pytest.raises(CheckpointError, match="No space left"):
        saver.save(tools.contents(2))
    assert steps(tmp_path) == [] and not saver.failed


# Several processes


def on_processes(count, body):
    """Runs `body(process, channel)` in so many threads; returns what each raised, or None."""
    channel, raised = tools.ThreadChannel(count), [None] * count

    def run(process):
        try:
            body(process, channel.of(process))
        except Exception as error:
            raised[process] = error

    threads = [threading.Thread(target=run, args=(process,)) for process in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIME_LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def of_process(process, step, shared):
    contents = tools.contents(step, shared=shared, own={"data": {f"loader.{process}": np.full(3, step, np.uint8)}})
    return contents if shared or process == 0 else tools.Contents(contents.state, {}, contents.own)


def test_large_groups_are_cut_and_written_by_the_processes_in_turn(tmp_path, monkeypatch):
    """Arrays of 512 bytes, two a group: files of one array each."""
    monkeypatch.setattr(format, "FILE_BYTES", 600)
    writers, write_arrays = {}, saver_module.write_arrays

    def noted(path, arrays):
        writers.setdefault(threading.current_thread().name, []).append(path.name)
        return write_arrays(path, arrays)

    monkeypatch.setattr(saver_module, "write_arrays", noted)

    def body(process, channel):
        saver = Saver(Folder(tmp_path), 3, channel)
        saver._run(of_process(process, 7, shared=True))
        assert not saver.failed

    assert on_processes(3, body) == [None] * 3
    assert len(writers) == 3 and all(len(files) >= 4 for files in writers.values())
    found = newest(tmp_path)
    cut = [f"{group}-{number:05d}-of-00002.safetensors" for group in tools.GROUPS[:-1] for number in (1, 2)]
    own = [f"data-of-{process}.safetensors" for process in range(3)]
    assert sorted(found.state["files"]) == sorted([*cut, *own]) == sorted(sum(writers.values(), []))
    assert tools.step_held(found) == 7
    assert list(found.arrays("weights")) == ["weights.a", "weights.b"]
    assert sorted(found.arrays("data")) == ["loader.0", "loader.1", "loader.2"]


def test_first_process_writes_what_is_small(tmp_path):
    def body(process, channel):
        saver = Saver(Folder(tmp_path), 3, channel)
        saver.save(of_process(process, 7, shared=False))
        saver.wait()

    assert on_processes(2, body) == [None] * 2
    found = newest(tmp_path)
    assert sorted(found.state["files"]) == sorted(
        [*(f"{group}.safetensors" for group in tools.GROUPS[:-1]), "data-of-0.safetensors", "data-of-1.safetensors"]
    )
    assert tools.step_held(found) == 7


@pytest.mark.parametrize("kind", [OSError, MemoryError])
@pytest.mark.parametrize("failing", [0, 1])
def test_error_of_one_process_is_raised_on_all(tmp_path, monkeypatch, failing, kind):
    """It fails in the file that it alone writes; whatever the error, the others do not wait for ever."""
    tools.write(tmp_path, 1)
    write_arrays = saver_module.write_arrays

    def write(path, arrays):
        if path.name == f"data-of-{failing}.safetensors":
            raise kind("broken")
        return write_arrays(path, arrays)

    monkeypatch.setattr(saver_module, "write_arrays", write)

    def body(process, channel):
        saver = Saver(Folder(tmp_path), 1, channel)
        saver.save(of_process(process, 2, shared=False))
        saver.wait()

    for error in on_processes(2, body):
        assert isinstance(error, CheckpointError) and f"on process {failing}: {kind.__name__}: broken" in str(error)
    assert tools.names(tmp_path) == ["latest", "step-00000001"]
    assert tools.step_held(newest(tmp_path)) == 1
