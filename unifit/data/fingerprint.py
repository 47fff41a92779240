"""What can be told of data cheaply, so that processes can see whether they read the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.data import Batch, Source

NUM_ROWS = 64
"""Evenly spaced rows of an array that enter its checksum."""


def checksum(arrays: Iterable[np.ndarray]) -> int:
    """The crc32 of arrays' bytes, one after another."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return total


def array_facts(array: np.ndarray) -> list[Any]:
    """[shape, dtype, checksum of 64 evenly spaced rows]: no more is read of a memory map."""
    rows = np.unique(np.linspace(0, len(array) - 1, min(NUM_ROWS, len(array))).astype(np.int64))
    return [list(array.shape), str(array.dtype), checksum([array.take(rows, axis=0)])]


def fingerprint(source: Source) -> dict[str, Any]:
    """Facts of a source that are equal in all processes of a job, where they read the same data. Plain JSON values.

    A source that has nothing to tell but its kind, such as a generator, gives that alone: its first batch tells more.
    """
    facts: dict[str, Any] = {"kind": type(source).__name__}
    told = getattr(source, "facts", None)
    if told is not None:
        return facts | told()
    for name in ("num_batches", "batch_size"):
        value = getattr(source, name)
        facts[name] = value if value is None or isinstance(value, int) else "endless"
    return facts


def batch_fingerprint(batch: Batch) -> dict[str, Any]:
    """Facts of the rows that a batch holds: number, shapes, dtypes, and the checksum of their bytes. Plain JSON values.

    Processes hold different rows of a global batch: theirs differ in the checksum, and at a ragged end in the shapes.
    """
    leaves = tree.leaves(batch[:3])
    return {
        "rows": batch.rows,
        "arrays": [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves],
        "checksum": checksum(leaves),
    }
