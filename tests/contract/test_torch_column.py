"""What only the torch backend has: the restart as a job, DDP's reductions, its optimizers' slots, skipped updates."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend
from unifit.contract import optimizers as rules
from unifit.contract.distribution import DataParallel
from unifit.contract.job import Job
from unifit.contract.values import MicroBatch, Plan, Window
from unifit.errors import StartError, UnsupportedError
from unifit.training.objective import Layout, Objective
from unifit.training.outputs import Output, Term

pytestmark = pytest.mark.backends("torch")

JOB_LIMIT_S = 90.0
ENDING_S = 15.0
FLOAT32_TOLERANCE = 1e-6

RULES = [
    rules.SGD(weight_decay=0.1),
    rules.SGD(momentum=0.9, weight_decay=0.1),
    rules.SGD(momentum=0.9, nesterov=True),
    rules.Adam(0.8, 0.95, 1e-3),
    rules.AdamW(weight_decay=0.1),
    rules.RMSprop(0.8, 0.0, 1e-3, weight_decay=0.1),
    rules.RMSprop(0.8, 0.5, 1e-3, centered=True),
    rules.Adagrad(0.1, 1e-3, 0.1),
    rules.Lion(0.8, 0.95, 0.1),
]


# A script of its own, in a process of its own


class Ended:
    """How a command ended."""

    def __init__(self, status, stdout, stderr):
        self.status, self.stdout, self.stderr = status, stdout, stderr


def run(folder, monkeypatch, *command):
    """Runs Python in `folder`, with a time limit; torch's agent ends its processes when it is asked to end."""
    monkeypatch.setenv("TMPDIR", str(folder))
    process = subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        stdout, stderr = process.communicate(timeout=JOB_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            stdout, stderr = process.communicate(timeout=ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        pytest.fail(f"{command} did not end in {JOB_LIMIT_S:.0f} s:\n{stdout}\n{stderr}")
    return Ended(process.returncode, stdout, stderr)


def write(folder, source, name="script.py"):
    (folder / name).write_text(textwrap.dedent(source), encoding="utf-8")
    return name


TRAINS = """
    import os, sys
    import numpy as np
    import unifit as uf

    def fit(devices, epochs=1, **options):
        model = uf.Sequential([uf.layers.Dense(3)])
        model.compile("sgd", "mse")
        x, y = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
        distribution = uf.DataParallel(devices=devices)
        return model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, distribution=distribution, **options)
"""


def test_restart_keeps_the_command_line_and_the_exit_status(tmp_path, monkeypatch):
    write(tmp_path, TRAINS, "training.py")
    write(
        tmp_path,
        """
        import os, sys
        from training import fit
        os.chdir("/")
        fit(2)
        print(f"rank {os.environ['RANK']} argv {sys.argv[1:]} options {sys._xoptions} name {__name__}")
        sys.exit(7)
        """,
    )
    ended = run(tmp_path, monkeypatch, "-X", "probe=1", "-m", "script", "a b", "--devices=2", "-m")
    assert ended.status == 7, ended.stderr
    line = "argv ['a b', '--devices=2', '-m'] options {'probe': '1'} name __main__"
    assert ended.stdout.splitlines() == [f"rank 0 {line}"]
    announced = [text for text in ended.stderr.splitlines() if "starting the script again" in text]
    assert len(announced) == 1
    logs = list(Path(announced[0].split()[-1]).glob("*/attempt_0/1/stdout.log"))
    assert [log.read_text().splitlines() for log in logs] == [[f"rank 1 {line}"]]


def test_failing_rank_ends_the_job_with_its_traceback(tmp_path, monkeypatch):
    script = write(
        tmp_path,
        textwrap.dedent(TRAINS)
        + textwrap.dedent("""
        class Fails(uf.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if os.environ["RANK"] == "1" and epoch == 1:
                    raise RuntimeError("the reason of rank one")

        fit(2, epochs=50, callbacks=[Fails()])
        """),
    )
    ended = run(tmp_path, monkeypatch, script)
    assert ended.status == 1
    assert "RuntimeError: the reason of rank one" in ended.stderr
    assert "in on_epoch_end" in ended.stderr


@pytest.mark.parametrize("how", ["not a script", "engine already made"])
def test_restart_is_refused_before_training(tmp_path, monkeypatch, how):
    source = textwrap.dedent(TRAINS)
    if how == "not a script":
        ended = run(tmp_path, monkeypatch, "-c", source + "fit(2)")
    else:
        ended = run(tmp_path, monkeypatch, write(tmp_path, source + "fit(1)\nfit(2)"))
    assert ended.status == 1
    assert "UnsupportedError" in ended.stderr
    assert "torchrun --nproc-per-node 2 script.py" in ended.stderr


def test_job_of_another_size_is_refused():
    with pytest.raises(UnsupportedError, match=r"devices=3.*2 process.*devices=None"):
        backend.distribution.prepare(DataParallel(devices=3), Job("torchrun", 0, 2, 0, 2, "127.0.0.1:1"))


@pytest.fixture
def group(monkeypatch):
    """The module that joins jobs, in a hurry."""
    module = importlib.import_module("unifit_torch.group")
    monkeypatch.setattr(module, "START_TIMEOUT_S", 0.5)
    return module


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
@pytest.mark.parametrize(
    ("process", "address", "reason"),
    [
        (0, "127.0.0.1:{busy}", "port {busy} is in use"),
        (0, "127.0.0.1:{free}", "processes did not come: 1, 2"),
        (1, "127.0.0.1:{busy}", "did not answer as the store of a job"),
        (1, "127.0.0.1:{free}", "nobody answered there in 0.5 s"),
        (1, "no.host.invalid:{free}", "name is not known"),
        (1, "somewhere", "host:port"),
    ],
)
def test_job_that_does_not_come_together_is_a_start_error(group, launcher, process, address, reason):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        ports = {"busy": mute.getsockname()[1], "free": free_port()}
        job = Job(launcher, process, 3, process, 3, address.format(**ports))
        with pytest.raises(StartError) as error:
            group.join(job, torch_device())
    assert f"Process {process} of 3" in str(error.value)
    assert job.coordinator in str(error.value)
    assert reason.format(**ports) in str(error.value)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torch_device():
    return importlib.import_module("torch").device("cpu")


JOB = """
    import json, os, sys
    import numpy as np
    import torch
    import unifit as uf
    from torch.profiler import profile

    STEPS = 5
    seen = []

    class Recorder(uf.Layer):
        def call(self, x):
            context = uf.context()
            if context.training and not context.abstract:
                rows = x[:, 0] if context.valid is None else x[context.valid, 0]
                seen.extend(int(row) for row in rows)
            return x

    class WithUnused(uf.Model):
        def __init__(self):
            super().__init__()
            self.recorder, self.used, self.unused = Recorder(), uf.layers.Dense(3), uf.layers.Dense(3)

        def call(self, x):
            x = self.recorder(x)
            kept, dropped = self.used(x), self.unused(x)
            return kept

    class Profiler(uf.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0:
                self.profile = profile()
                self.profile.__enter__()

        def on_epoch_end(self, epoch, logs=None):
            self.profile.__exit__(None, None, None)

    def measured(accumulation, loss="mse"):
        rows = 8 * accumulation * STEPS
        x, y = np.zeros((rows, 5), "float32"), np.ones((rows, 3), "float32")
        x[:, 0] = np.arange(rows)
        model, profiler = WithUnused(), Profiler()
        model.build((None, 5))
        model.compile(uf.optimizers.AdamW(0.1, weight_decay=0.5), loss, gradient_accumulation_steps=accumulation)
        start = model.weights_by_path()["unused.kernel"]
        seen.clear()
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[profiler], distribution=uf.DataParallel(devices=2))
        names = [event.name for event in profiler.profile.events()]
        return {
            "all_reduce": names.count("gloo:all_reduce"),
            "forward": names.count("DistributedDataParallel.forward"),
            "rows": list(seen),
            "decay": float(np.mean(model.weights_by_path()["unused.kernel"] / start)),
        }

    results = {
        "accumulation 1": measured(1),
        "accumulation 8": measured(8),
        "counts first": measured(8, uf.losses.MeanSquaredError(reduction="mean_with_sample_weight")),
    }
    with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as file:
        json.dump(results, file)
"""
JOB_STEPS = 5


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """What two ranks measured in one job."""
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as monkeypatch:
        ended = run(folder, monkeypatch, write(folder, JOB), str(folder))
    assert ended.status == 0, ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("case", "accumulation"), [("accumulation 1", 1), ("accumulation 8", 8)])
def test_ddp_reduces_once_an_update(job, case, accumulation):
    for rank in job:
        # The profiler begins with the first batch, after the two passes that settle DDP's buckets.
        assert rank[case]["forward"] == JOB_STEPS * accumulation
        assert rank[case]["all_reduce"] == JOB_STEPS


def test_counts_cost_one_small_reduction_more(job):
    assert [rank["counts first"]["all_reduce"] for rank in job] == [2 * JOB_STEPS] * 2


def test_ranks_train_on_disjoint_rows(job):
    first, second = (rank["accumulation 8"]["rows"] for rank in job)
    assert len(first) == len(second) == 8 * 8 * JOB_STEPS // 2
    assert sorted(first + second) == list(range(8 * 8 * JOB_STEPS))


def test_parameter_outside_the_loss_decays_in_a_job(job):
    expected = (1 - 0.1 * 0.5) ** JOB_STEPS
    for rank in job:
        assert rank["accumulation 8"]["decay"] == pytest.approx(expected, rel=FLOAT32_TOLERANCE)


# A job that no agent looks after: process 0 keeps the store

PAIR = """
    import json, os, sys, threading, time
    import numpy as np
    import torch
    import torch.distributed as dist
    import unifit as uf
    from unifit.backend import backend
    from unifit.launch.environment import current_job
    from unifit_torch.engine import Engine, is_out_of_memory

    folder, case = sys.argv[1:]
    job = current_job()
    process, processes = (0, 1) if job is None else (job.process, job.processes)
    intent = None if job is None else uf.DataParallel()
    WIDE, ROWS, STEPS, ACCUMULATION = 600, 4, 2, 3

    class Branches(uf.Model):
        # Each process trains another branch. Each has a bucket of DDP's to itself; a BatchNormalization comes after.
        def __init__(self):
            super().__init__()
            self.first, self.a, self.b = (uf.layers.Dense(WIDE) for _ in range(3))
            self.norm, self.last = uf.layers.BatchNormalization(), uf.layers.Dense(3)

        def call(self, x):
            if not uf.context().abstract:
                torch.rand(1)  # from the global generator, as a user's own code may
            h = self.first(x)
            if processes == 1 or uf.context().abstract:
                h = uf.ops.where(x[:, :1] > 0, self.a(h), self.b(h))
            else:
                h = self.a(h) if x[0, 0] > 0 else self.b(h)
            if failing and uf.context().training and process == 1:
                raise torch.OutOfMemoryError("made up")
            return self.last(self.norm(h))

    failing = False

    def branches():
        r = np.random.default_rng(0)
        rows = 2 * ROWS * STEPS * ACCUMULATION
        x, y = r.normal(size=(rows, 5)).astype("float32"), r.normal(size=(rows, 3)).astype("float32")
        sides = x.reshape(STEPS, ACCUMULATION, 2, ROWS, 5)[..., 0]
        sides[:, :, 0], sides[:, :, 1] = 1, -1
        sides[:, 0] *= -1
        model = Branches()
        model.build((None, 5))
        model.compile(uf.optimizers.SGD(0.001), "mse", gradient_accumulation_steps=ACCUMULATION)
        options = {"shuffle": False, "verbose": 0, "distribution": intent}
        loss = model.fit(x, y, batch_size=2 * ROWS, **options).history["loss"]
        return {"loss": np.array(loss)} | model.weights_by_path()

    probes = []

    def probing(train):
        def probe_and_train(engine, totals, placed):
            global failing
            tensors = [*engine.model.state_dict().values(), *sum(engine._optimizer.slots.values(), [])]
            before = [tensor.clone() for tensor in [*tensors, torch.get_rng_state()]]
            engine.probe(placed)
            failing = True
            try:
                engine.probe(placed)
                failed = False
            except torch.OutOfMemoryError as error:
                failed = is_out_of_memory(error)
            failing = False
            after = [*tensors, torch.get_rng_state()]
            same = all(torch.equal(*pair) for pair in zip(before, after, strict=True))
            probes.append([failed, same, engine.iterations()])
            return train(engine, totals, placed)
        return probe_and_train

    np.savez(f"{folder}/{case}-{process}.npz", **branches())
    if job is not None and case == "whole":
        Engine.train = probing(Engine.train)
        np.savez(f"{folder}/probed-{process}.npz", **branches())

    if job is not None:
        store = backend.distribution.prepare(intent, job).store
        if process == 0:
            store.put("text", "first")
            store.put("text", "second \u00fc\\n")
            store.put("gone", "")
            store.delete("gone")
            store.delete("never there")
            store.put("ready", "")
        met = store.get("ready", 30.0) == ""
        texts = [store.get("text", 0.0), store.get("gone", 0.0), store.get("never there", 0.2)]
        waited = []
        waiting = threading.Thread(target=lambda: waited.append(store.get("late", 30.0)))
        waiting.start()
        start = time.monotonic()
        for number in range(100):
            store.put(f"many {process}", str(number))
        busy_s = time.monotonic() - start
        alone = waiting.is_alive()
        store.get(f"many {1 - process}", 30.0)
        store.put(f"done {process}", "")
        if store.get(f"done {1 - process}", 30.0) == "" and process == 0:
            store.put("late", "here")
        waiting.join()
        results = {"met": met, "texts": texts, "waited": waited, "busy_s": busy_s, "alone": alone, "probes": probes}
        if process == 1 and case == "killed":
            os.kill(os.getpid(), 9)
        if process == 0 and case == "killed":
            import unifit_torch.group
            unifit_torch.group.FAREWELL_S = 1.0
        if process == 1:
            time.sleep(1.0)
            results["after the end of process 0"] = store.get("text", 0.0)
        with open(f"{folder}/{case}-{process}.json", "w") as file:
            json.dump(results, file)
"""


def run_pair(folder, case):
    """Two processes of PAIR under unifit's own variables; their statuses and what they printed."""
    write(folder, PAIR, "pair.py")
    port, processes = free_port(), []
    for process in range(2):
        job = {"PROCESS": process, "PROCESSES": 2, "LOCAL_PROCESS": process, "LOCAL_PROCESSES": 2}
        environment = {f"UNIFIT_{name}": str(value) for name, value in job.items()}
        environment |= {"UNIFIT_COORDINATOR": f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(folder / "pair.py"), str(folder), case]
        with open(folder / f"{case}-{process}.log", "w") as log:
            started = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log)
        processes.append(started)
    deadline = time.monotonic() + JOB_LIMIT_S
    try:
        statuses = [process.wait(max(0.0, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return statuses, "\n".join((folder / f"{case}-{process}.log").read_text() for process in range(2))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of a pair that ended as it should."""
    folder = tmp_path_factory.mktemp("pair")
    statuses, printed = run_pair(folder, "whole")
    assert statuses == [0, 0], printed
    return folder


def results(folder, case="whole"):
    return [json.loads((folder / f"{case}-{process}.json").read_text()) for process in range(2)]


def test_store_keeps_replaces_and_forgets_texts(pair):
    for process in results(pair):
        assert process["met"]
        assert process["texts"] == ["second \u00fc\n", None, None]


def test_waiting_for_a_text_holds_up_no_other_thread(pair):
    for process in results(pair):
        assert process["alone"]
        assert process["busy_s"] < 5.0
        assert process["waited"] == ["here"]


def test_process_0_keeps_the_store_until_the_others_are_done(pair):
    assert results(pair)[1]["after the end of process 0"] == "second \u00fc\n"


def test_process_that_ends_does_not_wait_for_one_that_was_killed(tmp_path):
    statuses, printed = run_pair(tmp_path, "killed")
    assert statuses == [0, -signal.SIGKILL], printed


def test_branches_of_single_processes_train_as_on_one_device(pair, monkeypatch):
    ended = run(pair, monkeypatch, "-W", "ignore", "pair.py", str(pair), "alone")
    assert ended.status == 0, ended.stderr
    with np.load(pair / "alone-0.npz") as expected:
        for process in range(2):
            with np.load(pair / f"whole-{process}.npz") as got:
                assert got.files == expected.files
                for name in expected.files:
                    np.testing.assert_allclose(
                        got[name], expected[name], rtol=0, atol=FLOAT32_TOLERANCE, err_msg=f"{process} {name}"
                    )


def test_probe_changes_nothing_and_holds_nobody_up_where_it_fails(pair):
    for process, seen in enumerate(results(pair)):
        assert seen["probes"] == [[process == 1, True, step] for step in range(2)]
        with np.load(pair / f"whole-{process}.npz") as expected, np.load(pair / f"probed-{process}.npz") as got:
            for name in expected.files:
                np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


# The engine by hand


class Counting(uf.Layer):
    """y = x @ kernel + bias, and a buffer that sums its inputs, NaN and all."""

    def call(self, x):
        self.assign("state", self.state + uf.ops.sum(x))
        return uf.ops.matmul(x, self.kernel) + self.bias


ROWS = 4


def make_engine(rule, clip_norm=None):
    module = Counting()
    r = np.random.default_rng(1)
    module.add_parameter("kernel", r.normal(size=(3, 2)).astype("float32"), True)
    module.add_parameter("bias", r.normal(size=2).astype("float32"), True)
    module.add_parameter("state", np.zeros((), "float32"), False)
    objective = Objective(
        [Term(uf.losses.get("mse"), Output("output", 0, True), 1.0)], Layout(("output",), (1.0,), (False,))
    )
    plan = Plan(objective, frozenset({"kernel", "bias"}), rule, frozenset({"kernel"}), clip_norm=clip_norm)
    engine = backend.engine.Engine(module, plan, backend.distribution.prepare(None, None))
    engine.set_rates(0, np.array([0.1, 0.05, 0.02, 0.01], np.float32))
    return engine


def window(seed, weight=None, fill=None):
    r = np.random.default_rng(seed)
    x, y = r.normal(size=(1, ROWS, 3)).astype("float32"), r.normal(size=(1, ROWS, 2)).astype("float32")
    if fill is not None:
        x[:] = fill
    return Window(MicroBatch(x, y, weight, np.ones((1, ROWS), bool)), live=1, full=True, step=seed)


def state(engine):
    names = engine.model.parameter_names()
    return {name: engine.model.read_parameter(name) for name in names} | engine.read_slots()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fill", [None, np.nan], ids=["finite", "nan"])
def test_skipped_update_changes_nothing(rule, fill):
    engine = make_engine(rule, clip_norm=1.0)
    totals = engine.train(engine.zeros(False), engine.place(window(0)))
    before = state(engine)
    totals = engine.train(totals, engine.place(window(1, np.zeros((1, ROWS), bool), fill)))
    after = state(engine)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    own = engine.read(totals, False)[-len(engine.ENGINE_SUMS) :]
    np.testing.assert_array_equal(own[:2], [1.0, 1.0])
    assert np.isfinite(own[2])
    engine.train(totals, engine.place(window(2)))
    assert engine.iterations() == 2
    assert all(np.any(state(engine)[name] != before[name]) for name in ("kernel", "bias", "state"))


@pytest.mark.parametrize("fill", [None, np.nan], ids=["finite", "nan"])
def test_probe_of_one_device_changes_nothing(fill):
    engine = make_engine(rules.SGD(momentum=0.9), clip_norm=1.0)
    engine.train(engine.zeros(False), engine.place(window(0)))
    before = state(engine)
    engine.probe(engine.place(window(1, fill=fill)))
    after = state(engine)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert all(parameter.grad is None for parameter in engine.model.parameters())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            True,
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_out_of_memory_is_known(error, expected):
    assert backend.engine.is_out_of_memory(error) is expected


def test_out_of_memory_of_the_hosts_allocator_is_known():
    with pytest.raises(RuntimeError) as error:
        uf.ops.zeros((2**50,))
    assert backend.engine.is_out_of_memory(error.value)
