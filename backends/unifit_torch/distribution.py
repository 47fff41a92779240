"""From an intent to this process' device: the job's process group, or a restart of the script as a job of its own."""

from __future__ import annotations

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
from torch import Tensor

from unifit.contract.distribution import DataParallel
from unifit.contract.job import Job
from unifit.contract.values import Placement
from unifit.errors import UnsupportedError
from unifit_torch import START_FOLDER, group
from unifit_torch.store import Store

_ALONE = Job("none", process=0, processes=1, local_process=0, local_processes=1)

# Launchers that may show each process the one GPU that is meant for it.
_BINDS_DEVICES = ("slurm", "openmpi")


class Devices:
    """The device of this process, which is one of a job's or on its own.

    Attributes:
        placement: Which rows this process loads.
        store: What the job's processes talk through; None when there is one process.
        device: Where its model lives.
        in_use: Whether an engine was made on it; the script cannot be restarted then.
    """

    def __init__(self, device: torch.device, placement: Placement, store: Store | None = None):
        self.device, self.placement, self.store = device, placement, store
        self.in_use = False
        self._sums_group: Any = None

    def sum_in_place(self, tensor: Tensor) -> None:
        """Sums a tensor over all processes, all of which call it in the same order.

        In a process group of its own: DDP's collectives come when gradients are ready, and where a process leaves
        parameters out that another one uses, they come in another order among these.
        """
        if self._sums_group is None:
            self._sums_group = dist.new_group()
        dist.all_reduce(tensor, group=self._sums_group)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


_devices: Devices | None = None


def prepare(distribution: DataParallel | None, job: Job | None) -> Devices:
    """This process' device for an intent; None is one device, and inside a job all of the job's.

    Where several devices are wanted outside a job, the process is replaced: the script starts again as a job.

    Raises:
        StartError: When the processes of the job do not find each other in time.
        UnsupportedError: When the job has another number of processes, the machine fewer devices, or when this process
            cannot be replaced.
    """
    wished = 1 if distribution is None else distribution.devices
    job = job or group.joined_job()
    if job is not None:
        return _of_job(None if distribution is None else wished, job)
    if wished is None:
        wished = torch.cuda.device_count() or int(os.environ.get("UNIFIT_CPU_DEVICES") or 1)
    if torch.cuda.is_available() and wished > torch.cuda.device_count():
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on torch: this machine shows {torch.cuda.device_count()} GPU(s). "
            "Pass a smaller number, or devices=None for all of them."
        )
    if wished > 1:
        relaunch(wished)
    return _only_devices(0, _ALONE)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Inside a job


def _of_job(wished: int | None, job: Job) -> Devices:
    """This process as one of a job; joins its process group on first use."""
    if wished is not None and wished != job.processes:
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on torch: this job has {job.processes} process(es), one a device. "
            f"Start {wished} of them (torchrun --nproc-per-node {wished} script.py), or pass devices=None."
        )
    shown, index = torch.cuda.device_count(), job.local_process
    if shown == 1 and job.launcher in _BINDS_DEVICES:
        index = 0
    if torch.cuda.is_available() and index >= shown:
        raise UnsupportedError(
            f"unifit on torch: process {job.process} is number {index + 1} of this machine, which shows "
            f"{shown} GPU(s); it needs one for each process."
        )
    return _only_devices(index, job)


def _only_devices(index: int, job: Job) -> Devices:
    """The one Devices of this process, made on first use."""
    global _devices
    if _devices is None:
        on_gpu = torch.cuda.is_available()
        device = torch.device("cuda", index) if on_gpu else torch.device("cpu")
        store = None
        if job.processes > 1:
            if on_gpu:
                torch.cuda.set_device(device)
            elif "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(max(1, cores() // job.local_processes))
            store = group.join(job, device)
        _devices = Devices(device, Placement(job.process, job.processes, devices=job.processes), store)
    return _devices


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
