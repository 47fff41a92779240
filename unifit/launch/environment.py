"""From environment variables to the job that this process is one of: pure functions, one for each launcher."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from unifit.contract.job import Job
from unifit.errors import ArgumentError


def current_job() -> Job | None:
    """The job that this process is one of; None when it is alone."""
    return detect(os.environ)


def detect(environment: Mapping[str, str]) -> Job | None:
    """The job that the variables describe, by the first launcher that left its mark; None where there is none.

    A job of one process is no job, but for torchrun's, whose variables say that it is one.

    Raises:
        ArgumentError: When a launcher's variables are incomplete or contradict each other.
    """
    for find in LAUNCHERS:
        job = find(environment)
        if job is not None:
            return job
    return None


def of_unifit(environment: Mapping[str, str]) -> Job | None:
    """The processes that `unifit run` started on jax and tensorflow."""
    if "UNIFIT_PROCESS" not in environment:
        return None
    return Job(
        "unifit",
        *(_number(environment, f"UNIFIT_{name}") for name in ("PROCESS", "PROCESSES", "LOCAL_PROCESS")),
        _number(environment, "UNIFIT_LOCAL_PROCESSES"),
        environment.get("UNIFIT_COORDINATOR"),
        tuple(filter(None, environment.get("UNIFIT_ADDRESSES", "").split(","))),
    )


def of_torchrun(environment: Mapping[str, str]) -> Job | None:
    """torchrun's processes, and those of everything that sets its variables."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    processes = _number(environment, "WORLD_SIZE")
    host, port = environment.get("MASTER_ADDR", "127.0.0.1"), environment.get("MASTER_PORT", "29500")
    return Job(
        "torchrun",
        _number(environment, "RANK"),
        processes,
        int(environment.get("LOCAL_RANK", 0)),
        int(environment.get("LOCAL_WORLD_SIZE", processes)),
        f"{host}:{port}",
    )


LAUNCHERS: tuple[Callable[[Mapping[str, str]], Job | None], ...] = (of_unifit, of_torchrun)


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not value.isdigit():
        raise ArgumentError(f"The environment has {name}={value!r}; its launcher should have set a whole number.")
    return int(value)
