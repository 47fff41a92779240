"""Weights as an Orbax checkpoint of a nested dict, for programs in JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unifit.errors import ArgumentError, UnsupportedError


def nested(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A dict of dicts: "blocks.0.kernel" lies in ["blocks"]["0"]["kernel"].

    Raises:
        ArgumentError: When one name is the beginning of another.
    """
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *heads, last = name.split(".")
        place = tree
        for head in heads:
            place = place.setdefault(head, {})
            if not isinstance(place, dict):
                raise ArgumentError(f"'{name}' lies below another array's name, so the names make no nested dict.")
        if last in place:
            raise ArgumentError(f"'{name}' is also the beginning of other names, so the names make no nested dict.")
        place[last] = np.asarray(array, order="C")
    return tree


def write_orbax(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the folder. This imports JAX.

    Raises:
        UnsupportedError: When orbax-checkpoint is not installed.
    """
    try:
        import orbax.checkpoint as orbax
    except ImportError as error:
        raise UnsupportedError(
            "format='orbax' needs orbax-checkpoint, which is not installed: pip install 'unifit[orbax]'."
        ) from error
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), nested(arrays))
        checkpointer.wait_until_finished()
