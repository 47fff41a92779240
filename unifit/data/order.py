"""The order of an epoch's rows: the same on every backend, process and device count."""

from __future__ import annotations

import numpy as np

from unifit.seed import generator


def permutation(rows: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation keyed (seed, epoch). int64, shape (rows,)."""
    return generator(seed, "shuffle", epoch).permutation(rows)
