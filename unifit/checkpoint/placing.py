"""Files and folders that come to be at once: written under another name beside their place, and moved there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unifit.checkpoint.files import sync, sync_folder
from unifit.errors import ArgumentError, CheckpointError


@contextlib.contextmanager
def placed(target: Any, overwrite: bool) -> Iterator[Path]:
    """A path to write a file or folder to, which takes its place at `target` in the end; nothing is left if it fails.

    Args:
        target: Where it is to be.
        overwrite: Whether what is there already may be replaced.

    Raises:
        ArgumentError: When something is there, or the folder around it is not.
        CheckpointError: When it cannot be written.
    """
    path = Path(target)
    if not path.parent.is_dir():
        raise ArgumentError(f"Cannot write '{path}': the folder '{path.parent}' does not exist. Make it first.")
    if os.path.lexists(path) and not overwrite:
        raise ArgumentError(f"'{path}' exists. Choose another name, or give overwrite=True.")
    token = f"{os.getpid()}-{secrets.token_hex(4)}"
    new = path.parent / f".{path.name}.{token}.tmp"
    old = path.parent / f".{path.name}.{token}.replaced"
    try:
        mode = _mode_of_new_files(new)
        yield new
        if new.is_dir():
            sync_folder(new)
        else:
            os.chmod(new, mode)  # safetensors makes files that their owner alone can read
            sync(new)
        if path.is_dir() or new.is_dir() and path.exists():
            os.rename(path, old)
        os.replace(new, path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        if os.path.lexists(old) and not os.path.lexists(path):
            os.rename(old, path)
        raise CheckpointError(f"'{path}' could not be written: {error}") from error
    finally:
        _remove(new)
        if os.path.lexists(path):
            _remove(old)


def _mode_of_new_files(path: Path) -> int:
    with open(path, "xb") as file:
        mode = os.fstat(file.fileno()).st_mode
    path.unlink()
    return stat.S_IMODE(mode)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
