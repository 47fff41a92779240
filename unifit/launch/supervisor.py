"""The processes of one machine as a whole: all end when one fails, and the launcher says which one and why."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from unifit.launch.children import Child, Ended, Output, Spec, described_status, shell_status
from unifit.launch.interruption import GRACE_S, PASSED_ON, REPEATED_WITHIN_S, obeyed
from unifit.launch.rendezvous import AllDone, Meeting, OtherFailed

POLL_S = 0.2
SETTLE_S = 1.0
"""After a failure the others get so long to end by themselves: the cause shall be among those reported."""

OTHERS_SETTLE_S = 2.0

TERMINATION_GRACE_S = 3.0
"""Between SIGTERM and SIGKILL, when the job has failed."""

# How a process ends when another one has died: by its framework's abort, or by somebody's SIGTERM.
USUAL_SIGNALS = (-signal.SIGTERM, -signal.SIGABRT)


class Signalled(NamedTuple):
    """The launcher got a signal."""

    number: int


class Outcome(NamedTuple):
    """How a job ended on this machine.

    Attributes:
        status: The exit status for the launcher.
        report: What failed here or on another machine, as text; empty where nothing did.
        failed: Number of the process that failed first, on this machine; None where none did.
        by_signal: Whether the launcher was told to end, or a process, which then had the others end in good order.
    """

    status: int
    report: str = ""
    failed: int | None = None
    by_signal: bool = False


class Supervisor:
    """Starts processes and stays until they have ended.

    Args:
        events: Where signals, ends and messages of other machines arrive.
        meeting: The launchers of the other machines; None where there are none.
        announced: Whether a failure is printed; else it is in the outcome only.
    """

    def __init__(self, events: SimpleQueue[Any], meeting: Meeting | None = None, announced: bool = True):
        self._announced = announced
        self._events = events
        self._meeting = meeting
        self._children: list[Child] = []
        self._running: set[Child] = set()
        self._failures: list[Ended] = []
        self._signal: int | None = None
        self._heard: tuple[int, float] | None = None
        self._end_by: float | None = None
        self._other: OtherFailed | None = None
        self._all_done = meeting is None

    def run(self, specs: Sequence[Spec]) -> Outcome:
        """Starts the processes; returns when all have ended, and the other machines' with them.

        None of them is running when it returns or raises.
        """
        try:
            for spec in specs:
                self._children.append(Child(spec, self._events))
            self._running = set(self._children)
            self._watch()
            self._end_rest()
            return self._outcome()
        except BaseException:
            self._end_rest(grace_s=0.0)
            raise

    def _watch(self) -> None:
        """Until all have ended well, or one has failed and the others had time to."""
        settled_at: float | None = None
        while self._running or not (self._all_done or self._failures):
            self._take(POLL_S)
            now = time.monotonic()
            if not self._running and not self._failures and self._meeting is not None:
                self._meeting.done()
            if self._other is not None or self._end_by is not None and now > self._end_by:
                return
            if self._failures and self._signal is None:
                settled_at = settled_at or now + SETTLE_S
                # What another machine caused: its launcher knows more, in a moment.
                caused_elsewhere = self._meeting is not None and all(map(_likely_consequence, self._failures))
                if now > settled_at + (OTHERS_SETTLE_S if caused_elsewhere else 0.0):
                    return

    def _end_rest(self, grace_s: float = TERMINATION_GRACE_S) -> None:
        self._take(0.0)
        if self._signal is not None:
            grace_s = 0.0
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._running:
                child.stop(number)
            deadline = time.monotonic() + (grace_s if number == signal.SIGTERM else GRACE_S)
            while self._running and time.monotonic() < deadline:
                self._take(POLL_S / 2)
        self._take(0.0)

    def _take(self, timeout_s: float) -> None:
        """Handles one event, or all that are there."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=timeout_s) if timeout_s else self._events.get_nowait()
            while True:
                self._handle(event)
                event = self._events.get_nowait()

    def _handle(self, event: Any) -> None:
        match event:
            case Output(write, data):
                write(data)
            case Ended(child, status):
                self._running.discard(child)
                if status != 0 and not child.stopped:
                    if not self._failures:
                        self._asked(obeyed(status))
                    self._failures.append(event)
            case Signalled(number):
                self._hear(number)
            case OtherFailed(_, number) if number is not None:
                self._asked(number)
                self._all_done = True  # nobody will say so any more
            case OtherFailed():
                self._other = self._other or event
            case AllDone():
                self._all_done = True

    def _hear(self, number: int) -> None:
        """Passes the launcher's first signal on; the second one is meant, and nobody waits any more."""
        now = time.monotonic()
        first, self._heard = self._heard, self._heard or (number, now)
        if first is not None and first[0] == number and now - first[1] < REPEATED_WITHIN_S:
            return
        if first is None and self._signal is not None and self._running:
            return  # the processes are about to end already, and would take another one for the second
        patient = first is None and self._running
        self._signal, self._end_by = number, now + (GRACE_S if patient else -1.0)
        for child in self._running:
            child.signal(number)

    def _asked(self, number: int | None) -> None:
        """A process has ended at a signal's wish, here or elsewhere: the others are about to, and get time."""
        if number is not None and self._signal is None:
            self._signal, self._end_by = number, time.monotonic() + GRACE_S

    def _outcome(self) -> Outcome:
        failures = sorted(self._failures, key=_order)
        complete = self._all_done and not any(child.stopped for child in self._children)
        if self._signal is not None and (failures or not complete):
            lines = [_line(failure) for failure in failures if obeyed(failure.status) != self._signal]
            report = "\n".join([f"unifit: ended by {signal.Signals(self._signal).name}.", *lines])
            self._tell(report, self._signal)
            self._print(report)
            return Outcome(shell_status(-self._signal), report, by_signal=True)
        if self._other is not None:
            self._print(f"unifit: {self._other.text}")
        if failures:
            report = "\n".join(_told(failure) for failure in failures)
            self._tell(report)
            for failure in failures:
                self._print(_shown(failure))
            return Outcome(shell_status(failures[0].status), report, failures[0].child.spec.number)
        if self._other is not None:
            return Outcome(1, self._other.text)
        return Outcome(0, by_signal=self._signal is not None)

    def _print(self, text: str) -> None:
        if self._announced and text:
            print(text, file=sys.stderr, flush=True)

    def _tell(self, report: str, by_signal: int | None = None) -> None:
        if self._meeting is not None:
            self._meeting.fail(report, by_signal)


@contextlib.contextmanager
def signals_as_events(events: SimpleQueue[Any]) -> Iterator[None]:
    """Inside, a signal that asks the launcher to end is an event."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored stays so: under nohup, or in the background of a shell's script.
    heard = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: events.put(Signalled(got))) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _likely_consequence(failure: Ended) -> bool:
    """Whether another process' failure was likely the cause of this one."""
    return failure.status in USUAL_SIGNALS or "PeerError" in (_own_report(failure) or failure.child.errors())


def _order(failure: Ended) -> int:
    """Causes first, in the order of their ends. Status 1, an exception, is oftener another failure's consequence."""
    return 2 if _likely_consequence(failure) else int(failure.status == 1)


def _own_report(failure: Ended) -> str:
    """What the program itself has shown about its failure; empty where it does not explain itself."""
    path = failure.child.spec.report
    return path.read_text(errors="replace").rstrip() if path is not None and path.exists() else ""


def _line(failure: Ended) -> str:
    spec = failure.child.spec
    return f"unifit: process {spec.number} of the job ended with status {described_status(failure.status)}."


def _told(failure: Ended) -> str:
    """What other machines are told."""
    if report := _own_report(failure):
        return report
    spec, errors = failure.child.spec, failure.child.errors()
    where = f", from {spec.stderr}" if isinstance(spec.stderr, Path) else ""
    shown = "".join(f"\n  {line}" for line in errors.splitlines())
    return _line(failure) + (f" Its errors{where}:{shown}" if shown else "")


def _shown(failure: Ended) -> str:
    """What is shown here: not what was shown already."""
    if _own_report(failure):
        return ""
    return _told(failure) if isinstance(failure.child.spec.stderr, Path) else _line(failure)
