"""One backend per test session: which one, the `backends` marker, a fixed seed, and no process left behind."""

import collections
import importlib.metadata
import importlib.util
import os
import time
import uuid

import pytest

import worker
from run import BACKENDS, CPU_ENVIRONMENT, SESSION_VARIABLE, Process, kill, processes

HOW_TO_RUN = "Run one backend with `UNIFIT_BACKEND=jax pytest` and all of them with `python tests/run.py`."

# Helpers that Python and torch keep for the life of the process that started them; they end with it.
HELPERS = ("multiprocessing.resource_tracker", "torch/_inductor/compile_worker")
LEFT_OVER_GRACE_S = 5.0

# Before any test module imports unifit. Under tests/run.py all of this is set already.
BACKEND_WAS_CHOSEN = "UNIFIT_BACKEND" in os.environ
BACKEND = os.environ.setdefault("UNIFIT_BACKEND", "jax")
SESSION = os.environ.setdefault(SESSION_VARIABLE, uuid.uuid4().hex)
for variable, value in CPU_ENVIRONMENT.items():
    os.environ.setdefault(variable, value)

DESELECTED = pytest.StashKey[collections.Counter]()


def pytest_configure(config):
    config.stash[DESELECTED] = collections.Counter()
    if BACKEND not in BACKENDS:
        raise pytest.UsageError(f"UNIFIT_BACKEND is {BACKEND!r}, none of {', '.join(BACKENDS)}. {HOW_TO_RUN}")
    if importlib.util.find_spec(BACKEND) is None:
        raise pytest.UsageError(f"The tests of the {BACKEND} backend need {BACKEND}, not installed here. {HOW_TO_RUN}")
    if not importlib.metadata.entry_points(group="unifit.backends", name=BACKEND):
        raise pytest.UsageError("unifit is not installed here: `make test`, or see CONTRIBUTING.md.")


def pytest_report_header():
    return f"backend: {BACKEND}" + ("" if BACKEND_WAS_CHOSEN else f" (UNIFIT_BACKEND is not set). {HOW_TO_RUN}")


def pytest_collection_modifyitems(config, items):
    kept, deselected = [], []
    for item in items:
        marker = item.get_closest_marker("backends")
        if marker is None:
            kept.append(item)
            continue
        unknown = set(marker.args) - set(BACKENDS)
        if unknown or not marker.args:
            raise pytest.UsageError(f"{item.nodeid}: marker backends{marker.args} names none of {', '.join(BACKENDS)}")
        if BACKEND in marker.args:
            kept.append(item)
        else:
            deselected.append(item)
            config.stash[DESELECTED][marker.args, marker.kwargs.get("reason", "")] += 1
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept


def pytest_terminal_summary(terminalreporter, config):
    for (backends, reason), number in config.stash[DESELECTED].items():
        why = f": {reason}" if reason else ""
        terminalreporter.write_line(f"DESELECTED [{number}] on {BACKEND}, only for {', '.join(backends)}{why}")


def left_over() -> list[Process]:
    """What this session started and is still running, helpers aside."""
    running, here = processes(), os.getpid()

    def descends(process: Process | None) -> bool:
        while process is not None and process.parent != here:
            process = running.get(process.parent)
        return process is not None

    return [
        process
        for process in running.values()
        if process.pid != here
        and (process.session == SESSION or descends(process))
        and not any(helper in process.command for helper in HELPERS)
    ]


@pytest.fixture(scope="session", autouse=True)
def no_process_left_running(request):
    """Fails the session, by the last test's teardown, if a process that it started outlives it."""
    yield
    if hasattr(request.config, "workerinput"):  # pytest-xdist's workers carry each other's session
        return
    deadline = time.monotonic() + LEFT_OVER_GRACE_S
    while (rest := left_over()) and time.monotonic() < deadline:
        time.sleep(0.1)
    if rest:
        kill(rest)
        names = "\n".join(f"{process.pid}: {process.command}" for process in rest)
        pytest.fail(f"Left running by the tests, killed now:\n{names}", pytrace=False)


@pytest.fixture(autouse=True)
def fixed_seed():
    """Every test starts from the same seed."""
    import unifit  # not above: an unusable backend is to be refused by pytest_configure, with its line

    unifit.set_seed(0)


@pytest.fixture(scope="session")
def backend_name() -> str:
    """Name of the backend under test."""
    return BACKEND


@pytest.fixture(scope="session")
def jobs(no_process_left_running):
    """Workers by number of devices and processes, started when first asked for and ended with the session."""
    started = {}
    yield started
    for job in started.values():
        job.close()


@pytest.fixture
def run_on(jobs):
    """`run_on(devices, scenario, **arguments)`: scenarios.<scenario> on so many devices; returns each rank's arrays.

    `processes` spreads the devices over so many processes on jax and tensorflow; on torch each device has one anyway.
    """

    def run(devices, scenario, processes=None, **arguments):
        key = (devices, None if BACKEND == "torch" else processes)
        if key not in jobs or jobs[key].closed:
            jobs[key] = worker.Job(BACKEND, *key)
        return jobs[key].run(scenario, devices=devices, **arguments)

    return run
