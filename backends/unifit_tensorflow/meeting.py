"""The processes of a job meet at process 0's address before TensorFlow starts.

TensorFlow's own wait has no end in process 0, and names nobody. Here the wait is bounded, and everybody hears who is
missing; right after it the same port is TensorFlow's.
"""

from __future__ import annotations

import contextlib
import socket
import time

from unifit.contract.job import START_TIMEOUT_S, Job
from unifit.errors import StartError

GREETING = "unifit process "
ALL_HERE = "all here"

RETRY_S = 0.1
GREETING_S = 5.0
"""How long one that has connected may take to say who it is."""

VERDICT_S = 5.0
"""How much longer the others wait, so that they hear process 0's verdict."""


def meet(job: Job, addresses: list[str]) -> None:
    """Returns when all processes of the job are there.

    Raises:
        StartError: When this process' port is taken, or when one is missing after START_TIMEOUT_S.
    """
    port = split(addresses[job.process])[1]
    try:
        listener = socket.create_server(("", port), backlog=job.processes)
    except OSError as error:
        raise StartError(
            f"unifit on tensorflow: process {job.process} cannot listen on port {port} (its address is "
            f"{addresses[job.process]}): {error.strerror or error}. End the program that uses the port, or give this "
            "process another one."
        ) from error
    with listener:
        verdict = host(listener, job) if job.process == 0 else None
    verdict = visit(job, addresses[0]) if verdict is None else verdict
    if verdict != ALL_HERE:
        raise StartError(
            f"unifit on tensorflow: process {job.process} waited {START_TIMEOUT_S:g} s for the {job.processes} "
            f"processes of its job; missing: {named(verdict, addresses)}. Start all of them within that time "
            "(UNIFIT_START_TIMEOUT_S seconds), on machines that reach process 0 at its address."
        )


def host(listener: socket.socket, job: Job) -> str:
    """Process 0's part: waits for the others and tells them the verdict, ALL_HERE or the numbers that are missing."""
    end = time.monotonic() + START_TIMEOUT_S
    with contextlib.ExitStack() as stack:
        here: dict[int, socket.socket] = {}
        while len(here) < job.processes - 1 and (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            with contextlib.suppress(OSError):
                connection = stack.enter_context(listener.accept()[0])
                number = greeted(connection)
                if number is not None:
                    here[number] = connection
        missing = [str(number) for number in range(1, job.processes) if number not in here or left_again(here[number])]
        verdict = ",".join(missing) or ALL_HERE
        for connection in here.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{verdict}\n".encode())
    return verdict


def visit(job: Job, address: str) -> str:
    """The others' part: says who is here and waits for the verdict; "0" where process 0 does not answer."""
    end = time.monotonic() + START_TIMEOUT_S + VERDICT_S
    while (left := end - time.monotonic()) > 0:
        # A connection that ends without a verdict led to another program, or to a process 0 that has failed.
        with contextlib.suppress(OSError), socket.create_connection(split(address), left) as connection:
            connection.sendall(f"{GREETING}{job.process}\n".encode())
            connection.settimeout(max(RETRY_S, end - time.monotonic()))
            verdict = connection.makefile().readline().strip()
            if verdict:
                return verdict
        time.sleep(RETRY_S)
    return "0"


def greeted(connection: socket.socket) -> int | None:
    """The number of the process at the other end; None when it is none of ours."""
    connection.settimeout(GREETING_S)
    with connection.makefile(errors="replace") as lines:
        words = lines.readline()
    number = words.removeprefix(GREETING).strip()
    return int(number) if words.startswith(GREETING) and number.isdigit() else None


def left_again(connection: socket.socket) -> bool:
    """Whether the other end has given up since it greeted."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(GREETING_S)


def named(numbers: str, addresses: list[str]) -> str:
    """The processes with these numbers and their addresses."""
    return ", ".join(f"process {number} ({addresses[int(number)]})" for number in numbers.split(","))


def split(address: str) -> tuple[str, int]:
    """(host, port) of "host:port"."""
    name, _, port = address.rpartition(":")
    return name.strip("[]"), int(port)
