"""Which process of its job this one is, and what only the main one says."""

from __future__ import annotations

import warnings

from unifit.launch.environment import current_job
from unifit.peers import present_peers


def process_index() -> int:
    """The number of this process in its job, from 0. Known before the first fit too, but on metadata-only TPU VMs."""
    peers = present_peers()
    if peers is not None:
        return peers.process
    job = current_job()
    return 0 if job is None else job.process


def process_count() -> int:
    """How many processes the job has; 1 without one."""
    peers = present_peers()
    if peers is not None:
        return peers.processes
    job = current_job()
    return 1 if job is None else job.processes


def warn(message: str, stacklevel: int) -> None:
    """`warnings.warn` on the main process only: what concerns the whole job is said once."""
    if is_main_process():
        warnings.warn(message, stacklevel=stacklevel + 1)


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes files. Everything else all processes do.

    Example:
        >>> if is_main_process():
        ...     print("training ends")
        training ends
    """
    return process_index() == 0
