"""What only the torch backend has: the restart as a job, DDP's reductions, its optimizers' slots, skipped updates."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend
from unifit.contract import optimizers as rules
from unifit.contract.distribution import DataParallel
from unifit.contract.values import MicroBatch, Plan, Window
from unifit.errors import UnsupportedError
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


def test_job_of_another_size_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UnsupportedError, match=r"devices=3.*2 process"):
        backend.distribution.prepare(DataParallel(devices=3), None)


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
        "accumulation 4": measured(4),
        "counts first": measured(4, uf.losses.MeanSquaredError(reduction="mean_with_sample_weight")),
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


@pytest.mark.parametrize(("case", "accumulation"), [("accumulation 1", 1), ("accumulation 4", 4)])
def test_ddp_reduces_once_an_update(job, case, accumulation):
    for rank in job:
        # The profiler begins with the first batch, after the two passes that settle DDP's buckets.
        assert rank[case]["forward"] == JOB_STEPS * accumulation
        assert rank[case]["all_reduce"] == JOB_STEPS


def test_counts_cost_one_small_reduction_more(job):
    assert [rank["counts first"]["all_reduce"] for rank in job] == [2 * JOB_STEPS] * 2


def test_ranks_train_on_disjoint_rows(job):
    first, second = (rank["accumulation 4"]["rows"] for rank in job)
    assert len(first) == len(second) == 8 * 4 * JOB_STEPS // 2
    assert sorted(first + second) == list(range(8 * 4 * JOB_STEPS))


def test_parameter_outside_the_loss_decays_in_a_job(job):
    expected = (1 - 0.1 * 0.5) ** JOB_STEPS
    for rank in job:
        assert rank["accumulation 4"]["decay"] == pytest.approx(expected, rel=FLOAT32_TOLERANCE)


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
    own = engine.read(totals, False)[-3:]
    np.testing.assert_array_equal(own[:2], [1.0, 1.0])
    assert np.isfinite(own[2])
    engine.train(totals, engine.place(window(2)))
    assert engine.iterations() == 2
    assert all(np.any(state(engine)[name] != before[name]) for name in ("kernel", "bias", "state"))
