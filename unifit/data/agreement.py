"""Batches of several processes as global ones: who has how many rows, how long they are, when all are at their end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from unifit.contract import tree
from unifit.contract.data import ENDLESS, Batch, Slice, Source
from unifit.data.fingerprint import fingerprint
from unifit.data.host import placed_dtype, rows_of
from unifit.data.per_process import is_per_process
from unifit.data.position import Position
from unifit.data.resuming import Resumed, keep_marks, resume, resumes
from unifit.data.slicer import Slicer
from unifit.errors import ArgumentError, ShapeError

DIFFERENT = (
    "Processes of a job read the same data, batch by batch, and each takes its rows of every batch. Seed what draws at "
    "random (a tf.data shuffle needs a seed) and give all processes the same files; where each process has rows of its "
    "own, wrap the data: uf.data.PerProcess(data)."
)


_NAMES = {ENDLESS: "endless", None: "unknown"}
_VALUES = {name: value for value, name in _NAMES.items()}


class Channel(Protocol):
    """Agreements of one subject among the processes of a job.

    Attributes:
        process: This process' number.
        processes: How many there are.
    """

    process: int
    processes: int

    def agree(self, mine: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """What `combine`, on process 0, makes of all processes' JSON values; its UnifitErrors rise on every process."""
        ...


def agreed(source: Source, channel: Channel | None, slicer: Slicer) -> Source:
    """The source as all processes see it; itself where there is one process, or nothing needs an exchange a batch.

    Raises:
        ArgumentError: When the processes' sources differ in kind or length.
    """
    if channel is None or channel.processes == 1:
        if is_per_process(source):
            raise ArgumentError("A PerProcess source of a job needs a channel to the other processes.")
        return source
    known = source.batch_size is not None and source.num_batches is not None
    exchange = is_per_process(source) or not known or getattr(source, "padding", None) is not None
    exchange = exchange or not getattr(source, "even", True)
    mine = {
        "per_process": is_per_process(source),
        "exchange": exchange,
        "batch_size": "unknown" if source.batch_size is None else source.batch_size,
        "num_batches": _NAMES.get(source.num_batches, source.num_batches),
        "restartable": source.restartable,
    }
    common = channel.agree(mine, _common)
    return AgreedSource(source, channel, slicer, common) if exchange else source


class AgreedSource:
    """unifit.contract.data.Source that is the same on all processes: each batch costs an exchange.

    Args:
        source: This process' source.
        channel: What the processes agree through.
        slicer: Makes room for the fullest process' rows.
        common: What the processes have found to have in common.
    """

    batch_size: int | None

    def __init__(self, source: Source, channel: Channel, slicer: Slicer, common: dict[str, Any]):
        self.source, self.channel, self.slicer = source, channel, slicer
        self.per_process = is_per_process(source)
        self.num_batches: int | float | None = _VALUES.get(common["num_batches"], common["num_batches"])
        self.batch_size = source.batch_size
        self.restartable: bool = common["restartable"]
        self.read_ahead = source.read_ahead
        self.resumes = resumes(source)
        self._spare: Batch | None = None
        self._told = False

    def epoch(self, number: int, seed: int, own: Slice, first: int = 0) -> Iterator[Batch]:
        known = self.source.num_batches
        read = min(first, known) if isinstance(known, int) else first
        running = iter(self.source.epoch(number, seed, own, first))
        return self._in_step(running, first, read, partial(self.source.epoch, number, seed, own))

    def resume(self, position: Position, seed: int, own: Slice) -> Resumed:
        """See unifit.data.resuming.resume. Nothing is exchanged before the next batch."""
        last, running, read = resume(self.source, position, seed, own)
        if last is not None:
            self._spare = last
        rest = self._in_step(running, position.batch, read, partial(self.source.epoch, position.epoch, seed, own))
        return Resumed(last, rest, position.batch if self.per_process else read)

    def keep_marks(self) -> None:
        """See unifit.data.resuming.keep_marks."""
        keep_marks(self.source)

    def _in_step(
        self, running: Iterator[Batch], first: int, read: int, again: Callable[[], Iterator[Batch]]
    ) -> Iterator[Batch]:
        """An epoch's batches from number `first` on, of which this process has `read` ones behind it."""
        position = first
        while True:
            batch = next(running, None)
            if batch is None and self.per_process and self._spare is None and first and self.source.restartable:
                self._spare = next(iter(again()), None)
            if batch is not None:
                read, self._spare = position + 1, batch
            combine = partial(_own_batches if self.per_process else _same_batch, position)
            answer = self.channel.agree(self._facts(batch, read), combine)
            if "counts" in answer:
                self._tell(answer["counts"])
                return
            position += 1
            yield self._joined(batch, answer)

    def facts(self) -> dict[str, Any]:
        """Those of this process' source."""
        return fingerprint(self.source)

    def _facts(self, batch: Batch | None, read: int) -> dict[str, Any]:
        if batch is None:
            return {"end": True, "read": read, "spare": self._spare is not None}
        return {
            "end": False,
            "rows": batch.rows,
            "own": batch.own,
            "length": batch.length,
            "checksum": batch.checksum,
            "arrays": str([_shape_and_dtype(leaf, batch) for leaf in tree.leaves(batch[:3])]),
        }

    def _joined(self, batch: Batch | None, answer: dict[str, Any]) -> Batch:
        """This process' part of the global batch; an empty one where its data has ended."""
        owns = tuple(answer["owns"])
        if batch is None:
            assert self._spare is not None
            x, y, weight = (rows_of(node, slice(0, 1)) for node in self._spare[:3])
            batch = self._spare._replace(x=x, y=y, sample_weight=weight, own=0, mark=None)
        if self.per_process:
            self.slicer.grow(max(owns) * len(owns))
        return batch._replace(rows=sum(owns), owns=owns, length=answer["length"], checksum=None)

    def _tell(self, counts: list[int]) -> None:
        """Says once, on one process, that some had fewer batches than others."""
        if len(set(counts)) > 1 and not self._told and self.channel.process == 0:
            each = ", ".join(f"process {process}: {count}" for process, count in enumerate(counts))
            warnings.warn(
                f"The processes' data have different numbers of batches ({each}). All rows have counted; a process "
                "whose data had ended went on with empty batches until the last had ended too.",
                stacklevel=2,
            )
        self._told = True


def _shape_and_dtype(leaf: Any, batch: Batch) -> tuple[Any, str]:
    shape = leaf.shape[1:] if batch.padding is None else batch.padding.shape_of(leaf, batch)
    return shape, placed_dtype(leaf.dtype).name


# What process 0 makes of the processes' facts.


def _common(given: list[dict[str, Any]]) -> dict[str, Any]:
    for name in ("per_process", "exchange"):
        _equal(given, name, "The processes of this job have different kinds of data", DIFFERENT)
    lengths = [facts["num_batches"] for facts in given]
    restartable = all(facts["restartable"] for facts in given)
    if not given[0]["per_process"]:
        for name in ("num_batches", "batch_size"):
            _equal(given, name, "The processes of this job have data of different lengths", DIFFERENT)
        return {"num_batches": lengths[0], "restartable": restartable}
    if "endless" in lengths:
        return {"num_batches": "endless", "restartable": restartable}
    return {"num_batches": "unknown" if "unknown" in lengths else max(lengths), "restartable": restartable}


def _own_batches(position: int, given: list[dict[str, Any]]) -> dict[str, Any]:
    """Each process has a batch of its own, or is at its end."""
    empty = [process for process, facts in enumerate(given) if facts["end"] and not facts["spare"]]
    if all(facts["end"] for facts in given):
        return {"counts": [facts["read"] for facts in given]}
    if empty:
        raise ArgumentError(
            f"The data of process {', '.join(map(str, empty))} of the job yields no batch, while others have some; "
            "each process needs at least one (uf.data.PerProcess)."
        )
    live = [facts for facts in given if not facts["end"]]
    _equal_arrays(given, position)
    owns = [0 if facts["end"] else facts["own"] for facts in given]
    return {"owns": owns, "length": max(facts["length"] for facts in live)}


def _same_batch(position: int, given: list[dict[str, Any]]) -> dict[str, Any]:
    """All processes have read the same batch, or are at the end."""
    ended = [process for process, facts in enumerate(given) if facts["end"]]
    if len(ended) == len(given):
        return {"counts": [position] * len(given)}
    if ended:
        more = next(process for process, facts in enumerate(given) if not facts["end"])
        raise ArgumentError(
            f"The data of process {', '.join(map(str, ended))} of the job ended after {position} batches of an epoch, "
            f"while process {more} has more. {DIFFERENT}"
        )
    what = f"The processes of this job do not read the same data: batch {position} of an epoch differs"
    _equal(given, "rows", what, DIFFERENT)
    _equal_arrays(given, position)
    _equal(given, "checksum", what, DIFFERENT)
    return {"owns": [facts["own"] for facts in given], "length": max(facts["length"] for facts in given)}


def _equal(given: list[dict[str, Any]], name: str, what: str, hint: str) -> None:
    """Refuses values that differ; None stands for a process that has none to tell."""
    values = [(process, facts[name]) for process, facts in enumerate(given) if facts[name] is not None]
    for process, value in values:
        if value != values[0][1]:
            first, expected = values[0]
            raise ArgumentError(f"{what} ({name}: {expected} on process {first}, {value} on process {process}). {hint}")


def _equal_arrays(given: list[dict[str, Any]], position: int) -> None:
    live = [(process, facts["arrays"]) for process, facts in enumerate(given) if not facts["end"]]
    first, arrays = live[0]
    for process, other in live:
        if other != arrays:
            raise ShapeError(
                f"Batch {position} of an epoch has rows of other shapes on other processes: {arrays} on process "
                f"{first}, {other} on process {process}. All need one. Sequences of several lengths: "
                "uf.data.LengthBuckets(data, boundaries) pads them to the same one on all processes."
            )
