"""A job's process group: joined within a bounded time, and left so that nobody waits for one that is gone."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from unifit.contract.job import START_TIMEOUT_S, Job
from unifit.errors import StartError
from unifit_torch.store import Store

FAREWELL_S = 10.0
"""How long process 0, which keeps the store, waits at its end for the others to be done with it."""

FAILED_FAREWELL_S = 2.0
"""The same after a failure."""

# Processes that torch's agent starts anew find what the former ones left in the agent's store.
_ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
_AGENT_KEEPS_STORE = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
_TELLS_S = 5.0
_PAUSE_S = 0.2


def exists() -> bool:
    """Whether this process is in a process group already."""
    return dist.is_available() and dist.is_initialized()


def joined_job() -> Job | None:
    """The job of a process group that the user's script made by itself, where nothing else tells of one."""
    if not exists() or dist.get_world_size() == 1:
        return None
    processes = dist.get_world_size()
    local = torch.cuda.current_device() if torch.cuda.is_available() else dist.get_rank()
    return Job("torch", dist.get_rank(), processes, local, processes)


def join(job: Job, device: torch.device) -> Store:
    """Joins the job's process group, or takes the one that the user made; returns what its processes talk through.

    Raises:
        StartError: When the processes do not find each other within START_TIMEOUT_S.
    """
    made_here = not exists()
    if not made_here:
        store = Store(_get_default_store(), f"unifit/{_ATTEMPT}")
    else:
        deadline = time.monotonic() + START_TIMEOUT_S
        base = _meet(job, deadline)
        try:
            store = Store(base, f"unifit/{_ATTEMPT}")
            _call_the_roll(store, job, deadline)
        except ConnectionError as error:
            raise _start_error(job, f"process 0 ended: {error}") from error
        _init(job, base, device)
    atexit.register(_leave, store, job, made_here)
    return store


def _meet(job: Job, deadline: float) -> dist.Store:
    """The store at the job's coordinator."""
    address = _address(job)
    agents = job.launcher == "torchrun" and _AGENT_KEEPS_STORE
    serves = job.process == 0 and not agents
    if not serves:
        _wait_for(job, address, deadline)
    timeout = timedelta(seconds=START_TIMEOUT_S)
    outcome: dict[str, Any] = {}

    def connect() -> None:
        try:
            if agents:
                outcome["store"] = next(iter(dist.rendezvous("env://", timeout=timeout)))[0]
            else:
                # Without torch's own wait for the others, which could not say who is missing.
                outcome["store"] = dist.TCPStore(*address, job.processes, serves, timeout, wait_for_workers=False)
        except (RuntimeError, ValueError, OSError) as error:
            outcome["error"] = error

    # In a thread: torch waits for ever where something else answers.
    thread = threading.Thread(target=connect, name="unifit-start", daemon=True)
    thread.start()
    thread.join(_left(deadline))
    if "store" in outcome:
        return outcome["store"]
    error = outcome.get("error")
    if error is None:
        raise _start_error(job, f"what listens there did not answer as the store of a job in {START_TIMEOUT_S:g} s")
    if "EADDRINUSE" in str(error):
        raise _start_error(job, f"port {address[1]} is in use there; give the job another one ({error})") from error
    raise _start_error(job, str(error)) from error


def _wait_for(job: Job, address: tuple[str, int], deadline: float) -> None:
    """Until somebody listens at the address. torch's own wait would take longer than it is told."""
    while True:
        try:
            socket.create_connection(address, max(_PAUSE_S, _left(deadline))).close()
            return
        except OSError as error:
            if not _left(deadline):
                reason = f"nobody answered there in {START_TIMEOUT_S:g} s ({error})"
                raise _start_error(job, reason) from error
        time.sleep(min(_PAUSE_S, _left(deadline)))


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _address(job: Job) -> tuple[str, int]:
    """The coordinator's host and port, checked."""
    host, _, port = (job.coordinator or "").rpartition(":")
    if not host or not port.isdigit():
        raise StartError(
            f"Process {job.process} of {job.processes} has the coordinator {job.coordinator!r}; torch needs the "
            '"host:port" where process 0 listens.'
        )
    host = host.strip("[]")
    try:
        socket.getaddrinfo(host, int(port))
    except OSError as error:
        raise _start_error(job, f"the host's name is not known here ({error})") from error
    return host, int(port)


def _call_the_roll(store: Store, job: Job, deadline: float) -> None:
    """Waits for all processes. Process 0 counts them, and says who is missing to those that came."""
    here = [f"start/{process}" for process in range(job.processes)]
    store.put(here[job.process], "")
    if job.process == 0:
        complete = store.wait(here, _left(deadline))
        missing = [] if complete else [n for n, key in enumerate(here) if not store.wait([key], 0.0)]
        verdict = f"these of its processes did not come: {', '.join(map(str, missing))}" if missing else ""
        store.put("start", verdict)
        if missing:
            store.wait([f"told/{process}" for process in range(1, job.processes) if process not in missing], _TELLS_S)
    else:
        # Process 0 may have started to wait later than this one.
        answer = store.get("start", _left(deadline) + START_TIMEOUT_S)
        verdict = "process 0 did not come" if answer is None else answer
        if verdict:
            store.put(f"told/{job.process}", "")
    if verdict:
        raise _start_error(job, verdict)


def _init(job: Job, base: dist.Store, device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    try:
        # Its collectives keep torch's own time limits: what a process waits for may be a long evaluation elsewhere.
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=dist.PrefixStore(f"default/{_ATTEMPT}", base),
            rank=job.process,
            world_size=job.processes,
            device_id=device if on_gpu else None,
        )
    except (RuntimeError, ValueError) as error:
        variable = "NCCL_SOCKET_IFNAME" if on_gpu else "GLOO_SOCKET_IFNAME"
        raise _start_error(
            job, f"the processes met, but cannot connect with each other: {error}; {variable} chooses the network"
        ) from error


def _start_error(job: Job, reason: str) -> StartError:
    return StartError(
        f"Process {job.process} of {job.processes} (started by {job.launcher}) could not join its job at "
        f"{job.coordinator}: {reason.removesuffix('.')}. Check that all {job.processes} processes were started and "
        "none has failed, that the address is one of process 0's machine which the others can reach, and that its port "
        "is free. UNIFIT_START_TIMEOUT_S sets how many seconds a process waits for the others."
    )


def _leave(store: Store, job: Job, made_here: bool) -> None:
    # After an error the other processes may be in a collective that this one will never enter: nothing to wait for.
    failed = hasattr(sys, "last_value")
    if made_here and not failed and exists():
        dist.destroy_process_group()
    try:
        store.put(f"end/{job.process}", "")
        if job.process == 0 and not _AGENT_KEEPS_STORE:
            # After a failure too: the others read there how this process failed.
            patience_s = FAILED_FAREWELL_S if failed else FAREWELL_S
            store.wait([f"end/{process}" for process in range(job.processes)], patience_s)
    except ConnectionError:
        pass  # the process that keeps the store has ended before
