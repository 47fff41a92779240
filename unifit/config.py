"""JSON configs of objects: an object becomes a config, and a config the object again.

A config can only name what is registered, or what the caller hands over as `custom_objects`; see unifit.names.
The JSON forms of values that JSON does not have:

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
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import numpy as np

import unifit.sharing as sharing
from unifit.errors import ArgumentError, unknown_name
from unifit.names import look_up, registered_name

T = TypeVar("T")

_SHARED_FORMS = ({"class", "config", "shared"}, {"shared"})
_FORMS = (
    {"class", "config"}, {"function"}, {"tuple"}, {"array", "dtype", "shape"}, {"float"}, {"dict"}, *_SHARED_FORMS
)  # fmt: skip
_MAX_ARRAY_ELEMENTS = 1 << 16


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
        signature = inspect.Signature(constructor_parameters(cls))
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
        made = construct_from_config(look_up(value["class"], custom_objects), value["config"], custom_objects)
        return sharing.keep(value["shared"], made) if "shared" in value else made
    if "shared" in value:
        return sharing.find(value["shared"])
    if "function" in value:
        return look_up(value["function"], custom_objects)
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
    name = registered_name(value)
    if name is not None:
        return {"function": name}
    writer, cls = sharing.writer(), type(value)
    if writer is not None and getattr(cls, "shared_in_configs", False):
        return writer.form(value, lambda: _encode_instance(value, where))
    return _encode_instance(value, where)


def _encode_instance(value: Any, where: str) -> dict[str, Any]:
    cls = type(value)
    if isinstance(value, Configurable) and cls.get_config is Configurable.get_config:
        return {"class": registered_name(cls) or cls.__name__, "config": value.get_config()}
    if hasattr(cls, "get_config"):
        config = {key: _encode(entry, f"{cls.__name__}({key}=...)", True) for key, entry in value.get_config().items()}
        return {"class": registered_name(cls) or cls.__name__, "config": config}
    if callable(value) and hasattr(value, "__name__"):
        who = "a function with a name of its own" if value.__name__ == "<lambda>" else f"'{value.__name__}'"
        raise ArgumentError(
            f"{where} holds {value!r}, which no loaded config could find again; decorate {who} with "
            "@unifit.register_serializable()."
        )
    raise ArgumentError(
        f"{where} holds a {cls.__name__}, which has no JSON form. Derive it from unifit.config.Configurable, or give "
        "it get_config and from_config, and decorate it with @unifit.register_serializable()."
    )


def construct_from_config(found: Any, config: dict[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
    """An object of the class `found` from its encoded config, by the class' own `from_config` where it has one."""
    if not inspect.isclass(found) or not isinstance(config, dict):
        raise ArgumentError(f"Expected a class and a dict of its arguments, got {found!r} and {config!r}.")
    values = {name: deserialize(value, custom_objects) for name, value in config.items()}
    own = getattr(found, "from_config", None)
    if own is None or getattr(own, "__func__", None) is Configurable.from_config.__func__:  # type: ignore[attr-defined]
        return _construct(found, values)
    return own(values)


def _construct(cls: type[T], values: dict[str, Any]) -> T:
    parameters = constructor_parameters(cls)
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


def constructor_parameters(cls: type) -> list[inspect.Parameter]:
    """The parameters of `__init__` without self."""
    return list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]


def _is_form(value: dict[Any, Any]) -> bool:
    return value.keys() in _FORMS
