"""The learning rate for another batch size than the one that it was found for."""

from __future__ import annotations

import math
import sys
from numbers import Real

from unifit.errors import ArgumentError
from unifit.processes import is_main_process

RULES = {"linear": lambda ratio: ratio, "sqrt": math.sqrt}


def scale_lr(base_lr: float, base_batch: int, batch: int, rule: str = "linear") -> float:
    """The learning rate for updates of `batch` rows, given one that suits updates of `base_batch` rows.

    `batch` counts all rows of an update: `fit`'s batch_size, which is over all devices, times
    gradient_accumulation_steps. Nothing is scaled unless you call this. The result and the rule are said once, on
    standard error of the main process.

    Args:
        base_lr: The rate that suits `base_batch`.
        base_batch: Rows an update that it was found for.
        batch: Rows an update now.
        rule: "linear": base_lr * batch / base_batch (Goyal et al. 2017, arXiv:1706.02677, for SGD); "sqrt": base_lr *
            sqrt(batch / base_batch) (Krizhevsky 2014, arXiv:1404.5997; Malladi et al. 2022, arXiv:2205.10287, for
            Adam).

    Raises:
        ArgumentError: When a rate or size is not positive, or the rule is unknown.

    Example:
        >>> scale_lr(0.1, base_batch=256, batch=512)
        0.2
    """
    for name, value in (("base_lr", base_lr), ("base_batch", base_batch), ("batch", batch)):
        if not isinstance(value, Real) or isinstance(value, bool) or not value > 0 or math.isinf(value):
            raise ArgumentError(f"scale_lr got {name}={value!r}; it needs a number above 0.")
    if rule not in RULES:
        raise ArgumentError(f"scale_lr got rule={rule!r}; it needs one of {', '.join(map(repr, RULES))}.")
    scaled = float(base_lr * RULES[rule](batch / base_batch))
    if is_main_process():
        print(
            f"unifit: learning rate {base_lr:g} for {base_batch} rows an update becomes {scaled:g} for {batch} "
            f"({rule} rule)",
            file=sys.stderr,
        )
    return scaled
