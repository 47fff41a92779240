"""Leaving: a checkpoint's weights as files of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from unifit.checkpoint.format import EMA, WEIGHTS
from unifit.checkpoint.keras_file import SUFFIX, keras_arrays, write_keras
from unifit.checkpoint.name_map import NameMap, Names, require_distinct
from unifit.checkpoint.newest import checkpoint_at
from unifit.checkpoint.orbax_folder import write_orbax
from unifit.checkpoint.placing import placed
from unifit.checkpoint.reading import Checkpoint
from unifit.checkpoint.structure import structure_of_checkpoint
from unifit.checkpoint.torch_files import torch_state
from unifit.errors import ArgumentError, unknown_name

FORMATS = ("safetensors", "torch", "keras", "orbax")


def export(
    path: Any,
    format: str,
    target: Any,
    *,
    names: Names = None,
    weights: str = "own",
    overwrite: bool = False,
) -> None:
    """Writes the weights of a checkpoint for another library. No framework is needed (JAX for "orbax").

    The file is written beside its place and renamed, so that it is whole at any time. In a job of several processes one
    calls it: `if uf.is_main_process():`.

    Args:
        path: A checkpoint's folder, or a `checkpoint_dir`: the newest one in it. Every file is compared with its hash.
        format: "safetensors": one file, with the names and layouts of unifit. "torch": a safetensors file for
            `load_state_dict` of the same model made of torch.nn's layers. "keras": a `.weights.h5` file for
            `load_weights` of the same Keras 3 model. "orbax": a folder that Orbax restores as a nested dict.
        target: The file or folder to write.
        names: From the names of the weights to those in the file: a dict, whose keys may be whole names or those of
            layers ({"blocks": "encoder.layer"}), or a function; None leaves one out. Not for "keras", which goes by
            the order of the layers.
        weights: "own", or "ema" for the running averages that `compile(ema=...)` keeps; buffers, and weights that were
            not trained, are the model's own.
        overwrite: Whether what is at `target` may be replaced.

    Raises:
        CheckpointError: When there is no checkpoint, it is damaged, or the file cannot be written.
        ArgumentError: For arguments that do not fit, such as a target that exists.
        UnsupportedError: When the other library has no layer that does what one of the model does; it names the layer.

    Example:
        `uf.checkpoint.export("runs/digits", "torch", "digits.safetensors")`
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    checkpoint = checkpoint_at(path)
    own = chosen_arrays(checkpoint, weights)
    write: Callable[[Path, dict[str, np.ndarray]], None]
    if format == "keras":
        if names is not None:
            raise ArgumentError("format='keras' got names; Keras' files go by the order and attributes of the layers.")
        if not str(target).endswith(SUFFIX):
            raise ArgumentError(f"format='keras' got the target '{target}'; Keras needs a name that ends in {SUFFIX}.")
        arrays, write = keras_arrays(own, structure_of_checkpoint(checkpoint)), write_keras
    elif format == "torch":
        arrays, write = torch_state(own, structure_of_checkpoint(checkpoint), names), _write_for_torch
    else:
        arrays, write = _renamed(own, names), write_orbax if format == "orbax" else _write_safetensors
    with placed(target, overwrite) as new:
        write(new, arrays)


def chosen_arrays(checkpoint: Checkpoint, weights: str) -> dict[str, np.ndarray]:
    """A checkpoint's weights by path: its "own", or with the running averages in the place of those that have one.

    Raises:
        ArgumentError: For another choice, or where there are no averages.
    """
    if weights not in ("own", "ema"):
        raise ArgumentError(f"weights={weights!r}: expected 'own' or 'ema'.")
    own = checkpoint.arrays(WEIGHTS)
    if weights == "own":
        return own
    averages = checkpoint.arrays(EMA)
    if not averages:
        raise ArgumentError(
            f"weights='ema', and '{checkpoint.path}' has no running averages: its model was not compiled with ema=..."
        )
    return own | {path: array.astype(own[path].dtype) for path, array in averages.items() if path in own}


def _renamed(arrays: dict[str, np.ndarray], names: Names) -> dict[str, np.ndarray]:
    rename = NameMap(names)
    new_names = {name: new for name in arrays if (new := rename(name)) is not None}
    rename.check_all_used(arrays)
    require_distinct(new_names)
    return {new: arrays[name] for name, new in new_names.items()}


def _write_safetensors(path: Path, arrays: dict[str, np.ndarray], maker: str = "unifit") -> None:
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    safetensors.numpy.save_file(plain, path, metadata={"format": maker})


def _write_for_torch(path: Path, arrays: dict[str, np.ndarray]) -> None:
    _write_safetensors(path, arrays, "pt")
