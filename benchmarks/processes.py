"""Measuring processes: their environment, their time limit, and that nothing of them is left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.workloads import Setting

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 900


class MeasuringError(RuntimeError):
    """A measuring process failed or did not end."""


def environment(backend: str, devices: int, threads: int) -> dict[str, str]:
    """The environment of a process on the CPU. `threads` bounds OpenMP's, which torch computes with."""
    wanted = {
        "UNIFIT_BACKEND": backend,
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": str(threads),
    }
    if devices > 1 and backend != "torch":
        wanted["UNIFIT_CPU_DEVICES"] = str(devices)
    kept = {name: value for name, value in os.environ.items() if name != "UNIFIT_CPU_DEVICES"}
    return kept | wanted


def run_measurement(task: dict[str, Any], threads: int) -> dict[str, Any]:
    """What benchmarks.measure finds for a task.

    Raises:
        MeasuringError: With the end of what the process said.
    """
    setting = Setting(**task["setting"])
    command = [sys.executable, "-m"]
    if setting.backend == "torch" and setting.devices > 1:
        command += ["torch.distributed.run", f"--nproc-per-node={setting.devices}", "--standalone", "-m"]
    env = environment(setting.backend, setting.devices, threads)
    return _result([*command, "benchmarks.measure"], task, env)


def run_start(way: str, setting: Setting, threads: int) -> dict[str, float]:
    """Seconds from the start of a fresh process to the end of its first step, and its peak memory."""
    env = environment(setting.backend, setting.devices, threads)
    began = time.time()
    found = _result([sys.executable, "-m", "benchmarks.start", way], {"setting": setting.facts()}, env)
    return {"first_step_s": found["first_step"] - began, "peak_bytes": found["peak_bytes"]}


def run_import(module: str, backend: str, threads: int) -> float:
    """Seconds of a fresh process that imports a module and ends."""
    began = time.perf_counter()
    _run([sys.executable, "-c", f"import {module}, os; os._exit(0)"], environment(backend, 1, threads))
    return time.perf_counter() - began


def _result(command: list[str], task: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="unifit_bench_") as folder:
        given, result = Path(folder, "task.json"), Path(folder, "result.json")
        given.write_text(json.dumps(task))
        said = _run([*command, str(given), str(result)], env)
        if not result.exists():
            raise MeasuringError(f"{' '.join(command)} left no result. It said:\n{said[-2000:]}")
        return json.loads(result.read_text())


def _run(command: list[str], env: dict[str, str]) -> str:
    process = subprocess.Popen(
        command, env=env, cwd=ROOT, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise MeasuringError(f"{' '.join(command)} was not done after {TIMEOUT_S} s.") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it started
    if process.returncode:
        raise MeasuringError(f"{' '.join(command)} ended with {process.returncode}. It said:\n{said[-2000:]}")
    return said
