"""Which rows of a global batch a process takes, and into how many micro-batches each device's share of them is cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unifit.contract.data import Batch
from unifit.contract.values import Placement


class Cut(NamedTuple):
    """A process' rows of a padded batch as micro-batches.

    Each of its `local` devices has `share` rows of the batch; in micro-batch j it has rows [j * rows, (j + 1) * rows)
    of its share.
    """

    local: int
    share: int
    pieces: int

    @property
    def rows(self) -> int:
        """Rows of one device in a micro-batch."""
        return -(-self.share // self.pieces)

    def live(self, most: int) -> int:
        """Micro-batches with a valid row on some device, where the fullest process has `most` rows.

        A process' first device is filled first, so the live ones come first.
        """
        return -(-min(most, self.share) // self.rows)

    def full(self, least: int, live: int) -> bool:
        """Whether no device has a padding row in the first `live` micro-batches; some process has but `least` rows."""
        return least - (self.local - 1) * self.share >= live * self.rows


class Slicer:
    """Cuts global batches for one process: batches are padded to a multiple of the devices, each device takes an equal
    run.

    Args:
        placement: This process' place.
        batch_size: Rows of the largest batch; None when only reading can tell.
        pad: Whether short batches are padded to the largest one's shape. False on one device only.
        microbatch_size: Most rows that a device takes at a time, in a training batch of the first one's size; None for
            all of them.

    Attributes:
        padded: Rows that batches are padded to: those of the largest so far, a multiple of the devices.
        first_padded: The same of the first batch; 0 before it.
    """

    def __init__(
        self, placement: Placement, batch_size: int | None, pad: bool = True, microbatch_size: int | None = None
    ):
        self.placement, self.pad, self.microbatch_size = placement, pad, microbatch_size
        self.padded = self.first_padded = 0
        self._local = placement.devices // placement.processes
        if batch_size is not None:
            self.grow(batch_size)

    def own(self, rows: int) -> slice:
        """This process' rows of a global batch of `rows` rows."""
        self.grow(rows)
        share = self.padded // self.placement.processes
        start = min(self.placement.process * share, rows)
        return slice(start, min(start + share, rows))

    def grow(self, rows: int) -> None:
        """Makes room for a global batch of `rows` rows."""
        if rows > self.padded or not self.pad:
            self.padded = -(-rows // self.placement.devices) * self.placement.devices
            self.first_padded = self.first_padded or self.padded

    def resume(self, padded: int, first: int) -> None:
        """Goes on with the padded sizes of an earlier run, of the largest and of the first batch."""
        devices = self.placement.devices
        self.padded = max(self.padded, -(-padded // devices) * devices)
        self.first_padded = -(-first // devices) * devices

    @property
    def local(self) -> int:
        """Rows of this process in a padded batch."""
        return self.padded // self.placement.processes

    @property
    def share(self) -> int:
        """Rows of a device in a padded batch."""
        return self.padded // self.placement.devices

    @property
    def pieces(self) -> int:
        """Micro-batches that a training batch is cut into. Known once a batch was seen, where no batch size was given.

        The first batch's padded size fixes it: a larger one later is cut into as many, larger micro-batches.
        """
        if self.microbatch_size is None:
            return 1
        assert self.first_padded, "no batch was seen yet"
        return -(-self.first_padded // (self.placement.devices * self.microbatch_size))

    def cut(self, group: list[Batch], pieces: int) -> Cut:
        """How the batches of one window are cut: all at the padded size."""
        padded = self.padded if self.pad else max(self.padded, *(batch.rows for batch in group))
        return Cut(self._local, padded // self.placement.devices, pieces)

    def most(self, batch: Batch) -> int:
        """Rows of the process that has most of a batch's."""
        return min(batch.rows, self.local) if batch.owns is None else max(batch.owns)

    def least(self, batch: Batch) -> int:
        """Rows of the process that has fewest of a batch's."""
        if batch.owns is not None:
            return min(batch.owns)
        return max(0, batch.rows - (self.placement.processes - 1) * self.local)


def valid_rows(batch: Batch, padded: int) -> slice | np.ndarray:
    """Which rows of an output over the padded global batch belong to rows of the data: a slice, or their numbers.

    They are in the data's order; where each process has rows of its own, in the processes' order.

    Args:
        batch: The batch that the output was made from.
        padded: Rows of the output.
    """
    if batch.owns is None:
        return slice(0, batch.rows)
    share = padded // len(batch.owns)
    return np.concatenate([np.arange(own) + process * share for process, own in enumerate(batch.owns)])
