"""A checkpoint as it lies on the disk: its state, its arrays, and whether all of it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import unifit.checkpoint.format as format
from unifit.checkpoint.files import facts_of, read_arrays
from unifit.checkpoint.form import check_form
from unifit.errors import CheckpointError


class Checkpoint:
    """A checkpoint's folder. Make one by `Checkpoint.open`.

    Attributes:
        path: The folder.
        state: What `state.json` holds, by key; see docs/reference/checkpoint-format.md.
    """

    def __init__(self, path: Path, state: dict[str, Any]):
        self.path, self.state = path, state

    @classmethod
    def open(cls, path: Any) -> Checkpoint:
        """Reads the `state.json` of a folder. No array is read.

        Raises:
            CheckpointError: When there is none, it is damaged or of a newer version, or a file that it lists is missing
                or has another size. The message names the file.
        """
        folder = Path(path)
        where = folder / format.STATE
        if not folder.is_dir():
            raise CheckpointError(f"There is no checkpoint '{folder}': it is no folder.")
        try:
            state = json.loads(where.read_bytes())
        except FileNotFoundError as error:
            raise CheckpointError(f"'{folder}' is no complete checkpoint: it has no {format.STATE}.") from error
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"'{where}' is damaged, or no JSON: {error}") from error
        if not isinstance(state, dict) or state.get("format") != format.FORMAT:
            raise CheckpointError(f"'{where}' is none of a unifit checkpoint.")
        if not isinstance(state.get("version"), int) or state["version"] > format.VERSION:
            raise CheckpointError(
                f"'{where}' has version {state.get('version')!r} (of unifit {state.get('unifit')}); this unifit "
                f"reads versions up to {format.VERSION}. Upgrade unifit."
            )
        check_form(state, f"'{where}'")
        found = cls(folder, state)
        found._check_sizes()
        return found

    def verify(self) -> None:
        """Compares every file with its hash.

        Raises:
            CheckpointError: When one differs; the message names it.
        """
        for name, facts in self.state["files"].items():
            try:
                found = facts_of(self.path / name)
            except OSError as error:
                raise CheckpointError(f"'{self.path / name}' cannot be read: {error}") from error
            if found["sha256"] != facts["sha256"]:
                raise CheckpointError(f"'{self.path / name}' is damaged: its hash is not the one in {format.STATE}.")

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of arrays that it has, of `unifit.checkpoint.format.GROUPS`."""
        return tuple(group for group in format.GROUPS if group in self.state["arrays"])

    def arrays(self, group: str) -> dict[str, np.ndarray]:
        """A group's arrays by name; none where it has no such group.

        Raises:
            CheckpointError: When a file is damaged, or lacks an array.
        """
        place = self.state["arrays"].get(group, {})
        found: dict[str, np.ndarray] = {}
        for file in dict.fromkeys(place.values()):
            held = read_arrays(self.path / file)
            names = [name for name, where in place.items() if where == file]
            missing = [name for name in names if name not in held]
            if missing:
                raise CheckpointError(f"'{self.path / file}' has no array {missing[0]!r}, which {format.STATE} lists.")
            found |= {name: held[name] for name in names}
        return {name: found[name] for name in place}

    def _check_sizes(self) -> None:
        for name, facts in self.state["files"].items():
            path = self.path / name
            if path.is_symlink() or not path.is_file():
                raise CheckpointError(f"'{path}', which {format.STATE} lists, is missing, or no plain file.")
            if path.stat().st_size != facts["bytes"]:
                raise CheckpointError(
                    f"'{path}' is cut short or damaged: it has {path.stat().st_size} bytes; {format.STATE} says "
                    f"{facts['bytes']}."
                )
