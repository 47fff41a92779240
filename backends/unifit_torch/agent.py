"""torch's elastic agent as a program: `python -P agent.py <torchrun's arguments>`, run by `unifit run` and by relaunch.

It is torchrun with these differences. Its exit status is that of the process that failed first. What a failing process
after the first wrote to its log as errors is shown. After a failure the others get a second to end by themselves, so
that the cause is among what is reported, and are killed soon. They end with the agent, even when it is killed. A signal
goes to the processes alone, not to the workers that load their data; the same one again within a second is no second
one; and a job whose processes have ended at a signal's wish is not started again.
`--nproc-per-node=all` means all GPUs, else UNIFIT_CPU_DEVICES, else one. Only torch is imported: the script's own
sys.path need not be set up here, and `-P` keeps this folder, which has a `random.py`, off the path.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.elastic.multiprocessing as multiprocessing
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import RunProcsResult, SignalException, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

SHOWN_LINES = 60
ENDED_BY_SIGNAL = 128
SETTLE_S = 1.0
FAILURE_GRACE_S = 3
SIGNAL_GRACE_S = 30
REPEATED_WITHIN_S = 1.0
POLL_S = 0.05

REPORT = "failure.txt"
"""The report of a failure is written to this file of the log folder too: the launcher sends it to other machines."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# How a process ends when another one of its job has died: by its framework's abort, or by the agent's signal.
USUAL_SIGNALS = (-signal.SIGTERM, -signal.SIGABRT)

# Runs in the new process before the script: Linux kills it then when the agent is gone, by whatever end.
TIED = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class Processes(SubprocessContext):
    """torch's own, but for the end: there the others are ended at once when one has failed, and get 30 s.

    Attributes:
        ended_by_agent: System's numbers of processes whose exit status says nothing.
        latest: The one made last.
        heard: The first signal to the agent, and when it came; None before.
    """

    ended_by_agent: set[int] = set()
    latest: "Processes | None" = None
    heard: tuple[int, float] | None = None

    def _start(self) -> None:
        Processes.latest = self
        for number in PASSED_ON:
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, partial(self._hear, handler))
        super()._start()

    @classmethod
    def _hear(cls, handler: Callable[[int, Any], Any], number: int, frame: Any) -> None:
        now = time.monotonic()
        first, cls.heard = cls.heard, cls.heard or (number, now)
        if first is None or first[0] != number or now - first[1] > REPEATED_WITHIN_S:
            handler(number, frame)

    def _poll(self) -> RunProcsResult | None:
        result = super()._poll()
        number = None if result is None else self._asked_to_end()
        if number is not None:
            # torch's way to end, rather than to start again.
            raise SignalException("a process of the job has ended at a signal's wish", signal.Signals(number))
        return result

    def close(self, death_sig: signal.Signals | None = None, timeout: int = SIGNAL_GRACE_S) -> None:
        if death_sig is not None:
            for process in self._running():
                process.send_signal(death_sig)
            try:
                self._wait(timeout)
            finally:  # a second signal too comes here, as an exception
                super().close(signal.SIGKILL, timeout)
        elif self._failures:
            self._wait(SETTLE_S if self._asked_to_end() is None else SIGNAL_GRACE_S)
            self.ended_by_agent.update(process.pid for process in self._running())
            super().close(None, FAILURE_GRACE_S)
        else:
            super().close(None, timeout)

    def _running(self) -> list[Any]:
        return [handler.proc for handler in self.subprocess_handlers.values() if handler.proc.poll() is None]

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._running():
            time.sleep(POLL_S)

    def _asked_to_end(self) -> int | None:
        """The signal at whose wish the process that ended first has ended in good order; None where it just failed."""
        if not self._failures:
            return None
        status = next(iter(self._failures.values())).exitcode
        number = signal.SIGINT if status == -signal.SIGINT else status - ENDED_BY_SIGNAL
        return int(number) if number in PASSED_ON else None

    def ended_well(self) -> bool:
        """Whether all of them have come to their end without an error."""
        return all(handler.proc.poll() == 0 for handler in self.subprocess_handlers.values())


def main() -> int:
    """Runs the job; returns its exit status."""
    arguments = run.parse_args(sys.argv[1:])
    prepare(arguments)
    multiprocessing.SubprocessContext = Processes
    try:
        run.run(arguments)
    except ChildFailedError as error:
        return report(error.failures, Path(arguments.log_dir))
    except SignalException as error:
        # A script may save, and end well, when it is asked to end.
        ended_well = Processes.latest is not None and Processes.latest.ended_well()
        if ended_well:
            return 0
        print(f"unifit: ended by {signal.Signals(error.sigval).name}.", file=sys.stderr, flush=True)
        return ENDED_BY_SIGNAL + error.sigval
    return 0


def prepare(arguments: argparse.Namespace) -> None:
    """Fills in what the command line left open, and ties the processes to this one."""
    if arguments.nproc_per_node == "all":
        arguments.nproc_per_node = str(torch.cuda.device_count() or int(os.environ.get("UNIFIT_CPU_DEVICES") or 1))
    number = int(arguments.nproc_per_node) if arguments.nproc_per_node.isdigit() else 1
    if number > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # torch's agent would set one thread a process, and say so at length.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // number)))
    if arguments.redirects == "0" and number > 1:
        arguments.redirects = ",".join(f"{process}:3" for process in range(1, number))
        print(f"unifit: processes after the first print to files in {arguments.log_dir}", file=sys.stderr, flush=True)
    # What is ignored stays so: under nohup, or in the background of a shell. Older releases have no such option.
    heard = getattr(arguments, "signals_to_handle", "").split(",")
    kept = [name for name in heard if name and signal.getsignal(signal.Signals[name]) is not signal.SIG_IGN]
    if kept:
        arguments.signals_to_handle = ",".join(kept)
    if arguments.no_python:
        tied = ["-I", "-S", "-c", TIED, str(os.getpid()), arguments.training_script]
        arguments.training_script = sys.executable
        arguments.training_script_args = [*tied, *arguments.training_script_args]


def report(failures: dict[int, ProcessFailure], log_folder: Path) -> int:
    """Tells which processes have ended by themselves, and the errors of those whose output is in log files.

    Returns:
        The exit status of the one that failed first, as far as can be told.
    """
    told = {
        rank: failure for rank, failure in failures.items() if failure.pid not in Processes.ended_by_agent
    } or failures
    logs = {rank: log_of(failure, log_folder) for rank, failure in told.items()}
    ranks = sorted(told, key=lambda rank: (likely_consequence(told[rank], logs[rank]), rank))
    text = "\n".join(described(rank, told[rank].exitcode, logs[rank]) for rank in ranks)
    print(text, file=sys.stderr, flush=True)
    (log_folder / REPORT).write_text(text + "\n")
    status = told[ranks[0]].exitcode
    return status if status > 0 else ENDED_BY_SIGNAL - status


def described(rank: int, status: int, log: Path | None) -> str:
    """A process' end, and the last lines of its errors where they are in a file."""
    number = f"{status} ({signal.Signals(-status).name})" if -status in set(signal.Signals) else str(status)
    lines = [] if log is None else log.read_text(errors="replace").splitlines()
    shown = "".join(f"\n  {line}" for line in lines[-SHOWN_LINES:])
    where = f" Its errors, from {log}:{shown}" if shown else ""
    return f"unifit: process {rank} of the job ended with status {number}.{where}"


def likely_consequence(failure: ProcessFailure, log: Path | None) -> int:
    """A greater number where another process' failure was likely the cause of this one."""
    if failure.exitcode < 0:
        return 2 if failure.exitcode in USUAL_SIGNALS else 0
    if log is not None and "PeerError" in log.read_text(errors="replace"):
        return 2
    return int(failure.exitcode == 1)  # an exception; a status of the script's own choice is no consequence


def log_of(failure: ProcessFailure, folder: Path) -> Path | None:
    """The file with a process' errors, of the last attempt; None where they were shown."""
    logs = folder.glob(f"*/attempt_*/{failure.local_rank}/stderr.log")
    return max(logs, key=lambda log: log.stat().st_mtime, default=None)


if __name__ == "__main__":
    sys.exit(main())
