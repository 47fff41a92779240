"""Going on in the middle of a source: by number, by its loader's state, or by reading again what was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from unifit.contract.data import Batch, Slice, Source
from unifit.data.position import Position
from unifit.processes import warn

POSITION, STATE, REPLAY, UNSAFE = "position", "state", "replay", "unsafe"


class Resumed(NamedTuple):
    """A source that goes on at a position.

    Attributes:
        last: The last batch before the position, where it was read: to pad with, or to look at where no other is left.
        rest: The batches from there on.
        read: Batches of the position's epoch that lie behind: fewer than the position says where the data ended before.
    """

    last: Batch | None
    rest: Iterator[Batch]
    read: int


def resume(source: Source, position: Position, seed: int, own: Slice) -> Resumed:
    """The source at a position, as it stands there in the run that was not interrupted.

    A source without a `resume` of its own can begin at any batch of any epoch: `epoch(..., first)`.
    """
    own_way = getattr(source, "resume", None)
    return by_number(source, position, seed, own) if own_way is None else own_way(position, seed, own)


def by_number(source: Source, position: Position, seed: int, own: Slice) -> Resumed:
    """The same for a source that can begin anywhere: no batch is read but the one before the position."""
    known = source.num_batches
    first = min(position.batch, known) if isinstance(known, int) else position.batch
    rest = iter(source.epoch(position.epoch, seed, own, max(first - 1, 0)))
    return Resumed(next(rest, None) if first else None, rest, first)


def resumes(source: Source) -> str:
    """How a source finds a position.

    "position": by number. "state": by a state that its loader gives; where it cannot, as the next. "replay": by reading
    again what was read before. "unsafe": the same, where worker processes may give another order then.
    """
    return getattr(source, "resumes", POSITION)


def keep_marks(source: Source) -> None:
    """Asks for `Batch.mark`s: now and then the loader's state. For runs that write checkpoints."""
    keep: Any = getattr(source, "keep_marks", None)
    if keep is not None:
        keep()


def warn_of_replay(position: Position, start: int, unsafe: bool, refused: str = "") -> None:
    """Says, once a run that goes on, that batches are read again and dropped, where there are some.

    Args:
        position: Where the data goes on.
        start: The source's epoch from which on it is read again.
        unsafe: Whether another order may come out.
        refused: Why the loader's state did not serve, where there was one.
    """
    epochs = position.epoch - start
    if not epochs and not position.batch:
        return
    parts = ["all batches of 1 epoch" if epochs == 1 else f"all batches of {epochs} epochs"] if epochs else []
    if position.batch:
        parts.append(f"{position.batch} batch{'es' if position.batch > 1 else ''}{' of the next' if epochs else ''}")
    warn(
        f"{refused}Training goes on in the middle of data that cannot be asked for its position: {' and '.join(parts)} "
        "must be read again, and dropped, so that the rest comes as it would have. "
        + (
            "Its worker processes may give another order than before, and the numbers of the run would differ then. "
            if unsafe
            else ""
        )
        + "Data with state_dict() and load_state_dict(), or read by number, goes on at once.",
        stacklevel=3,
    )
