"""A job of workers on one machine that runs scenarios on request, so that a start is paid once a test session.

As a program (`python worker.py`) it is one worker: it reads requests, one JSON line each, from its standard input, runs
`scenarios.<name>(**arguments)`, writes the arrays that it returns to an .npz file, and answers with one line.
"""

import faulthandler
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import numpy as np

START_LIMIT_S = 60.0
CALL_LIMIT_S = 60.0
DUMP_S = 5.0
LOG_CHARACTERS = 6000
ANSWER = "\x01unifit-worker "


class WorkerError(AssertionError):
    """A scenario failed in a worker; carries the worker's traceback."""


class Job:
    """Workers that share `devices` devices on the active backend.

    Args:
        backend: Name of the backend.
        devices: Number of devices over all processes.
        processes: Number of processes, which divides `devices`; None for one a device on torch, else for one.
    """

    def __init__(self, backend, devices, processes=None):
        self.folder = tempfile.TemporaryDirectory(prefix="unifit-test-")
        self.processes, self.answers = [], []
        for rank, environment in enumerate(environments(backend, devices, processes)):
            log = open(Path(self.folder.name) / f"{rank}.log", "w")
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
            log.close()
            answers = queue.Queue()
            threading.Thread(target=_collect, args=(process.stdout, answers), daemon=True).start()
            self.processes.append(process)
            self.answers.append(answers)
        self._number = 0

    def run(self, scenario, **arguments):
        """Runs a scenario on every worker; returns each rank's arrays.

        Raises:
            WorkerError: When a worker fails, dies or takes too long; the job is closed then.
        """
        self._number += 1
        limit = CALL_LIMIT_S + (START_LIMIT_S if self._number == 1 else 0.0)
        request = {"scenario": scenario, "arguments": arguments, "limit_s": limit}
        paths = [str(Path(self.folder.name) / f"{self._number}-{rank}.npz") for rank in range(len(self.processes))]
        for process, path in zip(self.processes, paths, strict=True):
            try:
                process.stdin.write(json.dumps(request | {"path": path}) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                self._fail(f"a worker had ended before {scenario}")
        results = []
        for rank, answers in enumerate(self.answers):
            try:
                answer = answers.get(timeout=limit)
            except queue.Empty:
                self._fail(f"rank {rank} gave no answer to {scenario} in {limit:.0f} s")
            if answer is None:
                self._fail(f"rank {rank} ended during {scenario}")
            if answer != "ok":
                self._fail(f"rank {rank} failed in {scenario}:\n{json.loads(answer)}")
            with np.load(paths[rank]) as arrays:
                results.append(dict(arrays))
            os.unlink(paths[rank])
        return results

    def _fail(self, message):
        logs = "\n".join(p.read_text()[-LOG_CHARACTERS:] for p in sorted(Path(self.folder.name).glob("*.log")))
        self.close()
        raise WorkerError(f"{message}\n{logs}")

    @property
    def closed(self):
        return not self.processes

    def close(self):
        """Ends the workers."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            process.stdin.close()
        self.processes = []
        self.folder.cleanup()


def environments(backend, devices, processes=None):
    """The environment of each process of a new job; the arguments are Job's."""
    count = processes or (devices if backend == "torch" else 1)
    ports = [_free_port() for _ in range(count + 1)]
    port = ports[-1]
    found = []
    for rank in range(count):
        environment = os.environ | {"UNIFIT_BACKEND": backend, "OMP_NUM_THREADS": "1"}
        if backend == "torch" and count > 1:
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        elif count > 1:
            environment |= {
                "UNIFIT_PROCESS": str(rank),
                "UNIFIT_PROCESSES": str(count),
                "UNIFIT_LOCAL_PROCESS": str(rank),
                "UNIFIT_LOCAL_PROCESSES": str(count),
                "UNIFIT_COORDINATOR": f"127.0.0.1:{port}",
                "UNIFIT_ADDRESSES": ",".join(f"127.0.0.1:{own}" for own in ports[:count]),
                "UNIFIT_CPU_DEVICES": str(devices // count),
            }
        elif devices > 1:
            environment["UNIFIT_CPU_DEVICES"] = str(devices)
        found.append(environment)
    return found


def _collect(stream, answers):
    for line in stream:
        if line.startswith(ANSWER):
            answers.put(line[len(ANSWER) :].rstrip("\n"))
    answers.put(None)
    stream.close()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    """The worker's loop."""
    sys.path.insert(0, str(Path(__file__).parent))
    import checkpoint_scenarios
    import job_scenarios
    import kill_script
    import scenarios
    import unifit

    for line in sys.stdin:
        request = json.loads(line)
        faulthandler.dump_traceback_later(request["limit_s"] - DUMP_S)  # into the log, which a failed call shows
        try:
            unifit.set_seed(0)
            homes = (scenarios, job_scenarios, checkpoint_scenarios, kill_script)
            home = next(module for module in homes if hasattr(module, request["scenario"]))
            arrays = getattr(home, request["scenario"])(**request["arguments"])
            np.savez(request["path"], **{key: np.asarray(value) for key, value in arrays.items()})
            answer = "ok"
        except BaseException:
            answer = json.dumps(traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        print(f"\n{ANSWER}{answer}", flush=True)


if __name__ == "__main__":
    main()
