"""From a path that a user gave to a checkpoint: a checkpoint's folder, or a directory of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unifit.checkpoint.folder import Folder
from unifit.checkpoint.format import STATE
from unifit.checkpoint.reading import Checkpoint


def newest(directory: Any) -> Checkpoint | None:
    """The newest whole checkpoint in a directory: of the last fit of the script that has one; None without any."""
    fits = [int(entry.name[4:]) for entry in Path(directory).glob("fit-*") if entry.name[4:].isdigit()]
    for fit in sorted(fits, reverse=True):
        found = Folder(directory, fit).newest()
        if found is not None:
            return found
    return Folder(directory).newest()


def checkpoint_at(path: Any) -> Checkpoint:
    """The checkpoint in a folder, or the newest one in a directory; every file is compared with its hash.

    Raises:
        CheckpointError: When there is none, or it is damaged.
    """
    where = Path(path)
    if Folder(where).steps() and not (where / STATE).exists() or (where / "fit-1").is_dir():
        found = newest(where)
        if found is not None:
            return found
    found = Checkpoint.open(where)
    found.verify()
    return found
