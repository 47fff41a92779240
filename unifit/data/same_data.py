"""Whether the data of a run that goes on is the data of the run that was interrupted."""

from __future__ import annotations

from typing import Any

from unifit.errors import CheckpointError
from unifit.processes import warn

DECISIVE = (
    "kind",
    "loader",
    "rows",
    "items",
    "num_batches",
    "batch_size",
    "shuffle",
    "drop_last",
    "boundaries",
    "steps_per_epoch",
)
"""The facts that a position in the middle of an epoch has its meaning from."""

_IN_WORDS = {
    "kind": "kind of source",
    "loader": "kind of loader",
    "rows": "number of rows",
    "items": "number of batches",
    "num_batches": "number of batches",
    "boundaries": "list of LengthBuckets' boundaries",
    "arrays": "shape, dtype or values of the arrays",
}


def require_same_data(saved: dict[str, Any], now: dict[str, Any], middle: bool, where: str) -> None:
    """Compares the facts of the data (Feed.facts): one warning for what differs.

    Args:
        saved: Those of the run that was interrupted.
        now: Those of the run that goes on.
        middle: Whether it goes on in the middle of an epoch.
        where: The checkpoint's path.

    Raises:
        CheckpointError: In the middle of an epoch, when a position would mean other batches.
    """
    differing = [name for name in sorted(saved.keys() | now.keys()) if saved.get(name) != now.get(name)]
    decisive = [name for name in DECISIVE if name in differing]
    if middle and decisive:
        raise CheckpointError(
            f"'{where}' lies in the middle of an epoch, and the rest of it would be of other batches: "
            f"{_listed(decisive, saved, now)}. Go on with what was there; or from a checkpoint at an epoch's end; or "
            "start afresh with another checkpoint_dir."
        )
    if differing:
        warn(
            f"The training data is not what it was when '{where}' was written: {_listed(differing, saved, now)}. "
            "Training goes on with what is there now.",
            stacklevel=2,
        )


def _listed(names: list[str], saved: dict[str, Any], now: dict[str, Any]) -> str:
    return "; ".join(_difference(name, saved.get(name), now.get(name)) for name in names)


def _difference(name: str, before: Any, after: Any) -> str:
    words = _IN_WORDS.get(name, name)
    if name == "arrays":
        return f"the {words} differ"
    return f"the {words} was {before!r} and is {after!r}"
