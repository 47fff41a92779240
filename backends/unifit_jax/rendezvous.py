"""Who is there? The processes of a job meet at the coordinator's address before JAX does: JAX's own wait aborts."""

from __future__ import annotations

import contextlib
import errno
import socket
import time

from unifit.contract.job import START_TIMEOUT_S, Job
from unifit.errors import StartError

RETRY_S = 0.2
ANSWER_S = 5.0
"""How long one side waits for a line that the other is about to send."""

LONGEST_LINE = 4096


def meet(job: Job) -> None:
    """Returns when all processes are there, and the coordinator's port is free for JAX.

    Raises:
        StartError: When some are missing after START_TIMEOUT_S, with their numbers; when the port is in use.
    """
    if job.process == 0:
        _receive(job)
    else:
        _report(job)


def _receive(job: Job) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    there: dict[int, socket.socket] = {}
    problem = None
    with contextlib.ExitStack() as stack:
        with _listener(job) as listener:
            while len(there) < job.processes - 1 and problem is None:
                listener.settimeout(max(until - time.monotonic(), 0.001))
                try:
                    other, _ = listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, job.processes)) - there.keys())
                    problem = _missing(job, f"Process(es) {', '.join(map(str, missing))} did not report")
                    break
                stack.enter_context(other)
                process, problem = _introduced(_line(other), job, there)
                if process is not None:
                    there[process] = other
        for other in there.values():
            with contextlib.suppress(OSError):
                other.sendall((problem or "go").encode() + b"\n")
                _line(other)  # until it has closed: who closes first keeps the port busy for a while
    if problem is not None:
        raise StartError(problem)


def _introduced(line: str | None, job: Job, there: dict[int, socket.socket]) -> tuple[int | None, str | None]:
    """The process that a line introduces, and what is wrong with it; a stranger's line is nothing."""
    words = (line or "").split()
    if len(words) != 3 or words[0] != "unifit" or not all(word.isdigit() for word in words[1:]):
        return None, None
    process, processes = int(words[1]), int(words[2])
    if processes != job.processes or not 0 < process < processes:
        return process, (
            f"Process 0 was started as one of {job.processes} processes, another one as number {process} of "
            f"{processes}. Start all of them for the same job."
        )
    if process in there:
        return None, f"Two processes were started as number {process}. Give each its own number, from 0."
    return process, None


def _listener(job: Job) -> socket.socket:
    port = _address(job)[1]
    both = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both, backlog=1024
        )
    except OSError as error:
        why = "in use by another program" if error.errno == errno.EADDRINUSE else str(error)
        raise StartError(
            f"Port {port} of the job's coordinator address {job.coordinator} cannot be used on process 0's machine: "
            f"{why}. Start the job with another port."
        ) from error


def _report(job: Job) -> None:
    until, said = time.monotonic() + START_TIMEOUT_S, ""
    while (rest := until - time.monotonic()) > 0:
        try:
            with socket.create_connection(_address(job), timeout=min(rest, ANSWER_S)) as zero:
                zero.sendall(f"unifit {job.process} {job.processes}\n".encode())
                # Process 0 began to wait earlier or later than this one; it answers within its own time.
                zero.settimeout(rest + ANSWER_S)
                answer = _line(zero)
        except OSError as error:
            answer, said = None, f" ({error})"
        if answer == "go":
            return
        if answer:
            raise StartError(answer)
        time.sleep(RETRY_S)
    raise StartError(_missing(job, f"Process {job.process} cannot reach process 0{said}"))


def _missing(job: Job, what: str) -> str:
    return (
        f"{what} at the coordinator's address {job.coordinator} within {START_TIMEOUT_S:.0f} s; the job has "
        f"{job.processes} processes. Are all of them started, and still running? Is that the address of process 0's "
        "machine as the others see it, with the port open between them? UNIFIT_START_TIMEOUT_S sets how long to wait."
    )


def _address(job: Job) -> tuple[str, int]:
    assert job.coordinator is not None, "who has no coordinator meets by JAX's own means"
    host, _, port = job.coordinator.rpartition(":")
    return host.strip("[]"), int(port)


def _line(connection: socket.socket) -> str | None:
    """The next line; None when the other side closes or says nothing in time."""
    got = b""
    with contextlib.suppress(OSError):
        if connection.gettimeout() is None:
            connection.settimeout(ANSWER_S)
        while not got.endswith(b"\n") and len(got) < LONGEST_LINE:
            piece = connection.recv(LONGEST_LINE)
            if not piece:
                return None
            got += piece
    return got.decode(errors="replace").strip() or None
