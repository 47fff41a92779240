"""Ports and addresses of this machine: free ones, and "host:port" as text."""

from __future__ import annotations

import contextlib
import random
import socket

from unifit.errors import ArgumentError, StartError

# Below the range from which systems take the ports of outgoing connections, which come and go.
CANDIDATES = range(15000, 32000)
TRIES = 2000


def free_ports(number: int) -> tuple[int, ...]:
    """So many different ports that nobody listens at now, chosen at random: launches side by side hardly ever meet.

    Raises:
        StartError: When none are found.
    """
    chosen: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(TRIES):
            if len(chosen) == number:
                return tuple(chosen)
            port = random.SystemRandom().choice(CANDIDATES)
            # Without SO_REUSEADDR, so that a port that was in use a moment ago is passed over.
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                chosen.append(port)
    raise StartError(f"Found no {number} free ports between {CANDIDATES.start} and {CANDIDATES.stop - 1}.")


def split_address(text: str, option: str) -> tuple[str, int]:
    """Host and port of "host:port"; IPv6 addresses stand in brackets.

    Raises:
        ArgumentError: When the text is no address.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise ArgumentError(f"{option} got {text!r}; expected HOST:PORT, like 10.0.0.1:29500.")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """ "host:port"; the inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
