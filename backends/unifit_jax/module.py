"""The tree of layers on JAX: an object whose arrays live in one Store a model; the engine re-points it every step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unifit.contract import tree
from unifit.contract.module import walk
from unifit.contract.values import ArraySpec
from unifit_jax import distribution

distribution.configure_from_environment()


class Store:
    """The one home of a model's arrays: a list that is replaced whole. Modules hold (store, index) handles."""

    def __init__(self, values: list[Any]):
        self.hold(values, spans_processes=False)

    def hold(self, values: list[Any], spans_processes: bool) -> None:
        """Replaces the arrays by others, which may be spread over the devices of several processes."""
        self.values, self._spans_processes = values, spans_processes

    def read(self, index: int) -> Any:
        """The array for computations of this process alone: its own copy of one that spans several."""
        value = self.values[index]
        return value.addressable_data(0) if self._spans_processes else value

    def write(self, index: int, value: Any) -> None:
        """Replaces an array by a host array, or by one of this process."""
        if self._spans_processes:
            value = distribution.replicated(value, self.values[index].sharding)
        self.values[index] = value

    @contextlib.contextmanager
    def bound(self, values: list[Any]) -> Iterator[None]:
        """Runs a function of `values`: the handles read and assign this list meanwhile."""
        kept, spans = self.values, self._spans_processes
        self.hold(values, spans_processes=False)
        try:
            yield
        finally:
            self.hold(kept, spans)


class Module:
    """unifit.contract.module.Module over plain Python objects."""

    _modules: dict[str, Any]
    _handles: dict[str, tuple[Store, int]]

    def __init__(self) -> None:
        self.__dict__.update(_modules={}, _handles={})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no run")

    def add_module(self, name: str, module: Any) -> None:
        self.__dict__.pop(name, None)
        self._modules[name] = module

    def named_children(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for name, child in self._modules.items():
            if id(child) not in seen:
                seen.add(id(child))
                yield name, child

    def add_parameter(self, name: str, value: np.ndarray, trainable: bool, dtype: str | None = None) -> None:
        self._handles[name] = (Store([jnp.asarray(value, dtype)]), 0)

    def parameter_names(self) -> list[str]:
        return list(self._handles)

    def read_parameter(self, name: str) -> np.ndarray:
        store, index = self._handles[name]
        value = store.read(index)
        return np.array(value, np.float32 if value.dtype == jnp.bfloat16 else value.dtype)

    def write_parameter(self, name: str, value: np.ndarray) -> None:
        store, index = self._handles[name]
        old = store.values[index]
        store.write(index, distribution.replicated(np.asarray(value, old.dtype), old.sharding))

    def assign(self, name: str, value: Any) -> None:
        store, index = self._handles[name]
        # A buffer keeps its dtype, whatever a layer computed it in: the next update takes it in that one.
        store.write(index, jax.lax.stop_gradient(jnp.asarray(value, store.values[index].dtype)))

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        handle = fields.get("_handles", {}).get(name)
        if handle is not None:
            return handle[0].read(handle[1])
        if name in fields.get("_modules", ()):
            return fields["_modules"][name]
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self.add_module(name, value)
        else:
            self.__dict__.get("_modules", {}).pop(name, None)
            object.__setattr__(self, name, value)


def adopt(model: Module) -> tuple[Store, list[str]]:
    """Moves every variable below `model` into one Store; returns it with the variables' paths, in the tree's order."""
    store = Store([])
    paths: list[str] = []
    for path, owner, name in walk(model):
        old, index = owner._handles[name]
        owner._handles[name] = (store, len(paths))
        store.values.append(old.values[index])
        paths.append(path)
    return store, paths


def abstract_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """unifit.contract.module.abstract_call by `jax.eval_shape`."""
    structs = map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), arguments)
    return tree.map(lambda leaf: ArraySpec(tuple(leaf.shape), str(leaf.dtype)), jax.eval_shape(function, *structs))


@contextlib.contextmanager
def reading_as(weights: Sequence[tuple[Module, str, str]]) -> Iterator[None]:
    """unifit.contract.module.reading_as: the casts shadow the handles, as plain attributes of the owners.

    Inside an engine's trace they are part of its program; the store, which the engine holds, has the variables.
    """
    # All are read first: when one cannot be, nothing is shadowed.
    casts = [(owner, name, getattr(owner, name).astype(dtype)) for owner, name, dtype in weights]
    kept = [owner.__dict__.get(name) for owner, name, _ in casts]
    for owner, name, cast in casts:
        owner.__dict__[name] = cast
    try:
        yield
    finally:
        for (owner, name, _), outer in zip(casts, kept, strict=True):
            if outer is None:
                del owner.__dict__[name]
            else:
                owner.__dict__[name] = outer


def map_specs(function: Callable[[ArraySpec], Any], specs: Any) -> Any:
    """`function` over the ArraySpec leaves of a tree."""
    return jax.tree.map(function, specs, is_leaf=lambda leaf: isinstance(leaf, ArraySpec))
