"""A source cut for one process and one run: where it stands, what it holds back, and when it is read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from unifit.contract.data import ENDLESS, Batch, Source
from unifit.data.agreement import AgreedSource, Channel, agreed
from unifit.data.fingerprint import fingerprint
from unifit.data.position import Mark, Position
from unifit.data.resuming import POSITION, UNSAFE, keep_marks, resume, resumes, warn_of_replay
from unifit.data.same_data import require_same_data
from unifit.data.slicer import Slicer
from unifit.errors import ArgumentError, CheckpointError
from unifit.processes import warn
from unifit.seed import get_seed


class Feed:
    """The batches of a run, epoch by epoch. Its first batch can be looked at without losing it.

    Without a limit epoch e is the source's epoch e. With one, the epochs share the source: e begins where e - 1
    stopped, and the source is read again, in its next order, when it runs dry. A source that can be read only once
    ends the training data then, with a warning.

    `position` says where the run stands, and `resume` goes on there; see unifit.data.resuming.

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
        self._warned = False
        self._begun = 0  # the source's epoch that was opened first
        self._mark: Mark | None = None  # the last one that was handed out
        self._resumed: tuple[int, int] | None = None  # the training epoch that is gone on with, and its batches so far
        self._finished: int | None = None  # that epoch, where it turned out to have no batch left
        self._sample: Batch | None = None  # a batch of it, where it was read again
        self._facts: dict[str, Any] | None = None

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
        """The first batch, which stays in the feed. After `resume` the first one that is left, or one that was done.

        Raises:
            ArgumentError: When there is none.
        """
        if self._resumed is not None:
            batch = self._next_or_done()
            if batch is not None:
                return batch
        if not self.ready(self.first_epoch):
            raise ArgumentError(
                "The data yields no batch: there is nothing to train or evaluate on. (A generator can be read once; "
                "was it read before?)"
            )
        assert self._held is not None
        return self._held

    def ready(self, epoch: int) -> bool:
        """Goes to where training epoch `epoch` begins, or goes on, and holds a batch; whether it has one left."""
        if epoch == self._finished:
            return False
        if self._resumed is not None and self._resumed[0] == epoch:
            return (self.limit is None or self._resumed[1] < self.limit) and self._reach()
        self._seek(*self._start_of(epoch))
        return self._reach()

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of training epoch `number`; of one that is gone on with, those that are left."""
        ready = self.ready(number)
        count = self._resumed[1] if self._resumed is not None and self._resumed[0] == number else 0
        self._resumed = None
        if not ready:
            if self.limit is not None and count < self.limit:
                self.warn_dry(count)
            return
        while self.limit is None or count < self.limit:
            if not self._reach():
                if self.limit is not None:
                    self.warn_dry(count)
                return
            count += 1
            yield self._taken()

    def again(self) -> Iterator[Batch]:
        """The batches of an evaluation: always the same, at most `limit`, and no batch more is drawn."""
        self._seek(0, 0)
        count = 0
        while (self.limit is None or count < self.limit) and self._hold():
            count += 1
            yield self._taken()
        if self.source.restartable:
            self._running = None  # an evaluation that stopped short holds no file or worker

    @property
    def position(self) -> Position:
        """Where the source stands after the last batch that was handed out; not the held one.

        It is read by the thread that reads batches ahead, right after it has made an update's window of them.
        """
        return Position(*self._at, self._mark, self._begun)

    def resume(self, number: int, done: int, position: Position) -> None:
        """Has training epoch `number`, of which `done` batches are done, go on at `position`.

        Called once, before any batch is handed out: before `first` if possible, since data that has to be read again is
        then read as in the run that was interrupted from the very start.

        Raises:
            CheckpointError: When the data ends before the position.
        """
        position = self._exact(number, done, position)
        if self._opened and position.mark is None and resumes(self.source) != POSITION:
            self._read_on(position)
        else:
            last, rest, read = resume(self.source, position, get_seed(), self.slicer.own)
            if read < position.batch:
                raise _ended(position, read)
            self._running, self._held, self._sample, self._opened = rest, None, last, True
        self._at, self._mark, self._begun = position[:2], position.mark, position.begun
        self._resumed = number, done

    def keep_marks(self) -> None:
        """Has positions carry the loader's state, where it has one: for runs that write checkpoints."""
        keep_marks(self.source)

    def require_exact(self) -> None:
        """Refuses data that may come in another order when it is read again.

        Raises:
            ArgumentError: For such data.
        """
        if resumes(self.source) == UNSAFE and self._mark is None:
            raise ArgumentError(
                "resume='must', and the training data is an iterable data set that worker processes read: it has no "
                "state, and its batches may come in another order when they are read again. Give the data set "
                "state_dict() and load_state_dict() and read it with torchdata's StatefulDataLoader; or use "
                "num_workers=0, or a data set with __getitem__; or resume='auto', which only warns."
            )

    def facts(self) -> dict[str, Any]:
        """What can be told of the data and its epochs, to be compared when a run goes on. Plain JSON values."""
        if self._facts is None:
            self._facts = fingerprint(self.source) | {"steps_per_epoch": self.limit}
        return self._facts

    def require_facts(self, saved: dict[str, Any], middle: bool, where: str) -> None:
        """Compares the facts of an interrupted run; see `require_same_data`."""
        require_same_data(saved, self.facts(), middle, where)

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
        if self._running is not None and self._at[1] == self.source.num_batches:
            next(self._running, None)  # it ends as it would without a limit: on_epoch_end, what follows a last yield
        if not self._opened:
            self._begun = number
        self._at, self._opened, self._held = (number, batch), True, None
        self._running = iter(self.source.epoch(number, get_seed(), self.slicer.own, batch))

    def _hold(self) -> bool:
        if self._held is None and self._running is not None:
            self._held = next(self._running, None)
        return self._held is not None

    def _reach(self) -> bool:
        """Holds the next batch, of the source's next epoch where a limited feed has read all of this one."""
        if self._hold():
            return True
        if self.limit is not None and self._opened and self.source.restartable and self._at[1]:
            self._open(self._at[0] + 1, 0)
            return self._hold()
        return False

    def _taken(self) -> Batch:
        """Hands the held batch out."""
        batch, self._held = self._held, None
        assert batch is not None
        self._at = (self._at[0], self._at[1] + 1)
        if batch.mark is not None:
            self._mark = batch.mark
        return batch

    def _exact(self, number: int, done: int, position: Position) -> Position:
        """The position; where the feed knows it to be an epoch's start, there, and not at the end of the one before."""
        if self.limit is None:
            return position if done else position._replace(epoch=number, batch=0)
        batches = self.source.num_batches
        if isinstance(batches, int):
            epoch, batch = divmod(number * self.limit + done, batches)
            return position._replace(epoch=epoch, batch=batch)
        return position

    def _read_on(self, position: Position) -> None:
        """Reads what was opened already on to a position, where it cannot be opened there."""
        warn_of_replay(position, position.begun, resumes(self.source) == UNSAFE)
        self._at = (position.begun, self._at[1])
        while self._at[0] < position.epoch:
            while self._hold():
                self._taken()
            self._open(self._at[0] + 1, 0)
        while self._at[1] < position.batch:
            if not self._hold():
                raise _ended(position, self._at[1])
            self._sample = self._taken()

    def _next_or_done(self) -> Batch | None:
        """A batch of a run that goes on, for a look: the next one, or one that is done."""
        assert self._resumed is not None
        if self.ready(self._resumed[0]):
            return self._held
        if self.source.restartable and self.limit is None and self._at[1]:
            self._finished = self._resumed[0]
            self._open(self._at[0] + 1, 0)  # where the next epoch will find it
        return self._held if self._reach() else self._sample


def _ended(position: Position, read: int) -> CheckpointError:
    return CheckpointError(
        f"The training data ends after {read} batches of its epoch {position.epoch}, of which the run that goes on has "
        f"seen {position.batch}. Pass the data that it was begun with (a generator that has not been read); or start "
        "afresh with another checkpoint_dir."
    )
