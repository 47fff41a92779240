"""Names of classes and functions: what a config writes down, and what loading one may find.

No pickle, no eval, no import by dotted path: only what is registered, or what the caller hands over as
`custom_objects`, has a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from unifit.errors import ArgumentError, UnknownNameError

T = TypeVar("T")

_by_name: dict[str, Any] = {}
_names: dict[Any, str] = {}


def register_serializable(package: str = "Custom", name: str | None = None) -> Callable[[T], T]:
    """Makes a class or function savable and loadable by name, as `keras.saving.register_keras_serializable` does.

    Args:
        package: Group of names, so that two libraries can both have a `Block`.
        name: Name in the group; the object's own name when None.

    Returns:
        A decorator that returns the class or function unchanged.

    Raises:
        ArgumentError: When the name belongs to another object already.

    Example:
        >>> from unifit.config import Configurable, serialize
        >>> @register_serializable(package="docs")
        ... class Scale(Configurable):
        ...     def __init__(self, factor):
        ...         self.factor = factor
        >>> serialize(Scale(2.0))
        {'class': 'docs>Scale', 'config': {'factor': 2.0}}
    """

    def decorate(target: T) -> T:
        own_name = getattr(target, "__name__", None)
        if name is None and (own_name is None or own_name == "<lambda>"):
            raise ArgumentError(f"{target!r} has no name of its own; pass register_serializable(name=...).")
        full_name = f"{package}>{name or own_name}"
        known = _by_name.get(full_name)
        # The same definition again (a notebook cell, a reload) replaces the old one.
        if known is not None and known is not target and origin(known) != origin(target):
            raise ArgumentError(
                f"'{full_name}' is registered for {origin(known)} already and was asked for by {origin(target)}; "
                "give one of them another name or package."
            )
        _by_name[full_name] = target
        _names.setdefault(target, full_name)
        return target

    return decorate


def registered(full_name: str) -> Any:
    """What was registered under the full name, or None."""
    return _by_name.get(full_name)


def registered_name(value: Any) -> str | None:
    """The full name under which the class or function was registered, or None."""
    try:
        return _names.get(value)
    except TypeError:  # not hashable
        return None


def look_up(name: str, custom_objects: Mapping[str, Any] | None) -> Any:
    """The class or function of that name, by preference from `custom_objects`.

    Raises:
        UnknownNameError: When there is none, or more than one.
    """
    bare = name.rpartition(">")[2]
    for given in (name, bare):
        if custom_objects and given in custom_objects:
            return custom_objects[given]
    if name in _by_name:
        return _by_name[name]
    # A class that was saved before it was registered has its bare name in the file.
    same = [full for full in _by_name if full.rpartition(">")[2] == name]
    if len(same) == 1:
        return _by_name[same[0]]
    if same:
        raise UnknownNameError(f"'{name}' may mean {', '.join(sorted(same))}; write the full name.")
    raise UnknownNameError(
        f"A config names '{name}', which is not registered in this process. Decorate its definition with "
        f"@unifit.register_serializable() and import it first, or pass custom_objects={{'{bare}': {bare}}}."
    )


def origin(target: Any) -> str:
    """Where the class or function was defined, for messages and to tell definitions apart."""
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', target)}"


def snake_case(name: str) -> str:
    """MeanSquaredError -> mean_squared_error, L1L2 -> l1_l2, Conv2DTranspose -> conv2d_transpose."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z](?!$|[A-Z]))|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
