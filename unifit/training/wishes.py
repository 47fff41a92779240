"""What fit was asked for about checkpoints: validated once and frozen."""

from __future__ import annotations

import datetime
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unifit.callbacks.monitor import direction
from unifit.errors import ArgumentError, UnsupportedError


@dataclass(frozen=True)
class CheckpointWishes:
    """fit's checkpoint arguments.

    Attributes:
        directory: Where checkpoints lie; None for no saving.
        every: Steps, "epoch", or a time.
        keep: How many of the newest are kept; None for all.
        monitor: The figure by which one is best; None for none.
        sign: 1 where more of it is better, else -1.
        resume: "auto", "must", a path, or None.
    """

    directory: Path | None
    every: int | str | datetime.timedelta
    keep: int | None
    monitor: str | None
    sign: int
    resume: str | Path | None

    def better(self, value: float, than: float | None) -> bool:
        """Whether a figure is better than another; NaN is never."""
        return not math.isnan(value) and (than is None or bool(self.sign * value > self.sign * than))


def make_wishes(directory: Any, every: Any, keep: Any, monitor: Any, mode: str, resume: Any) -> CheckpointWishes:
    """Checks fit's checkpoint arguments.

    Raises:
        ArgumentError: For a value that has no meaning.
        UnsupportedError: For a directory that is no path of this machine's file system.
    """
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise ArgumentError(f"checkpoint_dir is {directory!r}; it needs the path of a folder, or None.")
    if directory is not None and "://" in os.fspath(directory):
        raise UnsupportedError(
            f"checkpoint_dir is '{os.fspath(directory)}', which is no path of a file system: a checkpoint becomes "
            "whole by renaming a folder, which object stores cannot do at once. Mount the store (gcsfuse, "
            "mountpoint-s3), or write to a disk and copy the step folders."
        )
    if isinstance(every, datetime.timedelta):
        if every <= datetime.timedelta(0):
            raise ArgumentError(f"checkpoint_every is {every!r}; a time needs to be above 0.")
    elif every != "epoch" and not _whole(every):
        raise ArgumentError(
            f"checkpoint_every is {every!r}; it needs a number of steps of at least 1, 'epoch', or a "
            "datetime.timedelta, such as timedelta(minutes=10)."
        )
    if keep is not None and not _whole(keep):
        raise ArgumentError(f"checkpoint_keep is {keep!r}; it needs a whole number of at least 1, or None for all.")
    if monitor is not None and not isinstance(monitor, str):
        raise ArgumentError(f"checkpoint_monitor is {monitor!r}; it needs a figure's name ('val_loss'), or None.")
    if resume is not None and not isinstance(resume, (str, os.PathLike)):
        raise ArgumentError(f"resume is {resume!r}; it needs 'auto', 'must', the path of a checkpoint, or None.")
    if resume == "must" and directory is None:
        raise ArgumentError("resume='must' needs a checkpoint_dir; or pass the path of a checkpoint as resume.")
    return CheckpointWishes(
        None if directory is None else Path(directory),
        every if isinstance(every, (str, datetime.timedelta)) else int(every),
        None if keep is None else int(keep),
        monitor,
        -1 if monitor is None else direction("fit(checkpoint_monitor=...)", monitor, mode),
        resume if resume in (None, "auto", "must") else Path(resume),
    )


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1
