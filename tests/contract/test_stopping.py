"""Jobs under `unifit run` that are interrupted, paused and killed, and go on: each ends as one that was left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import unifit as uf
from stopping_script import LOWERED, SAVED_EVERY, STEPS, fit, made
from unifit.checkpoint import newest

SCRIPT = Path(__file__).parents[1] / "stopping_script.py"
START_LIMIT_S = 90.0
ENDS_WITHIN_S = 30.0
AT_ONCE_S = 10.0
LAGS = 3  # steps after the one of a signal, by which all have agreed
PROCESSES = 2


class Job:
    """The script in a folder, started by a command, as a job of some processes that wait for us after a step."""

    def __init__(self, folder, stops_at, *command, processes=PROCESSES, **environment):
        self.folder, self.stops_at, self.processes = folder, stops_at, processes
        (folder / "go").unlink(missing_ok=True)
        self.log = folder / f"{stops_at}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, SCRIPT, folder, str(stops_at)],
                env=os.environ | {"TMPDIR": str(folder)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pids(self):
        """The waiting processes' numbers, by process."""
        paths = [self.folder / f"{process}-{self.stops_at}.pid" for process in range(self.processes)]
        self.wait_for(lambda: all(path.exists() for path in paths), "step in all processes")
        return [int(path.read_text()) for path in paths]

    def wait_for(self, condition, what):
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, f"no {what}:\n{self.said()}"
            time.sleep(0.02)

    def go_on(self):
        (self.folder / "go").touch()

    def said(self):
        return self.log.read_text()

    def end(self, within_s=ENDS_WITHIN_S):
        """Waits for the launcher's end; returns its status. All processes have ended by then."""
        self.process.wait(within_s)
        assert not [pid for pid in self.pids_left() if is_running(pid)]
        return self.process.returncode

    def pids_left(self):
        return [int(path.read_text()) for path in self.folder.glob("*.pid")]


def is_running(pid):
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(status) and not status.startswith("Z")


@pytest.fixture
def start():
    started = []

    def start(*arguments, **options):
        started.append(Job(*arguments, **options))
        return started[-1]

    yield start
    for job in started:
        job.process.kill()
        job.process.wait()
        for pid in filter(is_running, job.pids_left()):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def launcher():
    own = () if uf.backend.name == "torch" else ("--processes-per-node", str(PROCESSES))
    return ("-m", "unifit", "run", "--devices", str(PROCESSES), *own)


@pytest.fixture(scope="module")
def trajectory(tmp_path_factory):
    """The weights after each step of a run that nobody interrupts."""
    uf.set_seed(5)
    model, x = made()
    weights = []

    def keep(batch, logs):
        weights.append([np.array(weight) for weight in model.get_weights()])

    folder = tmp_path_factory.mktemp("straight")
    fit(model, x, folder, callbacks=[uf.callbacks.LambdaCallback(on_train_batch_end=keep)])
    assert len(weights) == STEPS
    return weights


def assert_interrupted(job, trajectory, earlier_fits=0):
    """All processes have ended after one and the same step, saved; returns it."""
    checkpoint = newest(job.folder / "run")
    checkpoint.verify()
    step = checkpoint.state["step"]
    assert job.stops_at <= step <= job.stops_at + LAGS and not checkpoint.state["finished"]
    for name, want in zip(("w", "v"), trajectory[step - 1], strict=True):
        assert checkpoint.arrays("weights")[name].tobytes() == want.tobytes(), name
    for process in range(job.processes):
        ends = (job.folder / f"{process}.ends").read_text().split()
        assert len(ends) == earlier_fits + 1  # on_train_end, once a fit
        assert float(ends[-1]) == pytest.approx(-LOWERED * step, rel=1e-5)


@pytest.mark.timeout(300)
def test_interrupted_job_goes_on_to_the_same_end(start, launcher, tmp_path, trajectory):
    # Ctrl-C at one process; before it, a time limit of one.
    job = start(tmp_path, 25, *launcher, "--max-restarts", "1", LIMITED="1")
    pids = job.pids()
    limited = [(tmp_path / f"{process}.limited").read_text().split() for process in range(PROCESSES)]
    assert limited[0] == [limited[1][0], "False"] and limited[1][1] == "True"
    assert -25 * LOWERED < float(limited[0][0]) < 0
    os.kill(pids[-1], signal.SIGINT)
    job.go_on()
    assert job.end() == 128 + signal.SIGINT, job.said()
    assert "unifit: ended by SIGINT" in job.said() and "starting again" not in job.said()
    assert_interrupted(job, trajectory)

    # The launcher gets SIGTERM on two ways.
    job = start(tmp_path, 45, *launcher, "--max-restarts", "1")
    job.pids()
    job.process.send_signal(signal.SIGTERM)
    job.wait_for(lambda: "unifit: SIGTERM: saves a checkpoint and ends after this step" in job.said(), "news of it")
    job.process.send_signal(signal.SIGTERM)
    job.go_on()
    assert job.end() == 128 + signal.SIGTERM, job.said()
    assert "unifit: ended by SIGTERM" in job.said() and "starting again" not in job.said()
    assert_interrupted(job, trajectory, earlier_fits=1)

    # A process is killed, and the job starts again.
    job = start(tmp_path, 65, *launcher, "--max-restarts", "1")
    pids = job.pids()
    saved = tmp_path / "run" / f"step-{65 // SAVED_EVERY * SAVED_EVERY:08}"
    job.wait_for(saved.exists, "checkpoint")
    os.kill(pids[-1], signal.SIGKILL)
    job.go_on()
    assert job.end(START_LIMIT_S) == 0, job.said()
    assert saved.exists()  # kept besides the newest, as the one that was gone on from
    state = newest(tmp_path / "run").state
    assert (state["step"], state["finished"]) == (STEPS, True)
    for process in range(PROCESSES):
        with np.load(tmp_path / f"weights-{process}.npz") as weights:
            for name, want in zip(weights.files, trajectory[-1], strict=True):
                assert weights[name].tobytes() == want.tobytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_script_ends_as_shells_expect(start, tmp_path, trajectory, number):
    job = start(tmp_path, 5, processes=1)
    os.kill(job.pids()[0], number)
    job.go_on()
    expected = -signal.SIGINT if number == signal.SIGINT else 128 + number
    assert job.end() == expected, job.said()
    assert job.said().count("unifit: ") == 1 and ("Traceback" in job.said()) == (number == signal.SIGINT)
    assert_interrupted(job, trajectory)


@pytest.mark.backends("torch", reason="elsewhere the launcher is unifit's own: tests/unit/test_command_line.py")
def test_second_signal_to_the_elastic_agent_does_not_wait(start, launcher, tmp_path):
    job = start(tmp_path, 5, *launcher)
    job.pids()
    job.process.send_signal(signal.SIGTERM)
    job.wait_for(lambda: "unifit: SIGTERM: " in job.said(), "news of it")
    time.sleep(1.2)  # else it is the first one again
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGTERM)
    assert job.end(AT_ONCE_S) == 128 + signal.SIGTERM
    assert newest(tmp_path / "run") is None
