"""The tree of layers on PyTorch: every Layer is an nn.Module with Parameters and buffers, so DDP just works on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from unifit.contract import tree
from unifit.contract.values import ArraySpec


class Module(nn.Module):
    """unifit.contract.module.Module over nn.Module, whose own `__call__` runs `forward`; `forward` is `run`."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_variable_names"] = []

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "run" in cls.__dict__:
            # The same function under torch's name: a method of ours in between would cost a Python call a layer.
            cls.forward = cls.__dict__["run"]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no run")

    def add_module(self, name: str, module: Any) -> None:
        # Not nn.Module's, which refuses names that any attribute has: the contract replaces.
        self.__dict__.pop(name, None)
        self._modules[name] = module

    def add_parameter(self, name: str, value: np.ndarray, trainable: bool, dtype: str | None = None) -> None:
        self._parameters.pop(name, None)
        self._buffers.pop(name, None)
        tensor = from_host(value).clone()
        if dtype is not None:
            tensor = tensor.to(getattr(torch, dtype))
        if trainable:
            self.register_parameter(name, nn.Parameter(tensor))
        else:
            self.register_buffer(name, tensor)
        if name not in self._variable_names:
            self._variable_names.append(name)

    def parameter_names(self) -> list[str]:
        return list(self._variable_names)

    def read_parameter(self, name: str) -> np.ndarray:
        return to_host(variable(self, name))

    def write_parameter(self, name: str, value: np.ndarray) -> None:
        tensor = variable(self, name)
        if tuple(np.shape(value)) != tuple(tensor.shape):
            raise ValueError(f"'{name}' has shape {tuple(tensor.shape)}; the given value {np.shape(value)}.")
        with torch.no_grad():
            tensor.copy_(from_host(np.asarray(value)))

    def assign(self, name: str, value: Any) -> None:
        self._buffers[name].copy_(value.detach())


def variable(module: Any, name: str) -> torch.Tensor:
    """The Parameter or buffer behind a module's attribute, whatever shadows it."""
    parameter = module._parameters.get(name)
    return module._buffers[name] if parameter is None else parameter


class WindowCasts:
    """The casts of a window's weights, which an engine keeps from one micro-batch to the next.

    Attributes:
        kept: Casts by parameter, dtype and whether gradients flow; None outside windows.
    """

    kept: dict[tuple[int, str, bool], torch.Tensor] | None = None


window_casts = WindowCasts()


@contextlib.contextmanager
def reading_as(weights: Sequence[tuple[Any, str, str]]) -> Iterator[None]:
    """unifit.contract.module.reading_as: casts in the owners' `__dict__`, where attributes are looked up first.

    A weight that is shadowed already, as in abstract calls, is left alone.
    """
    shadowed = []
    try:
        for owner, name, dtype in weights:
            if name not in owner.__dict__:
                owner.__dict__[name] = _cast(variable(owner, name), dtype)
                shadowed.append((owner, name))
        yield
    finally:
        for owner, name in shadowed:
            owner.__dict__.pop(name, None)


def _cast(weight: torch.Tensor, dtype: str) -> torch.Tensor:
    kept = window_casts.kept
    if kept is None:
        return weight.to(getattr(torch, dtype))
    # One cast serves the backward passes of all micro-batches: it saves nothing for them that the first would free.
    key = id(weight), dtype, torch.is_grad_enabled()
    if key not in kept:
        kept[key] = weight.to(getattr(torch, dtype))
    return kept[key]


def from_host(array: np.ndarray) -> torch.Tensor:
    """The array as a CPU tensor that shares its memory wherever torch can."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    if array.dtype.kind == "V":  # bfloat16: NumPy has it from an extension, which torch does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_host(tensor: torch.Tensor) -> np.ndarray:
    """A host copy; bfloat16 becomes float32."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return tensor.cpu().numpy().copy()


def abstract_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """unifit.contract.module.abstract_call on meta tensors."""
    with torch.device("meta"), torch.no_grad():
        outputs = function(
            *map_specs(lambda spec: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)), arguments)
        )
    return tree.map(lambda leaf: ArraySpec(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")), outputs)


def map_specs(function: Callable[[ArraySpec], Any], specs: Any) -> Any:
    """`function` over the ArraySpec leaves of a tree."""
    if isinstance(specs, ArraySpec):
        return function(specs)
    if isinstance(specs, dict):
        return {key: map_specs(function, value) for key, value in specs.items()}
    if isinstance(specs, (tuple, list)):
        children = [map_specs(function, value) for value in specs]
        return type(specs)(*children) if hasattr(specs, "_fields") else type(specs)(children)
    return specs
