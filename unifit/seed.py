"""The script's seed: initial weights, the order of rows and the random streams are keyed by it, and by nothing else."""

from __future__ import annotations

import hashlib

import numpy as np

from unifit.errors import ArgumentError

_seed = 0


def set_seed(seed: int) -> None:
    """Sets the seed of all that unifit draws from now on. The default is 0; no global generator is read or seeded.

    Raises:
        ArgumentError: When `seed` is not a whole number in [0, 2**31).
    """
    global _seed
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise ArgumentError(f"set_seed got {seed!r}; it needs a whole number in [0, 2**31).")
    _seed = int(seed)


def get_seed() -> int:
    """The seed in force."""
    return _seed


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator keyed by a stable hash of the seed and the names: the same on every machine and backend."""
    digest = hashlib.blake2b("\0".join(map(str, (seed, *names))).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
