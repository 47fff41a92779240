"""Stopping after one and the same step on every process, at the wish of any of them."""

from __future__ import annotations

import threading
from typing import Any

from unifit.peers import Peers

VERDICT_SLICE_S = 0.5


class Stopping:
    """A run's agreement on its last step.

    A process that wishes to stop writes a key. Each process' watching thread answers it with the number of steps that
    its loop has begun, and from then on holds the next one back; the greatest answer is the verdict: all have begun
    that step or can still do so, and none stops before it.

    Args:
        peers: The job's processes.
        done: Steps done before the run.
    """

    def __init__(self, peers: Peers, done: int):
        self.peers = peers
        self._key = f"{peers.era}/stop"
        self._lock = threading.Lock()
        self._begun = done + 1
        self._wished = False
        self._answer: int | None = None
        self._verdict: int | None = None
        self._decided = threading.Event()

    def __enter__(self) -> Stopping:
        if not self.peers.alone:
            self.peers.watch(self._look)
        return self

    def __exit__(self, *exception: Any) -> None:
        if not self.peers.alone:
            self.peers.unwatch(self._look)

    def wish(self) -> None:
        """Asks all processes to stop soon; returns at once."""
        if self._wished:
            return
        self._wished = True
        if not self.peers.alone:
            self.peers.store.put(self._key, "1")
            self.peers.wake()

    def due(self, done: int) -> bool:
        """Whether to stop after `done` steps. When not, the next step counts as begun.

        Raises:
            PeerError: When another process has failed.
        """
        if self.peers.alone:
            return self._wished
        with self._lock:
            if self._answer is None and not self._wished:
                self._begun = done + 1
        self.peers.check()
        if self._answer is None and not self._wished:
            return False
        while not self._decided.wait(VERDICT_SLICE_S):
            self.peers.check()
        assert self._verdict is not None
        return done >= self._verdict

    def _look(self) -> bool:
        """Called by the watching thread: answers a wish, and looks for the verdict. Whether one is on its way."""
        store, key = self.peers.store, self._key
        if self._verdict is not None:
            return False
        if self._answer is None:
            if store.get(key, 0) is None:
                return False
            with self._lock:
                self._answer = self._begun
            store.put(f"{key}/{self.peers.process}", str(self._answer))
        if self.peers.process == 0:
            answers = [store.get(f"{key}/{process}", 0) for process in range(self.peers.processes)]
            known = [int(answer) for answer in answers if answer is not None]
            if len(known) < self.peers.processes:
                return True
            store.put(f"{key}/verdict", str(max(known)))
        verdict = store.get(f"{key}/verdict", 0)
        if verdict is None:
            return True
        self._verdict = int(verdict)
        self._decided.set()
        return False
