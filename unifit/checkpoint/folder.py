"""The folder of a fit's checkpoints: which there are, how one comes to be at once, and which are kept."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unifit.checkpoint.files import sync_folder, write_text
from unifit.checkpoint.format import folder_name, step_of
from unifit.checkpoint.reading import Checkpoint
from unifit.errors import CheckpointError

LATEST, BEST = "latest", "best"

_WRITTEN, _REPLACED, _DELETED = ".tmp-", ".replaced-", ".deleted-"


class Folder:
    """Where the checkpoints of one fit lie.

    Args:
        directory: What the user gave as `checkpoint_dir`.
        fit: Which fit of the script: the first one's lie in the directory itself.
    """

    def __init__(self, directory: Any, fit: int = 0):
        self.path = Path(directory) if fit == 0 else Path(directory, f"fit-{fit}")

    def steps(self) -> list[int]:
        """The steps of the checkpoints there, complete or not, in order."""
        if not self.path.is_dir():
            return []
        found = (step_of(entry.name) for entry in self.path.iterdir() if entry.is_dir())
        return sorted(step for step in found if step is not None)

    def at(self, step: int) -> Path:
        """The folder of the checkpoint after `step` updates."""
        return self.path / folder_name(step)

    def newest(self, passed_over: Callable[[str], None] | None = None) -> Checkpoint | None:
        """The newest checkpoint that is whole, every file compared with its hash; None where there is none.

        Args:
            passed_over: Is told of each newer one what is wrong with it.
        """
        for step in reversed(self.steps()):
            try:
                found = Checkpoint.open(self.at(step))
                found.verify()
                return found
            except CheckpointError as error:
                if passed_over is not None:
                    passed_over(str(error))
        return None

    # Writing: by one process at a time

    def begin(self, step: int) -> Path:
        """Makes the folder in which a checkpoint is written."""
        path = self.path / f".{folder_name(step)}{_WRITTEN}{secrets.token_hex(4)}"
        path.mkdir(parents=True)
        return path

    def commit(self, written: Path, step: int) -> None:
        """Makes what was written the checkpoint after `step`, in place of one that may be there."""
        target = self.at(step)
        sync_folder(written)
        old = None
        if target.exists():
            old = self.path / f".{target.name}{_REPLACED}{secrets.token_hex(4)}"
            os.rename(target, old)
        os.rename(written, target)
        sync_folder(self.path)
        if old is not None:
            shutil.rmtree(old)

    def point(self, name: str, step: int) -> None:
        """Writes `latest` or `best`."""
        write_text(self.path / name, f"{folder_name(step)}\n")

    def delete(self, step: int) -> None:
        """Deletes a checkpoint: it is none from the first moment on."""
        gone = self.path / f".{folder_name(step)}{_DELETED}{secrets.token_hex(4)}"
        os.rename(self.at(step), gone)
        shutil.rmtree(gone)

    def keep(self, last: int | None, kept: Iterable[int]) -> None:
        """Deletes all but the `last` newest ones and those that are `kept`; none where `last` is None."""
        if last is not None:
            steps = self.steps()
            for step in sorted(set(steps[:-last]) - set(kept)):
                self.delete(step)

    def discard(self, written: Path) -> None:
        """Deletes what was begun."""
        shutil.rmtree(written, ignore_errors=True)

    def clear(self) -> list[str]:
        """Deletes what an interrupted process left, and puts back what it was about to replace.

        Returns:
            The steps' folder names of the checkpoints that were not written to their end.
        """
        if not self.path.is_dir():
            return []
        partial = []
        for entry in sorted(self.path.iterdir()):
            name, kind = entry.name, next((k for k in (_WRITTEN, _REPLACED, _DELETED) if k in entry.name), None)
            if not name.startswith(".step-") or kind is None or not entry.is_dir():
                continue
            target = self.path / name[1 : name.index(kind)]
            if kind == _REPLACED and not target.exists():
                os.rename(entry, target)
                continue
            if kind == _WRITTEN:
                partial.append(target.name)
            shutil.rmtree(entry)
        for name in (LATEST, BEST):
            for half in self.path.glob(f".{name}.*.tmp"):
                half.unlink(missing_ok=True)
        return partial
