"""Signals that ask a job to end: which they are, when one comes twice, and how a process ends that has obeyed."""

from __future__ import annotations

import signal

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a launcher that gets it passes on to its processes."""

REPEATED_WITHIN_S = 1.0
"""The same signal again so soon is the same wish, delivered on two ways: by the terminal, or a scheduler, to every
process of a group and by a launcher among them to those that it started."""

GRACE_S = 30.0
"""How long processes get to end, to save a checkpoint say, after a signal. Clouds give about as much before they take a
machine away."""

ENDED_BY_SIGNAL = 128
"""A shell's and Python's exit status for an end by signal n is this and n."""


def end_of(number: int) -> BaseException:
    """What a process raises after a signal, when all is done: KeyboardInterrupt for SIGINT, else SystemExit."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(ENDED_BY_SIGNAL + number)


def obeyed(status: int) -> int | None:
    """The signal at whose wish a process has ended in good order; None where it ended otherwise.

    Args:
        status: Popen's returncode. Python's end after KeyboardInterrupt is death by SIGINT; that by another signal is
            none in good order.
    """
    number = signal.SIGINT if status == -signal.SIGINT else status - ENDED_BY_SIGNAL
    return int(number) if number in PASSED_ON else None
