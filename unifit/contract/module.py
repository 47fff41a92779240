"""The tree of layers as a backend holds it. unifit's Layer inherits the backend's Module, so a model is native."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np

from unifit.contract.tree import Tree

BORDER = "unifit.contract describes the border; the backend's own class or function does the work."


class Module(Protocol):
    """torch's names, so that on torch `nn.Module` has most of them for nothing.

    `__call__` belongs to the backend (on torch hooks hang on it); it calls `run`, which the front end's Layer defines.
    Attributes that are Modules become children; everything else is a plain attribute.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `run`."""
        raise TypeError(BORDER)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The front end's body of a call."""
        raise TypeError(BORDER)

    def add_module(self, name: str, module: Any) -> None:
        """Makes `module` a child, readable as attribute `name`; another child of that name is replaced."""
        raise TypeError(BORDER)

    def named_children(self) -> Iterable[tuple[str, Any]]:
        """(name, child) in the order of insertion; a child under two names appears once."""
        raise TypeError(BORDER)

    def add_parameter(self, name: str, value: np.ndarray, trainable: bool, dtype: str | None = None) -> None:
        """Makes the variable behind attribute `name` from a host value; an existing one is replaced.

        Args:
            name: Attribute name.
            value: Host array. Copied.
            trainable: Whether it can have a gradient; False makes a buffer.
            dtype: The variable's dtype; None for that of `value`.
        """
        raise TypeError(BORDER)

    def parameter_names(self) -> list[str]:
        """Names of this module's own variables, trainable and not, in the order of `add_parameter`."""
        raise TypeError(BORDER)

    def read_parameter(self, name: str) -> np.ndarray:
        """The variable's value as a host copy; bfloat16 as float32."""
        raise TypeError(BORDER)

    def write_parameter(self, name: str, value: np.ndarray) -> None:
        """Replaces the variable's value from the host, in place: the same shape, cast to the variable's dtype."""
        raise TypeError(BORDER)

    def assign(self, name: str, value: Any) -> None:
        """Replaces a buffer's value by a device array, in a forward pass. No gradient flows through it."""
        raise TypeError(BORDER)


Owner = TypeVar("Owner", bound=Module)


def walk(module: Owner, prefix: str = "") -> Iterator[tuple[str, Owner, str]]:
    """(path, owner, name) of every variable below `module`, depth first; a shared module counts under its first path.

    Paths are attribute names joined by dots, `blocks.0.attention.kernel`; the same on every backend.
    """
    yield from _walk(module, prefix, set())


def _walk(module: Owner, prefix: str, seen: set[int]) -> Iterator[tuple[str, Owner, str]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for name in module.parameter_names():
        yield prefix + name, module, name
    for name, child in module.named_children():
        yield from _walk(child, f"{prefix}{name}.", seen)


def abstract_call(function: Callable[..., Tree], *arguments: Tree) -> Tree:
    """Runs `function` without computing: ArraySpec leaves in, ArraySpec leaves out. No device memory is used.

    Each backend's module.py has this function (torch: meta tensors; jax: eval_shape; tensorflow: a FuncGraph). Arrays
    that `function` makes through ops inside (for instance `ops.zeros`) are abstract too.
    """
    raise TypeError(BORDER)


def reading_as(weights: Sequence[tuple[Module, str, str]]) -> AbstractContextManager[Any]:
    """Inside it each weight (owner, name, dtype) reads, as an attribute of its owner, as its value in that dtype.

    The cast is made at most once a forward pass and device, however often the weight is used; engines that run eagerly
    make it once a window. Gradients flow back through it to the variable. `read_parameter` and what engines hold are
    the variables themselves. Every replica's own thread sees its own (tensorflow), and not in abstract calls, where the
    front end lends the weights.

    Each backend's module.py has this function.
    """
    raise TypeError(BORDER)


RESERVED = frozenset(
    # What torch.nn.Module, tf.Module and Layer itself define: an attribute of such a name would break on one backend.
    """
    add_module apply bfloat16 buffers children compile cpu cuda double dump_patches eval extra_repr float forward half
    named_buffers named_children named_modules named_parameters modules parameters register_buffer register_module
    register_parameter requires_grad_ share_memory state_dict load_state_dict to to_empty train training type xpu
    zero_grad name_scope variables trainable_variables non_trainable_variables submodules with_name_scope
    add_parameter parameter_names read_parameter write_parameter assign run call build
    """.split()
)
"""Attribute names that a Layer refuses on every backend, so that a model which works on one works on all."""
