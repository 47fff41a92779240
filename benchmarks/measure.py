"""One setting, measured in one process (torch on several devices: in each process of a job).

Usage: python -m benchmarks.measure TASK.json RESULT.json

Every way of training (unifit, the native loops, other libraries) starts from the same weights and sees the same batches
in the same order. First their loss curves are compared: figures of different work would be worthless. Then, after a
warm-up of each, epochs take turns: native, unifit, ..., native, unifit, ... A ratio is always one of two epochs of one
round, so that what slows the machine for a while slows both.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.workloads import Setting, Way

COMPARED_STEPS = 10
TOLERANCE = {"float32": 1e-4, "mixed_bfloat16": 3e-2}
PEER_TOLERANCE = {"float32": 5e-3, "mixed_bfloat16": 5e-2}
"""Relative differences of a step's loss. Libraries that put epsilon elsewhere are a little off."""
UNSTABLE = {"cnn": 10.0}
"""Tolerances are so many times larger where rounding grows tenfold in a step: through the batch's own statistics, and
AdamW's first updates, whose size does not depend on the size of the gradient."""


class DifferentWorkError(RuntimeError):
    """Two ways of training that should do the same have different loss curves."""


def curves(ways: list[Way]) -> dict[str, list[float]]:
    """The loss of each of the first steps, by way."""
    return {way.name: [way.train(step, 1).loss for step in range(COMPARED_STEPS)] for way in ways}


def greatest_differences(found: dict[str, list[float]]) -> dict[str, float]:
    """How far each curve is from unifit's, relatively, at the most."""
    ours = found["unifit"]
    return {
        name: max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(curve, ours, strict=True))
        for name, curve in found.items()
    }


def require_same_work(differences: dict[str, float], native: set[str], setting: Setting) -> None:
    """
    Raises:
        DifferentWorkError: Where a curve is further from unifit's than rounding explains.
    """
    for name, difference in differences.items():
        limit = (TOLERANCE if name in native else PEER_TOLERANCE)[setting.precision] * UNSTABLE.get(
            setting.workload, 1.0
        )
        if not difference <= limit:
            raise DifferentWorkError(
                f"The losses of '{name}' differ from unifit's by {difference:.1e} (relative) within "
                f"{COMPARED_STEPS} steps; {limit:.0e} is allowed. They do not train the same model in the same way."
            )


def rounds(ways: list[Way], pairs: int, steps: int) -> dict[str, list[float]]:
    """Seconds of each round's epoch, by way; every way has its turn in every round."""
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(pairs):
        for way in ways:
            seconds[way.name].append(way.train(0, steps).seconds)
    return seconds


def measure(setting: Setting, pairs: int, steps: int, peers: list[str], compiled: bool) -> dict[str, Any]:
    """All figures of a setting."""
    from benchmarks.unifit_run import UnifitRun

    x, y = setting.data_of(max(steps, COMPARED_STEPS))
    unifit = UnifitRun(setting, x, y)
    weights = unifit.weights()
    # First: on several devices it is unifit that sets them up.
    first_curve = curves([unifit])
    native = importlib.import_module(f"benchmarks.native_{setting.backend}").make(setting, weights, x, y, compiled)
    others: list[Way] = list(native)
    for name in peers:
        others += importlib.import_module(f"benchmarks.peer_{name}").make(setting, weights, x, y)
    differences = greatest_differences(first_curve | curves(others))
    require_same_work(differences, {way.name for way in native} | {"unifit"}, setting)
    ways: list[Way] = [native[0], unifit, *others[1:]]
    for way in ways:
        way.train(0, steps)
    seconds = rounds(ways, pairs, steps)
    return {
        "setting": setting.facts(),
        "steps": steps,
        "ms_per_step": {name: [1e3 * value / steps for value in values] for name, values in seconds.items()},
        "ratio_to_native": {name: ratios(values, seconds["native"]) for name, values in seconds.items()},
        "ratio_to_unifit": {name: ratios(values, seconds["unifit"]) for name, values in seconds.items()},
        "loss_differences": differences,
        "fit_call_ms": 1e3 * unifit.call_seconds,
        "feed": getattr(native[0], "feed", None),
    }


def ratios(values: list[float], reference: list[float]) -> dict[str, float]:
    """Median, least and greatest of the ratios of each round."""
    found = [a / b for a, b in zip(values, reference, strict=True)]
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


def main() -> None:
    task, result = (Path(argument) for argument in sys.argv[1:])
    given = json.loads(task.read_text())
    found = measure(Setting(**given["setting"]), given["pairs"], given["steps"], given["peers"], given["compiled"])
    if os.environ.get("RANK", "0") == "0":
        result.write_text(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
