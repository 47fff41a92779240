"""The processes of this job, seen from one of them: agreeing on values, hearing of failures, who is who."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import unifit.errors as errors
from unifit.contract.job import Store
from unifit.contract.values import Placement
from unifit.errors import PeerError

POLL_S = 0.25
"""How often the watching thread looks at the store."""

BEAT_S = 2.0
"""How often a process shows that it lives."""

SILENCE_S = 60.0
"""A process that is waited for and has shown no life for so long is taken for dead."""

GRACE_S = 4.0
"""How long a process may stay in a collective after another one has failed; it is ended then."""

SLICE_S = 0.5
"""The longest single wait for a key; between two of them failures are looked for."""

LEAVE_S = 5.0
"""How long the watching thread may take to end."""

FAILURE = "failure"

FOR_EVER = 2**53
"""The era of a failure that ends the process."""


class Peers:
    """A job's processes. With `store` None this process is alone, and everything here answers at once.

    Args:
        placement: This process' place.
        store: What the processes talk through.

    Attributes:
        era: Counts the outermost calls of fit, evaluate and so on, which all processes make alike: what they agree on
            in one has nothing to do with what one of them, failing, left open in an earlier one.
    """

    def __init__(self, placement: Placement, store: Store | None):
        self.process, self.processes = placement.process, placement.processes
        self._store = store
        self._rounds: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        self._watched: list[Callable[[], bool]] = []
        self._awake = threading.Event()
        self._failure: dict[str, Any] | None = None
        self._told: BaseException | None = None
        self.era = 0
        self._channels = itertools.count()
        self._stale: list[str] = []
        self._inside = 0
        self._leaving = False
        if store is not None:
            self._introduce()

    @property
    def alone(self) -> bool:
        """Whether the job is this process."""
        return self._store is None

    @property
    def store(self) -> Store:
        """The store; there is one where there are several processes."""
        assert self._store is not None, "a process that is alone has no store"
        return self._store

    # Agreeing

    def agree(self, what: str, mine: Any, combine: Callable[[list[Any]], Any], despite_failure: bool = False) -> Any:
        """Every process gives a value, process 0 combines them, every process gets the result.

        All processes call it for the same `what` equally often and in the same order; several threads may, for
        different `what`. Values are plain JSON. An exception of `combine` is raised on every process.

        Raises:
            PeerError: When another process has failed, unless `despite_failure`, or is gone.
        """
        return combine([mine]) if self._store is None else self._agreed(self.era, what, mine, combine, despite_failure)

    def _agreed(
        self, era: int, what: str, mine: Any, combine: Callable[[list[Any]], Any], despite_failure: bool = False
    ) -> Any:
        with self._lock:
            number = self._rounds[era, what] = self._rounds.get((era, what), 0) + 1
        now, before = f"{era}/{what}/{number}", f"{era}/{what}/{number - 1}"
        self._put(f"{now}/{self.process}", json.dumps(mine))
        if self.process == 0:
            texts = [self._waited(f"{now}/{process}", process, despite_failure) for process in range(self.processes)]
            answer = _answer(combine, [json.loads(text) for text in texts])
            self._put(f"{now}/all", json.dumps(answer))
            self.store.delete(f"{before}/all")  # all have read it: they are in the next round
        else:
            answer = json.loads(self._waited(f"{now}/all", 0, despite_failure))
        self.store.delete(f"{before}/{self.process}")
        with self._lock:
            stale, self._stale = self._stale, []
        for key in stale:
            self.store.delete(key)
        if "raised" in answer:
            kind, message = answer["raised"]
            error: Any = getattr(errors, kind, PeerError)(message)
            error.agreed = True  # raised on every process: nobody has to be told
            raise error
        return answer["value"]

    def channel(self, despite_failure: bool = False) -> Channel:
        """Agreements of a subject of their own, for a thread of its own; all processes make them in one order.

        With `despite_failure` they go on when a process has failed in a way that it outlives.
        """
        return Channel(self, self.era, f"channel{next(self._channels)}", despite_failure)

    def wait(self, what: str) -> None:
        """Returns when every process has called it."""
        self.agree(what, None, lambda _: None)

    def on_main(self, what: str, function: Callable[[], Any]) -> None:
        """Runs a function on process 0 only, and returns everywhere when it is done.

        Raises:
            Exception: The function's own on process 0; PeerError with its message on the others.
        """
        caught: Exception | None = None
        if self.process == 0:
            try:
                function()
            except Exception as error:
                caught = error
        outcome = self.agree(f"{what}/on_main", None if caught is None else described(caught), lambda given: given[0])
        if caught is not None:
            raise caught
        if outcome is not None:
            raise PeerError(f"Process 0 of the job failed in {what}: {outcome}")

    # Failing

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Tells the others when its block raises; an error that another's failure caused becomes a PeerError."""
        if not self._inside:
            self._next_era()
        self._inside += 1
        try:
            yield
        except PeerError:
            raise
        except BaseException as error:
            if self._store is not None and not getattr(error, "agreed", False):
                if self._of_other(error):
                    raise self._peer_error() from error
                self.tell(error, fatal=True)
            raise
        finally:
            self._inside -= 1

    def tell(self, error: BaseException, fatal: bool, ends: bool = False) -> None:
        """Writes down that this process failed.

        Args:
            error: How.
            fatal: Whether it takes part in no further collective of the run in progress.
            ends: Whether the process ends by it.
        """
        if self._store is None or (self._told is error and not ends) or isinstance(error, PeerError):
            return
        self._told = error
        text = "".join(traceback.format_exception(error))
        entry = {"process": self.process, "fatal": fatal, "what": described(error), "traceback": text}
        entry["era"] = FOR_EVER if ends else self.era
        with contextlib.suppress(ConnectionError):
            self._store.put(FAILURE, json.dumps(entry))

    def forgive(self) -> None:
        """Forgets failures that were not fatal; all processes call it when they are about to raise them."""
        self._next_era()

    def _next_era(self) -> None:
        """Failures of an earlier era are history: all processes raised them, or went on without."""
        with self._lock:
            self.era += 1  # first: the watching thread may be about to read an old entry
            # Rounds count anew: where one process failed before the others, it has made fewer of them. What is left of
            # old ones is deleted after the next agreement, when all are in this era; a reading thread of the last run
            # may be at its last one still.
            for era, what in [key for key in self._rounds if key[0] < self.era - 1]:
                number = self._rounds.pop((era, what))
                self._stale.append(f"{era}/{what}/{number}/{self.process}")
                if self.process == 0:
                    self._stale.append(f"{era}/{what}/{number}/all")
            self._channels = itertools.count()
        if self._failure is not None and self._failure["era"] < self.era:
            self._failure = None

    def check(self) -> None:
        """Raises PeerError when another process has failed for good."""
        if self._failure is not None and self._failure["fatal"]:
            raise self._peer_error()

    # Watching

    def watch(self, look: Callable[[], bool]) -> None:
        """Has the watching thread call `look` now and then, and soon again while it returns True."""
        self._watched.append(look)

    def unwatch(self, look: Callable[[], bool]) -> None:
        """Ends that."""
        self._watched.remove(look)

    def wake(self) -> None:
        """Has the watching thread look now."""
        self._awake.set()

    # Helpers

    def _introduce(self) -> None:
        self._watcher = threading.Thread(target=self._watch, name="unifit-peers", daemon=True)
        self._watcher.start()
        shown = sys.excepthook

        def hook(kind: Any, error: BaseException, trace: Any) -> None:
            self.tell(error, fatal=True, ends=True)
            shown(kind, error, trace)

        sys.excepthook = hook
        atexit.register(self._leave)

    def _leave(self) -> None:
        # A thread that is in native code when the interpreter ends would abort the process.
        self._leaving = True
        self.wake()
        self._watcher.join(LEAVE_S)
        with contextlib.suppress(ConnectionError):
            self.store.put(f"left/{self.process}", "1")

    def _put(self, key: str, text: str) -> None:
        try:
            self.store.put(key, text)
        except ConnectionError as error:
            raise self._lost() from error

    def _waited(self, key: str, process: int, despite_failure: bool) -> str:
        """The text under a key that `process` is to write."""
        beat, since = None, time.monotonic()
        while True:
            try:
                text = self.store.get(key, SLICE_S)
                if text is not None:
                    return text
                left, now = self.store.get(f"left/{process}", 0), self.store.get(f"beat/{process}", 0)
                self._look_for_failure()
            except ConnectionError as error:
                raise self._lost() from error
            if self._failure is not None and (self._failure["fatal"] or not despite_failure):
                raise self._peer_error()
            if left is not None and self.store.get(key, 0) is None:
                raise PeerError(
                    f"Process {process} of the job has come to the script's end, and process {self.process} waits for "
                    f"it at '{key.split('/', 1)[1].rsplit('/', 2)[0]}'. Do all processes call fit, evaluate, predict "
                    "and save equally often?"
                )
            if now != beat:
                beat, since = now, time.monotonic()
            elif time.monotonic() - since > SILENCE_S and process != self.process:
                raise PeerError(f"Process {process} of the job has given no sign of life for {SILENCE_S:.0f} s.")

    def _lost(self) -> PeerError:
        if self._failure is not None:
            return self._peer_error()
        return PeerError(
            "Contact with process 0 of the job, which keeps its store, is lost: it has ended or was killed."
        )

    def _of_other(self, error: BaseException) -> bool:
        """Whether another process failed before: then this error is likely its consequence."""
        if not isinstance(error, Exception):
            return False
        with contextlib.suppress(ConnectionError):
            self._look_for_failure()
        return self._failure is not None

    def _look_for_failure(self) -> None:
        if self._failure is None:
            text = self.store.get(FAILURE, 0)
            entry = None if text is None else json.loads(text)
            if entry is not None and entry["process"] != self.process and entry["era"] >= self.era:
                self._failure = entry

    def _peer_error(self) -> PeerError:
        assert self._failure is not None
        entry = self._failure
        return PeerError(
            f"Process {entry['process']} of the job failed: {entry['what']}. Its traceback:\n{entry['traceback']}"
        )

    def _watch(self) -> None:
        """The watching thread."""
        beats, beat_at, failed_at = 0, 0.0, None
        while not self._leaving:
            soon = False
            try:
                if time.monotonic() >= beat_at:
                    beats, beat_at = beats + 1, time.monotonic() + BEAT_S
                    self.store.put(f"beat/{self.process}", str(beats))
                self._look_for_failure()
                for look in list(self._watched):
                    soon = look() or soon
            except ConnectionError:
                return  # process 0 is gone: at its end or dead; whoever needs it finds out
            fatal = self._failure is not None and self._failure["fatal"] and self._inside > 0
            failed_at = (failed_at or time.monotonic()) if fatal else None
            if failed_at is not None and time.monotonic() - failed_at > GRACE_S:
                print(f"unifit: process {self.process} ends: {self._peer_error()}", file=sys.stderr, flush=True)
                os._exit(1)
            self._awake.wait(POLL_S / 10 if soon else POLL_S)
            self._awake.clear()


class Channel:
    """Agreements of one subject; see `Peers.agree`."""

    def __init__(self, peers: Peers, era: int, name: str, despite_failure: bool = False):
        self.peers, self.era, self.name, self.despite_failure = peers, era, name, despite_failure
        self.process, self.processes = peers.process, peers.processes

    def agree(self, mine: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """What `combine` makes of all processes' values, on each of them."""
        return self.peers._agreed(self.era, self.name, mine, combine, self.despite_failure)


def described(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"


def _answer(combine: Callable[[list[Any]], Any], values: list[Any]) -> dict[str, Any]:
    """What process 0 tells the others: the result, or the exception that it raised."""
    try:
        return {"value": combine(values)}
    except errors.UnifitError as error:
        return {"raised": [type(error).__name__, str(error)]}


_peers: Peers | None = None


def peers_of(devices: Any) -> Peers:
    """The processes that train together on these devices (`unifit.contract.engine.Devices`)."""
    global _peers
    if devices.store is None:
        return Peers(devices.placement, None)
    if _peers is None or _peers.store is not devices.store:
        _peers = Peers(devices.placement, devices.store)
    return _peers


def present_peers() -> Peers | None:
    """The job's processes, once this one has joined them; None before, and where there is no job."""
    return _peers
