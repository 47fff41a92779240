"""Becoming a member of the job: on the first fit, or as unifit is imported where the framework wants it first."""

from __future__ import annotations

import os
from typing import Any

from unifit.backend import backend
from unifit.contract.job import Job
from unifit.launch.environment import current_job

MEMBER = "UNIFIT_MEMBER"
"""Which process has joined which job: programs and workers that it starts inherit the job's variables with it."""


def prepare(intent: Any) -> Any:
    """The backend's devices for an intent, in the job that this process is a member of.

    What a member starts (a loader's worker, a script) finds the member's variables in its environment and is none.
    """
    job = current_job()
    if job is not None and os.environ.get(MEMBER, "").partition(" ")[2] == _named(job) and not _is_member():
        job = None
    devices = backend.distribution.prepare(intent, job)
    if job is not None and devices.store is not None:
        os.environ[MEMBER] = f"{os.getpid()} {_named(job)}"
    return devices


def _named(job: Job) -> str:
    return f"{job.launcher} {job.process} {job.coordinator}"


def _is_member() -> bool:
    return os.environ.get(MEMBER, "").partition(" ")[0] == str(os.getpid())


def join_early() -> None:
    """Joins the job that the environment describes, on backends whose `distribution.JOINS_FIRST` is set.

    jax and tensorflow can join only before their first array, variable or data set, which a script may make long before
    `fit`. torch can do so at any time, and waits for the first `fit`.

    Raises:
        StartError: When the processes do not find each other in time.
    """
    if not getattr(backend.distribution, "JOINS_FIRST", False):
        return
    job = current_job()
    if job is not None and job.processes != 1:
        prepare(None)
