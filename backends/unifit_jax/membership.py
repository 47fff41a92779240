"""How a process joins its job, by jax.distributed, and how it leaves it without holding up or breaking the others."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import time
from typing import Any

import jax
import numpy as np

from unifit.contract.job import START_TIMEOUT_S, Job
from unifit.errors import StartError
from unifit_jax.rendezvous import meet
from unifit_jax.store import Store, already_used, forget_service, skip_clean_up

HEARTBEAT_TIMEOUT_S = 15
"""JAX ends the processes of a job in which one has shown no life for so long."""

LAST_WORDS_S = 5.0
"""How long process 0, whose end ends the store, stays after a failure, so that the others can read what happened."""

GOING_S = 2.0
"""How long process 0 stays after the others of a failed job have said that they go: one that has not
quite gone when the store does would be aborted by JAX."""

store: Store | None = None
"""What this process talks to the others through; None outside a job of several processes."""


def join(job: Job | None) -> None:
    """Joins the job, once; nothing to do for one process, or where the user called jax.distributed.initialize.

    Raises:
        StartError: When the processes do not find each other in time, or JAX is in use already.
    """
    global store
    if not jax.distributed.is_initialized():
        if job is None or job.processes == 1:
            return
        # Its handler would swallow SIGTERM.
        jax.config.update("jax_enable_preemption_service", False)
        _initialize(job)
    if store is None and jax.distributed.is_initialized() and jax.process_count() > 1:
        if jax.default_backend() == "cpu":
            _connect_quietly()
        store = Store()
        atexit.register(_leave, store, jax.process_index(), jax.process_count())


def _initialize(job: Job) -> None:
    if already_used():
        raise StartError(
            f"Process {job.process} of the job used JAX (a computation, jax.devices(), a model's call) before it "
            "joined the others, and JAX can join only before its first use. Call fit before anything else runs on JAX, "
            "or call jax.distributed.initialize(...) at the top of the script."
        )
    where: dict[str, Any] = {}
    if job.coordinator is not None and job.launcher != "cloud-tpu":
        meet(job)
        where = {
            "coordinator_address": job.coordinator,
            "num_processes": job.processes,
            "process_id": job.process,
            # Local devices are those that the launcher left visible.
            "cluster_detection_method": "deactivate",
        }
    try:
        jax.distributed.initialize(
            **where,
            initialization_timeout=math.ceil(START_TIMEOUT_S),
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        )
    except Exception as error:
        forget_service()
        raise StartError(
            f"Process {job.process} of {job.processes} could not start jax.distributed"
            f"{f' at {job.coordinator}' if where else ' by what JAX found out about this machine'}. JAX says: {error}"
        ) from error


def _connect_quietly() -> None:
    """Runs the first sum over all devices: gloo connects the processes then, and says so on standard output."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("all",))
        spread, whole = jax.sharding.PartitionSpec("all"), jax.sharding.PartitionSpec()
        ones = jax.make_array_from_process_local_data(
            jax.sharding.NamedSharding(mesh, spread), np.ones(jax.local_device_count(), np.float32)
        )
        total = jax.jit(
            jax.shard_map(lambda one: jax.lax.psum(one, "all"), mesh=mesh, in_specs=spread, out_specs=whole)
        )
        jax.block_until_ready(total(ones))
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _leave(store: Store, process: int, processes: int) -> None:
    """Runs at the interpreter's end, before JAX's own clean-up.

    JAX's clean-up waits for all processes for some minutes and then ends them all. Here a process that is done waits
    for the others, however long they have work to do, as JAX takes an early end for a death; one that failed waits for
    none.
    """
    failed = hasattr(sys, "last_value")
    with contextlib.suppress(ConnectionError):
        store.put(f"exit/{process}", "failed" if failed else "done")
        failed = _others_left(store, process, processes, failed) or failed
    if failed:
        skip_clean_up()


def _others_left(store: Store, process: int, processes: int, failed: bool) -> bool:
    """Waits until the others end too; returns whether one of them failed."""
    waiting = [other for other in range(processes) if other != process]
    until = time.monotonic() + LAST_WORDS_S
    while waiting and not (failed and (process > 0 or time.monotonic() > until)):
        how = store.get(f"exit/{waiting[0]}", 0.5)
        if how is not None:
            waiting.pop(0)
        if how == "failed" and not failed:
            failed, until = True, time.monotonic() + LAST_WORDS_S
    if failed and process == 0 and not waiting:
        time.sleep(GOING_S)
    return failed
