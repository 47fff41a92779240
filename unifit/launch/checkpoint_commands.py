"""`unifit checkpoint`: looks at checkpoints, checks, compares and converts them. No framework is imported."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from unifit.checkpoint.exporting import FORMATS, export
from unifit.checkpoint.folder import BEST, LATEST, Folder
from unifit.checkpoint.format import STATE, step_of
from unifit.checkpoint.newest import checkpoint_at
from unifit.checkpoint.reading import Checkpoint
from unifit.errors import ArgumentError, CheckpointError

FINE, DIFFERENT = 0, 1
"""Exit statuses; a wrong use, and a checkpoint that cannot be read, are those of the whole command line."""

PROVENANCE = ("unifit", "backend", "libraries", "devices", "processes", "files", "arrays")
"""Keys of a state that say who wrote it and where, and nothing about the run."""

_MAX_SHOWN_CHARACTERS = 60


def add_commands(commands: Any) -> None:
    """Adds `checkpoint` and its subcommands to the command line's."""
    command = commands.add_parser(
        "checkpoint",
        help="inspect, verify, diff or convert checkpoints",
        description="Looks at what fit(checkpoint_dir=...) wrote. PATH is a checkpoint's folder, or a checkpoint_dir: "
        "its newest checkpoint (verify: all of them).",
    )
    kinds = command.add_subparsers(required=True, metavar="inspect|verify|diff|convert")
    inspect = kinds.add_parser("inspect", help="show what a checkpoint holds")
    inspect.add_argument("path", metavar="PATH")
    inspect.add_argument("--json", action="store_true", help="as JSON, for other programs")
    verify = kinds.add_parser("verify", help="compare every file with its hash; status 1 when one is damaged")
    verify.add_argument("path", metavar="PATH")
    diff = kinds.add_parser("diff", help="compare two checkpoints; status 1 when they differ")
    diff.add_argument("first", metavar="A")
    diff.add_argument("second", metavar="B")
    diff.add_argument(
        "--tolerance", type=_tolerance, default=0.0, metavar="T", help="arrays with max |a - b| <= T are equal"
    )
    convert = kinds.add_parser("convert", help="write the weights for another library")
    convert.add_argument("path", metavar="PATH")
    convert.add_argument("--to", required=True, choices=FORMATS, dest="format", help="the format")
    convert.add_argument("--output", required=True, metavar="TARGET", help="the file or folder to write")
    convert.add_argument("--names", metavar="MAP.json", help="a JSON object from names to names in the file")
    convert.add_argument("--weights", choices=("own", "ema"), default="own", help="which weights (default: own)")
    convert.add_argument("--overwrite", action="store_true", help="replace what is there")
    for parser, function in ((inspect, _inspect), (verify, _verify), (diff, _diff), (convert, _convert)):
        parser.set_defaults(command=function)


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 0")
    return value


# inspect


def _inspect(options: argparse.Namespace) -> int:
    checkpoint = _at(options.path)
    summary = _summary(checkpoint)
    if options.json:
        print(json.dumps(summary, indent=1))
        return FINE
    for key, value in summary.items():
        if key not in ("arrays", "groups", "others"):
            print(f"{key:<14}{_shown(value)}")
    print(f"\n{'group':<12}{'arrays':>8}{'elements':>14}{'size':>12}")
    for group, facts in summary["groups"].items():
        print(f"{group:<12}{facts['arrays']:>8}{facts['elements']:>14,}{_size(facts['bytes']):>12}")
    width = max((len(facts["name"]) for facts in summary["arrays"]), default=0)
    print(f"\n{'array':<{width}}  {'dtype':<6}{'shape':<20}group")
    for facts in summary["arrays"]:
        print(f"{facts['name']:<{width}}  {facts['dtype']:<6}{_shape(facts['shape']):<20}{facts['group']}")
    if summary["others"]:
        print("\nalso there: " + ", ".join(summary["others"]))
    return FINE


def _summary(checkpoint: Checkpoint) -> dict[str, Any]:
    state = checkpoint.state
    arrays = [facts for group in checkpoint.groups for facts in _array_facts(checkpoint, group)]
    groups: dict[str, dict[str, int]] = {}
    for facts in arrays:
        total = groups.setdefault(facts["group"], {"arrays": 0, "elements": 0, "bytes": 0})
        total["arrays"] += 1
        total["elements"] += int(np.prod(facts["shape"], dtype=np.int64))
        total["bytes"] += facts["bytes"]
    folder = Folder(checkpoint.path.parent)
    others = [folder.at(step).name for step in folder.steps() if folder.at(step).name != checkpoint.path.name]
    return {
        "path": str(checkpoint.path),
        "step": state["step"],
        "iterations": state["iterations"],
        "epoch": state["epoch"],
        "epochs": state["epochs"],
        "batches_done": state["batches_done"],
        "finished": state["finished"],
        "fit": state["fit"],
        "seed": state["seed"],
        "backend": state["backend"],
        "unifit": state["unifit"],
        "libraries": state["libraries"],
        "devices": state["devices"],
        "processes": state["processes"],
        "optimizer": state["optimizer"]["rule"],
        "learning_rate": state["optimizer"]["learning_rate"],
        "score": state["score"],
        "best": _pointed(checkpoint, BEST),
        "latest": _pointed(checkpoint, LATEST),
        "bytes": sum(facts["bytes"] for facts in state["files"].values()),
        "groups": groups,
        "arrays": arrays,
        "others": others,
    }


def _array_facts(checkpoint: Checkpoint, group: str) -> Iterator[dict[str, Any]]:
    """Facts of a group's arrays, from the files' heads alone."""
    place = checkpoint.state["arrays"][group]
    for file in dict.fromkeys(place.values()):
        path = checkpoint.path / file
        try:
            with safetensors.safe_open(path, "numpy") as opened:
                for name in (name for name, where in place.items() if where == file):
                    head = opened.get_slice(name)
                    shape, dtype = list(head.get_shape()), head.get_dtype()
                    size = int(np.prod(shape, dtype=np.int64)) * _bytes_of(dtype)
                    facts = {"dtype": dtype, "shape": shape, "bytes": size, "file": file}
                    yield {"group": group, "name": name, **facts}
        except (safetensors.SafetensorError, OSError) as error:
            raise CheckpointError(f"'{path}' cannot be read as a safetensors file: {error}") from error


def _bytes_of(dtype: str) -> int:
    digits = "".join(character for character in dtype.partition("_")[0] if character.isdigit())
    return int(digits) // 8 if digits else 1


def _pointed(checkpoint: Checkpoint, name: str) -> str | None:
    """What the file `best` or `latest` beside the checkpoint names."""
    try:
        return (checkpoint.path.parent / name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


# verify


def _verify(options: argparse.Namespace) -> int:
    path = Path(options.path)
    folders = [path] if (path / STATE).exists() or step_of(path.name) is not None else list(_checkpoints_in(path))
    if not folders:
        raise ArgumentError(f"there is no checkpoint in '{path}'.")
    damaged = 0
    for folder in folders:
        try:
            checkpoint = Checkpoint.open(folder)
            checkpoint.verify()
            for group in checkpoint.groups:
                checkpoint.arrays(group)
            print(f"{folder}: whole, {_size(sum(facts['bytes'] for facts in checkpoint.state['files'].values()))}")
        except CheckpointError as error:
            damaged += 1
            print(f"{folder}: DAMAGED: {error}")
    if damaged:
        print(f"unifit: {damaged} of {len(folders)} checkpoints are damaged", file=sys.stderr)
    return DIFFERENT if damaged else FINE


def _checkpoints_in(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        raise ArgumentError(f"there is no folder '{directory}'.")
    fits = sorted(int(entry.name[4:]) for entry in directory.glob("fit-*") if entry.name[4:].isdigit())
    for fit in [0, *fits]:
        folder = Folder(directory, fit)
        yield from (folder.at(step) for step in folder.steps())


# diff


def _diff(options: argparse.Namespace) -> int:
    first, second = _at(options.first), _at(options.second)
    lines = list(_state_differences(first.state, second.state))
    compared, largest = 0, 0.0
    for group in dict.fromkeys((*first.groups, *second.groups)):
        a, b = first.arrays(group), second.arrays(group)
        for name in dict.fromkeys((*a, *b)):
            if name not in a or name not in b:
                lines.append(f"{group} {name}: only in {'A' if name in a else 'B'}")
                continue
            compared += 1
            what, distance = _array_difference(a[name], b[name])
            largest = max(largest, distance)
            if what is not None or not distance <= options.tolerance:
                lines.append(f"{group} {name}: {what or f'max |a - b| = {distance:g}'}")
    for line in lines:
        print(line)
    beyond = f" beyond {options.tolerance:g}" if options.tolerance else ""
    print(f"{compared} arrays compared, max |a - b| = {largest:g}; {len(lines) or 'no'} differences{beyond}")
    return DIFFERENT if lines else FINE


def _state_differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in dict.fromkeys((*a, *b)):
        if not prefix and key in PROVENANCE:
            continue
        if key not in a or key not in b:
            yield f"{STATE} {prefix}{key}: only in {'A' if key in a else 'B'}"
        elif isinstance(a[key], dict) and isinstance(b[key], dict):
            yield from _state_differences(a[key], b[key], f"{prefix}{key}.")
        elif a[key] != b[key]:
            yield f"{STATE} {prefix}{key}: {_shown(a[key])} in A, {_shown(b[key])} in B"


def _array_difference(a: np.ndarray, b: np.ndarray) -> tuple[str | None, float]:
    """What keeps two arrays from being compared, else None, and their distance; values that are alike count as 0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype} {_shape(a.shape)} in A, {b.dtype} {_shape(b.shape)} in B", 0.0
    same = (a == b) | ((a != a) & (b != b))  # NaN beside NaN, and inf beside inf, differ in nothing
    if same.all():
        return None, 0.0
    x, y = a[~same].astype(np.float64), b[~same].astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(x - y)
    return None, float(np.inf if np.isnan(distance).any() else distance.max())


# convert


def _convert(options: argparse.Namespace) -> int:
    names = None
    if options.names is not None:
        try:
            names = json.loads(Path(options.names).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ArgumentError(f"--names {options.names} cannot be read as JSON: {error}") from error
        if not isinstance(names, dict):
            raise ArgumentError(f"--names {options.names} holds a {type(names).__name__}; it needs an object.")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        export(
            options.path,
            options.format,
            options.output,
            names=names,
            weights=options.weights,
            overwrite=options.overwrite,
        )
    for warning in told:
        print(f"unifit: {warning.message}", file=sys.stderr)
    print(options.output)
    return FINE


# What all share


def _at(path: str) -> Checkpoint:
    if not Path(path).is_dir():
        raise ArgumentError(f"there is no folder '{path}'.")
    return checkpoint_at(path)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."


def _shape(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
