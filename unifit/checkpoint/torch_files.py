"""Weights to and from a torch module's state_dict in a safetensors file, without torch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from unifit.archive import existing_file
from unifit.checkpoint.name_map import NameMap, Names, require_distinct
from unifit.checkpoint.structure import Structure, structure_of_model
from unifit.checkpoint.torch_layouts import Conversion, aliases, conversions, flattened_images
from unifit.errors import ArgumentError

_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")

_MAX_LISTED = 20


def torch_state(weights: dict[str, np.ndarray], structure: Structure, names: Names = None) -> dict[str, np.ndarray]:
    """What the state_dict of the equivalent module of torch.nn layers holds.

    Args:
        weights: By path.
        structure: The model's.
        names: From a weight's path, or torch's name for it, to the name that it gets; see NameMap.

    Raises:
        UnsupportedError: When torch.nn has no module like a layer.
        ArgumentError: When `names` gives two arrays one name, or maps a name that there is not.
    """
    found, unknown = conversions(structure)
    if unknown:
        classes = ", ".join(sorted({f"{entry.layer} ('{entry.path}')" for entry in unknown})[:_MAX_LISTED])
        warnings.warn(
            f"Weights of layers that are not unifit's keep their names and layouts: {classes}. A torch module takes "
            "them where it has parameters of these names and shapes.",
            stacklevel=3,
        )
    _warn_of_flattened(structure, stacklevel=4)
    rename = NameMap(names)
    arrays, new_names = {}, {}
    for conversion in found:
        left = conversion.leave([weights[path] for path in conversion.ours])
        for name, array in zip(conversion.theirs, left, strict=True):
            for twin, spellings in _twins(name, conversion, structure):
                new = rename(*spellings)
                if new is not None:
                    new_names[twin] = new
                    arrays[new] = array
    rename.check_all_used(_spelled(found))
    require_distinct(new_names)
    return arrays


def load_torch(model: Any, path: Any, names: Names = None) -> None:
    """Loads the weights of a torch module, from its state_dict in a safetensors file.

    Layouts are converted: a Linear's weight (out, in) becomes a Dense's kernel (in, out), and so on. The file is one of
    Hugging Face's, or `safetensors.torch.save_file(module.state_dict(), path)` makes it.

    Args:
        model: A built model.
        path: The safetensors file.
        names: From the file's names to the model's: a dict, whose keys may be whole names or those of layers
            ({"features.0": "stem"}), or a function. The model's names are the paths of its weights (`stem.kernel`), or
            torch's for them (`stem.weight`). What becomes None is left out.

    Raises:
        ArgumentError: When the file is none of safetensors, or does not fit: the message lists what is missing, what is
            unknown and what has another shape. Nothing has been loaded then.
        UnsupportedError: When torch.nn has no module like a layer of the model.

    Example:
        `uf.checkpoint.load_torch(model, "resnet.safetensors", names={"fc": "head"})`
    """
    if not model.built:
        raise ArgumentError(
            f"{model.name} is not built, so the shapes of its weights are unknown: model.build((None, ...)) first."
        )
    given = _read(path)
    structure = structure_of_model(model)
    found, _ = conversions(structure)
    _warn_of_flattened(structure, stacklevel=3)
    renamed = _renamed(path, given, NameMap(names), found, structure)
    shapes = {name: shape for conversion in found for name, shape in _shapes(conversion, structure).items()}
    optional = {name for conversion in found for name in conversion.optional}
    missing = sorted(shapes.keys() - renamed.keys() - optional)
    unknown = sorted(renamed.keys() - shapes.keys())
    other = [
        f"{_quoted(renamed[name].source, name)} (file {renamed[name].array.shape}, model {shape})"
        for name, shape in shapes.items()
        if name in renamed and renamed[name].array.shape != shape
    ]
    problems = [
        f"{what}: {_listed(entries)}"
        for what, entries in {
            "missing in the file": [f"'{name}'" for name in missing],
            "not in the model": [_quoted(renamed[name].source, name) for name in unknown],
            "of another shape": other,
        }.items()
        if entries
    ]
    if problems:
        raise ArgumentError(
            f"The arrays in '{path}' do not fit {model.name}; {'; '.join(problems)}. Nothing was loaded. "
            "names={...} says which of the file's names are which of the model's, or None to leave one out."
        )
    values: dict[str, np.ndarray] = {}
    for conversion in found:
        theirs = [renamed[name].array if name in renamed else None for name in conversion.theirs]
        values |= zip(conversion.ours, conversion.enter(theirs), strict=True)  # type: ignore[arg-type]
    model.load_weights_by_path({path: np.asarray(array, order="C") for path, array in values.items()})


class _Given(NamedTuple):
    source: str
    array: np.ndarray


def _renamed(
    path: Any, given: dict[str, np.ndarray], rename: NameMap, found: list[Conversion], structure: Structure
) -> dict[str, _Given]:
    """The file's arrays under torch's names for the model's weights."""
    meant = {ours: theirs for conversion in found for theirs, ours in conversion.alike.items()}
    for conversion in found:
        for name in conversion.theirs:
            meant |= {twin: name for twin, _ in _twins(name, conversion, structure) if twin != name}
    targets = {source: target for source in given if (target := rename(source)) is not None}
    rename.check_all_used(given)
    require_distinct(targets)
    result: dict[str, _Given] = {}
    for source, target in targets.items():
        name, array = meant.get(target, target), given[source]
        if name in result and not np.array_equal(result[name].array, array):
            raise ArgumentError(
                f"'{result[name].source}' and '{source}' are both '{name}' in the model, and differ in '{path}'."
            )
        result[name] = _Given(source, array)
    return result


def _twins(name: str, conversion: Conversion, structure: Structure) -> Iterable[tuple[str, tuple[str, ...]]]:
    """(name, spellings) of an array of torch's: itself, and again for each other place that its layer has."""
    yield name, conversion.spellings(name)
    for path, first in aliases(structure):
        if name.startswith(f"{first}."):
            twin = f"{path}.{name.removeprefix(f'{first}.')}"
            yield twin, (twin,)


def _shapes(conversion: Conversion, structure: Structure) -> dict[str, tuple[int, ...]]:
    """The shapes of torch's arrays, by sending zeros that take no room through the conversion."""
    zeros = [np.broadcast_to(np.float32(0), structure.weights[path].shape) for path in conversion.ours]
    return {name: array.shape for name, array in zip(conversion.theirs, conversion.leave(zeros), strict=True)}


def _spelled(found: list[Conversion]) -> list[str]:
    return [conversion.spellings(name)[0] for conversion in found for name in conversion.theirs]


def _warn_of_flattened(structure: Structure, stacklevel: int) -> None:
    for path in flattened_images(structure):
        warnings.warn(
            f"Dense '{path}' reads flattened images, and torch's Flatten puts their channels first: in the torch model "
            "permute them before, x.permute(0, 2, 3, 1).flatten(1), so that its Linear reads the same order.",
            stacklevel=stacklevel,
        )


def _read(path: Any) -> dict[str, np.ndarray]:
    """A safetensors file's arrays; bfloat16, which NumPy has not, as float32, which holds it exactly."""
    file = existing_file(path)
    if file.suffix.lower() in _PICKLED:
        new = file.with_suffix(".safetensors").name
        raise ArgumentError(
            f"'{file}' is pickled, and reading it could run anything. Where you trust it, convert it once, with torch: "
            f'safetensors.torch.save_file(torch.load("{file.name}", weights_only=True), "{new}")'
        )
    if file.name.endswith(".index.json"):
        raise ArgumentError(f"'{file}' lists several files; load them one by one, or join them first.")
    try:
        return {name: _array(facts) for name, facts in safetensors.deserialize(Path(file).read_bytes())}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"'{file}' is no safetensors file, or is damaged: {error}") from error


_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def _array(facts: dict[str, Any]) -> np.ndarray:
    if facts["dtype"] == "BF16":
        halves = np.frombuffer(facts["data"], "<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(facts["shape"])
    if facts["dtype"] not in _DTYPES:
        raise ValueError(f"arrays of dtype {json.dumps(facts['dtype'])} are not read; convert them to float32 first")
    return np.frombuffer(facts["data"], _DTYPES[facts["dtype"]]).reshape(facts["shape"])


def _quoted(source: str, name: str) -> str:
    return f"'{name}'" if source == name else f"'{source}' (as '{name}')"


def _listed(entries: list[str]) -> str:
    rest = len(entries) - _MAX_LISTED
    return ", ".join(entries[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
