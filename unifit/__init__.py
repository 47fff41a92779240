"""unifit: one script trains on PyTorch, JAX and TensorFlow, with the same numbers. `import unifit as uf`."""

from importlib.metadata import PackageNotFoundError, version

from unifit import callbacks, errors, initializers, layers, losses, metrics, ops, optimizers, random, regularizers, schedules
from unifit.backend import backend
from unifit.context import context
from unifit.distribution import DataParallel
from unifit.layer import Layer
from unifit.model import Model
from unifit.seed import set_seed
from unifit.sequential import Sequential

try:
    __version__ = version("unifit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0"

__all__ = [
    "DataParallel",
    "Layer",
    "Model",
    "Sequential",
    "backend",
    "callbacks",
    "context",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "ops",
    "optimizers",
    "random",
    "regularizers",
    "schedules",
    "set_seed",
]
