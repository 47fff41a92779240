"""unifit: one script trains on PyTorch, JAX and TensorFlow, with the same numbers. `import unifit as uf`."""

from importlib.metadata import PackageNotFoundError, version

from unifit.launch.own_command import is_own_command

if not is_own_command():  # the command `unifit` works without a framework, which these import
    from unifit import (
        callbacks,
        checkpoint,
        data,
        errors,
        initializers,
        layers,
        losses,
        metrics,
        ops,
        optimizers,
        random,
        regularizers,
        schedules,
    )
    from unifit.backend import backend
    from unifit.context import context
    from unifit.distribution import DataParallel
    from unifit.launch.joining import join_early
    from unifit.launch.notebook import launch
    from unifit.layer import Layer
    from unifit.model import Model
    from unifit.names import register_serializable
    from unifit.precision import EMA, LossScale, Precision, set_precision
    from unifit.processes import is_main_process, process_count, process_index
    from unifit.saving import clone_model, load_model, model_from_json
    from unifit.seed import set_seed
    from unifit.sequential import Sequential
    from unifit.symbol import Input

    join_early()

try:
    __version__ = version("unifit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0"

__all__ = [
    "DataParallel",
    "EMA",
    "Input",
    "Layer",
    "LossScale",
    "Model",
    "Precision",
    "Sequential",
    "backend",
    "callbacks",
    "checkpoint",
    "clone_model",
    "context",
    "data",
    "errors",
    "initializers",
    "is_main_process",
    "launch",
    "layers",
    "load_model",
    "losses",
    "metrics",
    "model_from_json",
    "ops",
    "optimizers",
    "process_count",
    "process_index",
    "random",
    "register_serializable",
    "regularizers",
    "schedules",
    "set_precision",
    "set_seed",
]
