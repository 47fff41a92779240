"""The processes of a job: who this one is, where they meet, and the small store through which they talk."""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

START_TIMEOUT_S = float(os.environ.get("UNIFIT_START_TIMEOUT_S") or 300)
"""How long a process waits at its start for the others of its job."""


class Job(NamedTuple):
    """The job that this process is one of, as its launcher described it (`unifit.launch.environment.detect`).

    Attributes:
        launcher: Who started it: "unifit", "torchrun", "slurm", "openmpi", "tf_config" or "cloud-tpu".
        process: This process' number, from 0.
        processes: How many there are.
        local_process: Its number among those of its machine, from 0.
        local_processes: How many this machine has.
        coordinator: "host:port" where process 0 listens; None where the framework finds it by itself (cloud-tpu).
        addresses: "host:port" of each process, in order, where the launcher names them; else empty.
    """

    launcher: str
    process: int
    processes: int
    local_process: int
    local_processes: int
    coordinator: str | None = None
    addresses: tuple[str, ...] = ()


class Store(Protocol):
    """Small texts under names that all processes of a job see: the control plane, beside the devices' collectives.

    torch: a TCPStore; jax: the key-value client of jax.distributed; tensorflow: the coordination service. Any thread
    may call it; no call holds another thread's call up for long.
    """

    def put(self, key: str, value: str) -> None:
        """Stores a text; one that is there already is replaced."""
        ...

    def get(self, key: str, timeout_s: float) -> str | None:
        """The text under a key; waits for it up to `timeout_s`, then None. With 0 it looks once.

        Raises:
            ConnectionError: When the store cannot be reached: the process that keeps it is gone.
        """
        ...

    def delete(self, key: str) -> None:
        """Forgets a key; one that is not there is no error."""
        ...
