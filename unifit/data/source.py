"""What a source of batches is: the one protocol between kinds of data and the loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from unifit.contract.tree import Tree

Slice = Callable[[int], slice]
"""From the number of rows of a global batch to the rows that this process loads of it."""


class Batch(NamedTuple):
    """This process' rows of one global batch: host arrays with rows on axis 0.

    Attributes:
        x, y, sample_weight: Trees of NumPy arrays (sample_weight and y may be None).
        rows: Rows of the global batch.
        own: Rows of this process among them; the leaves hold one row more, to pad with, when it is 0.
    """

    x: Tree
    y: Tree
    sample_weight: Tree
    rows: int
    own: int


class Source(Protocol):
    """Batches in a fixed order for each (seed, epoch).

    Attributes:
        num_batches: Batches in an epoch; None when only reading can tell.
        batch_size: Rows of the largest batch; None when only reading can tell.
        restartable: Whether `epoch` can be called again.
    """

    num_batches: int | None
    batch_size: int | None
    restartable: bool

    def epoch(self, number: int, seed: int, own: Slice) -> Iterator[Batch]:
        """The batches of epoch `number`."""
        ...
