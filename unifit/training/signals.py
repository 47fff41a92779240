"""SIGINT and SIGTERM during a fit: the first one is a wish, which the loop fulfils after its step; the second ends."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

from unifit.launch.interruption import REPEATED_WITHIN_S, end_of
from unifit.processes import is_main_process

HEARD = (signal.SIGINT, signal.SIGTERM)

STDERR = 2
ACTION_BYTES = 1024
"""More than any system's `struct sigaction` has."""


class Signals:
    """Inside, SIGINT and SIGTERM are noted in `received`. Only in the main thread; elsewhere nothing changes.

    A running step cannot be interrupted: its arrays may be donated, and other processes wait in its collectives. So the
    first signal is a wish. The second one is not: it puts the earlier handlers back, and raises KeyboardInterrupt where
    the step is, or ends the process (SIGTERM). The same signal within REPEATED_WITHIN_S is the first one, heard twice.
    A fit inside another one, by a callback, shares its signals: both end.

    Processes that are forked meanwhile (a loader's workers) inherit the handlers. There SIGTERM has its earlier effect,
    and SIGINT none while this process lives: Ctrl-C reaches them too, and the step before the end needs their data.

    Args:
        saves: Whether the run saves a checkpoint before it ends; to be told.

    Example:
        >>> with Signals() as signals:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     signals.received == signal.SIGTERM
        True
    """

    def __init__(self, saves: bool = False):
        self._next = "saves a checkpoint and ends" if saves else "ends"
        self._received: int | None = None
        self._received_at = 0.0
        self._enclosing: Signals | None = None
        self._earlier: dict[int, _Disposition] = {}
        self._process = 0
        self._tells = False

    @property
    def received(self) -> int | None:
        """Number of the signal that came first; None before."""
        if self._received is None and self._enclosing is not None:
            return self._enclosing.received
        return self._received

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._process, self._tells = os.getpid(), is_main_process()
        for number in HEARD:
            handler = signal.getsignal(number)
            enclosing = getattr(handler, "__self__", None)
            if isinstance(enclosing, Signals):
                self._enclosing = enclosing
            elif handler is not signal.SIG_IGN:  # what is ignored stays so: under nohup, in the background of a shell
                self._earlier[number] = _Disposition(handler, _action(number))
                signal.signal(number, self._hear)
        return self

    def __exit__(self, *exception: Any) -> None:
        earlier, self._earlier = self._earlier, {}
        for number, disposition in earlier.items():
            if signal.getsignal(number) == self._hear:  # else somebody has set another one meanwhile
                disposition.restore(number)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """The handler. It runs between any two lines of the main thread: no buffered output, no locks."""
        if os.getpid() != self._process:
            self._hear_in_fork(number)
            return
        now = time.monotonic()
        if self._received is None:
            self._received, self._received_at = number, now
            if self._tells:
                _tell(f"{signal.Signals(number).name}: {self._next} after this step; once more ends at once")
        elif number != self._received or now - self._received_at > REPEATED_WITHIN_S:
            self._end(number)

    def _hear_in_fork(self, number: int) -> None:
        if number == signal.SIGINT and os.getppid() == self._process:
            return
        self.__exit__()
        signal.raise_signal(number)

    def _end(self, number: int) -> None:
        """The second signal."""
        self.__exit__()
        if number == signal.SIGINT:
            raise end_of(number)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


class _Disposition(NamedTuple):
    """What a signal does: Python's handler (None for one that Python does not know), and the system's own record."""

    handler: Any
    action: Any

    def restore(self, number: int) -> None:
        signal.signal(number, signal.SIG_DFL if self.handler is None else self.handler)
        if self.action is not None:
            _sigaction(number, self.action, None)


def _action(number: int) -> Any:
    """The system's record of what a signal does: Python's tables lack handlers that C code has set, as faulthandler."""
    action = ctypes.create_string_buffer(ACTION_BYTES)
    return action if _sigaction(number, None, action) else None


def _sigaction(number: int, new: Any, old: Any) -> bool:
    """The system's function; whether there is one, and it worked."""
    if os.name != "posix":
        return False
    return bool(ctypes.CDLL(None).sigaction(ctypes.c_int(number), new, old) == 0)


def _tell(text: str) -> None:
    with suppress(OSError):  # a terminal that is gone
        os.write(STDERR, f"\nunifit: {text}\n".encode())
