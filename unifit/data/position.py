"""Where a run stands in its data."""

from __future__ import annotations

from typing import NamedTuple

from unifit.contract.data import Mark

__all__ = ["Mark", "Position"]


class Position(NamedTuple):
    """The source's epoch, and the batches of it that were handed out.

    Attributes:
        mark: A state of the loader's own, at this position or before it; None where it has none.
        begun: The source's epoch that the run began with. Data whose order follows from what was read before is read
            again from there.
    """

    epoch: int
    batch: int
    mark: Mark | None = None
    begun: int = 0
