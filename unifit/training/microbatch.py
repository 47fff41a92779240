"""How many rows a device takes at a time: what was asked for, or the most that fit, found by trial."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from unifit.backend import backend
from unifit.contract.data import Batch
from unifit.data.windows import Slicer, window_of
from unifit.errors import OutOfMemoryError
from unifit.peers import Peers
from unifit.training.trainer import Trainer

AUTO = "auto"


def largest_that_fits(make: Callable[[], Trainer], batch: Batch, slicer: Slicer, peers: Peers) -> int:
    """The largest microbatch_size whose gradients fit in the memory of every process' devices.

    Each trial runs the forward and backward passes of one window of the first batch's shape and assigns nothing. It
    starts with all of a device's rows and halves them; all processes make the same trials and take the smallest result.

    Args:
        make: Makes a trainer for the slicer's present `microbatch_size`.
        batch: The first batch.
        slicer: Its `microbatch_size` is left at the result.
        peers: The job's processes.

    Raises:
        OutOfMemoryError: When not even one row at a time fits.
    """
    slicer.microbatch_size = None
    size = slicer.share
    while True:
        slicer.microbatch_size = size
        fits = _fits(make, batch, slicer)
        gc.collect()  # what a failed trial held
        fits = peers.agree("microbatch", fits, all)
        if fits:
            return size
        if size == 1:
            raise OutOfMemoryError(
                "microbatch_size='auto': not even one row a device at a time fits in memory: the model itself, or a "
                "single row, is too large for the devices."
            )
        size = -(-size // 2)


def _fits(make: Callable[[], Trainer], batch: Batch, slicer: Slicer) -> bool:
    """Whether a window of such batches runs."""
    try:
        trainer = make()
        window = window_of([batch] * trainer.accumulation, slicer, trainer.accumulation, 0)
        trainer.engine.probe(trainer.engine.place(window))
    except Exception as error:
        if not backend.engine.is_out_of_memory(error):
            raise
        return False
    return True


def cut_in_words(slicer: Slicer, trainer: Trainer) -> str:
    """The line that says how batches are cut."""
    assert trainer.spec is not None
    how = "chosen by trial" if is_auto(trainer.spec.microbatch_size) else "as asked"
    return (
        f"unifit: microbatch_size={slicer.microbatch_size} ({how}): each device takes its {slicer.share} rows of a "
        f"batch in {slicer.pieces} micro-batch(es); {trainer.accumulation * slicer.pieces} make an update."
    )


def is_auto(value: Any) -> bool:
    """Whether the user left the choice to unifit."""
    return value == AUTO
