"""Weights are recorded first and made later: the record of one weight, and the walk over a tree's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unifit.contract.module import walk
from unifit.seed import generator


@dataclass(eq=False)
class Weight:
    """What `Layer.add_weight` recorded. It stands in for the variable until the variable is made.

    Attributes:
        shape: Shape of the variable.
        dtype: Its dtype's name.
        initializer: (shape, dtype, NumPy generator) -> host array.
        trainable: False for a buffer, such as moving statistics.
        regularizer: Scalar function of the variable that is added to the loss, or None.
        value: Host value that replaces the initializer's, for instance one that was loaded.
    """

    shape: tuple[int, ...]
    dtype: str
    initializer: Callable[..., np.ndarray]
    trainable: bool = True
    regularizer: Callable[[Any], Any] | None = None
    value: np.ndarray | None = None

    def initial_value(self, path: str, seed: int) -> np.ndarray:
        """The first value: keyed by (seed, path) alone, so the same on every backend and in every process."""
        if self.value is not None:
            return np.asarray(self.value, self.dtype)
        return np.asarray(self.initializer(self.shape, self.dtype, generator(seed, "weight", path)), self.dtype)


def layers_of(root: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path prefix, module) of `root` and all below it, depth first, each once; the prefix ends with a dot unless empty."""
    seen: set[int] = set()
    stack = [(prefix, root)]
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        stack.extend((f"{path}{name}.", child) for name, child in reversed(list(module.named_children())))


def records_of(root: Any) -> Iterator[tuple[str, Any, str, Weight]]:
    """(path, owner, name, record) of every recorded weight below `root`, made or not, in the tree's order."""
    for prefix, module in layers_of(root):
        for name, record in module.__dict__.get("_records", {}).items():
            yield prefix + name, module, name, record


def make_weights(root: Any, seed: int) -> None:
    """Makes the variables of every record that has none yet."""
    for path, owner, name, record in records_of(root):
        if owner.__dict__.get(name) is record:
            del owner.__dict__[name]
            owner.add_parameter(name, record.initial_value(path, seed), record.trainable)
            record.value = None


def trainable_paths(root: Any) -> frozenset[str]:
    """Paths of the weights that training may change: recorded as trainable, in layers that are not frozen."""
    chosen = set()
    for path, owner, name, record in records_of(root):
        if record.trainable and owner.trainable:
            chosen.add(path)
    return frozenset(chosen)


def read_weights(root: Any) -> dict[str, np.ndarray]:
    """Host copies of every weight below `root` by path: of its variable, or what the variable will start from."""
    return {path: owner.read_parameter(name) for path, owner, name in walk(root)}
