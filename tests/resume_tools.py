"""What the tests of going on in the data share: runs that stop after a batch, and runs that go on from there."""

import json
import warnings
from typing import Any, NamedTuple

import numpy as np

from data_tools import slicer_of
from unifit.contract import tree
from unifit.data.adapt import make_source
from unifit.data.feed import Feed
from unifit.data.position import Mark, Position

REPLAYED = "must be read again"


class Stop(NamedTuple):
    """Where a run stopped: the training epoch, the batches of it that are done, and the position as files have it."""

    epoch: int
    done: int
    position: Any


class Trace(NamedTuple):
    """The rows of each batch; the batches of each epoch; where it stopped; and what was warned of."""

    rows: list[list[int]]
    epochs: list[int]
    stop: Stop | None
    warnings: list[str]


def feed_of(data: Any, limit: int | None = None, first_epoch: int = 0, **options: Any) -> Feed:
    source = make_source(data, **options)
    return Feed(source, slicer_of(source), limit, first_epoch)


def rows_of(batch: Any) -> list[int]:
    return np.ravel(tree.leaves(batch.x)[0][: batch.own]).astype(int).tolist()


def run(
    feed: Feed, epochs: int, after: int | None = None, going_on: Stop | None = None, look: str = "", first: int = 0
) -> Trace:
    """Trains as unifit.training.loop does.

    Args:
        feed: The data.
        epochs: The end of training.
        after: Batches after which the run stops; None for its end.
        going_on: Where an earlier run was stopped.
        look: When the first batch is looked at: "before" or "after" the feed has gone on, or "" for never.
        first: The first epoch of a run that is not going on.
    """
    rows: list[list[int]] = []
    counts: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        feed.keep_marks()
        if look == "before":
            feed.first()
        if going_on is not None:
            feed.resume(going_on.epoch, going_on.done, restored(going_on.position))
            assert feed.position[2:] == restored(going_on.position)[2:]
            first = going_on.epoch
        if look == "after":
            assert len(rows_of(feed.first()))
        stop = None
        for epoch in range(first, epochs):
            done = going_on.done if going_on is not None and epoch == going_on.epoch else 0
            if not done and not feed.ready(epoch):
                break
            counts.append(0)
            for batch in feed.epoch(epoch):
                rows.append(rows_of(batch))
                counts[-1] += 1
                if len(rows) == after:
                    stop = Stop(epoch, done + counts[-1], written(feed.position))
                    break
            if stop is not None:
                break
    return Trace(rows, counts, stop, [str(warning.message) for warning in caught])


def written(position: Position) -> Any:
    """A position as JSON and bytes."""
    mark = position.mark
    assert mark is None or (mark.epoch, mark.batch) <= (position.epoch, position.batch)
    facts = {"epoch": position.epoch, "batch": position.batch, "begun": position.begun}
    return json.dumps(facts), None if mark is None else (mark.epoch, mark.batch, bytes(mark.state))


def restored(position: Any) -> Position:
    facts, mark = position
    return Position(**json.loads(facts), mark=None if mark is None else Mark(*mark))
