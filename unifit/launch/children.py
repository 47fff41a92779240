"""Started processes: each leads a group of its own, ends with its launcher, and tells of its end and output."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from unifit.launch.interruption import ENDED_BY_SIGNAL

SHOWN_LINES = 60
PUMP_JOIN_S = 2.0
READ_BYTES = 65536

# Runs in the new process before the program takes its place. Linux kills the process then when its launcher is gone, by
# whatever end. Not a function after the fork: the launcher may have threads, and a fork may copy their locks.
TIED = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class Ended(NamedTuple):
    """A process has ended, with Popen's returncode."""

    child: Child
    status: int


class Output(NamedTuple):
    """A process that is shown has written something."""

    write: Callable[[bytes], None]
    data: bytes


class Spec(NamedTuple):
    """What to start.

    Attributes:
        number: The process' number in its job.
        command: Program and arguments.
        environment: All of its variables.
        stdout: A file to write to, a function to call with what it writes, or None for the launcher's own.
        stderr: The same for its errors.
        report: A file in which the program explains its failure itself, and has shown it; None where it does not.
    """

    number: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: Path | Callable[[bytes], None] | None = None
    stderr: Path | Callable[[bytes], None] | None = None
    report: Path | None = None


class Child:
    """A process that was started from a Spec.

    Its end is one `Ended` in `events`. Made in a thread that lives as long as it does: Linux ties a child to it.
    """

    def __init__(self, spec: Spec, events: SimpleQueue[Any]):
        self.spec = spec
        self.stopped = False
        self._events = events
        self._last_lines: collections.deque[bytes] = collections.deque(maxlen=SHOWN_LINES)
        with contextlib.ExitStack() as files:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", TIED, str(os.getpid()), *spec.command],
                env=dict(spec.environment),
                stdin=None if spec.number == 0 and sys.stdin is not None else subprocess.DEVNULL,
                stdout=_target(spec.stdout, files),
                stderr=_target(spec.stderr, files),
                start_new_session=True,
            )
        self._pumps = [
            threading.Thread(target=self._pump, args=pump, daemon=True)
            for pump in ((self._process.stdout, spec.stdout, False), (self._process.stderr, spec.stderr, True))
            if pump[0] is not None
        ]
        for thread in [*self._pumps, threading.Thread(target=self._wait, daemon=True)]:
            thread.start()

    @property
    def pid(self) -> int:
        """Its process number in the system, and that of its group."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone, not to its own children."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def stop(self, number: int) -> None:
        """Sends a signal to the process and all of its group; what it ends with then says nothing about the job."""
        if self._process.returncode is None:
            self.stopped = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def errors(self) -> str:
        """The last lines of what it wrote as errors; empty where they went to the launcher's own."""
        if isinstance(self.spec.stderr, Path):
            lines = self.spec.stderr.read_bytes().splitlines()[-SHOWN_LINES:]
        else:
            lines = list(self._last_lines)
        return b"\n".join(lines).decode(errors="replace")

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            # Not reaped yet, so that the group's number cannot be another's when its rest is ended.
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            if ended is not None and (ended.si_status != 0 or ended.si_code != os.CLD_EXITED):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        deadline = time.monotonic() + PUMP_JOIN_S
        for thread in self._pumps:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._events.put(Ended(self, status))

    def _pump(self, stream: Any, write: Callable[[bytes], None], keep: bool) -> None:
        rest = b""
        while data := os.read(stream.fileno(), READ_BYTES):
            self._events.put(Output(write, data))
            if keep:
                *lines, rest = (rest + data).split(b"\n")
                self._last_lines.extend(lines)
        stream.close()
        if rest:
            self._last_lines.append(rest)


def shell_status(status: int) -> int:
    """Popen's returncode as a shell shows it: 128 + n for a process that signal n has ended."""
    return status if status >= 0 else ENDED_BY_SIGNAL - status


def described_status(status: int) -> str:
    """Popen's returncode in words: '1', '-9 (SIGKILL)'."""
    with contextlib.suppress(ValueError):
        return f"{status} ({signal.Signals(-status).name})" if status < 0 else str(status)
    return str(status)


def _target(target: Path | Callable[[bytes], None] | None, files: contextlib.ExitStack) -> Any:
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        return files.enter_context(target.open("wb"))
    return None if target is None else subprocess.PIPE
