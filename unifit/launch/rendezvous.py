"""The launchers of several machines: they meet at node 0, and hear of each other's failures until the end."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple

from unifit.errors import StartError
from unifit.launch.ports import join_address

RETRY_S = 0.3
HELLO_S = 10.0
"""How long a new connection may take to say who it is."""

LINGER_S = 1.0
"""Launchers that come so soon after the meeting has failed hear the reason."""

PING_S = 2.0
SILENCE_S = 20.0
"""A launcher that has not been heard for so long is lost: its machine is off, or the network is."""

GRACE_S = 3.0
"""After a connection has ended, news of the reason may still arrive from elsewhere for so long."""

LINE_BYTES = 2**20


@dataclass(frozen=True)
class Node:
    """What a machine's launcher tells the others.

    Attributes:
        node: Its number, from 0.
        nodes: How many it expects.
        backend: Name of the backend that it starts.
        version: unifit's version.
        max_restarts: How often it would start again.
        processes: How many processes it starts.
        host: Where the others reach it; empty until node 0 or its connection has told.
        ports: Free ports, one more than processes.
    """

    node: int
    nodes: int
    backend: str
    version: str
    max_restarts: int
    processes: int
    host: str
    ports: tuple[int, ...]

    COMMON = {
        "nodes": "--nodes",
        "backend": "--backend",
        "version": "unifit's version",
        "max_restarts": "--max-restarts",
    }


class OtherFailed(NamedTuple):
    """Another machine's part of the job has failed; or has ended at the wish of a signal.

    Attributes:
        text: What its launcher said, or that it is lost.
        signal: The signal's number; None where it failed.
    """

    text: str
    signal: int | None = None


class AllDone(NamedTuple):
    """All machines' processes have ended well."""


class Meeting:
    """The launchers, once they have met.

    `OtherFailed` and `AllDone` arrive in `events`.

    Args:
        me: This machine's number.
        nodes: All machines, in order.
        links: Connections by machine: node 0 has one to each of the others, they have one to node 0.
    """

    def __init__(self, me: int, nodes: list[Node], links: dict[int, Link], events: SimpleQueue[Any]):
        self.nodes = nodes
        self._me = me
        self._links = links
        self._events = events
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._over = threading.Event()
        self._listeners = [
            threading.Thread(target=self._listen, args=(node, link), daemon=True) for node, link in links.items()
        ]
        for thread in self._listeners:
            thread.start()
        threading.Thread(target=self._ping, daemon=True).start()

    def done(self) -> None:
        """This machine's processes have ended well."""
        with self._lock:
            news = self._me not in self._done
            self._done.add(self._me)
        if news:
            self._send({"done": self._me})
            self._conclude()

    def fail(self, text: str, by_signal: int | None = None) -> None:
        """Tells the others that this machine's part has failed, or was asked to end by a signal."""
        if not self._over.is_set():
            self._over.set()
            self._send({"failed": self._me, "text": text, "signal": by_signal})

    def close(self) -> None:
        """Ends the connections, when what was said last has been read."""
        self._over.set()
        for link in self._links.values():
            link.finish()
        deadline = time.monotonic() + GRACE_S
        for thread in self._listeners:
            thread.join(max(0.0, deadline - time.monotonic()))
        for link in self._links.values():
            link.close()

    def _listen(self, node: int, link: Link) -> None:
        while (message := link.receive()) is not None:
            if "failed" in message:
                text = f"node {message['failed']} has failed. It says:\n{message['text']}"
                self._fail_by(message["failed"], text, link, message.get("signal"))
            elif "all_done" in message:
                self._finish()
            elif "done" in message:
                with self._lock:
                    self._done.add(node)
                self._conclude()
        if self._me == 0 and node in self._done:
            return
        if not self._over.wait(GRACE_S):
            self._fail_by(node, f"the connection to node {node} is lost: its launcher or machine has ended.", link)

    def _fail_by(self, node: int, text: str, heard_from: Link, by_signal: int | None = None) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self._events.put(OtherFailed(text, by_signal))
        self._send({"failed": node, "text": text, "signal": by_signal}, but=heard_from)

    def _conclude(self) -> None:
        """On node 0: when the last one is done, all are told."""
        if self._me == 0 and len(self._done) == len(self.nodes) and not self._over.is_set():
            self._send({"all_done": True})
            self._finish()

    def _finish(self) -> None:
        self._over.set()
        self._events.put(AllDone())

    def _send(self, message: dict[str, Any], but: Link | None = None) -> None:
        for link in self._links.values():
            if link is not but:
                link.send(message)

    def _ping(self) -> None:
        while not self._over.wait(PING_S):
            self._send({"ping": self._me})
            for node, link in self._links.items():
                if time.monotonic() - link.heard_at > SILENCE_S and not (self._me == 0 and node in self._done):
                    self._fail_by(node, f"nothing was heard of node {node} for {SILENCE_S:.0f} s.", link)


class Link:
    """A connection that carries JSON lines."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        self.connection = connection
        self.heard_at = time.monotonic()
        self._lines = connection.makefile("rb")
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Sends, or not, where the other end is gone; whoever listens finds out."""
        with contextlib.suppress(OSError), self._lock:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end, and for what is no message."""
        try:
            with self._reading:
                message = json.loads(self._lines.readline(LINE_BYTES))
        except (OSError, ValueError):
            return None
        self.heard_at = time.monotonic()
        return message if isinstance(message, dict) else None

    def is_gone(self) -> bool:
        """Whether the other end has hung up, without having said anything more."""
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def finish(self) -> None:
        """Says that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends it, for the thread that listens too."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        with self._reading:
            self._lines.close()
        self.connection.close()


def meet(me: Node, host: str, port: int, timeout_s: float, events: SimpleQueue[Any]) -> Meeting:
    """Waits until the launchers of all machines have met at node 0.

    Raises:
        StartError: When some are missing after `timeout_s`, do not fit together, or the port is busy.
    """
    if me.node == 0:
        return _host(me, host, port, timeout_s, events)
    return _join(me, host, port, timeout_s, events)


# Node 0


def _host(me: Node, host: str, port: int, timeout_s: float, events: SimpleQueue[Any]) -> Meeting:
    nodes: dict[int, Node] = {0: _at(me, host)}
    links: dict[int, Link] = {}
    greeted: SimpleQueue[tuple[Link, Node]] = SimpleQueue()
    connected: list[Link] = []
    reason = None
    deadline = time.monotonic() + timeout_s
    with _listening(host, port) as server:
        server.settimeout(RETRY_S)
        while reason is None and len(nodes) < me.nodes or reason is not None and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                connected.append(Link(server.accept()[0]))
                threading.Thread(target=_greet, args=(connected[-1], greeted.put), daemon=True).start()
            while reason is None and not greeted.empty():
                link, node = greeted.get()
                if node.node in links and links[node.node].is_gone():
                    del nodes[node.node]  # its launcher was started again
                reason = _misfit(node, nodes)
                if reason is None:
                    nodes[node.node], links[node.node] = node, link
                else:
                    deadline = time.monotonic() + LINGER_S
            if reason is None and time.monotonic() > deadline:
                missing = ", ".join(str(node) for node in range(me.nodes) if node not in nodes)
                reason = (
                    f"After {timeout_s:.0f} s these node ranks of {me.nodes} had not come to "
                    f"{join_address(host, port)}: {missing}. Start `unifit run` there too with the same "
                    "--rendezvous, or give --start-timeout-s more."
                )
    ordered = [nodes[node] for node in range(me.nodes)] if reason is None else []
    for link in connected:
        if reason is None and link in links.values():
            link.send({"nodes": [asdict(node) for node in ordered]})
        else:
            link.send({"error": reason or f"the {me.nodes} launchers of the job have met without this one."})
            link.close()
    if reason is not None:
        raise StartError(reason)
    return Meeting(0, ordered, links, events)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(f"--rendezvous names the host {host!r}, which is not known here: {error}.") from error
    # Systems often map their own name to a loopback address, at which no other machine arrives.
    own_name = str(address[0]).startswith("127.") and host != "localhost" and not host.startswith("127.")
    try:
        return socket.create_server(("", port) if own_name else address[:2], family=family, backlog=128)
    except OSError as error:
        raise StartError(
            f"Node 0 cannot listen at {join_address(host, port)} ({error.strerror or error}): is the port {port} taken "
            "by another program, or the host another machine's? Give another --rendezvous HOST:PORT, on all nodes."
        ) from error


def _greet(link: Link, greeted: Callable[[tuple[Link, Node]], None]) -> None:
    """Reads who it is; what is no launcher of unifit is hung up on."""
    timer = threading.Timer(HELLO_S, link.close)
    timer.daemon = True
    timer.start()
    message = link.receive()
    timer.cancel()
    node = None if message is None else _node(message.get("hello"))
    if node is None:
        link.close()
    else:
        greeted((link, node))


def _misfit(node: Node, nodes: dict[int, Node]) -> str | None:
    """Why a node cannot be one of the job's; None when it can."""
    first = nodes[0]
    for name, option in Node.COMMON.items():
        if getattr(node, name) != getattr(first, name):
            return (
                f"Node {node.node} has {option} {getattr(node, name)}, node 0 has {getattr(first, name)}: start all "
                "nodes with the same."
            )
    if node.node in nodes:
        hosts = f"{nodes[node.node].host} and {node.host}"
        return f"Two launchers, at {hosts}, have --node-rank {node.node}: give each its own."
    if not 0 < node.node < first.nodes:
        wrong = f"--node-rank {node.node} with --nodes {first.nodes}"
        return f"The launcher at {node.host} has {wrong}: expected 0 to {first.nodes - 1}."
    return None


# The others


def _join(me: Node, host: str, port: int, timeout_s: float, events: SimpleQueue[Any]) -> Meeting:
    deadline = time.monotonic() + timeout_s
    problem: object = ""
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection((host, port), timeout=max(RETRY_S, deadline - time.monotonic()))
        except OSError as error:
            problem = error.strerror or error
            time.sleep(RETRY_S)
            continue
        link = Link(connection)
        link.send({"hello": asdict(_at(me, connection.getsockname()[0]))})
        # Node 0 keeps its own time, and has the reason; a little longer, so that it is heard.
        timer = threading.Timer(max(0.0, deadline - time.monotonic()) + HELLO_S, link.close)
        timer.daemon = True
        timer.start()
        answer = link.receive()
        timer.cancel()
        if answer is not None and "error" in answer:
            link.close()
            raise StartError(f"Node 0 says: {answer['error']}")
        nodes = [_node(entry) for entry in answer["nodes"]] if answer is not None and "nodes" in answer else []
        if answer is not None and None not in nodes and len(nodes) == me.nodes:
            return Meeting(me.node, [node for node in nodes if node is not None], {0: link}, events)
        link.close()
        problem = "the connection was closed"
        time.sleep(RETRY_S)
    raise StartError(
        f"Node {me.node} did not meet node 0 at {join_address(host, port)} in {timeout_s:.0f} s ({problem}). "
        "Is `unifit run` with --node-rank 0 started there, and the port open? --start-timeout-s gives it longer."
    )


def _at(node: Node, host: str) -> Node:
    return Node(**(asdict(node) | {"host": host}))


def _node(entry: Any) -> Node | None:
    try:
        return Node(**(entry | {"ports": tuple(entry["ports"])}))
    except (TypeError, KeyError):
        return None
