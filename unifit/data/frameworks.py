"""Which backend's data module knows an object: found by the root modules of its classes, whatever backend is active."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Hashable
from typing import Any, cast

from unifit.backend import packages
from unifit.contract.data import HOST_GENERATORS, GlobalGenerator


@functools.lru_cache(maxsize=1)
def _packages() -> dict[str, str]:
    return packages()


def data_module(value: Any) -> Any:
    """The DataModule that knows objects of this one's class, or None.

    A framework's companions count by their prefix: jaxlib is jax's, torchvision torch's. A class of a framework that
    is not imported cannot be its own, so no framework is ever imported here.
    """
    return _module_for(cast(Hashable, type(value)))


@functools.lru_cache(maxsize=512)
def _module_for(kind: Any) -> Any:
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        for name, package in _packages().items():
            if root.startswith(name) and name in sys.modules:
                module = _module(package)
                if module is not None:
                    return module
    return None


@functools.lru_cache(maxsize=32)
def _module(package: str) -> Any:
    name = f"{package}.data"
    return None if importlib.util.find_spec(name) is None else importlib.import_module(name)


def module_of(package: str) -> Any:
    """The DataModule of a backend's package.

    Raises:
        KeyError: When there is no such backend.
    """
    if package not in _packages().values():
        raise KeyError(package)
    return _module(package)


def global_generators() -> tuple[GlobalGenerator, ...]:
    """The global random generators of the host and of the frameworks that this process has imported."""
    modules = [_module(package) for name, package in _packages().items() if name in sys.modules]
    own = [getattr(module, "GENERATOR", None) for module in modules]
    return (*HOST_GENERATORS, *(generator for generator in own if generator is not None))
