"""Doing something after one and the same step on every process, at the wish of any of them; and stopping so."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from unifit.peers import Peers

VERDICT_SLICE_S = 0.5


class StepAgreement:
    """The processes' agreement on the step after which they do something together.

    A process that wishes it writes a key. Each process' watching thread answers it with the number of steps that its
    loop has begun, and from then on holds the next one back; the greatest answer is the verdict: all have begun that
    step or can still do so, and none goes on before it.

    Args:
        peers: The job's processes.
        what: What they will do; each agreement of a run has its own name.
        done: Steps done so far.
    """

    def __init__(self, peers: Peers, what: str, done: int):
        self.peers = peers
        self._key = f"{peers.era}/{what}"
        self._lock = threading.Lock()
        self._begun = done + 1
        self._wished = False
        self._answer: int | None = None
        self._verdict: int | None = None
        self._decided = threading.Event()

    def __enter__(self) -> StepAgreement:
        if not self.peers.alone:
            self.peers.watch(self._look)
        return self

    def __exit__(self, *exception: Any) -> None:
        if not self.peers.alone:
            self.peers.unwatch(self._look)

    def wish(self) -> None:
        """Asks all processes to do it soon; returns at once."""
        if self._wished:
            return
        self._wished = True
        if not self.peers.alone:
            self.peers.store.put(self._key, "1")
            self.peers.wake()

    def due(self, done: int) -> bool:
        """Whether to do it after `done` steps. When not, the next step counts as begun.

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


class Ending(NamedTuple):
    """Why training stops before its last epoch, as all processes see it.

    Attributes:
        signal: The number of the signal that a process got; None without one.
        paused: Whether a callback stopped it to go on in a later run.
    """

    signal: int | None = None
    paused: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether the fit is not at its end: what is left of it is for a later run."""
        return self.signal is not None or self.paused


def agreed_ending(peers: Peers, mine: Ending) -> Ending:
    """What all processes' endings come to. All call it after the same step."""
    return Ending(*peers.agree("ending", mine, _joined))


def _joined(given: list[Any]) -> Ending:
    endings = [Ending(*entry) for entry in given]
    signals = [ending.signal for ending in endings if ending.signal is not None]
    return Ending(max(signals) if signals else None, any(ending.paused for ending in endings))
