"""The file of a saved model: a zip of stored members, written atomically; and files of arrays. No pickle anywhere.

A member is read by its known name into memory and nothing is ever unpacked to disk, so a name cannot reach outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from unifit.errors import ArgumentError

CONFIG, WEIGHTS, OPTIMIZER = "config.json", "weights.safetensors", "optimizer.safetensors"

_OTHERS_SUFFIXES = (".h5", ".hdf5", ".keras", ".pt", ".pth", ".ckpt", ".pkl", ".npz")


def check_target(filepath: Any, overwrite: bool) -> Path:
    """The path to write to.

    Raises:
        ArgumentError: When its folder does not exist, a file may not be replaced, or the suffix is another format's.
    """
    path = Path(filepath)
    if path.suffix.lower() in _OTHERS_SUFFIXES:
        raise ArgumentError(
            f"'{path}' ends with '{path.suffix}', another library's format. A whole model is saved to a .unifit file "
            "(model.save), weights alone to a .safetensors file (model.save_weights)."
        )
    if not path.parent.is_dir():
        raise ArgumentError(f"Cannot save to '{path}': the folder '{path.parent}' does not exist. Make it first.")
    if path.is_dir():
        raise ArgumentError(f"Cannot save to '{path}': it is a folder. Give the name of a file.")
    if path.exists() and not overwrite:
        raise ArgumentError(f"'{path}' exists and overwrite=False was given. Choose another name.")
    return path


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` once it is complete and on the disk; nothing is left if it fails."""
    temporary = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not every system can sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def encode_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    """A safetensors file of named arrays; bfloat16, which NumPy does not have, as float32."""
    wide = {name: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for name, a in arrays.items()}
    plain = {name: np.asarray(array, order="C") for name, array in wide.items()}
    return safetensors.numpy.save(plain, metadata={"format": "unifit"})


def decode_arrays(data: bytes, where: str) -> dict[str, np.ndarray]:
    """The inverse of `encode_arrays`.

    Raises:
        ArgumentError: When the bytes are no safetensors file; `where` names them.
    """
    try:
        return safetensors.numpy.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{where} is no safetensors data, or is damaged: {error}") from error


def write_archive(path: Path, config: dict[str, Any], arrays: dict[str, dict[str, np.ndarray]]) -> None:
    """Writes config.json and one safetensors member for each entry of `arrays`."""
    text = json.dumps(config, indent=1, allow_nan=False)
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(CONFIG), text)
        for name, named in arrays.items():
            archive.writestr(zipfile.ZipInfo(name), encode_arrays(named))


def read_archive(filepath: Any, members: tuple[str, ...]) -> dict[str, bytes]:
    """The members of these names that the file has; others are not looked at.

    Raises:
        ArgumentError: When there is no such file, it is no zip, is cut short or damaged, or no file of `model.save`.
    """
    path = existing_file(filepath)
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if ".." in entry.filename.split("/") or entry.filename.startswith(("/", "\\")) or ":" in entry.filename:
                    raise ArgumentError(f"'{path}' holds a member named {entry.filename!r}; no saved model has one.")
            names = archive.namelist()
            twice = sorted({name for name in members if names.count(name) > 1})
            if twice:
                raise ArgumentError(f"'{path}' is damaged: it holds {twice} twice.")
            found = [archive.getinfo(name) for name in members if name in names]
            packed = [entry.filename for entry in found if entry.compress_type != zipfile.ZIP_STORED]
            if packed:
                raise ArgumentError(f"'{path}' holds {packed} compressed; unifit stores them, so the file is not its.")
            return {entry.filename: archive.read(entry) for entry in found}
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"'{path}' is no file of model.save, or it is cut short or damaged ({error}). Save it again."
        ) from error


def existing_file(filepath: Any) -> Path:
    """The path of a file that is there."""
    path = Path(filepath)
    if not path.is_file():
        raise ArgumentError(f"There is no file '{path}'{' (it is a folder)' if path.is_dir() else ''}.")
    return path


def parse_config(data: bytes | str, where: str) -> dict[str, Any]:
    """A config's JSON.

    Raises:
        ArgumentError: When it is no JSON object; `where` names it.
    """
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{where} is no JSON, or is damaged: {error}") from error
    if not isinstance(config, dict):
        raise ArgumentError(f"{where} holds a {type(config).__name__}; a saved model's config is an object.")
    return config
