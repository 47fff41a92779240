"""The test command: format, lint and types, then the tests once per backend, each in a process of its own.

Usage: python tests/run.py [--backends jax,torch] [--jobs N] [--no-lint | --lint-only] [--time-limit MINUTES] [-- ARGS]

What follows `--` goes to pytest. The tests under tests/unit need no backend in particular and run with the first one
only. The last line is "N passed, N failed, N skipped" over all backends; a run that ends without a report counts as
one failed test. The exit status is 0 only when every stage passed and at least one test ran; a backend may be without
tests only where pytest's arguments select some. Whatever way it ends, it leaves no process running.
"""

import argparse
import collections
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("torch", "jax", "tensorflow")

# The tests are about numbers, on virtual CPU devices: one thread each, no accelerator, no start-up chatter.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
}

# Every process started on behalf of a test session inherits this variable, even one whose parent is gone or that has
# made itself a process group: it is how the left-overs of a session are told from everything else.
SESSION_VARIABLE = "UNIFIT_TEST_SESSION"

NO_TESTS_COLLECTED = 5  # pytest's exit status
TERMINATION_GRACE_S = 10.0
HELPER_GRACE_S = 2.0
POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class Process:
    """A running process, as /proc shows it."""

    pid: int
    parent: int
    session: str | None
    command: str


@dataclasses.dataclass(frozen=True)
class Counts:
    """Tests by outcome."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclasses.dataclass(frozen=True)
class Stage:
    """One command; `report` is the JUnit file that it writes if it is a pytest run."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    report: Path | None = None
    may_be_empty: bool = False


@dataclasses.dataclass(frozen=True)
class Running:
    """A stage in flight."""

    stage: Stage
    process: subprocess.Popen
    started: float


@dataclasses.dataclass(frozen=True)
class Result:
    """How a stage ended."""

    name: str
    seconds: float
    outcome: str
    ok: bool
    counts: Counts


def processes() -> dict[int, Process]:
    """The running processes that this user may read, by id. Empty where there is no /proc."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        if state not in "ZX":  # ended, but not yet reaped
            session = next((v.partition("=")[2] for v in variables if v.startswith(f"{SESSION_VARIABLE}=")), None)
            pid = int(folder.name)
            found[pid] = Process(pid, int(parent), session, command)
    return found


def of_session(token: str) -> list[Process]:
    """The running processes of one session, without this one."""
    return [p for p in processes().values() if p.session == token and p.pid != os.getpid()]


def kill(victims: list[Process]) -> None:
    """Kills processes, some of which may be gone already."""
    for process in victims:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def clean_environment() -> dict[str, str]:
    """The environment less the caller's unifit settings, which would change what is tested."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNIFIT_")}
    return kept | CPU_ENVIRONMENT | {SESSION_VARIABLE: uuid.uuid4().hex}


def lint_stages(folder: Path) -> list[Stage]:
    """The checks that run no test."""
    commands = {
        "ruff format": ("ruff", "format", "--check", "--diff", "--quiet"),
        "ruff check": ("ruff", "check", "--quiet"),
        "mypy": ("mypy", "--no-error-summary"),
    }
    return [
        Stage(name, (sys.executable, "-m", *command), clean_environment(), folder / f"{name.replace(' ', '-')}.log")
        for name, command in commands.items()
    ]


def test_stages(folder: Path, backends: list[str], pytest_arguments: list[str]) -> list[Stage]:
    """One pytest run per backend."""
    stages = []
    for backend in backends:
        report = folder / f"{backend}.xml"
        command = [sys.executable, "-m", "pytest", "--color=no", "--durations=5", "--durations-min=1"]
        command += [f"--junitxml={report}", "-o", f"cache_dir=.pytest_cache/{backend}"]
        if backend != backends[0]:
            command.append("--ignore=tests/unit")
        environment = clean_environment() | {"UNIFIT_BACKEND": backend}
        log, command = folder / f"{backend}.log", [*command, *pytest_arguments]
        stages.append(Stage(backend, tuple(command), environment, log, report, may_be_empty=bool(pytest_arguments)))
    return stages


def start(stage: Stage) -> Running:
    """Starts a stage in a process group of its own; its output goes to its log."""
    print(f"started {stage.name}", flush=True)
    with stage.log.open("wb") as log:
        process = subprocess.Popen(
            stage.command,
            cwd=ROOT,
            env=stage.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(stage, process, time.monotonic())


def stop(running: Running) -> None:
    """Ends a stage with all that it started; helpers of a stage that has ended by itself get a moment to follow it."""
    process, token = running.process, running.stage.environment[SESSION_VARIABLE]
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(TERMINATION_GRACE_S)
            except subprocess.TimeoutExpired:
                continue
    deadline = time.monotonic() + HELPER_GRACE_S
    while (rest := of_session(token)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    kill(rest)


def count(report: Path) -> Counts:
    """Outcomes of a JUnit file, none if it is missing; a test that passed but failed in its teardown has failed."""
    outcomes = collections.defaultdict(set)
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Counts()
    for case in cases:
        outcomes[case.get("classname"), case.get("name")] |= {child.tag for child in case}
    failed = sum(bool(tags & {"failure", "error"}) for tags in outcomes.values())
    skipped = sum("skipped" in tags and not tags & {"failure", "error"} for tags in outcomes.values())
    return Counts(len(outcomes) - failed - skipped, failed, skipped)


def judge(running: Running, stopped: str | None) -> Result:
    """The result of a stage that has ended by itself, or else was `stopped` for that reason."""
    stage, status = running.stage, running.process.returncode
    seconds = time.monotonic() - running.started
    no_tests = stage.report is not None and status == NO_TESTS_COLLECTED
    ok = not stopped and (status == 0 or no_tests and stage.may_be_empty)
    if stopped:
        outcome = f"stopped: {stopped}"
    elif status < 0:
        outcome = f"died of {signal.Signals(-status).name}"
    else:
        outcome = "no tests" if no_tests else "passed" if ok else f"failed with exit status {status}"
    counts = count(stage.report) if stage.report is not None else Counts()
    if stage.report is not None and not ok and counts.failed == 0:
        counts += Counts(failed=1)
    return Result(stage.name, seconds, outcome, ok, counts)


def show(stage: Stage, result: Result) -> None:
    """Prints a stage's outcome and whole log."""
    text = stage.log.read_text(errors="replace").strip()
    print(f"\n=== {stage.name}: {result.outcome}, {result.seconds:.1f} s", flush=True)
    if text:
        print(text, flush=True)


def run(stages: list[Stage], num_jobs: int, reason_to_stop: Callable[[], str | None]) -> Iterator[Result]:
    """Runs the stages in order, some at a time, and yields their results as they end; stops all for a reason."""
    waiting, active = collections.deque(stages), []
    try:
        while waiting or active:
            reason = reason_to_stop()
            while waiting and len(active) < num_jobs and not reason:
                active.append(start(waiting.popleft()))
            for running in [r for r in active if reason or r.process.poll() is not None]:
                stopped = reason if running.process.poll() is None else None
                stop(running)
                active.remove(running)
                result = judge(running, stopped)
                show(running.stage, result)
                yield result
            if reason:
                yield from (Result(stage.name, 0.0, f"not started: {reason}", False, Counts()) for stage in waiting)
                return
            time.sleep(POLL_S)
    finally:
        for running in active:
            stop(running)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line; what follows `--` is pytest's."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS), help="comma-separated; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="stages at a time; default: %(default)s")
    parser.add_argument("--time-limit", type=float, default=50.0, help="minutes for everything; default: %(default)s")
    lint = parser.add_mutually_exclusive_group()
    lint.add_argument("--no-lint", action="store_true", help="only the tests")
    lint.add_argument("--lint-only", action="store_true", help="no tests")
    options = parser.parse_args(arguments[:end])
    options.backends = options.backends.split(",")
    options.pytest_arguments = arguments[end + 1 :]
    unknown = [backend for backend in options.backends if backend not in BACKENDS]
    if unknown or options.jobs < 1:
        parser.error(f"--backends takes {', '.join(BACKENDS)}, --jobs at least 1; got {unknown or options.jobs}")
    return options


def main(arguments: list[str]) -> int:
    """Runs what was asked for and prints the summary; returns the exit status."""
    options = parse_arguments(arguments)
    deadline = time.monotonic() + 60 * options.time_limit
    received: list[int] = []  # an exception from a handler could come between a process's start and its entry in a list
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: received.append(number))

    def reason_to_stop() -> str | None:
        if received:
            return signal.Signals(received[0]).name
        return "out of time" if time.monotonic() > deadline else None

    with tempfile.TemporaryDirectory(prefix="unifit-tests-") as name:
        folder = Path(name)
        stages = [] if options.no_lint else lint_stages(folder)
        if not options.lint_only:
            stages += test_stages(folder, options.backends, options.pytest_arguments)
        results = list(run(stages, options.jobs, reason_to_stop))
    total = sum((result.counts for result in results), Counts())
    tested = {stage.name for stage in stages if stage.report is not None}
    print()
    for result in results:
        counts = f"   {result.counts}" if result.name in tested else ""
        print(f"{result.name:<12} {result.seconds:7.1f} s  {result.outcome}{counts}")
    print(total, flush=True)
    ran = options.lint_only or total.passed + total.failed > 0
    return 0 if ran and all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
