"""The dtype in which a layer computes under mixed precision, and the cast of its inputs to it."""

from __future__ import annotations

from typing import Any

import unifit.ops as ops
from unifit.context import CallContext
from unifit.contract import tree
from unifit.contract.precision import FLOATS


class ComputeDtype:
    """What every Layer has for precision; `_compute_dtype` is set by its constructor."""

    casts_inputs = True
    """Whether float inputs come in the compute dtype. False where layers inside cast, or inputs are read as given."""

    @property
    def compute_dtype(self) -> str | None:
        """The dtype that `dtype=` gave this layer to compute in; None where the model's policy decides."""
        return self.__dict__["_compute_dtype"]

    def reads_in(self, compute: str | None) -> str | None:
        """The dtype in which this layer computes where the model computes in `compute`; None: in float32, uncast."""
        return None if compute is None else self.__dict__["_compute_dtype"] or compute

    def cast_inputs(self, ambient: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments with their floats in the compute dtype; masks go along."""
        compute = str(self.reads_in(ambient.compute))
        return cast_floats(args, compute, ambient), cast_floats(kwargs, compute, ambient)


def cast_floats(arrays: Any, dtype: str, ambient: CallContext) -> Any:
    """A tree of arrays and other values with its float arrays in `dtype`; their masks go along."""

    def cast(leaf: Any) -> Any:
        if getattr(leaf, "shape", None) is None or ops.dtype(leaf) not in FLOATS or ops.dtype(leaf) == dtype:
            return leaf
        given, mask = ops.cast(leaf, dtype), ambient.mask_of(leaf)
        if mask is not None:
            ambient.set_mask(given, mask)
        return given

    return tree.map(cast, arrays)
