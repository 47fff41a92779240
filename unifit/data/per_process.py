"""Data of which each process of a job has rows of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unifit.contract.data import Batch, Slice, Source
from unifit.data.position import Position
from unifit.data.resuming import Resumed, keep_marks, resume, resumes
from unifit.seed import generator


class PerProcess:
    """Marks data of which each process already yields its own rows; without it all processes read the same batches.

    A global batch is then what the processes' next batches make together. A process whose data ends before the others'
    goes on with empty batches, so that every row counts once and nobody waits. Where unifit makes the batches, each
    process takes `batch_size // processes` rows, in a random order of its own. In one process it changes nothing.

    Args:
        x: Whatever `fit` takes as data: arrays, or something that yields batches.
        y, sample_weight: For arrays, as in `fit`.

    Example:
        >>> def shard():
        ...     yield np.ones((4, 8), "float32"), np.zeros(4, "int32")
        >>> data = PerProcess(shard)  # model.fit(data)
    """

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None):
        self.x, self.y, self.sample_weight = x, y, sample_weight


class PerProcessSource:
    """unifit.contract.data.Source whose batches are this process' own, all rows of them.

    Its `num_batches` is this process' too: `unifit.data.agreement` makes one number of all.
    """

    per_process = True
    batch_size: int | None = None  # the fullest process' batch decides, which only an exchange can tell

    def __init__(self, source: Source, process: int):
        self.source, self.process = source, process
        self.num_batches = source.num_batches
        self.restartable = source.restartable
        self.read_ahead = source.read_ahead
        self.resumes = resumes(source)

    def epoch(self, number: int, seed: int, own: Slice, first: int = 0) -> Iterator[Batch]:
        return self.source.epoch(number, self._own_seed(seed), _all, first)

    def resume(self, position: Position, seed: int, own: Slice) -> Resumed:
        """See unifit.data.resuming.resume."""
        return resume(self.source, position, self._own_seed(seed), _all)

    def keep_marks(self) -> None:
        """See unifit.data.resuming.keep_marks."""
        keep_marks(self.source)

    def _own_seed(self, seed: int) -> int:
        """Orders, and what is drawn as rows are read, are keyed by the process too."""
        return int(generator(seed, "process", self.process).integers(2**31))

    def facts(self) -> dict[str, Any]:
        """None: lengths and contents may differ by process, and shapes are compared batch by batch."""
        return {}


def is_per_process(source: Any) -> bool:
    """Whether a source's batches are those of one process."""
    return getattr(source, "per_process", False)


def _all(rows: int) -> slice:
    return slice(0, rows)
