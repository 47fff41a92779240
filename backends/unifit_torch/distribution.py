"""From an intent to this process' device: the job's process group, or a restart of the script as a job of its own."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from unifit.contract.distribution import DataParallel
from unifit.contract.job import Job
from unifit.contract.values import Placement
from unifit.errors import UnsupportedError
from unifit_torch import START_FOLDER


class Devices:
    """The device of this process, which is one of a job's or on its own.

    Attributes:
        placement: Which rows this process loads.
        device: Where its model lives.
        in_use: Whether an engine was made on it; the script cannot be restarted then.
    """

    def __init__(self, device: torch.device, process: int = 0, processes: int = 1):
        self.store = None
        self.placement = Placement(process, processes, devices=processes)
        self.device = device
        self.in_use = False

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self) -> None:
        if self.placement.processes > 1:
            dist.barrier()


_devices: Devices | None = None


def prepare(distribution: DataParallel | None, job: Job | None) -> Devices:
    """This process' device for an intent; None is one device, and inside a job all of the job's.

    Where several devices are wanted outside a job, the process is replaced: the script starts again as a job.

    Raises:
        UnsupportedError: When the job has another number of processes, the machine fewer devices, or when this process
            cannot be replaced.
    """
    wished = 1 if distribution is None else distribution.devices
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _of_job(None if distribution is None else wished)
    if wished is None:
        wished = torch.cuda.device_count() or int(os.environ.get("UNIFIT_CPU_DEVICES") or 1)
    if torch.cuda.is_available() and wished > torch.cuda.device_count():
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on torch: this machine shows {torch.cuda.device_count()} GPU(s). "
            "Pass a smaller number, or devices=None for all of them."
        )
    if wished > 1:
        relaunch(wished)
    return _only_device(0)


def _only_device(process: int, processes: int = 1, index: int = 0) -> Devices:
    """The one Devices of this process."""
    global _devices
    if _devices is None:
        device = torch.device("cuda", index) if torch.cuda.is_available() else torch.device("cpu")
        _devices = Devices(device, process, processes)
    return _devices


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Inside a job


def _of_job(wished: int | None) -> Devices:
    """This process as one of the job that RANK and WORLD_SIZE describe; joins its process group on first use."""
    process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if wished is not None and wished != processes:
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on torch: this job has {processes} process(es), one a device. "
            f"Start {wished} of them (torchrun --nproc-per-node {wished} script.py), or pass devices=None."
        )
    index = int(os.environ.get("LOCAL_RANK", 0))
    if torch.cuda.is_available() and index >= torch.cuda.device_count():
        raise UnsupportedError(
            f"unifit on torch: process {process} is number {index + 1} of this machine, which shows "
            f"{torch.cuda.device_count()} GPU(s); it needs one for each process."
        )
    if processes > 1 and _devices is None:
        _join(index, processes)
    return _only_device(process, processes, index)


def _join(index: int, processes: int) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(index)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", processes))))
    if not dist.is_initialized():
        if torch.cuda.is_available():
            dist.init_process_group("nccl", device_id=torch.device("cuda", index))
        else:
            dist.init_process_group("gloo")
        atexit.register(_leave)


def _leave() -> None:
    # After an error the other processes may be in a collective that this one will never enter: nothing to wait for.
    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


# Becoming a job


def relaunch(processes: int) -> NoReturn:
    """Replaces this process by torch's elastic agent, which runs this script's command line in `processes` processes.

    The job ends with the script's exit status. Processes after the first print to files.

    Raises:
        UnsupportedError: When this process is no script, or has trained already.
    """
    reason = _why_not_restart()
    if reason:
        raise UnsupportedError(
            f"DataParallel(devices={processes}) on torch needs one process a device, and this one cannot start again "
            f"as {processes}: {reason}. Start the script as a job: torchrun --nproc-per-node {processes} script.py"
        )
    logs = tempfile.mkdtemp(prefix="unifit_logs_")
    print(
        f"unifit: {processes} devices need {processes} processes: starting the script again under torch's elastic "
        f"agent; processes after the first print to files in {logs}",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    # torch's agent would set one thread a process, and say so at length.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    os.chdir(START_FOLDER)
    agent = [sys.executable, "-P", str(Path(__file__).with_name("agent.py"))]
    agent += ["--standalone", f"--nproc-per-node={processes}", f"--log-dir={logs}"]
    agent.append("--redirects=" + ",".join(f"{process}:3" for process in range(1, processes)))
    os.execv(sys.executable, [*agent, "--no-python", sys.executable, *sys.orig_argv[1:]])


def _why_not_restart() -> str | None:
    """What makes a restart impossible, or None."""
    if _devices is not None and _devices.in_use:
        return "it has already used one device, and its work would be lost"
    if multiprocessing.parent_process() is not None:
        return "it is a child process of Python's multiprocessing"
    if "PYTEST_CURRENT_TEST" in os.environ and "_pytest" in sys.modules:
        return "it runs tests under pytest"
    main = sys.modules["__main__"]
    interactive = hasattr(sys, "ps1") or sys.flags.interactive or hasattr(builtins, "get_ipython")
    if interactive or not os.path.isfile(getattr(main, "__file__", None) or ""):
        return "it is interactive, or was not started from a script file"
    return None
