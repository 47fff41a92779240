"""Writing checkpoints in a thread, on all processes of a job: one in flight, and an error of one is raised on all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import unifit.checkpoint.format as format
from unifit.checkpoint.files import write_arrays, write_json
from unifit.checkpoint.folder import BEST, LATEST, Folder
from unifit.errors import CheckpointError


class Channel(Protocol):
    """Agreements among the processes of a job; see `unifit.peers.Channel`."""

    process: int
    processes: int

    def agree(self, mine: Any, combine: Callable[[list[Any]], Any]) -> Any: ...


class Alone:
    """The channel of one process."""

    process, processes = 0, 1

    def agree(self, mine: Any, combine: Callable[[list[Any]], Any]) -> Any:
        return combine([mine])


@dataclass(frozen=True)
class Contents:
    """A checkpoint to be written: host copies that nobody changes any more.

    Attributes:
        state: The facts of `state.json`, without those of files: of the first process.
        groups: Arrays by group and name that all processes have alike; {} in a process that writes none of them.
        own: Arrays by group and name that this process alone has; it writes them into files of its own.
        shared: Whether the processes write the files of `groups` in turn; else the first one writes all.
        better: Whether it is the best so far.
        kept: Steps of checkpoints that are not to be deleted.
    """

    state: dict[str, Any]
    groups: dict[str, dict[str, np.ndarray]]
    own: dict[str, dict[str, np.ndarray]]
    shared: bool = False
    better: bool = False
    kept: tuple[int, ...] = ()


class Saver:
    """Writes the checkpoints of a fit.

    Args:
        folder: Where they lie.
        keep: How many of the newest are kept; None for all.
        channel: How the processes agree; nobody else uses it.
    """

    def __init__(self, folder: Folder, keep: int | None, channel: Channel | None = None):
        self.folder, self.keep, self.channel = folder, keep, channel or Alone()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether an error waits to be raised by `wait`."""
        return self._error is not None

    def save(self, contents: Contents) -> None:
        """Starts to write a checkpoint, once the one before is written. All processes call it after the same step.

        Raises:
            CheckpointError: When the one before could not be written.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(contents,), name="unifit-checkpoint", daemon=True
        )  # daemon: a second Ctrl-C ends at once
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is in flight: all that was saved is on the disk.

        Raises:
            CheckpointError: When a checkpoint could not be written, on every process.
            PeerError: When another process has failed meanwhile.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, contents: Contents) -> None:
        try:
            self._write(contents)
        except BaseException as error:
            self._error = error

    def _write(self, contents: Contents) -> None:
        step, main = contents.state["step"], self.channel.process == 0
        written: Path | None = None
        error: Exception | None = None
        files: dict[str, Any] = {}
        if main:
            try:
                written = self.folder.begin(step)
            except Exception as caught:
                error = caught
        begun = self._together("begun", None if written is None else written.name, error)
        mine = self._files_of_this_process(contents)
        try:
            for file, (_, arrays) in mine.items():
                files[file] = write_arrays(self.folder.path / begun[0] / file, arrays)
        except Exception as caught:  # any: the others wait for this process' word
            error = caught
        try:
            listed = {
                file: {"group": mine[file][0], "names": list(mine[file][1]), "facts": facts}
                for file, facts in files.items()
            }
            every = self._together("written", listed, error)
            if main:
                assert written is not None
                try:
                    write_json(written / format.STATE, contents.state | _index(contents, every))
                    self.folder.commit(written, step)
                    written = None
                    self.folder.point(LATEST, step)
                    if contents.better:
                        self.folder.point(BEST, step)
                    self.folder.keep(self.keep, contents.kept)
                except Exception as caught:
                    error = caught
            self._together("done", None, error)
        finally:
            if written is not None:
                self.folder.discard(written)

    def _files_of_this_process(self, contents: Contents) -> dict[str, tuple[str, dict[str, np.ndarray]]]:
        """From the name of each file that this process writes to its group and arrays."""
        process = self.channel.process
        files: dict[str, tuple[str, dict[str, np.ndarray]]] = {}
        for group, arrays in contents.groups.items():
            for name, file in format.placed_in_files(group, arrays).items():
                files.setdefault(file, (group, {}))[1][name] = arrays[name]
        if contents.shared:
            files = dict(list(files.items())[process :: self.channel.processes])
        own = {f"{group}-of-{process}.safetensors": (group, arrays) for group, arrays in contents.own.items()}
        return files | own

    def _together(self, stage: str, mine: Any, error: Exception | None) -> list[Any]:
        """Every process' value of a stage, on each of them.

        Raises:
            CheckpointError: On each, when one had an error.
        """
        told = {"value": mine, "error": None if error is None else f"{type(error).__name__}: {error}"}

        def combine(given: list[dict[str, Any]]) -> list[Any]:
            problems = [(process, entry["error"]) for process, entry in enumerate(given) if entry["error"]]
            if problems:
                process, what = problems[0]
                where = f" on process {process}" if len(given) > 1 else ""
                raise CheckpointError(
                    f"A checkpoint could not be written to '{self.folder.path}'{where}: {what}. Those before it are "
                    "untouched, and so is the model in memory: model.save(...) elsewhere saves it. Make room, or see "
                    "to the permissions, and go on with resume='auto'."
                )
            return [entry["value"] for entry in given]

        try:
            return self.channel.agree(told, combine)
        except CheckpointError as raised:
            raise raised from error


def _index(contents: Contents, every: list[dict[str, Any]]) -> dict[str, Any]:
    """`state.json`'s "arrays" and "files" of what all processes have written."""
    place: dict[str, dict[str, str]] = {}
    files = {}
    for part in every:
        for file, entry in part.items():
            files[file] = entry["facts"]
            place.setdefault(entry["group"], {}).update(dict.fromkeys(entry["names"], file))
    order = {group: list(arrays) for group, arrays in contents.groups.items()}
    arrays = {
        group: {name: names[name] for name in sorted(names, key=_positions(order.get(group, [])))}
        for group, names in place.items()
    }
    return {"arrays": arrays, "files": files}


def _positions(names: list[str]) -> Callable[[str], int]:
    """A key that sorts names as they are listed, others last."""
    numbers = {name: number for number, name in enumerate(names)}
    return lambda name: numbers.get(name, len(numbers))
