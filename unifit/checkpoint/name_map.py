"""Names of arrays in another library's files: a user's dict or function from names to names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from unifit.errors import ArgumentError

Names = Mapping[str, str | None] | Callable[[str], str | None] | None
"""What users give: a dict, a function, or None, which leaves names as they are. What becomes None is left out."""


class NameMap:
    """The function that `names` stands for.

    A dict's keys are whole names, or names of layers: {"body": "encoder"} makes "body.0.kernel" "encoder.0.kernel". The
    longest one that fits counts; a name without one stays as it is.

    Args:
        names: What the user gave.

    Raises:
        ArgumentError: When it is no dict of strings, and no function.
    """

    def __init__(self, names: Names):
        table = isinstance(names, Mapping) and all(
            isinstance(key, str) and (value is None or isinstance(value, str)) for key, value in names.items()
        )
        if not (names is None or table or (callable(names) and not isinstance(names, Mapping))):
            raise ArgumentError(
                f"names={names!r}: expected a dict from names to names (None leaves one out), or a function of a name."
            )
        self._names = names
        self._used: set[str] = set()

    def __call__(self, *spellings: str) -> str | None:
        """The name that something gets whose name so far is any of `spellings`; the last one where none is mapped.

        A function is asked for the first spelling alone.
        """
        if self._names is None:
            return spellings[-1]
        if not isinstance(self._names, Mapping):
            found = self._names(spellings[0])
            if found is not None and not isinstance(found, str):
                raise ArgumentError(f"names({spellings[0]!r}) returned {found!r}; expected a name, or None.")
            return found
        for name in spellings:
            if name in self._names:
                self._used.add(name)
                return self._names[name]
        for name in spellings:
            head = name
            while head:
                head, _, _ = head.rpartition(".")
                if head in self._names:
                    self._used.add(head)
                    return self._joined(self._names[head], spellings[-1], head)
        return spellings[-1]

    def check_all_used(self, known: Iterable[str]) -> None:
        """Refuses keys of a dict that no name has had.

        Raises:
            ArgumentError: When there are any.
        """
        unused = sorted(set(self._names) - self._used) if isinstance(self._names, Mapping) else []
        if unused:
            listed = list(known)
            shown = ", ".join(map(repr, listed[:20])) + (", ..." if len(listed) > 20 else "")
            raise ArgumentError(
                f"names maps {', '.join(map(repr, unused))}, and there is no such name. Known: {shown}."
            )

    @staticmethod
    def _joined(new: str | None, name: str, head: str) -> str | None:
        if new is None:
            return None
        rest = name.removeprefix(f"{head}.")
        return f"{new}.{rest}" if new else rest


def require_distinct(names: Mapping[str, Any]) -> None:
    """Refuses to give two things one name.

    Args:
        names: From what is named to its name.

    Raises:
        ArgumentError: When two have one.
    """
    owners: dict[Any, str] = {}
    for owner, name in names.items():
        if owners.setdefault(name, owner) != owner:
            raise ArgumentError(f"names gives '{owners[name]}' and '{owner}' one name: {name!r}.")
