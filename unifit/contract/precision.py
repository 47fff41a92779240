"""Precision: in which dtype a model computes, how its loss is scaled, and the running average of its weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from unifit.errors import ArgumentError

FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LossScale:
    """The state machine of the loss scale; its state lives on the device (see `Engine`).

    A finite update adds 1 to `good`; when `good` reaches `growth_interval`, the scale is multiplied by `growth_factor`
    (up to `maximum`) and `good` starts again. An update with a gradient that is not finite is skipped: the scale is
    multiplied by `backoff_factor` (down to `minimum`) and `good` starts again.

    Args:
        initial: The scale of the first update, above 0.
        growth_factor, backoff_factor: At least 1, and in (0, 1]; 1 and 1 for a scale that never changes.
        growth_interval: Finite updates before the scale grows; None: it never grows.
        minimum, maximum: Bounds of the scale.

    Raises:
        ArgumentError: For values out of range.
    """

    initial: float = 2.0**15
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int | None = 2000
    minimum: float = 2.0**-14
    maximum: float = 2.0**24

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.initial <= self.maximum:
            raise ArgumentError(
                f"LossScale got minimum={self.minimum!r}, initial={self.initial!r}, maximum={self.maximum!r}; they "
                "need to be above 0 and in this order."
            )
        if not self.growth_factor >= 1 or not 0 < self.backoff_factor <= 1:
            raise ArgumentError(
                f"LossScale got growth_factor={self.growth_factor!r}, backoff_factor={self.backoff_factor!r}; the "
                "first needs to be at least 1, the second in (0, 1]."
            )
        interval = self.growth_interval
        if interval is not None and (not isinstance(interval, int) or isinstance(interval, bool) or interval < 1):
            raise ArgumentError(f"LossScale got growth_interval={interval!r}; it needs a whole number, or None.")


@dataclass(frozen=True)
class Precision:
    """In which dtypes a model computes.

    Args:
        compute: Dtype of layers' inputs and of their weights as they are used: "float32", "bfloat16" or "float16".
        variables: Dtype in which the trained variables live: "float32", or "bfloat16" with compute="bfloat16".
        output: Dtype that `predict` returns.
        loss_scale: None, a LossScale, or a number for a scale that never changes.

    Raises:
        ArgumentError: For dtypes that do not go together.
    """

    compute: str = "float32"
    variables: str = "float32"
    output: str = "float32"
    loss_scale: LossScale | float | None = None

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __post_init__(self) -> None:
        for name in ("compute", "variables", "output"):
            if getattr(self, name) not in FLOATS:
                raise ArgumentError(f"Precision got {name}={getattr(self, name)!r}, none of {', '.join(FLOATS)}.")
        if self.variables != "float32" and (self.variables, self.compute) != ("bfloat16", "bfloat16"):
            raise ArgumentError(
                f"Precision got variables={self.variables!r} with compute={self.compute!r}; variables need to be "
                "float32 (mixed precision), or bfloat16 with compute='bfloat16'."
            )
        scale = self.loss_scale
        if scale is not None and not isinstance(scale, LossScale):
            if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not scale > 0:
                raise ArgumentError(f"Precision got loss_scale={scale!r}, no number above 0, LossScale, or None.")

    @property
    def scaling(self) -> LossScale | None:
        """The loss scale's constants; None for no scale."""
        if self.loss_scale is None or isinstance(self.loss_scale, LossScale):
            return self.loss_scale
        scale = float(self.loss_scale)
        return LossScale(scale, 1.0, 1.0, None, minimum=scale, maximum=scale)


POLICIES = {
    "float32": Precision(),
    "mixed_bfloat16": Precision("bfloat16"),
    "mixed_float16": Precision("float16", loss_scale=LossScale()),
    "bfloat16": Precision("bfloat16", "bfloat16"),
}
"""Policies by name."""


@dataclass(frozen=True)
class EMA:
    """A running average of the trained weights: `average = d * average + (1 - d) * weight` after each applied update.

    Args:
        decay: d, in [0, 1).
        warmup: Whether d grows from small values: min(decay, (1 + n) / (10 + n)) at the n-th update, from 0 (as
            TensorFlow's ExponentialMovingAverage with `num_updates`).

    Raises:
        ArgumentError: When decay is out of range.
    """

    decay: float = 0.999
    warmup: bool = False

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __post_init__(self) -> None:
        if isinstance(self.decay, bool) or not isinstance(self.decay, (int, float)) or not 0 <= self.decay < 1:
            raise ArgumentError(f"EMA got decay={self.decay!r}; it needs a number in [0, 1).")
