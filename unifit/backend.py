"""The one door to the active backend: chosen by UNIFIT_BACKEND, else the first installed of torch, jax, tensorflow."""

from __future__ import annotations

import importlib
import importlib.util
import os
from importlib.metadata import entry_points
from types import ModuleType

from unifit.errors import BackendNotInstalledError, unknown_name

FRAMEWORKS = ("torch", "jax", "tensorflow")


class Backend:
    """A backend's parts by file name: `backend.ops` is the module `ops` of its package, imported on first use."""

    def __init__(self, name: str, package: str):
        self.name = name
        self.package = package

    def __getattr__(self, part: str) -> ModuleType:
        if part.startswith("__"):
            raise AttributeError(part)
        module = importlib.import_module(f"{self.package}.{part}")
        setattr(self, part, module)
        return module

    def __repr__(self) -> str:
        return f"<unifit backend {self.name!r} from {self.package}>"


def packages() -> dict[str, str]:
    """Backend name -> package, from the entry-point group `unifit.backends` (third parties add theirs there)."""
    own = {name: f"unifit_{name}" for name in FRAMEWORKS if importlib.util.find_spec(f"unifit_{name}") is not None}
    return own | {entry.name: entry.value for entry in entry_points(group="unifit.backends")}


def choose(requested: str | None) -> Backend:
    """The backend named `requested`, or the first of torch, jax and tensorflow whose framework is installed.

    Raises:
        UnknownNameError: When no installed package provides `requested`.
        BackendNotInstalledError: When its framework is missing, or no framework is installed at all.
    """
    known = packages()
    if requested:
        if requested not in known:
            raise unknown_name("backend (UNIFIT_BACKEND)", requested, known)
        if requested in FRAMEWORKS and importlib.util.find_spec(requested) is None:
            raise BackendNotInstalledError(
                f"UNIFIT_BACKEND={requested} needs {requested}, which is not installed: "
                f'pip install "unifit[{requested}]" (CPU only? See the README first).'
            )
        return Backend(requested, known[requested])
    for name in FRAMEWORKS:
        if name in known and importlib.util.find_spec(name) is not None:
            return Backend(name, known[name])
    raise BackendNotInstalledError(
        "unifit needs one of torch, jax and tensorflow, and none is installed: "
        'pip install "unifit[jax]" (or [torch], [tensorflow]).'
    )


backend = choose(os.environ.get("UNIFIT_BACKEND"))
