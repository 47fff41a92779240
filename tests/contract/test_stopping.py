"""Scripts and jobs under `unifit run` that are interrupted, paused and killed, and go on as if left alone."""

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
from unifit.launch.interruption import REPEATED_WITHIN_S

SCRIPT = Path(__file__).parents[1] / "stopping_script.py"
START_LIMIT_S = 90.0
ENDS_WITHIN_S = 30.0
AT_ONCE_S = 10.0
LAGS = 3  # steps after the one of a signal, by which all have agreed
PROCESSES = 2
FLOAT32 = 1e-5


class Run:
    """The script in a folder, started by a command, with some processes that wait for us after some steps."""

    def __init__(self, folder, steps, *command, processes=PROCESSES, **environment):
        self.folder, self.processes, self.log = folder, processes, folder / f"{steps[0]}.log"
        with self.log.open("w") as log:
            self.launcher = subprocess.Popen(
                [sys.executable, *command, SCRIPT, folder, *map(str, steps)],
                env=os.environ | {"TMPDIR": str(folder)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, condition, what):
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            assert time.monotonic() < deadline and self.launcher.poll() is None, f"no {what}:\n{self.said()}"
            time.sleep(0.02)

    def pids_at(self, step):
        """The processes' numbers, when all of them wait after a step."""
        paths = [self.folder / f"{process}-{step}.pid" for process in range(self.processes)]
        self.wait_for(lambda: all(path.exists() for path in paths), f"step {step} in all processes")
        return [int(path.read_text()) for path in paths]

    def go_on(self, step):
        (self.folder / f"go-{step}").touch()

    def said(self):
        return self.log.read_text()

    def ends(self):
        """For each process, the weight w at the end of each of its fits."""
        paths = [self.folder / f"{process}.ends" for process in range(self.processes)]
        return [path.read_text().split() if path.exists() else [] for path in paths]

    def end(self, within_s=ENDS_WITHIN_S):
        """Waits for the launcher's end, at which no process is running; returns its status."""
        self.launcher.wait(within_s)
        assert not self.running()
        return self.launcher.returncode

    def running(self):
        pids = [path.read_text() for path in self.folder.glob("*.pid")]
        states = subprocess.run(["ps", "-o", "pid=,stat=", "-p", ",".join(pids)], capture_output=True, text=True)
        lines = [line.split() for line in states.stdout.splitlines()]
        return [int(pid) for pid, state in lines if not state.startswith("Z")] if pids else []


@pytest.fixture
def start():
    started = []

    def start(*arguments, **options):
        started.append(Run(*arguments, **options))
        return started[-1]

    yield start
    for run in started:
        run.launcher.kill()
        run.launcher.wait()
        for pid in run.running():
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


def assert_saved_soon_after(step, run, trajectory, ends_before):
    """All processes have ended their fit after one and the same step, and it is saved."""
    checkpoint = newest(run.folder / "run")
    checkpoint.verify()
    last = checkpoint.state["step"]
    assert step <= last <= step + LAGS and not checkpoint.state["finished"]
    for name, want in zip(("w", "v"), trajectory[last - 1], strict=True):
        assert checkpoint.arrays("weights")[name].tobytes() == want.tobytes(), name
    for before, after in zip(ends_before, run.ends(), strict=True):
        assert len(after) == len(before) + 1  # on_train_end, once
        assert float(after[-1]) == pytest.approx(-LOWERED * last, rel=FLOAT32)


@pytest.mark.timeout(300)
def test_job_that_is_paused_killed_and_interrupted_goes_on_to_the_same_end(start, launcher, tmp_path, trajectory):
    job = start(tmp_path, [25, 45], *launcher, "--max-restarts", "2", LIMITED="1")

    # The last process' time limit has ended the first fit on all, and a second one has gone on.
    pids = job.pids_at(25)
    first, last = ((tmp_path / f"{process}.limited").read_text().split() for process in range(PROCESSES))
    assert (first[1], last[1]) == ("False", "True") and first[0] == last[0]
    assert -LOWERED * 25 < float(first[0]) < 0

    # That one is killed: the launcher starts the job again, which goes on.
    saved = tmp_path / "run" / f"step-{25 // SAVED_EVERY * SAVED_EVERY:08}"
    job.wait_for(saved.exists, "checkpoint")
    os.kill(pids[-1], signal.SIGKILL)
    job.go_on(25)
    pids_again = job.pids_at(45)
    assert not set(pids) & set(pids_again)

    # It gets SIGINT: all end, and the launcher does not start the job again.
    ends = job.ends()
    os.kill(pids_again[-1], signal.SIGINT)
    job.go_on(45)
    assert job.end() == 128 + signal.SIGINT, job.said()
    assert "unifit: ended by SIGINT." in job.said()
    assert_saved_soon_after(45, job, trajectory, ends)

    # The launcher gets SIGTERM, on two ways.
    job = start(tmp_path, [65], *launcher, "--max-restarts", "2")
    job.pids_at(65)
    ends = job.ends()
    job.launcher.send_signal(signal.SIGTERM)
    job.wait_for(lambda: "unifit: SIGTERM: saves a checkpoint and ends after this step" in job.said(), "news of it")
    job.launcher.send_signal(signal.SIGTERM)
    job.go_on(65)
    assert job.end() == 128 + signal.SIGTERM, job.said()
    assert "unifit: ended by SIGTERM." in job.said() and "starting again" not in job.said()
    assert_saved_soon_after(65, job, trajectory, ends)

    # What is left is done here: sums of whole numbers are exact on one device as on two.
    uf.set_seed(5)
    model, x = made()
    history = fit(model, x, tmp_path / "run")
    assert history.epoch == [3, 4]
    for got, want in zip(model.get_weights(), trajectory[-1], strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_script_ends_as_shells_expect(start, tmp_path, trajectory, number):
    script = start(tmp_path, [5], processes=1)
    os.kill(script.pids_at(5)[0], number)
    script.go_on(5)
    assert script.end() == (-signal.SIGINT if number == signal.SIGINT else 128 + number), script.said()
    assert script.said().count("unifit: ") == 1
    assert ("Traceback" in script.said()) == (number == signal.SIGINT)
    assert_saved_soon_after(5, script, trajectory, [[]])


@pytest.mark.backends("torch", reason="elsewhere the launcher is unifit's own: tests/unit/test_command_line.py")
def test_second_signal_to_the_elastic_agent_does_not_wait(start, launcher, tmp_path):
    job = start(tmp_path, [5], *launcher)
    job.pids_at(5)
    job.launcher.send_signal(signal.SIGTERM)
    job.wait_for(lambda: "unifit: SIGTERM: " in job.said(), "news of it")
    time.sleep(REPEATED_WITHIN_S + 0.2)
    assert job.launcher.poll() is None
    job.launcher.send_signal(signal.SIGTERM)
    assert job.end(AT_ONCE_S) == 128 + signal.SIGTERM
    assert newest(tmp_path / "run") is None
