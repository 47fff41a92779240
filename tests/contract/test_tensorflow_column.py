"""What only the tensorflow backend has: collectives in graphs, mirrored variables, tf.Modules, its optimizers."""

import concurrent.futures
import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend
from unifit.contract import optimizers as rules
from unifit.contract.distribution import DataParallel
from unifit.contract.job import Job
from unifit.contract.values import ArraySpec, MicroBatch, Plan, Window
from unifit.errors import StartError, UnsupportedError
from unifit.training.objective import Layout, Objective
from unifit.training.outputs import Output, Term

pytestmark = pytest.mark.backends("tensorflow")

SCRIPT_LIMIT_S = 110.0
FLOAT32_TOLERANCE = 1e-6

RULES = [
    rules.SGD(weight_decay=0.1),
    rules.SGD(momentum=0.9, weight_decay=0.1),
    rules.SGD(momentum=0.9, nesterov=True),
    rules.Adam(0.8, 0.95, 1e-3),
    rules.Adam(),
    rules.AdamW(weight_decay=0.1),
    rules.RMSprop(0.8, 0.0, 1e-3, weight_decay=0.1),
    rules.RMSprop(0.8, 0.5, 1e-3, centered=True),
    rules.Adagrad(0.1, 1e-3, 0.1),
    rules.Lion(0.8, 0.95, 0.1),
]


# Two devices: a process of its own, since TensorFlow takes the number of devices once


def run(source, devices=None, *arguments):
    """Runs a script with a time limit; returns the JSON of its last line."""
    environment = os.environ | {"UNIFIT_BACKEND": "tensorflow"}
    environment.pop("UNIFIT_CPU_DEVICES", None)
    if devices:
        environment["UNIFIT_CPU_DEVICES"] = str(devices)
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SCRIPT_LIMIT_S,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


TWO_DEVICES = """
    import json

    import numpy as np
    import unifit as uf
    from unifit import ops

    ROWS = 37


    class Standardized(uf.Layer):
        \"\"\"(x - mean) / deviation over the valid rows of all devices, which the moving mean follows.\"\"\"

        def build(self, input_shape):
            self.scale = self.add_weight(input_shape[-1:], "ones")
            self.moving = self.add_weight(input_shape[-1:], "zeros", trainable=False)

        def call(self, x, training):
            context = uf.context()
            if not training or context.abstract:
                return (x - self.moving) * self.scale
            valid = ops.expand_dims(ops.cast(context.valid, "float32"), -1)
            rows = ops.maximum(context.sum_over_devices(ops.sum(valid)), 1.0)
            mean = context.sum_over_devices(ops.sum(x * valid, axis=0)) / rows
            variance = context.sum_over_devices(ops.sum(ops.square(x - mean) * valid, axis=0)) / rows
            self.moving = 0.9 * self.moving + 0.1 * mean
            return (x - mean) / ops.sqrt(variance + 1e-3) * self.scale


    class Unused(uf.Model):
        def __init__(self):
            super().__init__()
            self.used, self.unused = uf.layers.Dense(3), uf.layers.Dense(2)

        def call(self, x):
            self.unused(x)
            return self.used(x)


    def collectives(compiled):
        (_, trace), = compiled._traces
        graph = trace.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        return sum(node.op.startswith("Collective") for node in nodes)


    def fit(layers, devices, accumulation, reduction="sum_over_batch_size", optimizer=None, x=None):
        uf.set_seed(0)
        r = np.random.default_rng(7)
        data = r.normal(size=(ROWS, 5)).astype("float32") if x is None else x
        y = r.integers(0, 3, ROWS)
        model = layers if isinstance(layers, uf.Model) else uf.Sequential(layers)
        model.compile(
            optimizer or uf.optimizers.SGD(0.01, momentum=0.9),
            uf.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction),
            gradient_accumulation_steps=accumulation,
            clip_norm=1.0,
        )
        distribution = uf.DataParallel(devices=devices)
        history = model.fit(data, y, batch_size=8, epochs=3, shuffle=False, verbose=0, distribution=distribution)
        engine = model.trainer.engine
        weights = {path: value.tolist() for path, value in model.weights_by_path().items()}
        return model, {
            "loss": history.history["loss"],
            "weights": weights,
            "traces": engine.traces,
            "predictions": model.predict(data, verbose=0).tolist(),
            "score": model.evaluate(data, y, verbose=0),
            "collectives": collectives(engine._train),
            "evaluation_collectives": collectives(engine._evaluate),
        }


    def pair(make, accumulation, **options):
        return [fit(make(), devices, accumulation, **options)[1] for devices in (1, 2)]


    mlp = lambda: [uf.layers.Dense(8, "tanh"), uf.layers.Dense(3)]
    standardized = lambda: [uf.layers.Dense(8), Standardized(), uf.layers.Dense(8), Standardized(), uf.layers.Dense(3)]
    adamw = uf.optimizers.AdamW(0.01, weight_decay=0.5)
    ids = np.random.default_rng(3).integers(0, 4, (ROWS, 6)).astype("int32")
    embedding = lambda: [uf.layers.Embedding(4, 3), uf.layers.Flatten(), uf.layers.Dense(3)]
    results = {
        "mlp 1": pair(mlp, 1),
        "mlp 8": pair(mlp, 8),
        "counts first 1": pair(mlp, 1, reduction="sum"),
        "counts first 4": pair(mlp, 4, reduction="mean_with_sample_weight"),
        "statistics 1": pair(standardized, 1),
        "statistics 4": pair(standardized, 4),
        "embedding 2": pair(embedding, 2, x=ids),
        "unused 2": pair(Unused, 2, optimizer=adamw),
    }

    uf.set_seed(0)
    unused = Unused()
    unused.build((None, 5))
    results["start"] = unused.weights_by_path()["unused.kernel"].tolist()

    model, _ = fit(mlp(), 2, 2)
    results["moved"] = []
    for devices in (1, 2):
        before = model.get_weights()
        x, y = np.ones((8, 5), "float32"), np.zeros(8)
        model.fit(x, y, batch_size=8, verbose=0, distribution=uf.DataParallel(devices=devices))
        results["moved"].append([
            [type(variable).__name__ for variable in model.variables],
            [bool(np.any(a != b)) for a, b in zip(before, model.get_weights())],
        ])
    results["copies_are_equal"] = [
        all(np.array_equal(variable.values[0].numpy(), copy.numpy()) for copy in variable.values)
        for variable in model.variables
    ]
    print(json.dumps(results))
"""
CASES = ["mlp 1", "mlp 8", "embedding 2", "unused 2"]
CASES += [f"{name} {k}" for name in ("counts first", "statistics") for k in (1, 4)]


@pytest.fixture(scope="module")
def two_devices():
    return run(TWO_DEVICES, 2)


@pytest.mark.parametrize("case", CASES)
def test_two_devices_give_the_numbers_of_one(two_devices, case):
    one, two = two_devices[case]
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=FLOAT32_TOLERANCE)
    np.testing.assert_allclose(two["score"], one["score"], rtol=10 * FLOAT32_TOLERANCE)
    np.testing.assert_allclose(two["predictions"], one["predictions"], rtol=1e-5, atol=1e-5)
    for name, value in one["weights"].items():
        np.testing.assert_allclose(two["weights"][name], value, rtol=1e-5, atol=FLOAT32_TOLERANCE, err_msg=name)


@pytest.mark.parametrize(
    ("case", "an_update"),
    [("mlp 1", 1), ("mlp 8", 1), ("counts first 1", 2), ("counts first 4", 2), ("embedding 2", 1), ("unused 2", 1)],
)
def test_gradients_are_reduced_once_an_update(two_devices, case, an_update):
    one, two = two_devices[case]
    assert one["collectives"] == 0
    assert two["collectives"] == 2 * an_update  # one node a device


@pytest.mark.parametrize("case", CASES)
def test_evaluation_needs_no_collective(two_devices, case):
    assert [result["evaluation_collectives"] for result in two_devices[case]] == [0, 0]


@pytest.mark.parametrize("case", CASES)
def test_ragged_ends_and_short_windows_share_one_trace(two_devices, case):
    assert [result["traces"] for result in two_devices[case]] == [1, 1]


def test_parameter_without_a_gradient_decays(two_devices):
    remaining = (1 - 0.01 * 0.5) ** (3 * 3)
    for result in two_devices["unused 2"]:
        np.testing.assert_allclose(
            result["weights"]["unused.kernel"], np.multiply(remaining, two_devices["start"]), rtol=FLOAT32_TOLERANCE
        )


def test_variables_move_between_one_device_and_two(two_devices):
    (single, trained_on_one), (mirrored, trained_on_two) = two_devices["moved"]
    assert set(single) == {"ResourceVariable"}
    assert set(mirrored) == {"MirroredVariable"}
    assert all(trained_on_one)
    assert all(trained_on_two)
    assert all(two_devices["copies_are_equal"])


LATE = """
    import json

    import numpy as np
    import tensorflow as tf
    import unifit as uf

    model = uf.Sequential([uf.layers.Dense(3)])
    model.build((None, 5))
    model.compile("sgd", "mse")
    x, y = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    model.fit(x, y, batch_size=4, verbose=0, distribution=uf.DataParallel(devices=2))
    try:
        model.fit(x, y, batch_size=4, verbose=0, distribution=uf.DataParallel(devices=3))
    except uf.errors.UnsupportedError as error:
        print(json.dumps(str(error)))
"""


def test_devices_come_with_the_first_fit_and_not_later():
    message = run(LATE)
    for part in ("tensorflow", "devices=3", "2 CPU device", "UNIFIT_CPU_DEVICES=3"):
        assert part in message


def test_late_devices_are_refused():
    import tensorflow as tf

    present = len(tf.config.list_logical_devices("CPU"))
    with pytest.raises(UnsupportedError, match=rf"tensorflow.*{present} CPU.*UNIFIT_CPU_DEVICES={present + 1}"):
        backend.distribution.prepare(DataParallel(devices=present + 1), None)


# Several processes

JOB = """
    import json
    import os

    import numpy as np
    import unifit as uf
    from unifit import ops
    from unifit.contract.values import MicroBatch, Window

    K, ROWS = 2, 37


    class Kinds(uf.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.norm, self.head = uf.layers.Dense(8), uf.layers.BatchNormalization(), uf.layers.Dense(3)

        def call(self, x):
            logits = self.head(self.norm(ops.tanh(self.dense(x))))
            kinds = {name: ops.cast(x[:, :2], name) for name in ("bool", "int8", "int32", "float16", "bfloat16")}
            return {"logits": logits} | kinds


    def state(model):
        engine = model.trainer.engine
        return {**model.weights_by_path(), **engine.read_slots()}


    uf.set_seed(0)
    r = np.random.default_rng(7)
    x, y = r.integers(-3, 4, (ROWS, 5)).astype("float32"), r.integers(0, 3, ROWS)
    model = Kinds()
    model.compile(
        uf.optimizers.SGD(0.05, momentum=0.9),
        {"logits": uf.losses.SparseCategoricalCrossentropy(from_logits=True)},
        gradient_accumulation_steps=K,
        clip_norm=1.0,
    )
    history = model.fit(x, {"logits": y}, batch_size=8, epochs=3, verbose=0, distribution=uf.DataParallel())
    engine, results = model.trainer.engine, {"loss": history.history["loss"], "weights": {}, "predictions": {}}
    results["score"] = model.evaluate(x, {"logits": y}, verbose=0)
    for name, value in model.weights_by_path().items():
        results["weights"][name] = value.tolist()
    for name, value in model.predict(x, batch_size=8, verbose=0).items():
        results["predictions"][name] = [str(value.dtype), np.asarray(value, "float32").tolist()]

    placement, store = engine.devices.placement, engine.devices.store
    results["placement"] = list(placement)
    rows = 8 // placement.processes
    batch = MicroBatch(np.stack([x[:rows]] * K), {"logits": np.stack([y[:rows]] * K)}, None, np.ones((K, rows), bool))
    before, traces = state(model), engine.traces
    if placement.process == 0:  # alone: what needs no other process
        engine.probe(engine.place(Window(batch, K, True, 0)))
        engine.evaluate(engine.zeros(True), MicroBatch(batch.x[0], {"logits": y[:rows]}, None, batch.valid[0]))
        results["eager"] = np.asarray(model(ops.convert_to_tensor(x))["logits"]).tolist()
    after = state(model)
    results["probe_changed"] = [name for name, value in before.items() if not np.array_equal(value, after[name])]
    results["probe_traces"] = engine.traces - traces
    if store is not None:
        looked = [store.get("a", 0), store.get("never/b", 0.01)]
        if placement.process == 0:
            store.put("a", "1")
            store.put("a", "")
            store.put("a/b", "2")
            store.put("ready", "1")
        looked += [store.get("ready", 20), store.get("a", 0), store.get("a/b", 0)]
        store.put(f"read/{placement.process}", "1")
        assert all(store.get(f"read/{process}", 20) for process in range(placement.processes))
        if placement.process == 0:
            store.delete("a")
            store.delete("unknown")
            store.put("deleted", "1")
        results["store"] = [*looked[2:], store.get("deleted", 20), store.get("a", 0), store.get("a/b", 0)]
        if placement.process:
            store.put("done", "1")
        store.get("done", 20)
    print(json.dumps(results))
"""


def run_job(processes, devices):
    """Runs JOB in so many processes with so many devices each; the JSON of each one's last line."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(processes)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    started = []
    try:
        for process in range(processes):
            environment = os.environ | {"UNIFIT_BACKEND": "tensorflow", "UNIFIT_CPU_DEVICES": str(devices)}
            if processes > 1:
                environment |= {
                    "UNIFIT_PROCESS": str(process),
                    "UNIFIT_PROCESSES": str(processes),
                    "UNIFIT_LOCAL_PROCESS": str(process),
                    "UNIFIT_LOCAL_PROCESSES": str(processes),
                    "UNIFIT_COORDINATOR": addresses[0],
                    "UNIFIT_ADDRESSES": ",".join(addresses),
                }
            command = [sys.executable, "-c", textwrap.dedent(JOB)]
            pipe = subprocess.PIPE
            started.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
        ended = [(*process.communicate(timeout=SCRIPT_LIMIT_S), process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [code for *_, code in ended] == [0] * processes, "\n".join(errors[-3000:] for _, errors, _ in ended)
    return [json.loads(output.splitlines()[-1]) for output, *_ in ended]


@pytest.fixture(scope="module")
def alone():
    return run_job(1, 1)[0]


@pytest.fixture(scope="module", params=[1, 2])
def job(request):
    return run_job(2, request.param)


def test_processes_give_the_numbers_of_one(alone, job):
    devices = job[0]["placement"][2]
    assert [process["placement"] for process in job] == [[0, 2, devices], [1, 2, devices]]
    for process in job:
        np.testing.assert_allclose(process["loss"], alone["loss"], rtol=FLOAT32_TOLERANCE)
        np.testing.assert_allclose(process["score"], alone["score"], rtol=10 * FLOAT32_TOLERANCE)
        for name, value in alone["weights"].items():
            np.testing.assert_allclose(process["weights"][name], value, rtol=1e-5, atol=FLOAT32_TOLERANCE, err_msg=name)


def test_every_process_gets_all_predictions(alone, job):
    for process in job:
        assert process["predictions"].keys() == alone["predictions"].keys()
        for name, (dtype, value) in process["predictions"].items():
            assert dtype == alone["predictions"][name][0]
            np.testing.assert_allclose(value, alone["predictions"][name][1], rtol=1e-5, atol=1e-5, err_msg=name)
    assert job[0]["predictions"] == job[1]["predictions"]


def test_one_process_may_probe_evaluate_and_call_the_model_alone(alone, job):
    np.testing.assert_allclose(job[0]["eager"], alone["eager"], rtol=1e-5, atol=1e-5)
    for process in (alone, *job):
        assert process["probe_changed"] == []
        assert process["probe_traces"] == 0


def test_store_replaces_finds_and_forgets(job):
    for process in job:
        assert process["store"] == ["1", "", "2", "1", None, "2"]


def some_job(process=1, processes=2, addresses=("127.0.0.1:1", "127.0.0.1:2")):
    return Job("unifit", process, processes, process, processes, None, addresses)


def test_job_without_addresses_is_refused(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(StartError, match=r"0 address.*unifit run"):
        backend.distribution.prepare(None, some_job(addresses=()))


def test_tf_config_of_another_job_is_refused(monkeypatch):
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(StartError, match=r"number 2 of 3.*\(unifit\) number 1 of 2"):
        backend.distribution.prepare(None, some_job())


def test_job_has_its_own_number_of_devices():
    with pytest.raises(UnsupportedError, match=r"devices=64.*has \d+ devices.*2 processes.*devices=None"):
        backend.distribution.prepare(DataParallel(devices=64), some_job())


def test_process_that_used_tensorflow_cannot_join(monkeypatch):
    uf.ops.zeros(1)
    monkeypatch.setenv("TF_CONFIG", "")
    with pytest.raises(StartError, match=r"process 1 of 2 used TensorFlow before"):
        backend.distribution.prepare(None, some_job())


@pytest.fixture
def meeting(monkeypatch):
    module = backend.meeting
    monkeypatch.setattr(module, "START_TIMEOUT_S", 1.0)
    monkeypatch.setattr(module, "VERDICT_S", 1.0)
    return module


def free_addresses(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)


def meet(meeting, processes, addresses):
    """What becomes of each of these processes, as threads: None, or the text of its StartError."""

    def attempt(process):
        try:
            meeting.meet(some_job(process, len(addresses), addresses), list(addresses))
        except StartError as error:
            return str(error)
        return None

    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(attempt, processes))


def test_processes_meet_in_any_order(meeting):
    assert meet(meeting, [2, 1, 0], free_addresses(3)) == [None, None, None]


def test_missing_process_is_named_to_all(meeting):
    addresses = free_addresses(3)
    for message in meet(meeting, [1, 0], addresses):
        assert f"missing: process 2 ({addresses[2]})." in message
        assert "UNIFIT_START_TIMEOUT_S" in message


def test_missing_first_process_is_named(meeting):
    addresses = free_addresses(2)
    (message,) = meet(meeting, [1], addresses)
    assert f"missing: process 0 ({addresses[0]})." in message


def test_strangers_at_the_port_do_not_count(meeting):
    addresses = free_addresses(2)
    name, port = addresses[0].split(":")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, meeting, [0], addresses)
        while not waiting.done():
            with contextlib.suppress(OSError), socket.create_connection((name, int(port)), 0.5) as stranger:
                stranger.sendall(b"\xffGET / HTTP/1.1\r\n\r\n")
            time.sleep(0.1)
    assert "missing: process 1" in waiting.result()[0]


def test_taken_port_is_named(meeting):
    addresses = free_addresses(2)
    with socket.create_server(("", int(addresses[1].split(":")[1]))):
        (message,) = meet(meeting, [1], addresses)
    assert f"cannot listen on port {addresses[1].split(':')[1]}" in message


def test_memory_errors_are_known():
    import tensorflow as tf

    known = backend.engine.is_out_of_memory
    assert known(MemoryError())
    assert known(tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"))
    assert not known(tf.errors.InternalError(None, None, "no"))


# The tree of tf.Modules


class _Block(uf.Layer):
    def __init__(self):
        super().__init__()
        self.sizes = [3, {"last": 2}]
        self.inner = uf.layers.Dense(2)

    def build(self, input_shape):
        self.scale = self.add_weight(input_shape[-1:], "ones")

    def call(self, x):
        return self.inner(x * self.scale)


def test_layer_is_a_tf_module(tmp_path):
    import tensorflow as tf

    block = _Block()
    block(tf.ones((4, 3)))
    assert isinstance(block, tf.Module)
    assert block.submodules == (block.inner,)
    assert {id(variable) for variable in block.trainable_variables} == {
        id(block.scale),
        id(block.inner.kernel),
        id(block.inner.bias),
    }
    assert type(block.sizes) is list
    assert type(block.sizes[1]) is dict
    with block.name_scope as name:
        assert name.startswith("Block")
    path = tf.train.Checkpoint(model=block).save(str(tmp_path / "model"))
    before = block.get_weights()
    block.set_weights([0.0 * value for value in before])
    tf.train.Checkpoint(model=block).restore(path).assert_consumed()
    for value, restored in zip(before, block.get_weights(), strict=True):
        np.testing.assert_array_equal(restored, value)


def test_abstract_call_runs_once_and_leaves_nothing():
    import tensorflow as tf

    seen = []

    def function(x, nothing, pair):
        seen.append(x)
        assert nothing is None
        return {"product": uf.ops.matmul(x, pair["w"]), "none": None, "made": uf.ops.zeros((2,), "int32")}

    result = backend.module.abstract_call(
        function, ArraySpec((4, 3), "float32"), None, {"w": ArraySpec((3, 2), "float32")}
    )
    assert result == {"product": ((4, 2), "float32"), "none": None, "made": ((2,), "int32")}
    assert len(seen) == 1
    assert tf.executing_eagerly()


# The engine by hand


class Counting(uf.Layer):
    """y = x @ kernel + bias, and a buffer that sums its inputs, NaN and all."""

    def call(self, x):
        self.assign("state", self.state + uf.ops.sum(x))
        return uf.ops.matmul(x, self.kernel) + self.bias


ROWS = 4


def make_engine(rule, accumulation=1, clip_norm=None):
    module = Counting()
    r = np.random.default_rng(1)
    module.add_parameter("kernel", r.normal(size=(3, 2)).astype("float32"), True)
    module.add_parameter("bias", r.normal(size=2).astype("float32"), True)
    module.add_parameter("state", np.zeros((), "float32"), False)
    objective = Objective(
        [Term(uf.losses.get("mse"), Output("output", 0, True), 1.0)], Layout(("output",), (1.0,), (False,))
    )
    plan = Plan(
        objective, frozenset({"kernel", "bias"}), rule, frozenset({"kernel"}), accumulation, clip_norm=clip_norm
    )
    engine = backend.engine.Engine(module, plan, backend.distribution.prepare(None, None))
    engine.set_rates(0, np.array([0.1, 0.05, 0.02, 0.01], np.float32))
    return engine


def window(seed, accumulation=1, live=None, weight=None, fill=None):
    r = np.random.default_rng(seed)
    shape = (accumulation, ROWS)
    x, y = r.normal(size=(*shape, 3)).astype("float32"), r.normal(size=(*shape, 2)).astype("float32")
    if fill is not None:
        x[:] = fill
    live = live or accumulation
    valid = np.broadcast_to(np.arange(accumulation)[:, None] < live, shape).copy()
    return Window(MicroBatch(x, y, weight, valid), live=live, full=True, step=seed)


def state(engine):
    names = engine.model.parameter_names()
    return {name: engine.model.read_parameter(name) for name in names} | engine.read_slots()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_skipped_update_changes_nothing(rule, accumulation):
    engine = make_engine(rule, accumulation, clip_norm=1.0)
    totals = engine.train(engine.zeros(False), engine.place(window(0, accumulation)))
    before = state(engine)
    assert before["state"] != 0.0
    empty = window(1, accumulation, weight=np.zeros((accumulation, ROWS), bool), fill=np.nan)
    totals = engine.train(totals, engine.place(empty))
    after = state(engine)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    own = engine.read(totals, False)
    assert np.all(np.isfinite(own))
    np.testing.assert_array_equal(own[-4:-2], [1.0, 1.0])
    engine.train(totals, engine.place(window(2, accumulation)))
    assert engine.iterations() == 2
    assert all(np.any(state(engine)[name] != before[name]) for name in ("kernel", "bias", "state"))


def test_empty_micro_batches_touch_no_buffer():
    short, full = make_engine(rules.SGD(), 3), make_engine(rules.SGD(), 1)
    given = window(5, 3, live=1)
    short.train(short.zeros(False), short.place(given))
    first = given._replace(batch=MicroBatch(given.batch.x[:1], given.batch.y[:1], None, given.batch.valid[:1]), live=1)
    full.train(full.zeros(False), full.place(first))
    np.testing.assert_array_equal(state(short)["state"], state(full)["state"])
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(state(short)[name], state(full)[name], rtol=FLOAT32_TOLERANCE)


def test_window_of_another_shape_is_traced_once_more():
    engine = make_engine(rules.SGD())
    for rows in (ROWS, 2, ROWS, 2):
        given = window(rows)
        batch = MicroBatch(given.batch.x[:, :rows], given.batch.y[:, :rows], None, given.batch.valid[:, :rows])
        engine.train(engine.zeros(False), engine.place(given._replace(batch=batch)))
    assert engine.traces == 2


def test_rates_of_another_number_need_no_trace():
    engine = make_engine(rules.SGD())
    engine.train(engine.zeros(False), engine.place(window(0)))
    engine.set_rates(0, np.array([0.0], np.float32))
    before = state(engine)["kernel"]
    engine.train(engine.zeros(False), engine.place(window(1)))
    np.testing.assert_array_equal(state(engine)["kernel"], before)
    assert engine.traces == 1
    assert engine.iterations() == 2
