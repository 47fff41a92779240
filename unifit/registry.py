"""Names and JSON configs of objects: how a string or a config becomes an object, and an object a config.

No pickle, no eval, no import by dotted path: a config can only name what is registered, or what the caller hands over
as `custom_objects`. The JSON forms of values that JSON does not have:

    object    {"class": "unifit.loss>Huber", "config": {"delta": 2.0}}
    function  {"function": "unifit.activation>relu"}
    tuple     {"tuple": [...]}
    array     {"array": [[...]], "dtype": "float32", "shape": [2, 3]}
    inf, nan  {"float": "inf"}
    shared    {"class": ..., "config": ..., "shared": 3}, and {"shared": 3} from then on; see unifit.sharing
    dict      itself; {"dict": [[key, value], ...]} when a key is no string or the dict looks like one of these forms
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import numpy as np

import unifit.sharing as sharing
from unifit.errors import ArgumentError, UnknownNameError, unknown_name

T = TypeVar("T")

_by_name: dict[str, Any] = {}
_names: dict[Any, str] = {}

_SHARED_FORMS = ({"class", "config", "shared"}, {"shared"})
_FORMS = (
    {"class", "config"}, {"function"}, {"tuple"}, {"array", "dtype", "shape"}, {"float"}, {"dict"}, *_SHARED_FORMS
)  # fmt: skip
_MAX_ARRAY_ELEMENTS = 1 << 16


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
        if known is not None and known is not target and _origin(known) != _origin(target):
            raise ArgumentError(
                f"'{full_name}' is registered for {_origin(known)} already and was asked for by {_origin(target)}; "
                "give one of them another name or package."
            )
        _by_name[full_name] = target
        _names.setdefault(target, full_name)
        return target

    return decorate


class Registry:
    """The objects of one kind, by name: `mse`, `mean_squared_error` and `MeanSquaredError` are one name.

    Args:
        kind: What is registered, in the singular; it stands in messages and in the configs' names.

    Example:
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
            if self._objects.get(key, target) is not target and _origin(self._objects[key]) != _origin(target):
                raise ArgumentError(f"The {self.kind} name '{name}' is taken by {_origin(self._objects[key])} already.")
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
            found = _by_name.get(name)
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
            found = self._objects.get(_normalised(name)) or _find(name, custom_objects)
            return _from_config(found, identifier.get("config", {}), custom_objects)
        if inspect.isclass(identifier):
            return self._make(identifier)
        if callable(identifier) or isinstance(identifier, Configurable) or type(identifier) in _names:
            return identifier
        raise ArgumentError(
            f"Got {identifier!r} of type {type(identifier).__name__} for the {self.kind}; pass a name (one of "
            f"{', '.join(self.names())}), an object or a config."
        )

    def _make(self, cls: type) -> Any:
        needed = [p.name for p in _parameters(cls) if p.default is p.empty and not str(p).startswith("*")]
        if needed:
            raise ArgumentError(
                f"The {self.kind} '{cls.__name__}' cannot be given by name alone, it needs {', '.join(needed)}: "
                f"pass {cls.__name__}({', '.join(f'{name}=...' for name in needed)})."
            )
        return cls()


class _ConstructorArguments:
    """What a constructor was given. Opaque on purpose: no framework looks for variables in it."""

    def __init__(self, values: dict[str, Any]):
        self.values = values


class Configurable:
    """Mixin: remembers the arguments of its constructor, so that every subclass has a config without writing one.

    A subclass with a `get_config` of its own returns a dict of constructor arguments, with `**super().get_config()` or
    without; its values may be encoded or not. A `from_config(cls, config)` of its own gets them decoded.

    Example:
        >>> class Point(Configurable):
        ...     def __init__(self, x, y=0):
        ...         self.x, self.y = x, y
        >>> Point(1).get_config(), Point.from_config({"x": 1, "y": 2}).y
        ({'x': 1}, 2)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        instance = super().__new__(cls)
        signature = inspect.Signature(_parameters(cls))
        try:
            values = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:
            return instance  # __init__ says it better; copy and pickle make an empty instance on purpose
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                values.update(values.pop(parameter.name, {}))
        instance.__dict__["_config_arguments"] = _ConstructorArguments(values)
        return instance

    def get_config(self) -> dict[str, Any]:
        """The arguments that the constructor was given, as a JSON value.

        Raises:
            ArgumentError: When an argument has no JSON form: a lambda, a large array, an object without a config.
        """
        arguments = self.__dict__.get("_config_arguments")
        if arguments is None:
            raise ArgumentError(f"{type(self).__name__} was made without its constructor, so it has no config.")
        owner = type(self).__name__
        return {name: _encode(value, f"{owner}({name}=...)") for name, value in arguments.values.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """The inverse of `get_config`.

        Raises:
            ArgumentError: When the config has an argument that the constructor does not take.
        """
        return _construct(cls, {name: deserialize(value, custom_objects) for name, value in config.items()})


def serialize(value: Any) -> Any:
    """The JSON value of an object, a registered function or a plain value; the forms are in the module's docstring.

    A class need not be registered to be saved, but it must be, or be in `custom_objects`, to be loaded.

    Raises:
        ArgumentError: When the value, or one inside it, has no JSON form.
    """
    return _encode(value, type(value).__name__)


def deserialize(value: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The inverse of `serialize`. Objects that are decoded already are returned as they are.

    Args:
        value: What `serialize` returned, or what JSON made of it.
        custom_objects: Classes and functions by name, looked up before the registered ones.

    Raises:
        UnknownNameError: When a class or function is not registered and not in `custom_objects`.
        ArgumentError: When a config does not fit its class.
    """
    if isinstance(value, list):
        return [deserialize(entry, custom_objects) for entry in value]
    if not isinstance(value, dict):
        return value
    if not _is_form(value):
        return {key: deserialize(entry, custom_objects) for key, entry in value.items()}
    if "class" in value:
        made = _from_config(_find(value["class"], custom_objects), value["config"], custom_objects)
        return sharing.keep(value["shared"], made) if "shared" in value else made
    if "shared" in value:
        return sharing.find(value["shared"])
    if "function" in value:
        return _find(value["function"], custom_objects)
    if "tuple" in value:
        return tuple(deserialize(entry, custom_objects) for entry in value["tuple"])
    if "array" in value:
        return np.array(value["array"], value["dtype"]).reshape(value["shape"])
    if "float" in value:
        return float(value["float"])
    return {deserialize(key, custom_objects): deserialize(entry, custom_objects) for key, entry in value["dict"]}


def _encode(value: Any, where: str, keep_forms: bool = False) -> Any:
    """`keep_forms`: a dict that looks encoded is; for the values of a user's own get_config, which may be either."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return _encode(value.item(), where)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list):
        return [_encode(entry, where, keep_forms) for entry in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(entry, where, keep_forms) for entry in value]}
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, keep_forms)
    if isinstance(value, np.ndarray):
        return _encode_array(value, where)
    if isinstance(value, np.dtype) or (inspect.isclass(value) and issubclass(value, np.generic)):
        return np.dtype(value).name
    return _encode_object(value, where)


def _encode_mapping(value: Mapping[Any, Any], where: str, keep_forms: bool) -> dict[str, Any]:
    plain = {key: _encode(entry, where, keep_forms) for key, entry in value.items()}
    if all(isinstance(key, str) for key in plain) and (not _is_form(plain) or keep_forms):
        return plain
    return {"dict": [[_encode(key, where), entry] for key, entry in plain.items()]}


def _encode_array(value: np.ndarray, where: str) -> dict[str, Any]:
    if value.size > _MAX_ARRAY_ELEMENTS or value.dtype.kind not in "biuf" or not np.all(np.isfinite(value)):
        raise ArgumentError(
            f"{where} holds an array of shape {value.shape} and dtype {value.dtype}; a config takes at most "
            f"{_MAX_ARRAY_ELEMENTS} finite numbers. Make it a weight, or pass it to build or call."
        )
    return {"array": value.tolist(), "dtype": value.dtype.name, "shape": list(value.shape)}


def _encode_object(value: Any, where: str) -> dict[str, Any]:
    name = _registered_name(value)
    if name is not None:
        return {"function": name}
    writer, cls = sharing.writer(), type(value)
    if writer is not None and getattr(cls, "shared_in_configs", False):
        return writer.form(value, lambda: _encode_instance(value, where))
    return _encode_instance(value, where)


def _encode_instance(value: Any, where: str) -> dict[str, Any]:
    cls = type(value)
    if isinstance(value, Configurable) and cls.get_config is Configurable.get_config:
        return {"class": _registered_name(cls) or cls.__name__, "config": value.get_config()}
    if hasattr(cls, "get_config"):
        config = {key: _encode(entry, f"{cls.__name__}({key}=...)", True) for key, entry in value.get_config().items()}
        return {"class": _registered_name(cls) or cls.__name__, "config": config}
    if callable(value) and hasattr(value, "__name__"):
        who = "a function with a name of its own" if value.__name__ == "<lambda>" else f"'{value.__name__}'"
        raise ArgumentError(
            f"{where} holds {value!r}, which no loaded config could find again; decorate {who} with "
            "@unifit.register_serializable()."
        )
    raise ArgumentError(
        f"{where} holds a {cls.__name__}, which has no JSON form. Derive it from unifit.registry.Configurable, or give "
        "it get_config and from_config, and decorate it with @unifit.register_serializable()."
    )


def _from_config(found: Any, config: dict[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
    if not inspect.isclass(found) or not isinstance(config, dict):
        raise ArgumentError(f"Expected a class and a dict of its arguments, got {found!r} and {config!r}.")
    values = {name: deserialize(value, custom_objects) for name, value in config.items()}
    own = getattr(found, "from_config", None)
    if own is None or getattr(own, "__func__", None) is Configurable.from_config.__func__:  # type: ignore[attr-defined]
        return _construct(found, values)
    return own(values)


def _construct(cls: type[T], values: dict[str, Any]) -> T:
    parameters = _parameters(cls)
    named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    unknown = values.keys() - named
    if unknown and rest is None:
        raise unknown_name(f"argument of {cls.__name__}", sorted(unknown)[0], named)
    bound = inspect.Signature(parameters).bind_partial()
    bound.arguments.update({name: value for name, value in values.items() if name in named})
    if unknown:
        bound.arguments[str(rest)] = {name: values[name] for name in unknown}
    return cls(*bound.args, **bound.kwargs)


def _parameters(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]


def _find(name: str, custom_objects: Mapping[str, Any] | None) -> Any:
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


def _is_form(value: dict[Any, Any]) -> bool:
    return value.keys() in _FORMS


def _registered_name(value: Any) -> str | None:
    try:
        return _names.get(value)
    except TypeError:  # not hashable
        return None


def _origin(target: Any) -> str:
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', target)}"


def _normalised(name: str) -> str:
    return name.replace("_", "").lower()


def snake_case(name: str) -> str:
    """MeanSquaredError -> mean_squared_error, L1L2 -> l1_l2, Conv2DTranspose -> conv2d_transpose."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z](?!$|[A-Z]))|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
