"""The tree of layers on TensorFlow: tf.Modules with tf.Variables."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf

from unifit.contract import tree
from unifit.contract.module import walk
from unifit.contract.values import ArraySpec
from unifit_tensorflow import distribution

distribution.configure_from_environment()

# (id of the owner, name) -> the value in another dtype. A context variable: each replica's thread has its own, in which
# tensors of its own device are. None of the owners' attributes would do, which all replicas share.
_casts: ContextVar[dict[tuple[int, str], Any] | None] = ContextVar("unifit_tensorflow_casts", default=None)


class Module(tf.Module):
    """unifit.contract.module.Module over tf.Module: `variables`, `submodules` and tf.train.Checkpoint see the tree."""

    def __init__(self) -> None:
        # Straight into __dict__, here and below: TensorFlow's attribute tracking would wrap lists and dicts.
        self.__dict__.update(_modules={}, _parameters={})
        super().__init__(name=scope_name(type(self).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no run")

    def add_module(self, name: str, module: Any) -> None:
        self.__dict__.pop(name, None)
        self._modules[name] = module
        self._track_trackable(module, name, overwrite=True)

    def named_children(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for name, child in self._modules.items():
            if id(child) not in seen:
                seen.add(id(child))
                yield name, child

    def add_parameter(self, name: str, value: np.ndarray, trainable: bool, dtype: str | None = None) -> None:
        given = value if dtype is None else tf.cast(value, dtype)
        self.set_variable(name, tf.Variable(given, trainable=trainable, name=name))

    def set_variable(self, name: str, variable: tf.Variable) -> None:
        """Makes `variable` the one behind attribute `name`."""
        self._parameters[name] = variable
        self._track_trackable(variable, name, overwrite=True)

    def parameter_names(self) -> list[str]:
        return list(self._parameters)

    def read_parameter(self, name: str) -> np.ndarray:
        value = np.array(self._parameters[name].numpy())
        return value.astype(np.float32) if self._parameters[name].dtype == tf.bfloat16 else value

    def write_parameter(self, name: str, value: np.ndarray) -> None:
        variable = self._parameters[name]
        variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))

    def assign(self, name: str, value: Any) -> None:
        self._parameters[name].assign(tf.stop_gradient(value))

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        if name in fields.get("_parameters", ()):
            value = fields["_parameters"][name]
            casts = _casts.get()
            return value if casts is None else casts.get((id(self), name), value)
        if name in fields.get("_modules", ()):
            return fields["_modules"][name]
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self.add_module(name, value)
            return
        if self.__dict__.get("_modules", {}).pop(name, None) is not None:
            self._delete_tracking(name)
        object.__setattr__(self, name, value)


def scope_name(class_name: str) -> str:
    """The class' name without what TensorFlow refuses in a scope's: a leading underscore, letters beyond ASCII."""
    return re.sub(r"[^A-Za-z0-9_]", "", class_name).lstrip("_0123456789") or "Module"


def adopt(model: Module, devices: distribution.Devices) -> dict[str, tf.Variable]:
    """Every variable below `model` by path, in the tree's order; those of other devices are made again in place."""
    variables = {}
    owner: Any
    for path, owner, name in walk(model):
        variable = owner._parameters[name]
        if not devices.owns(variable):
            with devices.scope():
                owner.add_parameter(name, variable.numpy(), variable.trainable)
        variables[path] = owner._parameters[name]
    return variables


@contextlib.contextmanager
def reading_as(weights: Sequence[tuple[Module, str, str]]) -> Iterator[None]:
    """unifit.contract.module.reading_as. Casts are made here, not where a weight is first read: that may be inside the
    graph of a loop or branch, whose tensors no other may use. A graph leaves out those that nothing reads.
    """
    casts = {
        (id(owner), name): tf.cast(owner._parameters[name], dtype)
        for owner, name, dtype in weights
        if name in owner._parameters and name not in owner.__dict__  # else it is lent, for an abstract call
    }
    token = _casts.set(casts)
    try:
        yield
    finally:
        _casts.reset(token)


def abstract_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """unifit.contract.module.abstract_call by tracing into a FuncGraph that is never run."""
    with tf.__internal__.FuncGraph("abstract_call").as_default():
        return tree.map(spec_of, function(*placeholders(arguments)))


def placeholders(specs: Any) -> Any:
    """A symbolic tensor for each ArraySpec leaf of a tree."""
    if isinstance(specs, ArraySpec):
        return tf.compat.v1.placeholder(specs.dtype, specs.shape)
    if isinstance(specs, dict):
        return {key: placeholders(spec) for key, spec in specs.items()}
    if isinstance(specs, (tuple, list)):
        children = [placeholders(spec) for spec in specs]
        return type(specs)(*children) if hasattr(specs, "_fields") else type(specs)(children)
    return specs


def spec_of(value: Any) -> ArraySpec:
    """Static shape and dtype of a symbolic tensor."""
    tensor = tf.convert_to_tensor(value)
    return ArraySpec(tuple(tensor.shape), tensor.dtype.name)
