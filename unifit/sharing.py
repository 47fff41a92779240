"""Objects that occur more than once in one config: written once, found again as one object.

The first time it is {"class": ..., "config": ..., "shared": 3}, later {"shared": 3}.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from unifit.errors import ArgumentError

# One config is written or read at a time in a thread; unifit.config runs far below who began it.
_writer: ContextVar[Writer | None] = ContextVar("unifit_config_writer", default=None)
_reader: ContextVar[dict[int, Any] | None] = ContextVar("unifit_config_reader", default=None)


class Writer:
    """The forms of the objects that one config holds, by the objects' identity."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []  # alive, so that no identity is used again
        self._forms: dict[int, dict[str, Any]] = {}

    def form(self, value: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The object's form: in full the first time, a reference later."""
        if id(value) in self._numbers:
            return {"shared": self._numbers[id(value)]}
        number = len(self._objects)
        self._objects.append(value)
        self._numbers[id(value)] = number
        self._forms[number] = make() | {"shared": number}
        return self._forms[number]

    def finish(self, config: Any) -> Any:
        """The config with each object in full where it comes first, and numbers only on what comes again.

        A user's get_config may have thrown away the part where the object stood in full.
        """
        met: dict[int, dict[str, Any]] = {}
        again: set[int] = set()
        config = self._ordered(config, met, again)
        for number, form in met.items():
            if number not in again:
                del form["shared"]
        return config

    def _ordered(self, value: Any, met: dict[int, dict[str, Any]], again: set[int]) -> Any:
        if isinstance(value, list):
            return [self._ordered(entry, met, again) for entry in value]
        if not isinstance(value, dict):
            return value
        number = value.get("shared")
        if not isinstance(number, int) or value.keys() not in ({"shared"}, {"class", "config", "shared"}):
            return {key: self._ordered(entry, met, again) for key, entry in value.items()}
        if number in met:
            again.add(number)
            return {"shared": number}
        met[number] = {}
        full = value if "class" in value else self._forms[number]
        met[number].update({key: self._ordered(entry, met, again) for key, entry in full.items()})
        return met[number]


@contextlib.contextmanager
def writing() -> Iterator[Writer]:
    """Inside it, objects that `serialize` meets are written once. Entered again inside, it goes on with the same."""
    current = _writer.get()
    if current is not None:
        yield current
        return
    token = _writer.set(Writer())
    try:
        yield _writer.get()  # type: ignore[misc]
    finally:
        _writer.reset(token)


def write(make: Callable[[], Any]) -> Any:
    """The config that `make` gives, with shared objects written once; finished by the outermost."""
    outermost = _writer.get() is None
    with writing() as writer:
        config = make()
    return writer.finish(config) if outermost else config


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Inside it, references of a config are found."""
    token = None if _reader.get() is not None else _reader.set({})
    try:
        yield
    finally:
        if token is not None:
            _reader.reset(token)


def writer() -> Writer | None:
    """The writer of the config that is being written, or None."""
    return _writer.get()


def keep(number: int, value: Any) -> Any:
    """Remembers an object that was read, for the references that follow."""
    found = _reader.get()
    if found is not None:
        found[number] = value
    return value


def find(number: int) -> Any:
    """The object that a reference means.

    Raises:
        ArgumentError: When it has not been read before.
    """
    found = _reader.get() or {}
    if number not in found:
        raise ArgumentError(f"The config refers to shared object {number}, which does not stand before it.")
    return found[number]
