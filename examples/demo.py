"""Train examples/digits.py on each backend in turn and print one row per backend.

Usage: python examples/demo.py [--devices N] [BACKEND ...]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("digits.py")
COLUMNS = ("backend", "devices", "loss", "val_accuracy", "seconds")
HEADINGS = ("backend", "devices", "final loss", "validation accuracy", "seconds")
STDERR_TAIL_LINES = 20
TERMINATION_GRACE_S = 10.0


class RunFailed(Exception):
    """A backend's run that ended without a result; the text says how."""


def train(backend: str, num_devices: int, time_limit_s: float) -> dict[str, object]:
    """Runs the example on virtual CPU devices and returns the JSON line that it prints last."""
    environment = os.environ | {
        "UNIFIT_BACKEND": backend,
        "UNIFIT_CPU_DEVICES": str(num_devices),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no result after {time_limit_s:.0f} s") from None
    finally:
        stop(process)
    tail = "\n".join(errors.splitlines()[-STDERR_TAIL_LINES:])
    if process.returncode != 0:
        raise RunFailed(f"exit status {process.returncode}\n{tail}")
    try:
        row = json.loads(output.rstrip().rpartition("\n")[2])
        found = row["devices"]
        missing = [column for column in COLUMNS if column not in row]
    except (ValueError, TypeError, KeyError):
        raise RunFailed(f"the last line of its output is no result: {output[-200:]!r}\n{tail}") from None
    if missing or found != num_devices:
        raise RunFailed(f"expected {COLUMNS} on {num_devices} devices, got {row}\n{tail}")
    return row


def stop(process: subprocess.Popen) -> None:
    """Ends a run that is still going: a launcher is asked first, so that it can end its own workers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.communicate(timeout=TERMINATION_GRACE_S)
            except subprocess.TimeoutExpired:
                continue


def table(rows: list[dict[str, object]]) -> str:
    """The rows under their headings, as wide as they need."""
    cells = [HEADINGS]
    for row in rows:
        cells.append(
            (
                str(row["backend"]),
                str(row["devices"]),
                f"{row['loss']:.6f}",
                f"{row['val_accuracy']:.4f}",
                f"{row['seconds']:.1f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help="default: jax")
    parser.add_argument("--devices", type=int, default=2, help="virtual CPU devices each; default: %(default)s")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds each; default: %(default)s")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rows, num_failed = [], 0
    for backend in options.backends or ["jax"]:
        print(f"training {SCRIPT.name} on {backend}, {options.devices} devices ...", flush=True)
        try:
            rows.append(train(backend, options.devices, options.time_limit))
        except RunFailed as error:
            num_failed += 1
            print(f"{backend} failed: {error}", file=sys.stderr, flush=True)
    if rows:
        print("\n" + table(rows))
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
