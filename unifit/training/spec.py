"""What compile was given, validated once and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import unifit.losses as losses
import unifit.metrics as metrics
import unifit.optimizers as optimizers
import unifit.precision as precisions
from unifit.contract import tree
from unifit.contract.precision import EMA, Precision
from unifit.errors import ArgumentError
from unifit.training.outputs import is_family


@dataclass(frozen=True)
class TrainingSpec:
    """A compiled model's recipe: everything about an update but the data and the devices."""

    optimizer: optimizers.Optimizer
    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any
    gradient_accumulation_steps: int
    microbatch_size: Any
    clip_norm: float | None
    clip_value: float | None
    clip_parameter_norm: float | None
    precision: Precision
    skip_nonfinite: bool
    ema: EMA | None
    reduction_dtype: str
    matmul_precision: str | None

    @property
    def skips(self) -> bool:
        """Whether updates with gradients that are not finite are skipped."""
        return self.skip_nonfinite or self.precision.loss_scale is not None


def make_spec(
    *,
    optimizer: Any,
    loss: Any,
    loss_weights: Any,
    metrics: Any,
    weighted_metrics: Any,
    gradient_accumulation_steps: int,
    microbatch_size: Any,
    clip_norm: float | None,
    clip_value: float | None,
    clip_parameter_norm: float | None,
    precision: Any,
    skip_nonfinite: bool,
    ema: Any,
    reduction_dtype: str,
    matmul_precision: str | None,
) -> TrainingSpec:
    """Checks compile's arguments.

    Raises:
        ArgumentError, UnknownNameError: For a value out of range or an unknown name.
        UnsupportedError: For 8-bit floats.
    """
    steps = gradient_accumulation_steps
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ArgumentError(f"gradient_accumulation_steps is {steps!r}; it needs a whole number of at least 1.")
    size = microbatch_size
    if size not in (None, "auto") and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ArgumentError(
            f"microbatch_size is {size!r}; it needs a whole number of at least 1 (rows a device), 'auto', or None."
        )
    limits = {"clip_norm": clip_norm, "clip_value": clip_value, "clip_parameter_norm": clip_parameter_norm}
    for name, limit in limits.items():
        if limit is not None and not limit > 0:
            raise ArgumentError(f"{name} is {limit!r}; it needs a number above 0, or None.")
    policy = precisions.get(precision)
    if ema is not None and not isinstance(ema, EMA):
        raise ArgumentError(f"ema is {ema!r}; it needs a uf.EMA(decay, warmup=...), or None.")
    choices = {
        "reduction_dtype": (reduction_dtype, ("float32", "bfloat16")),
        "matmul_precision": (matmul_precision, (None, "highest", "high", "default")),
        "skip_nonfinite": (skip_nonfinite, (False, True)),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ArgumentError(f"{name} is {value!r}; it needs one of {', '.join(map(repr, allowed))}.")
    return TrainingSpec(
        optimizers.get(optimizer),
        _named(loss, _loss),
        loss_weights,
        _named(metrics, _metric),
        _named(weighted_metrics, _metric),
        steps,
        size,
        clip_norm,
        clip_value,
        clip_parameter_norm,
        policy,
        skip_nonfinite,
        ema,
        reduction_dtype,
        matmul_precision,
    )


def _named(given: Any, get: Any) -> Any:
    """Turns names into objects now, so that a misspelt one is refused by compile."""
    if isinstance(given, dict) and {"class", "config"} <= given.keys():
        return get(given)
    return tree.map(get, given)


def _loss(identifier: Any) -> Any:
    """A loss; the family name waits for the shapes."""
    return identifier if is_family(identifier) and identifier not in ("acc", "accuracy") else losses.get(identifier)


def _metric(identifier: Any) -> Any:
    """A metric; the family names wait for the shapes."""
    return identifier if is_family(identifier) else metrics.get(identifier)
