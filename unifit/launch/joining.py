"""Joining the job as unifit is imported, where the framework wants it before anything else."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from unifit.backend import backend
from unifit.launch.environment import current_job


def join_early() -> None:
    """Joins the job that the environment describes, on backends whose `distribution.JOINS_FIRST` is set.

    jax and tensorflow can join only before their first array, variable or data set, which a script may make long before
    `fit`. torch can do so at any time, and waits for the first `fit`.

    Raises:
        StartError: When the processes do not find each other in time.
    """
    if not getattr(backend.distribution, "JOINS_FIRST", False) or _is_command_line():
        return
    job = current_job()
    if job is not None and job.processes != 1:
        backend.distribution.prepare(None, job)


def _is_command_line() -> bool:
    """Whether this process is the `unifit` command, which starts processes and is none of them."""
    return Path(sys.argv[0]).name == "unifit" or ("-m", "unifit") in pairwise(sys.orig_argv)
