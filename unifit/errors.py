"""The exceptions that unifit raises, and the one text for a name that nobody registered."""

import difflib
from collections.abc import Iterable


class UnifitError(Exception):
    """Base of every error that unifit raises on purpose: `except UnifitError` catches them all."""


class ArgumentError(UnifitError, ValueError):
    """An argument has a value that cannot be meant, or two arguments contradict each other."""


class ShapeError(UnifitError, ValueError):
    """An array has a shape that the operation, layer, loss or metric cannot take."""


class UnknownNameError(ArgumentError):
    """A string names no registered object. Made by `unknown_name`."""


class UnsupportedError(UnifitError, RuntimeError):
    """The request is sound, but this backend or layout cannot do it; the message names the way out."""


class BackendNotInstalledError(UnifitError, ImportError):
    """The framework that the chosen backend needs is not installed."""


class StartError(UnifitError, RuntimeError):
    """A job's processes did not find each other in time, or an address that they were given cannot be used."""


class PeerError(UnifitError, RuntimeError):
    """Another process of the job failed, or does other things than this one; the message says which and what."""


class NonFiniteError(UnifitError, ArithmeticError):
    """Gradients were not finite in many updates in a row; the message names the parameters."""


class CheckpointError(UnifitError, RuntimeError):
    """A checkpoint cannot be written, is damaged, or is of another run; the message names the file or what differs."""


class OutOfMemoryError(UnifitError, MemoryError):
    """A device's memory ran out; the message names the next smaller `microbatch_size` to try."""


_MAX_SUGGESTIONS = 3
_MAX_LISTED = 40


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Builds the error for a name that is not in a registry; the caller raises it.

    Args:
        kind: What was looked up, in one or two words: "loss", "optimizer".
        name: The name as the user gave it.
        known: The names that would have worked.

    Returns:
        The exception, naming the nearest known names first and then all of them.

    Example:
        >>> str(unknown_name("loss", "hubr", ["mse", "huber"]))
        "Unknown loss 'hubr'; did you mean 'huber'? Known: 'huber', 'mse'."
    """
    names = sorted(set(known))
    by_lower_case: dict[str, str] = {}
    for candidate in names:
        by_lower_case.setdefault(candidate.lower(), candidate)
    near = difflib.get_close_matches(str(name).lower(), list(by_lower_case), n=_MAX_SUGGESTIONS)
    message = f"Unknown {kind} {name!r}"
    if near:
        message += f"; did you mean {' or '.join(repr(by_lower_case[match]) for match in near)}?"
    else:
        message += "."
    if names:
        listed = ", ".join(repr(candidate) for candidate in names[:_MAX_LISTED])
        left_out = len(names) - _MAX_LISTED
        message += f" Known: {listed}" + (f" and {left_out} more." if left_out > 0 else ".")
    else:
        message += f" No {kind} is registered."
    return UnknownNameError(message)
