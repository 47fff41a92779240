"""Policies for users: names, the process-wide default, and which weights read in which dtype."""

from __future__ import annotations

from typing import Any

from unifit.contract.precision import EMA, FLOATS, POLICIES, LossScale, Precision
from unifit.errors import ArgumentError, UnsupportedError, unknown_name
from unifit.names import register_serializable
from unifit.processes import warn
from unifit.weights import records_of

for _value in (EMA, LossScale, Precision):
    register_serializable(package="unifit")(_value)

__all__ = ["EMA", "LossScale", "Precision", "casts_of", "compute_dtype", "get", "get_precision", "set_precision"]

_default = POLICIES["float32"]


def get(identifier: Any) -> Precision:
    """The policy for a name, a Precision, or None (the default of `set_precision`).

    Raises:
        UnknownNameError: For a name that is no policy.
        UnsupportedError: For 8-bit floats.
        ArgumentError: For anything else.
    """
    if identifier is None:
        return _default
    if isinstance(identifier, Precision):
        return identifier
    if not isinstance(identifier, str):
        raise ArgumentError(
            f"precision is {identifier!r}; it needs a name ({', '.join(POLICIES)}) or a uf.Precision(...)."
        )
    if "float8" in identifier or "fp8" in identifier:
        raise UnsupportedError(
            f"precision={identifier!r}: unifit has no 8-bit floats. Use 'mixed_bfloat16', on every backend."
        )
    if identifier not in POLICIES:
        raise unknown_name("precision", identifier, POLICIES)
    if identifier == "bfloat16":
        warn(
            "precision='bfloat16' keeps the variables themselves in bfloat16, 8 bits of mantissa: updates are rounded "
            "at random so that small ones are not lost, and results are noisier. 'mixed_bfloat16' keeps float32 "
            "variables.",
            stacklevel=2,
        )
    return POLICIES[identifier]


def set_precision(identifier: Any) -> None:
    """The policy of models that are compiled without `precision` from now on."""
    global _default
    _default = get(identifier)


def get_precision() -> Precision:
    """The policy that `set_precision` set; float32 before."""
    return _default


def compute_dtype(identifier: Any) -> str | None:
    """The compute dtype that a layer's `dtype=` names: a float dtype or a policy; None for none of its own.

    Raises:
        ArgumentError, UnknownNameError: For what is no dtype.
    """
    if identifier is None or identifier in FLOATS:
        return identifier
    return get(identifier).compute


def casts_of(root: Any, compute: str | None) -> list[tuple[Any, str, str]]:
    """(owner, name, dtype) of the weights below `root` that read in another dtype than they have."""
    if compute is None:
        return []
    found = []
    for _, owner, name, record in records_of(root):
        dtype = record.read_dtype(owner.reads_in(compute))
        if dtype != record.dtype:
            found.append((owner, name, dtype))
    return found
