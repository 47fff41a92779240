"""Before the first step: all processes of a job have built the same model, and read the same data."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from unifit.errors import PeerError
from unifit.peers import Peers

WHOLE_BYTES = 2**24
"""Weights up to this size enter their checksum whole, larger ones by evenly spaced blocks."""

BLOCKS, BLOCK_BYTES = 64, 2**16


def model_facts(model: Any, trainable: frozenset[str], seed: int) -> dict[str, Any]:
    """What has to be equal of a model: each weight's shape, dtype, checksum, and whether it is trained; the seed."""
    facts: dict[str, Any] = {"the seed (uf.set_seed)": seed}
    for path, value in model.weights_by_path().items():
        facts[f"weight '{path}'"] = [list(value.shape), str(value.dtype), checksum(value), path in trainable]
    return facts


def checksum(array: np.ndarray) -> int:
    """crc32 of an array's bytes; of a large array's evenly spaced blocks."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if raw.nbytes <= WHOLE_BYTES:
        return zlib.crc32(raw.data)
    starts = np.linspace(0, raw.nbytes - BLOCK_BYTES, BLOCKS).astype(np.int64)
    total = 0
    for start in starts:
        total = zlib.crc32(raw[start : start + BLOCK_BYTES].data, total)
    return total


def require_equal(peers: Peers, what: str, facts: Callable[[], dict[str, Any]]) -> None:
    """Compares facts by name over all processes: by a digest first, and in full where that differs.

    A process that is alone does not make them.

    Raises:
        PeerError: On every process, naming the first fact that differs, and where.
    """
    if peers.alone:
        return
    text = json.dumps(facts(), default=str)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if peers.agree(f"same/{what}", digest, lambda given: len(set(given)) == 1):
        return
    peers.agree(f"facts/{what}", json.loads(text), _refuse)


def _refuse(given: list[dict[str, Any]]) -> None:
    first = given[0]
    for process, other in enumerate(given):
        names = [*first, *(name for name in other if name not in first)]
        for name in names:
            if first.get(name) != other.get(name):
                raise PeerError(
                    f"The processes of this job do not run the same training. {name} differs: process 0 has "
                    f"{first.get(name, 'none')}, process {process} has {other.get(name, 'none')}. {_hint(name)}"
                )


def _hint(name: str) -> str:
    if name.startswith("weight"):
        return (
            "Does the script build the model from something that differs by process (random numbers without a seed, a "
            "file that only one has)? Initial weights of unifit's own follow from uf.set_seed and are equal."
        )
    if name.startswith("data"):
        return (
            "Every process must read the same data in the same order: seed what is drawn at random, and give all of "
            "them the same files. Where each process has rows of its own, wrap the data: uf.data.PerProcess(...)."
        )
    return "All processes must run the same script with the same arguments."
