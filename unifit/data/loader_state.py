"""States of loaders as bytes: JSON, in which what JSON lacks is tagged. Unlike a pickle, nothing in it is ever run."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np

from unifit.data.frameworks import data_module, module_of

_TAG = "__kind__"


def encode(state: Any) -> bytes:
    """A state as bytes.

    Raises:
        TypeError: When there is something in it that has no such form; the message names it.
    """
    return json.dumps(_plain(state), allow_nan=False, separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    """The inverse of `encode`: values of the same types."""
    return _restored(json.loads(data))


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_TAG: kind, "value": value}


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind in (bytes, bytearray):
        return _tagged(kind.__name__, base64.b64encode(value).decode())
    if kind is list:
        return [_plain(entry) for entry in value]
    if kind is tuple:
        return _tagged("tuple", [_plain(entry) for entry in value])
    if kind in (set, frozenset):
        return _tagged(kind.__name__, sorted((_plain(entry) for entry in value), key=json.dumps))
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _plain(entry) for key, entry in value.items()}
        return _tagged("dict", [[_plain(key), _plain(entry)] for key, entry in value.items()])
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        return _tagged("array" if isinstance(value, np.ndarray) else "scalar", _array(np.asarray(value)))
    return _tensor(value)


def _array(array: np.ndarray) -> list[Any]:
    return [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _tensor(value: Any) -> Any:
    module = data_module(value)
    array = None if module is None else module.to_numpy(value)
    # A tensor that does not come back as it was, such as torch's bfloat16, is none.
    if array is None or array.dtype.kind not in "biufc" or str(module.from_numpy(array).dtype) != str(value.dtype):
        raise TypeError(f"{value!r:.200} of type {type(value).__name__}")
    return _tagged("tensor", [module.__name__.partition(".")[0], *_array(array)])


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _restored(entry) for key, entry in value.items()}
    kind, content = value[_TAG], value["value"]
    if kind == "float":
        return float(content)
    if kind in ("bytes", "bytearray"):
        raw = base64.b64decode(content)
        return raw if kind == "bytes" else bytearray(raw)
    if kind in ("tuple", "set", "frozenset"):
        entries = [_restored(entry) for entry in content]
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](entries)
    if kind == "dict":
        return {_restored(key): _restored(entry) for key, entry in content}
    if kind == "tensor":
        return module_of(content[0]).from_numpy(_as_array(content[1:]))
    array = _as_array(content)
    return array if kind == "array" else array[()]


def _as_array(content: list[Any]) -> np.ndarray:
    dtype, shape, data = content
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
