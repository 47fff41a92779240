"""One fresh process that trains a few steps: when its first step was done, and the most memory that it had.

Usage: python -m benchmarks.start native|unifit TASK.json RESULT.json

The process that starts it knows when that was.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.workloads import Setting, Way

STEPS = 50


def prepared(way: str, setting: Setting) -> Way:
    """unifit or the native loop. The latter's process imports no unifit, the former's no native loop."""
    x, y = setting.data_of(STEPS)
    if way == "unifit":
        from benchmarks.unifit_run import UnifitRun

        return UnifitRun(setting, x, y)
    loop: Any = importlib.import_module(f"benchmarks.native_{setting.backend}").LOOP
    return loop(setting, setting.work.weights(), x, y)


def main() -> None:
    way, task, result = sys.argv[1:]
    run = prepared(way, Setting(**json.loads(Path(task).read_text())["setting"]))
    run.train(0, 1)  # its figures were read: the step is done
    first_step = time.time()
    run.train(1, STEPS - 1)
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path(result).write_text(json.dumps({"first_step": first_step, "peak_bytes": 1024 * kibibytes}))


if __name__ == "__main__":
    main()
