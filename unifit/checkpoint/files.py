"""Files that are on the disk when the call returns, with the sizes and hashes by which they are known again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from unifit.archive import atomic_file
from unifit.errors import CheckpointError


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Writes a safetensors file; returns its facts: {"bytes", "sha256"}.

    Raises:
        OSError, SafetensorError: When it cannot be written.
    """
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    mode = _mode_of_new_file(path)
    safetensors.numpy.save_file(plain, path, metadata={"format": "unifit"})
    os.chmod(path, mode)  # safetensors makes files that their owner alone can read
    facts = facts_of(path)
    sync(path)
    return facts


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file.

    Raises:
        CheckpointError: When it is none, or cannot be read.
    """
    try:
        return safetensors.numpy.load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"'{path}' cannot be read as a safetensors file: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file in place of one that may be there, at once."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file in place of one that may be there, at once."""
    with atomic_file(path) as file:
        file.write(text.encode())


def _mode_of_new_file(path: Path) -> int:
    with open(path, "xb") as file:
        return stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def facts_of(path: Path) -> dict[str, Any]:
    """A file's size and hash."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def sync(path: Path) -> None:
    """Waits until a file is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Waits until a folder's entries are on the disk, where the system can say so."""
    with contextlib.suppress(OSError):
        sync(path)
