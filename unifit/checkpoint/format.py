"""What a checkpoint is made of: its files' names, its groups of arrays, and values as JSON. See docs/reference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from unifit.errors import CheckpointError

FORMAT, VERSION = "unifit-checkpoint", 1
STATE = "state.json"

WEIGHTS, OPTIMIZER, EMA, METRICS, CALLBACKS, DATA = "weights", "optimizer", "ema", "metrics", "callbacks", "data"
GROUPS = (WEIGHTS, OPTIMIZER, EMA, METRICS, CALLBACKS, DATA)

FILE_BYTES = 2**31
"""A group of arrays with more bytes is cut into files of about so many, which the processes of a job write in turn."""

FOLDER_DIGITS = 8

_ARRAY, _FLOAT = "__array__", "__float__"


def folder_name(step: int) -> str:
    """The name of the folder of the checkpoint after `step` updates."""
    return f"step-{step:0{FOLDER_DIGITS}d}"


def step_of(name: str) -> int | None:
    """The inverse of `folder_name`; None for another name."""
    head, _, digits = name.partition("-")
    if head != "step" or len(digits) < FOLDER_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) if folder_name(int(digits)) == name else None


def check_file_name(name: Any, where: str) -> str:
    """A file name of a `state.json`, which must lie in its folder.

    Raises:
        CheckpointError: When it is a path, or no name.
    """
    plain = isinstance(name, str) and name not in ("", ".", "..") and not any(c in name for c in "/\\:\0")
    if not plain:
        raise CheckpointError(f"{where} names the file {name!r}; a checkpoint's files are plain names in its folder.")
    return str(name)


def placed_in_files(group: str, arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """The file of each array of a group: one file, or several of about FILE_BYTES, in the arrays' order."""
    runs: list[list[str]] = [[]]
    size = 0
    for name, array in arrays.items():
        if runs[-1] and size + array.nbytes > FILE_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(name)
        size += array.nbytes
    if len(runs) == 1:
        return dict.fromkeys(arrays, f"{group}.safetensors")
    files = [f"{group}-{number:05d}-of-{len(runs):05d}.safetensors" for number in range(1, len(runs) + 1)]
    return {name: file for file, run in zip(files, runs, strict=True) for name in run}


def plain(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON takes it. Arrays in it are put into `arrays`, under `prefix` and a number.

    Raises:
        TypeError: When there is something in it that has no such form; the message names it.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT: repr(number)}
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        name = f"{prefix}.{sum(key.startswith(f'{prefix}.') for key in arrays)}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, (list, tuple)):
        return [plain(entry, prefix, arrays) for entry in value]
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str) or key in (_ARRAY, _FLOAT)]
        if wrong:
            raise TypeError(f"the key {wrong[0]!r} of a dict; keys need to be strings")
        return {key: plain(entry, prefix, arrays) for key, entry in value.items()}
    raise TypeError(f"{value!r} of type {type(value).__name__}")


def restored(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `plain`; tuples have become lists."""
    if isinstance(value, list):
        return [restored(entry, arrays) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT}:
        return float(value[_FLOAT])
    if value.keys() == {_ARRAY}:
        return arrays[value[_ARRAY]]
    return {key: restored(entry, arrays) for key, entry in value.items()}


# Optimizer slots: the engine's names, `m.blocks.0.kernel`, and the format's, `optimizer.adamw.m.blocks.0.kernel`.


def slot_name(rule: str, name: str) -> str:
    """The format's name of an engine's slot."""
    return f"optimizer.{rule}.{name}"


def engine_slots(rule: str, names: Iterable[str]) -> dict[str, str]:
    """From the format's names to the engine's.

    Raises:
        CheckpointError: When one is of another rule.
    """
    prefix = f"optimizer.{rule}."
    found = {}
    for name in names:
        if not name.startswith(prefix):
            raise CheckpointError(f"The checkpoint's optimizer state has '{name}', which is none of the rule '{rule}'.")
        found[name] = name.removeprefix(prefix)
    return found
