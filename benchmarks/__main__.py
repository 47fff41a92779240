"""unifit beside hand-written loops, and other libraries beside both: the time of a step, of the start, and memory.

    python -m benchmarks                                   four workloads, three backends, the quick grid (minutes)
    python -m benchmarks --backends torch --workloads mlp,gpt --peers
    python -m benchmarks --full --json all.json --plot all.png            the whole grid (hours)

`make bench ARGS="..."` does the same in an environment with all the frameworks and libraries of the extra `bench`.

What is compared. For each backend, a loop as its experts write it: torch eager with fused AdamW (`--compiled`: also
through torch.compile), a jitted JAX update with donated state, a tf.function over variables (`--compiled`: also through
XLA). It has the same weights, batches, optimizer, precision, devices and accumulation as unifit, keeps the same running
sums of loss and accuracy on the device, reads them once an epoch, and shows nothing. unifit runs with its metrics,
History and the progress bar's line on. `--peers` adds Keras 3 on the same backend and, on torch, Lightning, Accelerate
and Hugging Face's Trainer, set up as their documentation says is fastest (each file cites it). They are measured on
one device and over arrays.

How. One process measures one setting: it compares the loss curves of all ways over 10 steps and fails where they
differ, warms each up by an epoch, and then lets their epochs take turns. The time of an epoch runs from before its
first step to after the reading of its figures: in unifit, Keras, Lightning and Trainer between the hooks of an epoch's
begin and end, of a fit of one epoch (`fit_call_ms` in the JSON is what a call of fit takes besides). A ratio is of two
epochs of one round; the table has the median of the ratios, and the least and the greatest. Starts (`--starts`) are
fresh processes, native and unifit in turns: the time from the process' start to the end of its first step, and the
greatest resident memory after 50 steps.

Everything runs on the CPU. Times are of this machine and of what else it does meanwhile: the JSON has its load.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import Any

from benchmarks import report
from benchmarks.processes import MeasuringError, run_import, run_measurement, run_start
from benchmarks.workloads import WORKLOADS, Setting

CHOICES: dict[str, tuple[Any, ...]] = {
    "backends": ("torch", "jax", "tensorflow"),
    "workloads": tuple(WORKLOADS),
    "devices": (1, 2),
    "accumulation": (1, 4),
    "precision": ("float32", "mixed_bfloat16"),
    "data": ("arrays", "loader"),
    "peers": ("keras", "lightning", "accelerate", "transformers"),
}
QUICK: dict[str, tuple[Any, ...]] = {
    "devices": (1,), "accumulation": (1,), "precision": ("float32",), "data": ("arrays",), "peers": (),
}  # fmt: skip


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("backends", "workloads", "precision", "data"):
        words = ",".join(CHOICES[name])
        parser.add_argument(f"--{name}", type=_some_of(name), help=f"some of {words}, with commas")
    for name in ("devices", "accumulation"):
        parser.add_argument(
            f"--{name}", type=lambda text: tuple(map(int, text.split(","))), help="numbers, with commas"
        )
    words = ",".join(CHOICES["peers"])
    parser.add_argument("--peers", nargs="?", type=_some_of("peers"), const=CHOICES["peers"], help=f"all, or: {words}")
    parser.add_argument("--compiled", action="store_true", help="native loops through torch.compile and XLA too")
    parser.add_argument("--full", action="store_true", help="everything that is not chosen by another argument")
    parser.add_argument("--pairs", type=int, default=5, help="rounds in which every way has a turn")
    parser.add_argument("--steps", type=int, help="updates of an epoch; a workload's own number unless given")
    parser.add_argument(
        "--starts", type=int, help="fresh processes of each kind, of the mlp unless --full: 5; 0 for none"
    )
    parser.add_argument("--threads", type=int, default=1, help="OpenMP's threads a process, which torch computes with")
    parser.add_argument("--json", help="a file for all figures")
    parser.add_argument("--plot", help="a PNG file for the ratios")
    given = parser.parse_args()
    for name, values in CHOICES.items():
        if getattr(given, name) is None:
            setattr(given, name, values if given.full else QUICK.get(name, values))
    given.compiled = given.compiled or given.full
    given.starts = 5 if given.starts is None else given.starts
    return given


def _some_of(name: str) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        unknown = sorted(set(words) - set(CHOICES[name]))
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(CHOICES[name])}")
        return words

    return parse


def grid(given: argparse.Namespace) -> list[Setting]:
    """All settings that were asked for."""
    names = ("backends", "workloads", "devices", "accumulation", "precision", "data")
    return [Setting(*values) for values in itertools.product(*(getattr(given, name) for name in names))]


def measured(setting: Setting, given: argparse.Namespace) -> dict[str, Any]:
    """One setting's figures, or why there are none."""
    peers = given.peers if setting.devices == 1 and setting.data == "arrays" else ()
    task = {
        "setting": setting.facts(),
        "pairs": given.pairs,
        "steps": given.steps or max(2, setting.work.steps // setting.accumulation),
        "peers": list(peers),
        "compiled": given.compiled,
    }
    before = os.getloadavg()[0]
    try:
        return run_measurement(task, given.threads) | {"load_before": before}
    except MeasuringError as error:
        return {"setting": setting.facts(), "error": str(error)}


def started(setting: Setting, given: argparse.Namespace) -> dict[str, Any]:
    """Fresh processes of a setting, native and unifit in turns. One of each comes first, and is not counted."""
    found: dict[str, Any] = {"setting": setting.facts(), "native": [], "unifit": []}
    try:
        for number in range(given.starts + 1):
            for way in ("native", "unifit"):
                run = run_start(way, setting, given.threads)
                if number:
                    found[way].append(run)
    except MeasuringError as error:
        found["error"] = str(error)
    return found


def imported(backend: str, given: argparse.Namespace) -> dict[str, Any]:
    """Fresh processes that import the framework alone, and unifit, in turns."""
    found: dict[str, Any] = {"backend": backend, "framework": [], "unifit": []}
    for number in range(given.starts + 1):
        for name, module in (("framework", backend), ("unifit", "unifit")):
            seconds = run_import(module, backend, given.threads)
            if number:
                found[name].append(seconds)
    return found


def main() -> int:
    given = arguments()
    results, starts, imports = [], [], []
    for setting in grid(given):
        results.append(measured(setting, given))
        print(report.step_table(results[-1:]).split("\n", 1)[1], flush=True)
    if given.starts:
        of_start = given.workloads if given.full else given.workloads[:1]
        for backend, workload in itertools.product(given.backends, of_start):
            starts.append(started(Setting(backend, workload), given))
        imports = [imported(backend, given) for backend in given.backends]
    facts = report.machine()
    print(f"\n{facts['processor']}, {facts['cores']} cores, Python {facts['python']}; {report.versions()}\n")
    print(report.step_table(results))
    if given.starts:
        print(f"\n{report.start_table(starts, imports)}")
    found = {"steps": results, "starts": starts, "imports": imports}
    if given.json:
        report.write_json(given.json, vars(given), found)
    if given.plot:
        report.write_plot(given.plot, results)
    failed = [entry["error"] for entry in (*results, *starts) if "error" in entry]
    for error in failed:
        print(f"\n{error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
