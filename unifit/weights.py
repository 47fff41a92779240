"""Weights are recorded first and made later: the record of one weight, and the walk over a tree's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unifit.contract.module import walk
from unifit.errors import ArgumentError
from unifit.seed import generator, get_seed


@dataclass(eq=False)
class Weight:
    """What `Layer.add_weight` recorded. It stands in for the variable until the variable is made.

    Attributes:
        shape: Shape of the variable.
        dtype: Its dtype's name.
        initializer: (shape, dtype, NumPy generator) -> host array.
        trainable: False for a buffer, such as moving statistics.
        regularizer: Scalar function of the variable that is added to the loss, or None.
        autocast: Whether a trainable float weight reads in the layer's compute dtype; else always in its own.
        lives_in: The dtype of the variable where it is another one than `dtype`; None for `dtype`.
        value: Host value that replaces the initializer's, for instance one that was loaded.
    """

    shape: tuple[int, ...]
    dtype: str
    initializer: Callable[..., np.ndarray]
    trainable: bool = True
    regularizer: Callable[[Any], Any] | None = None
    autocast: bool = True
    lives_in: str | None = None
    value: np.ndarray | None = None

    def read_dtype(self, compute: str | None) -> str:
        """The dtype in which the weight reads in a pass of a layer that computes in `compute`; None: in its own."""
        casts = compute is not None and self.autocast and self.trainable and "float" in self.dtype
        return compute if casts and compute is not None else self.dtype

    def initial_value(self, path: str, seed: int) -> np.ndarray:
        """The first value: keyed by (seed, path) alone, so the same on every backend and in every process."""
        if self.value is not None:
            return np.asarray(self.value, self.dtype)
        return np.asarray(self.initializer(self.shape, self.dtype, generator(seed, "weight", path)), self.dtype)


def layers_of(root: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path prefix, module) of `root` and all below it, depth first, each once.

    The prefix ends with a dot unless it is empty.
    """
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


def children_of(root: Any) -> Iterator[tuple[str, Any]]:
    """(path, layer) of the layers right below `root`; those in its lists and dicts by `blocks.0`."""
    for name, child in root.named_children():
        if getattr(child, "is_container", False):
            yield from ((f"{name}.{path}", layer) for path, layer in children_of(child))
        else:
            yield name, child


def make_weights(root: Any, seed: int) -> None:
    """Makes the variables of every record that has none yet."""
    for path, owner, name, record in records_of(root):
        if owner.__dict__.get(name) is record:
            del owner.__dict__[name]
            owner.add_parameter(name, record.initial_value(path, seed), record.trainable)
            record.value = None


def make_variables_live_in(root: Any, variables: str) -> None:
    """Makes the variables of float32 weights that read in the compute dtype anew, with their values, where they live in
    another dtype than `variables`.
    """
    for _, owner, name, record in records_of(root):
        wanted = record.read_dtype(variables) if record.dtype == "float32" else record.dtype
        if (record.lives_in or record.dtype) != wanted:
            owner.add_parameter(name, owner.read_parameter(name), record.trainable, wanted)
            record.lives_in = wanted


_trainable_changes = 0


def note_trainable_change() -> None:
    """Says that some layer's `trainable` was set."""
    global _trainable_changes
    _trainable_changes += 1


def trainable_changes() -> int:
    """How often any layer's `trainable` was set: equal numbers mean that no walk over the layers is needed."""
    return _trainable_changes


def trainable_paths(root: Any) -> frozenset[str]:
    """Paths of the weights that training may change: recorded as trainable, in layers that are not frozen."""
    chosen = set()
    for path, owner, _, record in records_of(root):
        if record.trainable and owner.trainable:
            chosen.add(path)
    return frozenset(chosen)


def read_weights(root: Any) -> dict[str, np.ndarray]:
    """Host copies of every weight below `root` by path: of its variable, or what the variable will start from."""
    return {path: owner.read_parameter(name) for path, owner, name in walk(root)}


class WeightView:
    """One weight of a layer, on any backend: its facts, its value on the host, and a way to set it.

    Attributes:
        path: Path from the layer that was asked, such as `blocks.0.dense.kernel`.
    """

    def __init__(self, path: str, owner: Any, name: str, record: Weight):
        self.path = path
        self._owner, self._name, self._record = owner, name, record

    @property
    def name(self) -> str:
        """The attribute's name: the path's last part."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """The variable's shape."""
        return self._record.shape

    @property
    def dtype(self) -> str:
        """The variable's dtype."""
        return self._record.dtype

    @property
    def trainable(self) -> bool:
        """Whether training changes it: recorded as trainable, in a layer that is not frozen."""
        return self._record.trainable and self._owner.trainable

    def numpy(self) -> np.ndarray:
        """A host copy of the value. A weight that is not made yet is not made for it: it keeps the value shown here."""
        return host_value(self.path, self._owner, self._name, self._record)

    def assign(self, value: Any) -> None:
        """Replaces the value.

        Raises:
            ArgumentError: When the shape differs.
        """
        value = np.asarray(value)
        if value.shape != self.shape:
            raise ArgumentError(f"Weight '{self.path}' has shape {self.shape}; assign got {value.shape}.")
        if is_made(self._owner, self._name, self._record):
            self._owner.write_parameter(self._name, value.astype(self.dtype))
        else:
            self._record.value = np.array(value, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __repr__(self) -> str:
        return f"<weight {self.path} shape={self.shape} dtype={self.dtype} trainable={self.trainable}>"


def is_made(owner: Any, name: str, record: Weight) -> bool:
    """Whether the record has its variable."""
    return owner.__dict__.get(name) is not record


def host_value(path: str, owner: Any, name: str, record: Weight) -> np.ndarray:
    """The variable's value; for a record without one the value that it will start from, which is fixed by that."""
    if is_made(owner, name, record):
        return owner.read_parameter(name)
    record.value = record.initial_value(path, get_seed())
    return record.value.copy()


def host_weights(root: Any) -> dict[str, np.ndarray]:
    """`host_value` of every weight below `root` by path: no device is touched for weights that are not made yet."""
    return {path: host_value(path, owner, name, record) for path, owner, name, record in records_of(root)}
