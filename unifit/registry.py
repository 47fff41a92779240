"""The objects of one kind, such as all losses: by name, by config, or as they are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from unifit.config import Configurable, construct_from_config, constructor_parameters
from unifit.errors import ArgumentError, unknown_name
from unifit.names import look_up, origin, register_serializable, registered, registered_name, snake_case


class Registry:
    """The objects of one kind, by name: `mse`, `mean_squared_error` and `MeanSquaredError` are one name.

    Args:
        kind: What is registered, in the singular; it stands in messages and in the configs' names.

    Example:
        >>> from unifit.config import serialize
        >>> shapes = Registry("shape")
        >>> @shapes.register("ball")
        ... class Sphere(Configurable):
        ...     pass
        >>> type(shapes.get("ball")).__name__, serialize(shapes.get("sphere"))
        ('Sphere', {'class': 'unifit.shape>Sphere', 'config': {}})
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._objects: dict[str, Any] = {}
        self._shown: dict[str, str] = {}

    def register(self, target: Any, *aliases: str) -> Any:
        """Adds a class or function: `@register`, `@register("alias", ...)` or `register(target, "alias", ...)`.

        Raises:
            ArgumentError: When a name belongs to another object of this kind already.
        """
        if isinstance(target, str):
            return lambda decorated: self.register(decorated, target, *aliases)
        register_serializable(package=f"unifit.{self.kind.replace(' ', '_')}")(target)
        for name in (target.__name__, *aliases):
            key = _normalised(name)
            if self._objects.get(key, target) is not target and origin(self._objects[key]) != origin(target):
                raise ArgumentError(f"The {self.kind} name '{name}' is taken by {origin(self._objects[key])} already.")
            self._objects[key] = target
            self._shown[key] = snake_case(target.__name__) if name == target.__name__ else name
        return target

    def names(self) -> list[str]:
        """The names that `get` takes, in snake case, sorted."""
        return sorted(self._shown.values())

    def find(self, name: str) -> Any:
        """The registered class or function itself.

        Raises:
            UnknownNameError: With the nearest names, when there is none of that name.
        """
        found = self._objects.get(_normalised(name))
        if found is None:
            found = registered(name)
        if found is None:
            raise unknown_name(self.kind, name, self.names())
        return found

    def get(self, identifier: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The object that the identifier means.

        Args:
            identifier: A name; a config `{"class": ..., "config": {...}}`; a class, which is called without arguments;
                an object or function, which is returned as it is; None, which stays None.
            custom_objects: Names for a config's classes that are not registered.

        Raises:
            UnknownNameError: When no object has that name.
            ArgumentError: When the identifier is none of these, or its class needs arguments.
        """
        if identifier is None:
            return None
        if isinstance(identifier, str):
            identifier = self.find(identifier)
        elif isinstance(identifier, dict):
            name, extra = identifier.get("class"), identifier.keys() - {"class", "config"}
            if not isinstance(name, str) or extra:
                raise ArgumentError(
                    f"The config of a {self.kind} has the keys {sorted(map(str, identifier))}; "
                    "expected {'class': name, 'config': {arguments}}."
                )
            found = self._objects.get(_normalised(name)) or look_up(name, custom_objects)
            return construct_from_config(found, identifier.get("config", {}), custom_objects)
        if inspect.isclass(identifier):
            return self._make(identifier)
        if callable(identifier) or isinstance(identifier, Configurable) or registered_name(type(identifier)):
            return identifier
        raise ArgumentError(
            f"Got {identifier!r} of type {type(identifier).__name__} for the {self.kind}; pass a name (one of "
            f"{', '.join(self.names())}), an object or a config."
        )

    def _make(self, cls: type) -> Any:
        needed = [p.name for p in constructor_parameters(cls) if p.default is p.empty and not str(p).startswith("*")]
        if needed:
            raise ArgumentError(
                f"The {self.kind} '{cls.__name__}' cannot be given by name alone, it needs {', '.join(needed)}: "
                f"pass {cls.__name__}({', '.join(f'{name}=...' for name in needed)})."
            )
        return cls()


def _normalised(name: str) -> str:
    return name.replace("_", "").lower()
