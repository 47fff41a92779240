"""Which source fits what the user passed."""

from __future__ import annotations

from typing import Any

from unifit.data.arrays import ArraySource
from unifit.data.source import Source


def make_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    class_weight: dict[int, float] | None = None,
) -> Source:
    """The source for fit's, evaluate's and predict's data arguments."""
    return ArraySource(x, y, sample_weight, batch_size=32 if batch_size is None else batch_size, shuffle=shuffle)
