"""Precision on tensorflow: the loss scale's states, skipped updates, averages, bfloat16 parameters, half ops."""

import json
import os
import subprocess
import sys
import textwrap
from itertools import pairwise

import numpy as np
import pytest

import unifit as uf
from unifit import ops
from unifit.backend import backend
from unifit.contract import optimizers as rules
from unifit.contract.precision import EMA, LossScale, Precision
from unifit.contract.values import MicroBatch, Plan, Window
from unifit.training.objective import Layout, Objective
from unifit.training.outputs import Output, Term

pytestmark = pytest.mark.backends("tensorflow")

SCRIPT_LIMIT_S = 110.0
FLOAT32_TOLERANCE = 1e-6
HALF_TOLERANCE = 1e-2
ROWS = 4
HALVES = ["bfloat16", "float16"]


# An engine by hand: x * weight + bias over a moving mean of x, squared error


class Moving(uf.Layer):
    def call(self, x):
        self.assign("mean", 0.5 * self.mean + 0.5 * ops.mean(x, axis=0))
        return ops.add(ops.multiply(x, self.weight), self.bias)


def make_engine(dtype="float32", accumulation=1, **plan):
    module = Moving()
    start = {"weight": [1.0, 2.0], "bias": [0.5, 0.25]}
    numpy_dtype = ops.convert_to_tensor(np.zeros(1, np.float32), dtype=dtype).dtype.as_numpy_dtype
    for name, value in start.items():
        module.add_parameter(name, np.array(value, numpy_dtype), True)
    module.add_parameter("mean", np.zeros(2, np.float32), False)
    objective = Objective(
        [Term(uf.losses.get("mse"), Output("output", 0, True), 1.0)], Layout(("output",), (1.0,), (False,))
    )
    plan = {"trainable": frozenset(start), "optimizer": rules.Adam()} | plan
    devices = backend.distribution.prepare(None, None)
    engine = backend.engine.Engine(module, Plan(objective, accumulation=accumulation, **plan), devices)
    engine.set_rates(0, np.array([0.1], np.float32))
    return engine


def window(kind="finite", step=0, accumulation=1):
    """ "finite"; "overflow": the last row's square is infinite; "empty": without a valid row."""
    x = np.random.default_rng(step).normal(size=(accumulation, ROWS, 2)).astype("float32")
    if kind == "overflow":
        x[-1, -1, 0] = 1e30
    valid = np.full((accumulation, ROWS), kind != "empty")
    return Window(MicroBatch(x, x * 0, None, valid), accumulation, kind != "empty", step)


def train(engine, *windows):
    totals = engine.zeros(False)
    for one in windows:
        totals = engine.train(totals, engine.place(one))
    return engine.read(totals, False)


def state(engine):
    """All that an update moves but the loss scale."""
    slots = {name: value for name, value in engine.read_slots().items() if not name.startswith("loss_scale.")}
    return slots | {name: engine.model.read_parameter(name) for name in engine.model.parameter_names()}


def scaling_after(constants, kinds):
    """The loss scale's states after each window, by the docstring of LossScale."""
    scale, good, skipped, in_a_row, states = constants.initial, 0, 0, 0, []
    for kind in kinds:
        if kind == "finite":
            good, in_a_row = good + 1, 0
            if good == constants.growth_interval:
                scale, good = min(scale * constants.growth_factor, constants.maximum), 0
        elif kind == "overflow":
            scale, good = max(scale * constants.backoff_factor, constants.minimum), 0
            skipped, in_a_row = skipped + 1, in_a_row + 1
        states.append((scale, good, skipped, in_a_row))
    return states


KINDS = {"f": "finite", "o": "overflow", "e": "empty"}


@pytest.mark.parametrize(
    ("constants", "kinds"),
    [
        (LossScale(1024.0, growth_interval=2, minimum=256.0, maximum=2048.0), "fofeffooooffffffoe"),
        (LossScale(8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=1), "ffooe"),
        (Precision(loss_scale=64.0).scaling, "foof"),
        (None, "foofe"),
    ],
    ids=["dynamic", "other factors", "static", "no scale"],
)
def test_scale_moves_as_documented(constants, kinds):
    engine = make_engine(skip_nonfinite=True, loss_scale=constants)
    kinds = [KINDS[kind] for kind in kinds]
    wanted = scaling_after(constants or LossScale(1.0, 1.0, 1.0, None), kinds)
    for step, (kind, want) in enumerate(zip(kinds, wanted, strict=True)):
        train(engine, window(kind, step))
        assert tuple(engine.scaling()) == want, f"after step {step}"


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "clipping", [{}, {"clip_norm": 1.0}, {"clip_value": 0.1}, {"clip_parameter_norm": 0.1}], ids=lambda c: str(*c)
)
def test_skipped_update_changes_nothing(accumulation, clipping):
    engine = make_engine(
        accumulation=accumulation, skip_nonfinite=True, loss_scale=LossScale(), ema=EMA(0.9), **clipping
    )
    sums = train(engine, *(window(step=step, accumulation=accumulation) for step in range(2)))
    assert np.isfinite(sums).all()
    before = state(engine)
    sums = train(engine, window("overflow", 2, accumulation))
    assert dict(zip(engine.ENGINE_SUMS, sums[-4:], strict=True)) == {
        "updates": 0.0, "empty": 0.0, "grad_norm": 0.0, "nonfinite": 1.0,
    }  # fmt: skip
    assert not sums[:-4].any()
    after = state(engine)
    assert {"m.weight", "v.bias", "ema.weight", "ema.updates", "iterations", "mean"} <= set(after)
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert engine.nonfinite() == ["weight"]
    train(engine, window(step=3, accumulation=accumulation))
    assert all(np.any(value != before[name]) for name, value in state(engine).items())


def test_scaled_update_is_the_unscaled_one():
    """Powers of two are exact, whatever the clipping."""
    for clipping in ({"clip_norm": 0.5}, {"clip_value": 0.1}, {"clip_parameter_norm": 0.1}):
        outcomes = []
        for options in ({}, {"skip_nonfinite": True, "loss_scale": LossScale(2.0**20)}):
            engine = make_engine(optimizer=rules.SGD(), **clipping, **options)
            sums = train(engine, window())
            outcomes.append([sums, *(engine.model.read_parameter(name) for name in ("weight", "bias"))])
        for one, other in zip(*outcomes, strict=True):
            np.testing.assert_array_equal(one, other)


def test_each_gradient_is_clipped_by_its_own_norm():
    steps, between = {}, 1.125
    for limit in (None, between):
        engine = make_engine(optimizer=rules.SGD(), clip_parameter_norm=limit)
        before = {name: engine.model.read_parameter(name) for name in ("weight", "bias")}
        train(engine, window())
        steps[limit] = {name: (before[name] - engine.model.read_parameter(name)) / 0.1 for name in before}
    lengths = {name: np.linalg.norm(step) for name, step in steps[None].items()}
    assert lengths["bias"] > between > lengths["weight"]
    np.testing.assert_allclose(steps[between]["bias"], steps[None]["bias"] * between / lengths["bias"], rtol=1e-5)
    np.testing.assert_array_equal(steps[between]["weight"], steps[None]["weight"])


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_averages_follow_the_weights(warmup, dtype):
    engine = make_engine(dtype, ema=EMA(0.9, warmup))

    def read():
        return engine.model.read_parameter("weight").astype(np.float64)

    average = read()
    for n in range(12):
        train(engine, window(step=n))
        decay = min(0.9, (1 + n) / (10 + n)) if warmup else 0.9
        average = decay * average + (1 - decay) * read()
    slots = engine.read_slots()
    assert slots["ema.weight"].dtype == np.float32 and int(slots["ema.updates"]) == 12
    np.testing.assert_allclose(slots["ema.weight"], average, rtol=FLOAT32_TOLERANCE)
    own = engine.model.read_parameter("weight")
    with pytest.raises(ValueError, match="inside"), engine.averaged():
        inside = engine.model.read_parameter("weight")
        raise ValueError("inside")
    assert inside.dtype == own.dtype and np.any(inside != own)
    lived_in = ops.cast(ops.cast(slots["ema.weight"], dtype), "float32")  # as the variable's dtype holds it
    np.testing.assert_array_equal(inside, ops.convert_to_numpy(lived_in))
    np.testing.assert_array_equal(engine.model.read_parameter("weight"), own)
    np.testing.assert_array_equal(engine.read_slots()["ema.weight"], slots["ema.weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slots_go_round(dtype):
    options = {"skip_nonfinite": True, "loss_scale": LossScale(1024.0, growth_interval=3), "ema": EMA(0.9, True)}
    first, second = (make_engine(dtype, seed=5, **options) for _ in range(2))
    kinds = ["overflow", "finite", "finite", "finite", "finite"]
    train(first, *(window(kind, step) for step, kind in enumerate(kinds)))
    slots = first.read_slots()
    counts = {name: int(slots[f"loss_scale.{name}"]) for name in ("scale", "good", "skipped", "in_a_row")}
    assert counts == {"scale": 1024, "good": 1, "skipped": 1, "in_a_row": 0}
    assert {slots[f"loss_scale.{name}"].dtype.name for name in ("good", "skipped", "in_a_row")} == {"int64"}
    for name in first.model.parameter_names():
        second.model.write_parameter(name, first.model.read_parameter(name))
    second.write_slots(slots)
    for engine in (first, second):
        train(engine, window(step=7), window("overflow", 8), window(step=9))
    assert first.scaling() == second.scaling()
    for name, value in state(first).items():
        np.testing.assert_array_equal(state(second)[name], value, err_msg=name)
    for name in ("loss_scale.good", "ema.weight", "ema.updates"):
        with pytest.raises(KeyError, match=name):
            second.write_slots({key: value for key, value in slots.items() if key != name})


def test_matmul_precision_is_the_process():
    import tensorflow as tf

    tensor_float = tf.config.experimental
    before = tensor_float.tensor_float_32_execution_enabled()
    try:
        for name, enabled in (("highest", False), ("high", True), ("highest", False), ("default", True)):
            make_engine(matmul_precision=name)
            assert tensor_float.tensor_float_32_execution_enabled() is enabled
    finally:
        tensor_float.enable_tensor_float_32_execution(before)


# Parameters in bfloat16


def test_rounding_at_random_has_the_values_mean():
    import tensorflow as tf

    from unifit_tensorflow.rounding import rounded_at_random

    # 1 and 1 + 2^-7 are neighbours in bfloat16.
    for value, share in ((1.0 + 2.0**-9, 0.25), (-1.0 - 2.0**-9, 0.25), (1.0, 0.0), (3e-39, None)):
        got = tf.cast(rounded_at_random(tf.fill((200_000,), np.float32(value)), [1, 2]), tf.float32).numpy()
        if share is not None:
            assert set(np.abs(got)) <= {1.0, 1.0078125}
            assert np.mean(np.abs(got) != 1.0) == pytest.approx(share, abs=0.005)
        np.testing.assert_allclose(got.mean(dtype=np.float64), value, rtol=1e-4)
        np.testing.assert_array_equal(got, tf.cast(rounded_at_random(tf.fill((200_000,), value), [1, 2]), tf.float32))
    special = np.array([np.inf, -np.inf, np.nan, 0.0, np.finfo(np.float32).max], np.float32)
    special = np.append(special, np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32))  # NaNs
    got = tf.cast(rounded_at_random(special, [3, 4]), tf.float32).numpy()
    np.testing.assert_array_equal(got[:4], special[:4])
    assert got[4] > 3.38e38 and np.isnan(got[5:]).all()


def test_small_updates_of_bfloat16_parameters_are_not_lost():
    import tensorflow as tf

    from unifit_tensorflow.optimizers import Optimizer

    def moved(seed):
        # Enough weights for a sharp mean. 1e-4 is a fortieth of the step between neighbours below 1.
        w = tf.Variable(tf.ones(64, tf.bfloat16))
        optimizer = Optimizer(rules.SGD(), [w], [False], seed)

        @tf.function
        def update(n):
            optimizer.apply([tf.ones(64)], tf.constant(1e-4), n)

        for n in range(1000):
            update(tf.constant(n, tf.int64))
        return tf.cast(w, tf.float32).numpy()

    first = moved(0)
    assert (first < 1.0).all()
    np.testing.assert_allclose(first.mean(), 0.9, atol=5e-3)
    np.testing.assert_array_equal(moved(0), first)
    assert np.any(moved(1) != first)


RULES = [
    rules.SGD(weight_decay=0.1),
    rules.SGD(momentum=0.9, weight_decay=0.1),
    rules.SGD(momentum=0.9, nesterov=True),
    rules.Adam(0.8, 0.95, 1e-3),
    rules.AdamW(weight_decay=0.1),
    rules.RMSprop(0.8, 0.5, 1e-3, centered=True, weight_decay=0.1),
    rules.Adagrad(0.1, 1e-3, 0.1),
    rules.Lion(0.8, 0.95, 0.1),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_bfloat16_parameters_obey_the_rule(rule):
    """Each update moves to a neighbour of what the same update makes of a float32 parameter; slots are float32."""
    import tensorflow as tf

    from unifit_tensorflow.optimizers import Optimizer

    start = tf.cast(np.random.default_rng(0).normal(size=16).astype("float32"), tf.bfloat16)
    half, wide = tf.Variable(start), tf.Variable(tf.cast(start, tf.float32))
    optimizers = [Optimizer(rule, [w], [True], 0) for w in (half, wide)]
    for n in range(4):
        g = tf.constant(np.random.default_rng(n + 1).normal(size=16), tf.float32)
        for optimizer in optimizers:
            optimizer.apply([g], tf.constant(0.1), tf.constant(n, tf.int64))
        wanted, got = wide.numpy(), tf.cast(half, tf.float32).numpy()
        assert (np.abs(got - wanted) <= np.abs(wanted) * 2.0**-7 + 1e-6).all()
        wide.assign(tf.cast(half, tf.float32))
        for name in rule.slot_names:
            one, other = (optimizer.slots[name][0] for optimizer in optimizers)
            assert one.dtype == tf.float32
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=FLOAT32_TOLERANCE, err_msg=name)


# Casts of weights


class Repeated(uf.Layer):
    """x times the weight in a loop, and once more outside of it."""

    def call(self, x):
        import tensorflow as tf

        _, y = tf.while_loop(lambda n, _: n < 2, lambda n, y: (n + 1, y * self.weight), (0, x))
        return y * self.weight


def test_weights_read_in_another_dtype():
    import tensorflow as tf

    layer = Repeated()
    layer.add_parameter("weight", np.array([1.5, 2.0], np.float32), True)
    variable = layer.weight
    seen = []

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            with backend.module.reading_as([(layer, "weight", "bfloat16")]):
                assert layer.weight is layer.weight
                seen.append(layer.weight.dtype.name)
                y = tf.reduce_sum(tf.cast(layer.call(x), tf.float32))
            assert layer.weight is variable
        return tape.gradient(y, variable)

    got = gradient(tf.ones((1, 2), tf.bfloat16))
    assert seen == ["bfloat16"] and got.dtype == tf.float32
    np.testing.assert_allclose(got, 3 * np.array([1.5, 2.0]) ** 2, rtol=HALF_TOLERANCE)
    with pytest.raises(ValueError, match="inside"), backend.module.reading_as([(layer, "weight", "float16")]):
        raise ValueError("inside")
    assert layer.weight is variable


# Ops over halves


def gradient_of(function, *arguments, dtype):
    """Gradients of the sum of the function's values, in a graph, as engines take them."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def differentiated(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = function(*values)
            total = tf.reduce_sum(tf.cast(y, tf.float32))
        return y, tape.gradient(total, values)

    values = [tf.cast(value, dtype) for value in arguments]
    y, gradients = differentiated(values)
    assert y.dtype == dtype
    return [tf.cast(value, tf.float32).numpy() for value in (y, *gradients)]


@pytest.mark.parametrize("dtype", HALVES)
def test_many_elements_are_added_in_float32(dtype):
    ones = ops.ones((4096,), dtype)

    def value(x):
        return float(ops.cast(x, "float32"))

    assert value(ops.sum(ones)) == 4096
    assert ops.convert_to_numpy(ops.sum(ops.ones((4096, 3), dtype), axis=0)).tolist() == [4096.0] * 3
    assert value(ops.mean(ops.ones((70_000,), dtype) * 100)) == 100
    assert value(ops.norm(ops.ones((4096,), dtype) * 8)) == 512
    assert value(ops.logsumexp(ones * 20)) == pytest.approx(20 + np.log(4096), rel=HALF_TOLERANCE)
    spread = np.tile([99.0, 101.0], 4096)
    assert value(ops.var(ops.cast(spread.astype("float32"), dtype))) == pytest.approx(1.0, rel=0.05)
    assert value(ops.average_pool(ops.ones((1, 64, 64, 1), dtype), 64)[0, 0, 0, 0]) == 1
    assert value(ops.matmul(ops.ones((1, 4096), dtype), ops.ones((4096, 1), dtype))[0, 0]) == 4096
    assert value(ops.einsum("ij,kj->ik", ops.ones((2, 4096), dtype), ops.ones((2, 4096), dtype))[0, 0]) == 4096
    total = value(ops.sum(ops.ones((70_000,), dtype)))
    assert total == (np.inf if dtype == "float16" else 70_144)  # only the result is too large
    assert value(ops.mean(ops.ones((70_000,), dtype))) == 1


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias_shape", [(3,), (1, 1, 3), (1024, 1)])
@pytest.mark.parametrize("function", [ops.add, ops.subtract, ops.multiply, ops.divide], ids=lambda f: f.__name__)
def test_gradient_of_what_is_repeated_is_added_in_float32(dtype, bias_shape, function):
    x, bias = np.ones((8, 1024, 3), np.float32), np.ones(bias_shape, np.float32)
    y, _, gradient = gradient_of(function, x, bias, dtype=dtype)
    np.testing.assert_array_equal(y, function(1.0, 1.0))
    np.testing.assert_array_equal(np.abs(gradient), x.size // bias.size)


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


LAYER_OPS = {
    "max_pool 3d": (lambda x: ops.max_pool(x, 2), random(2, 4, 4, 4, 3)),
    "average_pool 3d": (lambda x: ops.average_pool(x, 3, 1, "same"), random(2, 4, 4, 4, 3)),
    "conv 1d": (lambda x, k: ops.conv(x, k), random(2, 9, 4), random(3, 4, 5)),
    "conv 2d dilated": (lambda x, k: ops.conv(x, k, 1, "same", 2), random(2, 9, 9, 4), random(3, 3, 4, 6)),
    "conv 3d": (lambda x, k: ops.conv(x, k, 2), random(2, 5, 5, 5, 4), random(3, 3, 3, 4, 2)),
    "groups": (lambda x, k: ops.conv(x, k), random(2, 9, 9, 4), random(3, 3, 2, 6)),
    "depthwise": (lambda x, k: ops.depthwise_conv(x, k, (2, 1)), random(2, 9, 9, 4), random(3, 3, 4, 2)),
    "transposed": (lambda x, k: ops.conv_transpose(x, k, 2, "same"), random(2, 5, 5, 4), random(3, 3, 5, 4)),
    "attention": (
        lambda q, k, v: ops.dot_product_attention(q, k, v, is_causal=True),
        *np.split(random(3, 2, 6, 2, 8).reshape(6, 6, 2, 8), 3),
    ),
    "softmax": (lambda x: ops.square(ops.softmax(x, (0, 1))), random(3, 4)),
    "lstm": (
        lambda x, k, r, b: backend.recurrent.lstm(x, None, None, k, r, b)[0],
        random(2, 40, 3), random(3, 16) / 4, random(4, 16) / 4, random(16),
    ),
    "gru": (
        lambda x, k, r, b: backend.recurrent.gru(x, None, k, r, b)[0],
        random(2, 40, 3), random(3, 12) / 4, random(4, 12) / 4, random(2, 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", LAYER_OPS)
def test_layers_ops_run_in_halves(dtype, case):
    import tensorflow as tf

    function, *arguments = LAYER_OPS[case]
    arguments = [tf.cast(tf.cast(argument, dtype), tf.float32) for argument in arguments]
    wanted = gradient_of(function, *arguments, dtype="float32")
    for got, want in zip(gradient_of(function, *arguments, dtype=dtype), wanted, strict=True):
        assert np.abs(got - want).max() <= HALF_TOLERANCE * np.abs(want).max()


# Two devices: a process of its own, since TensorFlow takes the number of devices once

TWO_DEVICES = """
    import json

    import numpy as np
    import unifit as uf
    from unifit import ops


    class Centred(uf.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(input_shape[-1:], "ones")

        def call(self, x):  # replicas take turns here, in the middle of a pass
            context = uf.context()
            mean = ops.mean(ops.cast(x, "float32"), axis=0)
            count = 1.0 if context is None else context.sum_over_devices(ops.ones(()))
            mean = mean if context is None else context.sum_over_devices(mean)
            return (x - ops.cast(mean / count, x.dtype)) * self.scale


    class Half(uf.Layer):
        # Its weights live in bfloat16.
        def build(self, input_shape):
            self.kernel = self.add_weight((input_shape[-1], 8), dtype="bfloat16")
            self.bias = self.add_weight((8,), "zeros", dtype="bfloat16")

        def call(self, x):
            return ops.tanh(ops.add(ops.matmul(x, self.kernel), self.bias))


    def collectives(compiled):
        (_, trace), = compiled._traces
        graph = trace.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        return sorted(str(node.attr["T"].type) for node in nodes if node.op.startswith("CollectiveReduce"))


    def fit(devices, **options):
        uf.set_seed(0)
        r = np.random.default_rng(7)
        x, y = r.normal(size=(32, 5)).astype("float32"), r.integers(0, 3, 32)
        first = options.pop("first", lambda: uf.layers.Dense(8, "tanh"))
        centred = [Centred()] if options.pop("centred", False) else []
        model = uf.Sequential([first(), *centred, uf.layers.Dense(3)])
        loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(uf.optimizers.Adam(0.01), loss, **options)
        history = model.fit(
            x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, distribution=uf.DataParallel(devices=devices)
        )
        engine = model.trainer.engine
        copies = [[np.asarray(copy.numpy(), "float32") for copy in getattr(variable, "values", [variable])]
                  for variable in model.variables]
        result = {
            "loss": history.history["loss"],
            "weights": [value[0].tolist() for value in copies],
            "dtypes": sorted({variable.dtype.name for variable in model.variables}),
            "copies_equal": all(np.array_equal(one, each[0]) for each in copies for one in each),
            "collectives": collectives(engine._train),
        }
        if "ema" in options:
            with engine.averaged():
                result["averaged"] = [np.asarray(v, "float32").tolist() for v in model.get_weights()]
        return result


    cases = {
        "mixed": {"precision": "mixed_bfloat16", "centred": True, "gradient_accumulation_steps": 2},
        "float16": {"precision": "mixed_float16", "clip_norm": 1.0, "ema": uf.EMA(0.9)},
        "parameters": {"precision": "mixed_bfloat16", "first": Half, "ema": uf.EMA(0.9)},
        "reduction": {"reduction_dtype": "bfloat16"},
    }
    print(json.dumps({name: [fit(devices, **options) for devices in (1, 2)] for name, options in cases.items()}))
"""


@pytest.fixture(scope="module")
def two_devices():
    environment = os.environ | {"UNIFIT_BACKEND": "tensorflow", "UNIFIT_CPU_DEVICES": "2"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TWO_DEVICES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SCRIPT_LIMIT_S,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["mixed", "float16", "parameters", "reduction"])
def test_two_devices_give_the_numbers_of_one(two_devices, case):
    one, two = two_devices[case]
    assert two["copies_equal"]
    assert one["dtypes"] == two["dtypes"] == (["bfloat16"] if case == "parameters" else []) + ["float32"]
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=HALF_TOLERANCE)
    assert all(after < before for before, after in pairwise(one["loss"]))
    for kind in ("weights", "averaged") if "averaged" in one else ("weights",):
        for a, b in zip(one[kind], two[kind], strict=True):
            # Adam moves an entry by up to the rate, whatever the size of its gradient; rounding is at random.
            np.testing.assert_allclose(b, a, rtol=HALF_TOLERANCE, atol=0.02, err_msg=kind)


FLOAT32, BFLOAT16 = "1", "14"  # TensorFlow's numbers of dtypes


def test_gradients_travel_in_the_dtype_asked_for(two_devices):
    one, two = two_devices["reduction"]
    assert one["collectives"] == []
    assert two["collectives"] == [FLOAT32] * 2 + [BFLOAT16] * 2  # one node a device; sums stay float32
    assert two_devices["float16"][1]["collectives"] == [FLOAT32] * 2


def test_einsum_with_dots_is_right_in_float16():
    r = np.random.default_rng(0)
    x, w = r.normal(size=(3, 8, 9, 4)).astype("float32"), r.normal(size=(4, 5)).astype("float32")
    got = ops.einsum("...x,xy->...y", ops.cast(x, "float16"), ops.cast(w, "float16"))
    assert ops.dtype(got) == "float16"
    np.testing.assert_allclose(ops.convert_to_numpy(got), x @ w, atol=2e-2)
