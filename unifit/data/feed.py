"""A source cut for one process and one run: where it stands, what it holds back, and when it is read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from unifit.contract.data import ENDLESS, Batch, Source
from unifit.data.agreement import AgreedSource, Channel, agreed
from unifit.data.fingerprint import fingerprint
from unifit.data.position import Position
from unifit.data.slicer import Slicer
from unifit.errors import ArgumentError
from unifit.processes import warn
from unifit.seed import get_seed


class Feed:
    """The batches of a run, epoch by epoch. Its first batch can be looked at without losing it.

    Without a limit epoch e is the source's epoch e. With one, the epochs share the source: e begins where e - 1
    stopped, and the source is read again, in its next order, when it runs dry. A source that can be read only once
    ends the training data then, with a warning.

    Args:
        source: Where batches come from.
        slicer: Which rows are this process'.
        limit: Batches an epoch (steps_per_epoch, validation_steps), or None for the source's own end.
        first_epoch: The epoch that `first` looks at. Where the source knows its length, a limited feed begins with the
            batch that this epoch would have begun with in a run from epoch 0.
        channel: What the processes of a job agree through on what only reading can tell: no one else uses it, and all
            make and read the feed in the same order. None for one process.

    Attributes:
        source: The source as all processes see it.

    Raises:
        ArgumentError: When the limit is no number of batches, or the source never ends and there is none; when
            processes have sources of different kinds or lengths.
    """

    def __init__(
        self,
        source: Source,
        slicer: Slicer,
        limit: int | None = None,
        first_epoch: int = 0,
        channel: Channel | None = None,
    ):
        if limit is not None and (not isinstance(limit, (int, np.integer)) or isinstance(limit, bool) or limit < 1):
            raise ArgumentError(
                f"A limit of {limit!r} batches (steps_per_epoch, validation_steps, steps) was given; it needs a whole "
                "number of at least 1, or None."
            )
        source = agreed(source, channel, slicer)
        if limit is None and source.num_batches == ENDLESS:
            raise ArgumentError(
                "The data never ends: pass steps_per_epoch (validation_steps, steps) to say how many batches to read."
            )
        if source.num_batches == 0:
            raise ArgumentError("The data has no batch (num_batches is 0): there is nothing to train or evaluate on.")
        self.source, self.slicer, self.limit, self.first_epoch = source, slicer, limit, first_epoch
        self._running: Iterator[Batch] | None = None
        self._held: Batch | None = None
        self._at = (first_epoch, 0)  # the source's epoch, and the batch in it, that come next
        self._opened = False
        self._resumed: tuple[int, int] | None = None
        self._warned = False

    @property
    def reads_ahead(self) -> bool:
        """Whether batches are worth making in a thread."""
        return self.source.read_ahead and self.limit != 1

    @property
    def in_step(self) -> bool:
        """Whether the processes of a job read it in step: each batch waits for all of them."""
        return isinstance(self.source, AgreedSource)

    def require(self, epochs: int, what: str) -> None:
        """Refuses, before anything runs, to read what can be read once more than once.

        Raises:
            ArgumentError: When `epochs` need the source from its start several times and it has one start.
        """
        if epochs > 1 and not self.source.restartable:
            raise ArgumentError(
                f"{what} would be read {epochs} times, and a generator can be read once. Pass the function that makes "
                "it (not called), a list-like or re-iterable object; or steps_per_epoch, where epochs of training "
                "shall share it."
            )

    def first(self) -> Batch:
        """The first batch, which stays in the feed.

        Raises:
            ArgumentError: When there is none.
        """
        if not self.ready(self.first_epoch):
            raise ArgumentError(
                "The data yields no batch: there is nothing to train or evaluate on. (A generator can be read once; "
                "was it read before?)"
            )
        assert self._held is not None
        return self._held

    def ready(self, epoch: int) -> bool:
        """Goes to the start of training epoch `epoch` and holds its first batch; whether there is one."""
        if self._resumed is not None and self._resumed[0] == epoch:
            return self._hold()
        self._seek(*self._start_of(epoch))
        if self._hold():
            return True
        if self.limit is not None and self._opened and self.source.restartable and self._at[1]:
            self._open(self._at[0] + 1, 0)
            return self._hold()
        return False

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of training epoch `number`."""
        count = 0
        if not self.ready(number):
            if self._resumed is None:
                self.warn_dry(0)
            return
        if self._resumed is not None:
            count, self._resumed = self._resumed[1], None
        while self.limit is None or count < self.limit:
            batch = self._next()
            if batch is None and self.limit is not None and self.source.restartable and self._at[1]:
                self._open(self._at[0] + 1, 0)
                batch = self._next()
            if batch is None:
                if self.limit is not None:
                    self.warn_dry(count)
                return
            count += 1
            yield batch

    def again(self) -> Iterator[Batch]:
        """The batches of an evaluation: always the same, at most `limit`, and no batch more is drawn."""
        self._seek(0, 0)
        count = 0
        while self.limit is None or count < self.limit:
            batch = self._next()
            if batch is None:
                break
            count += 1
            yield batch
        if self.source.restartable:
            self._running = None  # an evaluation that stopped short holds no file or worker

    def warn_dry(self, count: int) -> None:
        """Says once that training ends because there is no more data."""
        if not self._warned:
            self._warned = True
            warn(
                f"The training data ran out after {count} of the {self.limit} batches of an epoch, and can be read "
                "only once: training ends here. Provide steps_per_epoch * epochs batches, or data that can be read "
                "again.",
                stacklevel=2,
            )

    def _start_of(self, epoch: int) -> tuple[int, int]:
        if self.limit is None:
            return epoch, 0
        batches = self.source.num_batches
        if isinstance(batches, int):
            return divmod(epoch * self.limit, batches)
        return self._at  # only reading tells where epochs begin: each begins where the last one stopped

    def _seek(self, number: int, batch: int) -> None:
        if self._at == (number, batch) and self._running is not None:
            return
        if self._opened and not self.source.restartable:
            return
        self._open(number, batch)

    def _open(self, number: int, batch: int) -> None:
        self._at, self._opened, self._held = (number, batch), True, None
        self._running = iter(self.source.epoch(number, get_seed(), self.slicer.own, batch))

    def _hold(self) -> bool:
        if self._held is None and self._running is not None:
            self._held = next(self._running, None)
        return self._held is not None

    def _next(self) -> Batch | None:
        if not self._hold():
            self._running = None
            return None
        batch, self._held = self._held, None
        self._at = (self._at[0], self._at[1] + 1)
        return batch

    # Going on (a first version, to be replaced)

    @property
    def position(self) -> Position:
        return Position(*self._at)

    def resume(self, number: int, done: int, position: Position) -> None:
        self._open(position.epoch, position.batch)
        self._resumed = (number, done)

    def keep_marks(self) -> None:
        pass

    def require_exact(self) -> None:
        pass

    def facts(self) -> dict[str, Any]:
        return fingerprint(self.source) | {"steps_per_epoch": self.limit}

    def require_facts(self, saved: dict[str, Any], middle: bool, where: str) -> None:
        pass
