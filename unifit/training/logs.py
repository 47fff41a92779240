"""From summed vectors to the figures that users see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from unifit.training.objective import Layout


def figures(layout: Layout, sums: np.ndarray, passes: float = 1.0) -> dict[str, float]:
    """Loss, the terms' losses where there are several, and metrics, as plain floats.

    Args:
        layout: Where each sum lies.
        sums: float64 vector that starts with the layout's sums.
        passes: Updates or batches that were summed: a loss of reduction "sum" is reported as their mean.
    """
    terms = len(layout.term_names)
    added, count = sums[2 * terms], sums[2 * terms + 1]
    parts = {}
    for i, name in enumerate(layout.term_names):
        divisor = max(passes, 1.0) if layout.undivided[i] else sums[terms + i]
        parts[name] = float(sums[i] / divisor) if divisor else 0.0
    total = sum(weight * part for weight, part in zip(layout.term_weights, parts.values(), strict=True))
    logs = {"loss": total + (float(added / count) if count else 0.0)}
    if terms > 1:
        logs |= {f"{name}_loss": part for name, part in parts.items()}
    at = layout.head
    for bound, shapes in zip(layout.metrics, layout.shapes, strict=True):
        state = {}
        for name in sorted(shapes):
            size = int(np.prod(shapes[name]))
            state[name] = sums[at : at + size].reshape(shapes[name])
            at += size
        logs[bound.name] = float(bound.metric.compute(state))
    return logs


class LazyLogs(Mapping[str, Any]):
    """A batch's logs, read from the device when something looks at them, and only then."""

    def __init__(self, read: Any):
        self._read = read
        self._values: dict[str, float] | None = None

    def _loaded(self) -> dict[str, float]:
        if self._values is None:
            self._values = self._read()
        return self._values

    def __getitem__(self, key: str) -> float:
        return self._loaded()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())

    def __repr__(self) -> str:
        return repr(self._loaded())
