"""Jobs on real engines: `unifit run` and `uf.launch` train, and end soon and readably when a process fails."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import unifit as uf

LIMIT_S = 90.0
FAILURE_LIMIT_S = 30.0
FLOAT32 = 1e-5

MODEL = """
    import json, os, pathlib, sys, time
    import numpy as np
    import unifit as uf

    ROWS = 50

    def data():
        r = np.random.default_rng(0)
        return r.normal(size=(ROWS, 4)).astype("float32"), r.normal(size=(ROWS, 1)).astype("float32")

    def trained(data, distribution, **options):
        uf.set_seed(0)
        model = uf.Sequential([uf.layers.Dense(8, activation="tanh"), uf.layers.Dense(1)])
        model.compile(uf.optimizers.SGD(0.1), "mse")
        history = model.fit(*data, verbose=0, distribution=distribution, **options)
        return {"loss": history.history["loss"], "weights": [float(np.sum(w)) for w in model.get_weights()]}
"""

TRAINS = """
    from model import *

    result = trained(data(), uf.DataParallel(), batch_size=16, epochs=2)
    name = f"{sys.argv[1]}-{uf.process_index()}.json"
    pathlib.Path(name).write_text(json.dumps(result | {"processes": uf.process_count()}))
"""

GOES_ON = """
    from model import *

    class Marks(uf.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                pathlib.Path(f"{uf.process_index()}.part").write_text(str(os.getpid()))
                os.rename(f"{uf.process_index()}.part", f"{uf.process_index()}.pid")
            time.sleep(0.01)

    trained(data(), uf.DataParallel(), batch_size=16, epochs=100000, callbacks=[Marks()])
"""

BAD_SAMPLE = """
    from model import *

    class Batches:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            pathlib.Path(f"{uf.process_index()}.pid").write_text(str(os.getpid()))
            if uf.process_index() == 1 and index == 3:
                raise ValueError("bad sample 17")
            x, y = data()
            return x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]

    trained((Batches(),), uf.DataParallel(), epochs=3)
"""

LAUNCHES = """
    from model import *
    from unifit.launch.notebook import launch

    if __name__ == "__main__":
        offset = 0.5

        def function(rows, fails=None):
            print("process", uf.process_index(), "prints")
            if fails == uf.process_index():
                raise ValueError("bad sample 17")
            x, y = (part[:rows] for part in data())
            return trained((x, y), uf.DataParallel(devices=2), batch_size=16, epochs=2) | {"offset": offset}

        result = launch(function, devices=2, args=(ROWS,))
        pathlib.Path("launched-0.json").write_text(json.dumps(result))
        last = 1 if uf.backend.name == "torch" else 0
        try:
            launch(function, devices=2, args=(ROWS,), kwargs={"fails": last})
        except uf.errors.PeerError as error:
            print(f"process {last} failed as it should:", "bad sample 17" in str(error), "in function" in str(error))
"""


class Started:
    """A launcher in a folder of scripts."""

    def __init__(self, folder, *command):
        self.folder = folder
        scripts = {"model": MODEL, "trains": TRAINS, "goes_on": GOES_ON, "bad_sample": BAD_SAMPLE, "launches": LAUNCHES}
        for name, source in scripts.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(source))
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | {"TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, limit_s=LIMIT_S):
        """Waits for its end, after which no process that has left its number runs; returns its standard error."""
        self.stdout, self.stderr = self.process.communicate(timeout=limit_s)
        self.status = self.process.returncode
        assert not [pid for pid in self.pids() if is_running(pid)]
        return self.stderr

    def pids(self):
        return [int(path.read_text()) for path in self.folder.glob("*.pid")]

    def result(self, name, process=0):
        return json.loads((self.folder / f"{name}-{process}.json").read_text())

    def kill(self):
        """Asks it to end first: it ends its processes then."""
        if self.process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                self.process.send_signal(number)
                try:
                    self.process.communicate(timeout=5.0)
                    break
                except subprocess.TimeoutExpired:
                    continue


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*command):
        started.append(Started(tmp_path, *command))
        return started[-1]

    yield start
    for launcher in started:
        launcher.kill()
        for pid in filter(is_running, launcher.pids()):
            os.kill(pid, signal.SIGKILL)


def is_running(pid):
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(status) and not status.startswith("Z")


def run(*arguments):
    return ("-m", "unifit", "run", *arguments)


@pytest.fixture(scope="module")
def two_processes():
    """Options that make two processes of one device each, on every backend."""
    own = () if uf.backend.name == "torch" else ("--processes-per-node", "2")
    return ("--devices", "2", *own)


@pytest.fixture(scope="module")
def expected():
    """What one device in one process makes of the script."""
    names = {}
    exec(textwrap.dedent(MODEL), names)
    return names["trained"](names["data"](), None, batch_size=16, epochs=2)


def assert_same_run(result, expected):
    np.testing.assert_allclose(result["loss"], expected["loss"], rtol=FLOAT32)
    np.testing.assert_allclose(result["weights"], expected["weights"], rtol=FLOAT32, atol=FLOAT32)


def test_s_di_09_two_jobs_at_once_and_each_trains_as_one_device(start, two_processes, expected):
    first, second = (start(*run(*two_processes, "trains.py", name)) for name in ("first", "second"))
    for name, job in (("first", first), ("second", second)):
        job.end()
        assert job.status == 0, job.stderr
        for process in range(2):
            result = job.result(name, process)
            assert result["processes"] == 2
            assert_same_run(result, expected)


def test_s_di_09_busy_port_is_told_at_once(start, two_processes):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        where = ("--nodes", "2", "--node-rank", "0", "--rendezvous", f"127.0.0.1:{port}")
        job = start(*run(*two_processes, *where, "trains.py", "none"))
        job.end(limit_s=FAILURE_LIMIT_S)
    assert job.status != 0
    assert str(port) in job.stderr and "--rendezvous" in job.stderr


@pytest.mark.backends("jax", "tensorflow", reason="on torch a device is a process")
def test_one_process_trains_on_two_devices(start, expected):
    job = start(*run("--devices", "2", "trains.py", "job"))
    job.end()
    assert job.status == 0, job.stderr
    assert job.result("job")["processes"] == 1
    assert_same_run(job.result("job"), expected)


def test_two_nodes_train_as_one_device(start, expected):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = ("--devices", "1", "--nodes", "2", "--rendezvous", f"127.0.0.1:{port}", "--node-rank")
    for job in [start(*run(*options, rank, "trains.py", "job")) for rank in "01"]:
        job.end()
        assert job.status == 0, job.stderr
    for process in range(2):
        assert job.result("job", process)["processes"] == 2
        assert_same_run(job.result("job", process), expected)


def test_killed_process_ends_the_job(start, two_processes):
    job = start(*run(*two_processes, "goes_on.py"))
    deadline = time.monotonic() + LIMIT_S
    while len(job.pids()) < 2:
        assert time.monotonic() < deadline and job.process.poll() is None, job.end()
        time.sleep(0.05)
    os.kill(int((job.folder / "1.pid").read_text()), signal.SIGKILL)
    job.end(limit_s=FAILURE_LIMIT_S)
    assert job.status == 128 + signal.SIGKILL
    assert "unifit: process 1 of the job ended with status -9 (SIGKILL)" in job.stderr


def test_s_di_04_bad_sample_of_one_process_ends_the_job_with_its_traceback(start, two_processes):
    job = start(*run(*two_processes, "bad_sample.py"))
    deadline = time.monotonic() + LIMIT_S
    while len(job.pids()) < 2:
        assert time.monotonic() < deadline and job.process.poll() is None, job.end()
        time.sleep(0.05)
    started = time.monotonic()
    job.end()
    assert time.monotonic() - started < FAILURE_LIMIT_S
    assert job.status not in (0, 128 + signal.SIGTERM)
    assert "unifit: process 1 of the job ended with status 1. Its errors, from " in job.stderr
    assert "ValueError: bad sample 17" in job.stderr and "in __getitem__" in job.stderr


def test_launch_returns_what_process_0_returned(start, expected):
    job = start("launches.py")
    job.end()
    assert job.status == 0, job.stderr
    result = job.result("launched")
    assert result["offset"] == 0.5
    assert_same_run(result, expected)
    lines = job.stdout.splitlines()
    last = 1 if uf.backend.name == "torch" else 0
    assert lines.count("process 0 prints") == 2 and "process 1 prints" not in lines
    assert lines[-1] == f"process {last} failed as it should: True True"
