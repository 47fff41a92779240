"""Dropout: what disturbs a model in training and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import unifit.random as random
from unifit.errors import ArgumentError
from unifit.layer import Layer, layers_registry


@layers_registry.register
class Dropout(Layer):
    """In training, puts elements to 0 with probability `rate` and divides the others by `1 - rate`.

    Which ones is keyed by the script's seed, the step, the micro-batch and the device.

    Args:
        rate: In [0, 1).
        noise_shape: Shape of the random choice, broadcast to the input's; None in it means the input's size. For
            (batch, steps, features), `(None, 1, None)` drops a feature for all steps at once.

    Call:
        x: Float array.
        training: Filled in.
        Returns: Array with the shape of `x`; outside training `x` itself.

    Raises:
        ArgumentError: When `rate` is not in [0, 1), or an entry of `noise_shape` is neither None nor above 0.

    Example:
        >>> tuple(Dropout(0.5)(ops.ones((2, 3))).shape)
        (2, 3)
    """

    supports_masking = True

    def __init__(self, rate: float, noise_shape: Sequence[int | None] | None = None, **kwargs: Any):
        seed = kwargs.pop("seed", None)
        if seed is not None:
            raise ArgumentError(
                f"Dropout got seed={seed!r}; unifit's random streams are keyed by uf.set_seed and the step, "
                "so that a resumed run goes on with the same numbers. Call uf.set_seed(seed) and leave this one out."
            )
        super().__init__(**kwargs)
        if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
            raise ArgumentError(f"Dropout got rate={rate!r}; it needs a number in [0, 1).")
        if noise_shape is not None:
            noise_shape = tuple(noise_shape)
            if any(size is not None and (not isinstance(size, int) or size < 1) for size in noise_shape):
                raise ArgumentError(f"Dropout got noise_shape={noise_shape}; it needs whole numbers above 0, or None.")
        self.rate, self.noise_shape = rate, noise_shape

    def call(self, x: Any, training: bool = False) -> Any:
        return random.dropout(x, self.rate, self.noise_shape) if training else x
