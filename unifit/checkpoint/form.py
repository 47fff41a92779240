"""What a `state.json` needs to hold, so that nothing later stumbles over a key that is not there."""

from __future__ import annotations

from typing import Any

import unifit.checkpoint.format as format
from unifit.errors import CheckpointError

_WHOLE, _FLAG, _TEXT, _TABLE, _LIST = "a whole number of at least 0", "true or false", "a string", "an object", "a list"

_KINDS: dict[str, str] = {
    **dict.fromkeys(("unifit", "backend"), _TEXT),
    **dict.fromkeys(("fit", "step", "iterations", "epoch", "epochs", "batches_done", "steps_done"), _WHOLE),
    **dict.fromkeys(("devices", "processes", "seed", "accumulation", "padded", "first_padded"), _WHOLE),
    **dict.fromkeys(("libraries", "data", "optimizer", "callbacks", "weights", "arrays", "files"), _TABLE),
    **dict.fromkeys(("microbatch_sizes", "frozen"), _LIST),
    "finished": _FLAG,
}

_PARTS: dict[str, tuple[str, ...]] = {
    "position": ("epoch", "batch"),
    "loss_scale": ("scale", "good", "skipped", "in_a_row"),
    "ema": ("updates",),
    "sums": ("steps", "fold_every"),
    "score": ("monitor", "value"),
}
"""Keys that are null, or an object with these keys at least."""

_ENTRIES = {"weights": ("layer", "name", "shape", "dtype", "trainable"), "files": ("bytes", "sha256")}
"""Keys whose values' values are objects with these keys at least."""


def check_form(state: dict[str, Any], where: str) -> None:
    """Sees that a state has all keys of the format page, each of its kind; unknown ones are of no account.

    Raises:
        CheckpointError: When it has not, or names a file that lies elsewhere.
    """
    for key, kind in _KINDS.items():
        if key not in state or not _is(state[key], kind):
            raise _no_state(where, f"'{key}' is {_shown(state, key)}, and needs to be {kind}")
    for key, names in _PARTS.items():
        if key not in state or not (state[key] is None or _has(state[key], names)):
            raise _no_state(where, f"'{key}' is {_shown(state, key)}, and needs to be null or an object with {names}")
    if not _has(state["optimizer"], ("rule", "learning_rate", "initial_learning_rate")):
        raise _no_state(where, f"'optimizer' is {_shown(state, 'optimizer')}")
    for key, names in _ENTRIES.items():
        for name, entry in state[key].items():
            if not _has(entry, names):
                raise _no_state(where, f"'{key}' has for {name!r} {entry!r}, and needs an object with {names}")
    for name in state["files"]:
        format.check_file_name(name, where)
    for group, place in state["arrays"].items():
        if not isinstance(place, dict) or not all(isinstance(file, str) for file in place.values()):
            raise _no_state(where, f"'arrays' has for {group!r} no object of file names")
        unlisted = [file for file in place.values() if file not in state["files"]]
        if unlisted:
            raise CheckpointError(f"{where} places an array in {unlisted[0]!r}, which it does not list.")


def _is(value: Any, kind: str) -> bool:
    if kind == _WHOLE:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, {_FLAG: bool, _TEXT: str, _TABLE: dict, _LIST: list}[kind])


def _has(value: Any, names: tuple[str, ...]) -> bool:
    return isinstance(value, dict) and set(names) <= value.keys()


def _shown(state: dict[str, Any], key: str) -> str:
    return repr(state[key])[:80] if key in state else "missing"


def _no_state(where: str, what: str) -> CheckpointError:
    return CheckpointError(f"{where} is damaged: {what}. See docs/reference/checkpoint-format.md.")
