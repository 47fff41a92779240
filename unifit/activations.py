"""Activations by Keras' names: functions of unifit.ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import unifit.ops as ops
from unifit.errors import ArgumentError, unknown_name
from unifit.names import register_serializable


def linear(x: Any) -> Any:
    """x itself."""
    return x


def gelu(x: Any, approximate: bool = False) -> Any:
    """Gaussian error linear unit; Keras' activation is the exact form by default."""
    return ops.gelu(x, approximate=approximate)


def _in_float32(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The activation computed in float32 for halves too: frameworks compute it in several steps, each rounded."""

    @wraps(function)
    def activation(x: Any) -> Any:
        dtype = ops.dtype(x)
        return ops.cast(function(ops.cast(x, "float32")), dtype) if dtype in ("bfloat16", "float16") else function(x)

    return activation


_OPS = "relu relu6 leaky_relu silu sigmoid hard_sigmoid hard_silu softmax log_softmax tanh".split()
_OPS_OF_SEVERAL_STEPS = "elu selu log_sigmoid softplus softsign mish".split()
_by_name: dict[str, Callable[[Any], Any]] = {"linear": linear, "gelu": gelu} | {n: getattr(ops, n) for n in _OPS}
_by_name |= {n: _in_float32(getattr(ops, n)) for n in _OPS_OF_SEVERAL_STEPS}
_ALIASES = {"swish": ops.silu, "hard_swish": ops.hard_silu}
_by_name |= {"exponential": ops.exp} | _ALIASES
for _name in _OPS_OF_SEVERAL_STEPS:
    # The op itself may be given too; a config that names it is loaded as what the name means here.
    register_serializable(package="unifit.activation", name=_name)(getattr(ops, _name))
for _name, _function in _by_name.items():
    if _name not in _ALIASES:
        register_serializable(package="unifit.activation", name=_name)(_function)


def get(identifier: Any) -> Callable[[Any], Any]:
    """An activation from its name or a function; None is `linear`.

    Raises:
        UnknownNameError: For an unknown name, with the nearest ones.
        ArgumentError: For something that is neither.
    """
    if identifier is None:
        return linear
    if isinstance(identifier, str):
        if identifier not in _by_name:
            raise unknown_name("activation", identifier, _by_name)
        return _by_name[identifier]
    if not callable(identifier):
        raise ArgumentError(f"activation is {identifier!r}; it needs a name or a function.")
    return identifier
