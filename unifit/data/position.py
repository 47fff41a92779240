"""Where a run stands in its data."""

from __future__ import annotations

from typing import NamedTuple


class Mark(NamedTuple):
    """A loader's own state after `batch` batches of the source's epoch."""

    epoch: int
    batch: int
    state: bytes


class Position(NamedTuple):
    """The source's epoch, and the batches of it that were handed out.

    Attributes:
        mark: A state of the loader's own, at this position or before it; None where it has none.
    """

    epoch: int
    batch: int
    mark: Mark | None = None
