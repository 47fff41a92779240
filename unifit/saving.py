"""Whole models in one file, weights alone, and configs: between processes, machines and backends."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import unifit.archive as archive
from unifit.backend import backend
from unifit.checkpoint.format import WEIGHTS
from unifit.checkpoint.newest import checkpoint_at
from unifit.config import deserialize, serialize
from unifit.errors import ArgumentError, UnifitError
from unifit.input_specs import specs_from_json, specs_to_json
from unifit.seed import get_seed
from unifit.sharing import reading, write
from unifit.weights import host_weights, layers_of, records_of

FORMAT = 1
"""The version of the file's layout. A file of a newer layout is refused."""


def save_model(model: Any, filepath: Any, overwrite: bool = True, include_optimizer: bool = True) -> None:
    """Writes a model to one file: config, weights, what compile was given, and the optimizer's slots if there are any.

    Every process of a distributed run must call it: reading sharded weights is a collective. The main process writes;
    the others return when it is done. If it fails, the error is raised there, which ends the job.

    Args:
        model: A built Model.
        filepath: Usually ends with ".unifit". Its folder must exist. Written beside it and renamed, so that a file of
            that name is whole at any time.
        overwrite: Whether a file there may be replaced.
        include_optimizer: False leaves out the compile arguments and the slots.

    Raises:
        ArgumentError: When the path cannot be written, or a layer, loss or metric has no config.
        UnifitError: When the model is not built.
    """
    path = _target(model, filepath, overwrite)
    model.arguments()
    config = model_config(model)
    slots, step = _optimizer_state(model) if include_optimizer else (None, 0)
    config |= {"compile": _compile_config(model) if include_optimizer else None, "step": step, "seed": get_seed()}
    if include_optimizer:
        config["microbatch_sizes"] = [[*key, size] for key, size in model.chosen_microbatch_sizes.items()]
    arrays = {archive.WEIGHTS: host_weights(model)}
    if slots:
        arrays[archive.OPTIMIZER] = slots
    _on_main(model, lambda: archive.write_archive(path, config, arrays))


def load_model(filepath: Any, custom_objects: Mapping[str, Any] | None = None, compile: bool = True) -> Any:
    """A model as `model.save` wrote it, whatever backend it was saved on. No code of the file is run.

    The optimizer goes on where it stopped: its slots are handed to the engine that the next fit makes. The seed is not
    changed.

    Args:
        filepath: A file of `model.save`.
        custom_objects: Classes and functions by name that are not registered with `uf.register_serializable`.
        compile: Whether to compile the model as it was, and to keep the optimizer's slots.

    Raises:
        ArgumentError: When the file is missing, damaged, or of a newer layout; it names the file.
        UnknownNameError: When the file names a class that is not registered.
    """
    members = archive.read_archive(filepath, (archive.CONFIG, archive.WEIGHTS, archive.OPTIMIZER))
    for name in (archive.CONFIG, archive.WEIGHTS):
        if name not in members:
            raise ArgumentError(f"'{filepath}' has no member {name}, so it is no file of model.save.")
    config = archive.parse_config(members[archive.CONFIG], f"{archive.CONFIG} in '{filepath}'")
    weights = archive.decode_arrays(members[archive.WEIGHTS], f"{archive.WEIGHTS} in '{filepath}'")
    try:
        model = model_from_config(config, custom_objects)
        model.load_weights_by_path(weights)
        if compile and config.get("compile"):
            model.compile(**{name: deserialize(value, custom_objects) for name, value in config["compile"].items()})
            if archive.OPTIMIZER in members:
                slots = archive.decode_arrays(members[archive.OPTIMIZER], f"{archive.OPTIMIZER} in '{filepath}'")
                model.restore_optimizer(slots, int(config["step"]))
            for share, devices, size in config.get("microbatch_sizes", ()):
                model.chosen_microbatch_sizes[int(share), int(devices)] = int(size)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ArgumentError(
            f"'{filepath}' cannot be loaded: its config does not hang together ({type(error).__name__}: {error})."
        ) from error
    except UnifitError as error:
        error.add_note(f"while '{filepath}' was loaded")
        raise
    return model


def save_weights(model: Any, filepath: Any, overwrite: bool = True) -> None:
    """Writes a model's weights to one safetensors file, by path. Collective and atomic, as `save_model`.

    Raises:
        ArgumentError: When the path cannot be written.
        UnifitError: When the model is not built.
    """
    path = _target(model, filepath, overwrite)
    _check_built(model)
    weights = host_weights(model)

    def write_file() -> None:
        with archive.atomic_file(path) as file:
            file.write(archive.encode_arrays(weights))

    _on_main(model, write_file)


def load_weights(model: Any, filepath: Any, skip_mismatch: bool = False) -> None:
    """Reads weights by path from a file of `save_weights` or `model.save`, or from a checkpoint.

    Args:
        model: A built Model.
        filepath: The file; or the folder of a checkpoint, or one of checkpoints: the newest.
        skip_mismatch: Whether to load what fits, with a warning that lists the rest.

    Raises:
        ArgumentError: When the file is missing or damaged, or its weights differ from the model's: it lists the missing
            ones, the unknown ones, and those of another shape. Nothing has been loaded then.
        UnifitError: When the model is not built.
    """
    _check_built(model)
    values = read_weights(filepath)
    shapes = {path: record.shape for path, _, _, record in records_of(model)}
    missing, unknown = sorted(shapes.keys() - values.keys()), sorted(values.keys() - shapes.keys())
    other = [
        f"'{path}' (model {shapes[path]}, file {values[path].shape})"
        for path in shapes
        if path in values and values[path].shape != shapes[path]
    ]
    problems = [
        f"{what}: {', '.join(paths)}"
        for what, paths in {
            "missing in the file": missing,
            "not in the model": unknown,
            "of another shape": other,
        }.items()
        if paths
    ]
    if problems and not skip_mismatch:
        raise ArgumentError(
            f"The weights in '{filepath}' do not fit {model.name}; {'; '.join(problems)}. Load what fits with "
            "skip_mismatch=True."
        )
    if problems:
        warnings.warn(f"Weights in '{filepath}' were skipped; {'; '.join(problems)}.", stacklevel=3)
        own = {path: array for path, array in host_weights(model).items()}
        values = {p: values[p] if p in values and values[p].shape == shapes[p] else own[p] for p in shapes}
    model.load_weights_by_path(values)


def read_weights(filepath: Any) -> dict[str, np.ndarray]:
    """The weights in a file of `save_weights` or `model.save`, or in a checkpoint's folder, by path."""
    if Path(filepath).is_dir():
        return checkpoint_at(filepath).arrays(WEIGHTS)
    path = archive.existing_file(filepath)
    with open(path, "rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if not is_zip:
        return archive.decode_arrays(path.read_bytes(), f"'{path}'")
    members = archive.read_archive(path, (archive.WEIGHTS,))
    if archive.WEIGHTS not in members:
        raise ArgumentError(f"'{path}' has no member {archive.WEIGHTS}, so it is no file of model.save.")
    return archive.decode_arrays(members[archive.WEIGHTS], f"{archive.WEIGHTS} in '{path}'")


def model_config(model: Any) -> dict[str, Any]:
    """A model's structure as a JSON value: its config, the inputs that it is built on, and which layers are frozen."""
    return {
        "format": FORMAT,
        "unifit": _version(),
        "backend": backend.name,
        "model": write(lambda: serialize(model)),
        "inputs": serialize(specs_to_json(model.arguments())) if model.built else None,
        "frozen": [prefix for prefix, layer in layers_of(model) if not layer.trainable],
    }


def model_from_config(config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The inverse of `model_config`; a model that was built is built, with fresh weights.

    Raises:
        ArgumentError: For a config of a newer layout.
    """
    if not isinstance(config.get("format"), int) or "model" not in config:
        raise ArgumentError("The config is not one of a unifit model: it has no format and model.")
    if config["format"] > FORMAT:
        raise ArgumentError(
            f"The model was saved by unifit {config.get('unifit')} in layout {config['format']}; this unifit reads "
            f"layouts up to {FORMAT}. Upgrade unifit."
        )
    with reading():
        model = deserialize(config["model"], custom_objects)
    if config["inputs"] is not None and not model.built:
        model.rebuild(specs_from_json(deserialize(config["inputs"])))
    frozen = set(config["frozen"])
    for prefix, layer in layers_of(model):
        if layer.trainable == (prefix in frozen):
            layer.__dict__["_trainable"] = prefix not in frozen
    return model


def model_from_json(text: str, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """A model of the structure that `model.to_json` gave, with fresh weights."""
    return model_from_config(archive.parse_config(text, "The text"), custom_objects)


def clone_model(model: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """A new model of the same structure with fresh weights: under one seed, bit for bit what the first started from.

    Args:
        model: Any model; unregistered classes of its layers are found by themselves.
        custom_objects: Other unregistered classes in the layers' arguments.
    """
    own = {type(layer).__name__: type(layer) for _, layer in layers_of(model)}
    return model_from_config(model_config(model), {**own, **(custom_objects or {})})


def not_built(model: Any) -> str:
    """What to do about a model that is not built."""
    return (
        f"{model.name} ({type(model).__name__}) is not built, so its shapes and weights are unknown: call "
        "model.build((None, ...)) with the shape of its input, call it once on data, or fit it."
    )


def _check_built(model: Any) -> None:
    if not model.built:
        raise UnifitError(not_built(model))


def _compile_config(model: Any) -> dict[str, Any] | None:
    """What compile was given, under the names of its arguments; None when it was not called."""
    spec = model.training_spec
    if spec is None:
        return None
    names = {field.name for field in dataclasses.fields(spec)} & inspect.signature(model.compile).parameters.keys()
    try:
        return {name: serialize(getattr(spec, name)) for name in sorted(names)}
    except ArgumentError as error:
        error.add_note("in what compile was given; model.save(path, include_optimizer=False) leaves that out")
        raise


def _optimizer_state(model: Any) -> tuple[dict[str, np.ndarray] | None, int]:
    """The slots and the number of windows so far: of the engine in use, or as loaded and not yet handed to one."""
    trainer = model.trainer
    if trainer is not None and trainer.spec is not None:
        return trainer.slots(), trainer.step
    return model.restored_optimizer or (None, 0)


def chosen_weights(model: Any, which: str) -> AbstractContextManager[Any]:
    """Inside it the model has its "own" weights, or those that are averaged: "ema".

    Raises:
        ArgumentError: For another name, or where no average is kept.
    """
    trainer = getattr(model, "trainer", None)
    if trainer is not None:
        return trainer.weights(which)
    if which == "own":
        return nullcontext()
    raise ArgumentError(f"weights={which!r} needs a model that is compiled with ema=uf.EMA(...) and was trained.")


def _target(model: Any, filepath: Any, overwrite: bool) -> Path:
    """The path, checked on the process that writes to it: the others may see the file come up meanwhile."""
    _on_main(model, lambda: archive.check_target(filepath, overwrite))
    return Path(filepath)


def _on_main(model: Any, write_file: Callable[[], Any]) -> None:
    """Writes on the main process, while the others wait for it; an error there is raised on all.

    The processes are those of the engine in use. Without one each process writes the same bytes, and the last rename
    stands.
    """
    if model.peers is None:
        write_file()
    else:
        model.peers.on_main("save", write_file)


def _version() -> str:
    try:
        return version("unifit")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0"
