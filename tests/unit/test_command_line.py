"""`unifit run` and its supervisor, with plain Python programs as jobs: they need no framework."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from queue import Empty, SimpleQueue

import pytest

from unifit.errors import ArgumentError, StartError
from unifit.launch import command_line, notebook, supervisor
from unifit.launch.children import Spec
from unifit.launch.interruption import REPEATED_WITHIN_S
from unifit.launch.notebook import launch
from unifit.launch.ports import free_ports, split_address
from unifit.launch.rendezvous import AllDone, Node, OtherFailed, meet
from unifit.launch.supervisor import Signalled, Supervisor

LIMIT_S = 60.0
ENDS_WITHIN_S = 20.0

JOB = """
    import json, os, pathlib, signal, subprocess, sys, time

    folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
    process, processes = os.environ.get("UNIFIT_PROCESS", "0"), int(os.environ.get("UNIFIT_PROCESSES", "1"))
    coordinator = os.environ.get("UNIFIT_COORDINATOR", "")
    # What a DataLoader's worker is: a process of the process.
    worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])

    def leave(suffix, text=""):
        path = folder / f"{process}.{suffix}"
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)

    def end():
        worker.kill()
        worker.wait()
        sys.exit(0)

    def save(*_):
        leave("saved")
        end()

    def save_slowly(*_):
        if (folder / f"{process}.asked").exists():
            leave("asked_twice")
        leave("asked")
        while not (folder / "go").exists():
            time.sleep(0.01)
        save()

    if mode == "saves":
        signal.signal(signal.SIGTERM, save)
    if mode == "saves slowly":
        signal.signal(signal.SIGTERM, save_slowly)
    if mode == "is deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("process", process, "prints", flush=True)
    leave("environment", json.dumps(dict(os.environ)))
    leave("pids", f"{os.getpid()} {worker.pid}")
    while len(list(folder.glob("*.pids"))) < processes:
        time.sleep(0.01)
    if mode == "ends":
        end()
    if mode == "fails once" and (folder / "1.failed").exists():
        leave("again", coordinator)
        end()
    if mode.startswith("fails") and process == "1":
        leave("failed", coordinator)
        raise ValueError("bad sample 17")
    if mode == "obeys":
        worker.kill()
        worker.wait()
        while process == "0" and not (folder / "1.obeyed").exists():
            time.sleep(0.01)
        time.sleep(1.5 if process == "0" else 0)
        leave("obeyed")
        sys.exit(128 + signal.SIGTERM)
    if mode == "is killed" and process == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


class Launches:
    """Launchers started in a folder; what is left of them is killed in the end."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        (folder / "job.py").write_text(textwrap.dedent(JOB))

    def start(self, mode, *options, job=("job.py",)):
        process = subprocess.Popen(
            [sys.executable, "-m", "unifit", "run", "--backend", "jax", *options, *job, str(self.folder), mode],
            cwd=self.folder,
            env=os.environ | {"TMPDIR": str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def left(self, suffix):
        """The texts that processes have left, by process."""
        return {path.stem: path.read_text() for path in self.folder.glob(f"*.{suffix}")}

    def running(self):
        pids = [int(pid) for text in self.left("pids").values() for pid in text.split()]
        return [pid for pid in pids if is_running(pid)]


@pytest.fixture
def launches(tmp_path):
    made = Launches(tmp_path)
    yield made
    for process in made.started:
        process.kill()
    for pid in made.running():
        os.kill(pid, signal.SIGKILL)
    for process in made.started:
        process.communicate()


class Ended:
    """How a launcher ended."""

    def __init__(self, process):
        started = time.monotonic()
        self.stdout, self.stderr = process.communicate(timeout=LIMIT_S)
        self.status, self.seconds = process.returncode, time.monotonic() - started


def is_running(pid):
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(status) and not status.startswith("Z")


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {LIMIT_S:.0f} s"
        time.sleep(0.02)


def assert_nothing_runs(launches):
    assert launches.left("pids")
    wait_for(lambda: not launches.running(), "end of the processes")


# One machine

TWO = ("--processes-per-node", "2")


def test_processes_get_their_place_and_the_first_one_prints(launches):
    ended = Ended(launches.start("ends", "--devices", "4", *TWO, "--log-dir", "logs"))
    assert ended.status == 0, ended.stderr
    logs = launches.folder / "logs"
    assert ended.stdout == "process 0 prints\n"
    assert ended.stderr == f"unifit: processes after the first print to files in {logs}\n"
    assert (logs / "attempt_0/1/stdout.log").read_text() == "process 1 prints\n"
    first, second = (json.loads(text) for _, text in sorted(launches.left("environment").items()))
    common = {name: first[name] for name in ("UNIFIT_COORDINATOR", "UNIFIT_ADDRESSES", "OMP_NUM_THREADS")}
    common |= {"UNIFIT_PROCESSES": "2", "UNIFIT_LOCAL_PROCESSES": "2"}
    common |= {"UNIFIT_CPU_DEVICES": "2", "UNIFIT_BACKEND": "jax"}
    addresses = common["UNIFIT_ADDRESSES"].split(",")
    assert len(addresses) == 2 and len({*addresses, common["UNIFIT_COORDINATOR"]}) == 3
    for process, environment in enumerate((first, second)):
        own = {"UNIFIT_PROCESS": str(process), "UNIFIT_LOCAL_PROCESS": str(process)}
        assert environment.items() >= (common | own).items()
    assert_nothing_runs(launches)


def test_one_process_is_no_job_and_a_module_keeps_its_arguments(launches, monkeypatch):
    monkeypatch.setenv("UNIFIT_PROCESS", "3")  # a launcher that runs inside another's job
    (launches.folder / "shows.py").write_text("import os, sys; print(sys.argv[1:], 'UNIFIT_PROCESS' in os.environ)")
    ended = Ended(launches.start("-m", "--devices", "2", job=("-m", "shows", "--devices", "3")))
    assert (ended.status, ended.stderr) == (0, "")
    assert ended.stdout == f"['--devices', '3', '{launches.folder}', '-m'] False\n"


def test_failing_process_ends_the_job_with_its_traceback(launches):
    ended = Ended(launches.start("fails", *TWO))
    assert ended.status == 1
    assert ended.seconds < ENDS_WITHIN_S
    assert "unifit: process 1 of the job ended with status 1. Its errors, from " in ended.stderr
    assert "in <module>" in ended.stderr and "ValueError: bad sample 17" in ended.stderr
    assert_nothing_runs(launches)


def test_killed_process_ends_the_job(launches):
    ended = Ended(launches.start("is killed", *TWO))
    assert ended.status == 128 + signal.SIGKILL
    assert ended.seconds < ENDS_WITHIN_S
    assert "unifit: process 1 of the job ended with status -9 (SIGKILL)." in ended.stderr
    assert_nothing_runs(launches)


def test_restart_is_a_new_job(launches):
    ended = Ended(launches.start("fails once", *TWO, "--max-restarts", "1"))
    assert ended.status == 0, ended.stderr
    assert "ValueError: bad sample 17" in ended.stderr and "starting again" in ended.stderr
    again = launches.left("again")
    assert again["0"] == again["1"] != launches.left("failed")["1"]


def test_signal_is_passed_on_and_a_good_end_is_one(launches):
    launcher = launches.start("saves", *TWO)
    wait_for(lambda: len(launches.left("pids")) == 2, "start")
    launcher.send_signal(signal.SIGTERM)
    ended = Ended(launcher)
    assert ended.status == 0, ended.stderr
    assert len(launches.left("saved")) == 2
    assert_nothing_runs(launches)


def test_second_signal_does_not_wait(launches):
    launcher = launches.start("is deaf", *TWO)
    wait_for(lambda: len(launches.left("pids")) == 2, "start")
    launcher.send_signal(signal.SIGTERM)
    time.sleep(REPEATED_WITHIN_S + 0.2)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGTERM)
    ended = Ended(launcher)
    assert ended.status == 128 + signal.SIGTERM
    assert ended.seconds < ENDS_WITHIN_S
    assert "ended by SIGTERM" in ended.stderr
    assert_nothing_runs(launches)


def test_repeated_signal_is_the_first_one(launches):
    launcher = launches.start("saves slowly", *TWO)
    wait_for(lambda: len(launches.left("pids")) == 2, "start")
    launcher.send_signal(signal.SIGTERM)
    wait_for(lambda: len(launches.left("asked")) == 2, "signal in both")
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    (launches.folder / "go").touch()
    ended = Ended(launcher)
    assert ended.status == 0, ended.stderr
    assert len(launches.left("saved")) == 2 and not launches.left("asked_twice")
    assert_nothing_runs(launches)


def test_job_that_ends_at_a_signals_wish_gets_time_and_is_not_started_again(launches):
    ended = Ended(launches.start("obeys", *TWO, "--max-restarts", "1"))
    assert ended.status == 128 + signal.SIGTERM
    assert ended.stderr.splitlines()[1:] == ["unifit: ended by SIGTERM."]
    assert len(launches.left("obeyed")) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ties a process to its parent on Linux only")
def test_killed_launcher_leaves_no_process(launches):
    launcher = launches.start("waits", *TWO)
    wait_for(lambda: len(launches.left("pids")) == 2, "start")
    launcher.kill()
    # Theirs find out by themselves: a DataLoader's workers watch their parent.
    pids = [int(text.split()[0]) for text in launches.left("pids").values()]
    wait_for(lambda: not any(map(is_running, pids)), "end of the processes")


# The supervisor alone


@pytest.mark.parametrize(
    ("status", "by_signal"),
    [(128 + signal.SIGTERM, True), (-signal.SIGINT, True), (-signal.SIGTERM, False), (3, False)],
)
def test_others_get_time_where_the_first_end_was_a_signals_wish(tmp_path, monkeypatch, status, by_signal):
    for name in ("SETTLE_S", "TERMINATION_GRACE_S"):
        monkeypatch.setattr(supervisor, name, 0.1)
    first = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    first += f"os.kill(os.getpid(), {-status})" if status < 0 else f"os._exit({status})"
    other = f"import pathlib, time; time.sleep(1.0); pathlib.Path({str(tmp_path / 'saved')!r}).touch(); 1 / 0"
    outcome = Supervisor(SimpleQueue(), announced=False).run([spec(0, other, tmp_path / "0"), spec(1, first)])
    assert (outcome.by_signal, outcome.status) == (by_signal, status if status > 0 else 128 - status)
    assert (tmp_path / "saved").exists() is by_signal
    assert ("process 0 of the job ended with status 1." in outcome.report) is by_signal


def test_own_signal_after_a_process_has_obeyed_one_is_not_the_second():
    events = SimpleQueue()
    job = Supervisor(events, announced=False)
    threading.Timer(0.5, events.put, [Signalled(signal.SIGTERM)]).start()
    outcome = job.run([spec(0, "import os; os._exit(143)"), spec(1, "import time; time.sleep(1.5)")])
    assert outcome.status == 128 + signal.SIGTERM
    assert outcome.report == "unifit: ended by SIGTERM."
    assert not any(child.stopped for child in job._children)


def spec(number, source, stderr=None):
    return Spec(number, (sys.executable, "-c", source), os.environ, None, stderr)


def test_cause_is_reported_before_its_consequences(tmp_path, capfd):
    consequence = "import sys; sys.exit('unifit.errors.PeerError: process 1 has failed')"
    cause = "import time; time.sleep(0.3); raise ValueError('bad sample 17')"
    specs = [spec(0, consequence, tmp_path / "0"), spec(1, cause, tmp_path / "1")]
    outcome = Supervisor(SimpleQueue()).run(specs)
    assert (outcome.status, outcome.failed) == (1, 1)
    told = capfd.readouterr().err
    assert 0 <= told.index("process 1 of the job ended") < told.index("process 0 of the job ended")


def test_silent_supervisor_reports_in_its_outcome(capfd):
    seen = []
    failing = spec(0, "import sys; print('x' * 70000, file=sys.stderr); sys.exit('the last words')", seen.append)
    outcome = Supervisor(SimpleQueue(), announced=False).run([failing])
    assert outcome.status == 1
    assert outcome.report.endswith("the last words")
    assert b"".join(seen) == b"x" * 70000 + b"\nthe last words\n"
    assert capfd.readouterr() == ("", "")


def test_interrupt_of_the_supervisor_ends_its_processes(monkeypatch):
    job = Supervisor(events := SimpleQueue())
    monkeypatch.setattr(job, "_watch", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        job.run([spec(0, "import time; time.sleep(600)")])
    assert time.monotonic() - started < ENDS_WITHIN_S
    assert not job._running
    with pytest.raises(Empty):
        events.get_nowait()


# Several machines: launchers on the loopback stand for them


def nodes(port, number, *options):
    address = ("--rendezvous", f"127.0.0.1:{port}")
    return [("--nodes", str(number), "--node-rank", str(rank), *address, *options) for rank in range(number)]


def free_port():
    return free_ports(1)[0]


def test_two_nodes_are_one_job(launches):
    started = [launches.start("ends", *options) for options in nodes(free_port(), 2, *TWO, "--devices", "2")]
    first, second = map(Ended, started)
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    assert (first.stdout, second.stdout) == ("process 0 prints\n", "")
    seen = [json.loads(text) for _, text in sorted(launches.left("environment").items())]
    assert [environment["UNIFIT_PROCESS"] for environment in seen] == ["0", "1", "2", "3"]
    assert [environment["UNIFIT_LOCAL_PROCESS"] for environment in seen] == ["0", "1", "0", "1"]
    for name in ("UNIFIT_COORDINATOR", "UNIFIT_ADDRESSES"):
        assert len({environment[name] for environment in seen}) == 1
    assert len(set(seen[0]["UNIFIT_ADDRESSES"].split(","))) == 4
    assert_nothing_runs(launches)


def test_node_that_ends_at_a_signals_wish_leaves_the_other_time(launches):
    started = [launches.start("obeys", *options, "--max-restarts", "1") for options in nodes(free_port(), 2)]
    for ended in map(Ended, started):
        assert ended.status == 128 + signal.SIGTERM
        assert "ended by SIGTERM" in ended.stderr and "starting again" not in ended.stderr
    assert len(launches.left("obeyed")) == 2


def test_failure_on_one_node_ends_the_other(launches):
    started = [launches.start("fails", *options) for options in nodes(free_port(), 2)]
    first, second = map(Ended, started)
    assert (first.status, second.status) == (1, 1)
    assert first.seconds < ENDS_WITHIN_S
    assert "node 1 has failed" in first.stderr
    for ended in (first, second):
        assert "process 1 of the job ended with status 1" in ended.stderr
        assert "ValueError: bad sample 17" in ended.stderr
    assert_nothing_runs(launches)


def test_lost_node_ends_the_other(launches):
    started = [launches.start("waits", *options) for options in nodes(free_port(), 2)]
    wait_for(lambda: len(launches.left("pids")) == 2, "start")
    started[1].kill()
    ended = Ended(started[0])
    assert ended.status == 1
    assert ended.seconds < ENDS_WITHIN_S
    assert "the connection to node 1 is lost" in ended.stderr


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_busy_port_is_told_at_once(backend, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = nodes(port, 2, "--backend", backend, "--devices", "1")[0]
        started = time.monotonic()
        assert command_line.main(["run", *options, __file__]) != 0
    assert time.monotonic() - started < ENDS_WITHIN_S
    told = capsys.readouterr().err
    assert str(port) in told and "--rendezvous" in told


# The rendezvous alone


def node(number, count, **others):
    values = {"backend": "jax", "version": "1", "max_restarts": 0, "processes": 1, "host": "", "ports": (1, 2)}
    return Node(number, count, **(values | others))


def meet_all(*given, timeout_s=20.0):
    """Launchers in threads; returns each one's meeting with its events, or its error."""
    port, results = free_port(), [None] * len(given)

    def come(place):
        events = SimpleQueue()
        try:
            results[place] = meet(given[place], "127.0.0.1", port, timeout_s, events), events
        except StartError as error:
            results[place] = error

    threads = [threading.Thread(target=come, args=(place,)) for place in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return results


def close(*meetings):
    threads = [threading.Thread(target=meeting.close) for meeting in meetings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)


def test_missing_nodes_are_named_on_all():
    errors = meet_all(node(0, 4), node(2, 4), timeout_s=1.0)
    for error in errors:
        assert "had not come" in str(error) and ": 1, 3." in str(error)


def test_absent_node_0_is_told():
    (error,) = meet_all(node(1, 2), timeout_s=1.0)
    assert "did not meet node 0 at 127.0.0.1" in str(error) and "--node-rank 0" in str(error)


MISFITS = {
    "the same rank": (node(1, 3), node(1, 3), "--node-rank 1"),
    "another number of nodes": (node(1, 3), node(2, 4), "--nodes 4"),
    "another backend": (node(1, 3), node(2, 3, backend="torch"), "--backend torch"),
    "another version": (node(1, 3), node(2, 3, version="2"), "unifit's version 2"),
    "other restarts": (node(1, 3), node(2, 3, max_restarts=5), "--max-restarts 5"),
}


@pytest.mark.parametrize(("second", "third", "said"), MISFITS.values(), ids=MISFITS)
def test_nodes_that_do_not_fit_are_told_everywhere(second, third, said):
    for error in meet_all(node(0, 3), second, third, timeout_s=3.0):
        assert isinstance(error, StartError) and said in str(error)


def test_strangers_at_the_port_are_hung_up_on():
    port, result = free_port(), []
    waiting = threading.Thread(target=lambda: result.append(meet(node(0, 2), "127.0.0.1", port, 20.0, SimpleQueue())))
    waiting.start()
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"hello": {"node": 1}}\n'):
        assert answer_to(text, port) == b""
    other = meet(node(1, 2), "127.0.0.1", port, 20.0, SimpleQueue())
    waiting.join(LIMIT_S)
    close(other, *result)
    assert [member.host for member in other.nodes] == ["127.0.0.1"] * 2


def answer_to(text, port):
    """What whoever listens at the port, now or soon, says before it hangs up."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with connection:
        connection.sendall(text)
        try:
            return connection.recv(100)
        except ConnectionResetError:
            return b""


def test_all_hear_that_all_are_done_and_of_a_failure():
    for fails in (False, True):
        (first, heard_first), (second, heard_second), (third, heard_third) = meet_all(
            node(0, 3), node(1, 3), node(2, 3)
        )
        first.done()
        second.done()
        with pytest.raises(Empty):
            heard_first.get(timeout=0.3)
        if fails:
            third.fail("the reason")
            for heard in (heard_first, heard_second):
                event = heard.get(timeout=LIMIT_S)
                assert isinstance(event, OtherFailed) and "node 2" in event.text and "the reason" in event.text
        else:
            third.done()
            for heard in (heard_first, heard_second, heard_third):
                assert isinstance(heard.get(timeout=LIMIT_S), AllDone)
        close(first, second, third)


def test_signal_while_others_are_still_at_work_ends_the_wait():
    (first, events), (second, _) = meet_all(node(0, 2), node(1, 2))
    threading.Timer(0.5, events.put, [Signalled(signal.SIGINT)]).start()
    outcome = Supervisor(events, first, announced=False).run([spec(0, "pass")])
    close(first, second)
    assert outcome.status == 128 + signal.SIGINT


# Arguments

REFUSED = {
    "no script": ([], "which script"),
    "no rendezvous": (["--nodes", "2", "--node-rank", "0", "a.py"], "--rendezvous"),
    "no rank": (["--nodes", "2", "--rendezvous", "a:1", "a.py"], "--node-rank"),
    "rank too great": (["--nodes", "2", "--rendezvous", "a:1", "--node-rank", "2", "a.py"], "expected 0 to 1"),
    "no devices": (["--devices", "0", "a.py"], "'0' is no whole number of at least 1"),
    "devices in words": (["--devices", "two", "a.py"], "'two' is no whole number of at least 1"),
    "negative restarts": (["--max-restarts", "-1", "a.py"], "'-1' is no whole number of at least 0"),
    "no such script": (["--backend", "jax", "a.py"], "there is no script 'a.py'"),
    "unknown backend": (["--backend", "jaxx", "a.py"], "did you mean 'jax'"),
    "devices and processes": (["--backend", "jax", "--devices", "3", *TWO, "a.py"], "a multiple"),
    "torch has a process a device": (["--backend", "torch", "--devices", "3", *TWO, "a.py"], "--devices 2"),
    "no address": (["--nodes", "1", "--rendezvous", "a", "--backend", "jax", "a.py"], "HOST:PORT"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_arguments_are_refused(arguments, said, capsys):
    try:
        status = command_line.main(["run", *arguments])
    except SystemExit as error:  # argparse's way
        status = error.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_function_of_a_notebook_needs_cloudpickle(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"unifit\[notebook\]"):
        launch(lambda: None, devices=1)


def test_interrupted_launch_of_a_notebook_has_its_processes_save(monkeypatch, tmp_path):
    started, saved = tmp_path / "started", tmp_path / "saved"

    def function():
        try:
            started.touch()
            time.sleep(600)
        except KeyboardInterrupt:
            time.sleep(0.5)
            saved.touch()
            raise

    class Interrupted(Supervisor):
        def _watch(self):
            wait_for(started.exists, "start")
            os.kill(os.getpid(), signal.SIGINT)
            super()._watch()

    monkeypatch.setattr(notebook, "Supervisor", Interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        launch(function, devices=1)
    assert saved.exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_number_of_devices_to_launch_on_is_checked():
    with pytest.raises(ArgumentError, match="devices=0"):
        launch(print, devices=0)


@pytest.mark.parametrize(("text", "address"), [("a:1", ("a", 1)), ("[::1]:65535", ("::1", 65535))])
def test_address_is_split(text, address):
    assert split_address(text, "--rendezvous") == address


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:b", "a:0", "a:65536", "a:-1"])
def test_malformed_address_is_told(text):
    with pytest.raises(ArgumentError, match="--rendezvous"):
        split_address(text, "--rendezvous")
