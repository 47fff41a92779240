"""Precision on the jax column, by engines made by hand: scaled losses, skips, averages, rounding, and ops on halves."""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import unifit as uf
import worker
from unifit.backend import backend
from unifit.contract import optimizers as rules
from unifit.contract.module import walk
from unifit.contract.objective import Update
from unifit.contract.precision import EMA, LossScale
from unifit.contract.values import MicroBatch, Plan, Window

pytestmark = pytest.mark.backends("jax", reason="it looks into the jax engine; each column has such a file")

HALVES = ("bfloat16", "float16")
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LIMIT_S = 60
ROWS = 2


class Net(uf.Layer):
    """Two parameters, whose gradients are the sums of `x` and `y`, and a buffer that counts passes."""

    def call(self, x):
        return x * self.weight


class Exact:
    """loss = sum(x * weight + y * offset) / rows: each row is a gradient, so that tests say what it is."""

    num_sums = num_evaluation_sums = 2
    counts_first = False

    def __init__(self, compute=None):
        self.compute = compute

    def train(self, model, batch, scope):
        import jax.numpy as jnp

        dtype = self.compute
        casts = [] if dtype is None else [(model, name, dtype) for name in ("weight", "offset")]
        with backend.module.reading_as(casts):
            x, y = (part if dtype is None else part.astype(dtype) for part in (batch.x, batch.y))
            terms = (x * model.weight).astype("float32") + (y * model.offset).astype("float32")
        model.assign("passes", model.passes + jnp.sum(x) * 0 + 1)
        value = jnp.sum(jnp.where(batch.valid[:, None], terms, 0.0))
        return value, 1.0, jnp.stack([value, jnp.sum(batch.valid.astype(jnp.float32))])

    def update(self, sums):
        import jax.numpy as jnp

        return Update(1.0 / jnp.maximum(sums[1], 1.0), sums[1] > 0)

    def evaluate(self, model, batch, scope):
        return self.train(model, batch, scope)[1]

    def predict(self, model, batch, scope):
        return model(batch.x)


def make(devices=None, dtype="float32", compute=None, start=0.0, size=2, rates=(1.0,), **plan):
    net = Net()
    for name, value, trainable in (("weight", start, True), ("offset", 0.5, True), ("passes", 0.0, False)):
        own = dtype if trainable else "float32"
        net.add_parameter(name, np.full(size, value).astype(uf.ops.zeros((), own).dtype), trainable)
    plan = {"trainable": frozenset({"weight", "offset"}), "optimizer": rules.SGD()} | plan
    devices = devices or backend.distribution.prepare(None, None)
    engine = backend.engine.Engine(net, Plan(Exact(compute), **plan), devices)
    engine.set_rates(0, np.array(rates, np.float32))
    return engine, net


def window(engine, gradient, other=0.0, rows=None, valid=True, step=0):
    """A window whose rows are these gradients; `rows`: by row, where they differ."""
    accumulation, size = engine.plan.accumulation, engine.model.read_parameter("weight").shape[0]
    shape = (accumulation, ROWS, size)
    x, y = np.full(shape, gradient, np.float32), np.full(shape, other, np.float32)
    if rows is not None:
        x[:] = np.array(rows, np.float32)[:, None]
    mask = np.full((accumulation, ROWS), valid)
    own = engine.placement.processes
    share = slice(engine.placement.process * ROWS // own, (engine.placement.process + 1) * ROWS // own)
    batch = MicroBatch(x[:, share], y[:, share], None, mask[:, share])
    return Window(batch, accumulation, valid, step)


def step(engine, *arguments, totals=None, **named):
    totals = engine.zeros(False) if totals is None else totals
    return engine.train(totals, engine.place(window(engine, *arguments, **named)))


def everything(engine):
    """All that an update may change, on the host."""
    variables = {name: engine.model.read_parameter(name) for name in ("weight", "offset", "passes")}
    return {name: np.array(value) for name, value in (variables | engine.read_slots()).items()}


def own_sums(engine, totals):
    return dict(zip(engine.ENGINE_SUMS, engine.read(totals, False)[engine.plan.objective.num_sums :], strict=True))


# The state machine

SCALES = {
    "grows": LossScale(1024.0, growth_interval=3),
    "is capped": LossScale(1024.0, growth_interval=1, maximum=3000.0),
    "has a floor": LossScale(4.0, growth_interval=None, minimum=1.5),
    "other factors": LossScale(100.0, 3.0, 0.25, 2, minimum=10.0, maximum=1000.0),
    "is static": LossScale(1024.0, 1.0, 1.0, None, minimum=1024.0, maximum=1024.0),
    "is absent": None,
}
EVENTS = "ffff-nnff.n-fnnnnnnffffffffn"  # finite, not finite, without a valid element (with NaN in its rows: ".")


class Reference:
    """The state machine in plain Python."""

    def __init__(self, constants):
        self.constants = constants or LossScale(1.0, 1.0, 1.0, None, minimum=1.0, maximum=1.0)
        self.scale, self.good, self.skipped, self.in_a_row = np.float32(self.constants.initial), 0, 0, 0

    def advance(self, event):
        c = self.constants
        if event == "f":
            self.good, self.in_a_row = self.good + 1, 0
            if self.good == c.growth_interval:
                self.scale, self.good = min(self.scale * np.float32(c.growth_factor), np.float32(c.maximum)), 0
        elif event == "n":
            self.scale = max(self.scale * np.float32(c.backoff_factor), np.float32(c.minimum))
            self.good, self.skipped, self.in_a_row = 0, self.skipped + 1, self.in_a_row + 1


@pytest.mark.parametrize("name", SCALES)
def test_scale_follows_the_state_machine(name):
    constants = SCALES[name]
    engine, net = make(skip_nonfinite=True, loss_scale=constants, rates=(0.5, 0.25, 1.0))
    reference, weight, updates, totals = Reference(constants), 0.0, 0, engine.zeros(False)
    for number, event in enumerate(EVENTS):
        gradient = {"f": 1.0, "n": (np.inf, np.nan)[number % 2], "-": 1.0, ".": np.nan}[event]
        totals = step(engine, gradient, valid=event in "fn", totals=totals, step=number)
        reference.advance(event)
        if event == "f":
            weight, updates = weight - (0.5, 0.25, 1.0)[min(updates, 2)], updates + 1
        state = engine.scaling()
        assert state == (reference.scale, reference.good, reference.skipped, reference.in_a_row), (number, event)
        np.testing.assert_allclose(net.read_parameter("weight"), weight, rtol=1e-6)
    sums = own_sums(engine, totals)
    assert sums["updates"] == updates == engine.iterations() == EVENTS.count("f")
    assert sums["nonfinite"] == state.skipped == EVENTS.count("n")
    assert sums["empty"] == EVENTS.count("-") + EVENTS.count(".")
    assert np.all(np.isfinite(engine.read(totals, False)))


def test_a_half_overflow_is_skipped_at_the_scale_that_made_it():
    """65536 does not fit float16: the first backward pass overflows by the scale alone, the second does not."""
    engine, net = make(
        compute="float16", skip_nonfinite=True, loss_scale=LossScale(2.0**16), ema=EMA(0.5), rates=(0.1, 0.2)
    )
    totals = step(engine, 0.5)
    assert engine.scaling() == (2.0**15, 0, 1, 1)
    assert "weight" in engine.nonfinite()
    totals = step(engine, 0.5, totals=totals)
    assert own_sums(engine, totals) == {"updates": 1.0, "empty": 0.0, "grad_norm": 0.0, "nonfinite": 1.0}
    np.testing.assert_allclose(net.read_parameter("weight"), -0.05, rtol=1e-6)
    assert engine.iterations() == 1
    assert engine.scaling() == (2.0**15, 1, 1, 0)
    assert engine.read_slots()["ema.updates"] == 1


def test_a_low_floor_lets_large_gradients_through():
    """S-MP-05 with a sum of two gradients of 50000: times 4, 2 and 1 it does not fit float16 (65504)."""
    constants = LossScale(4.0, growth_interval=None)
    engine, net = make(compute="float16", skip_nonfinite=True, loss_scale=constants, rates=(1e-6,))
    for _ in range(6):
        step(engine, 50000.0)
    assert engine.scaling() == (0.5, 3, 3, 0)
    np.testing.assert_allclose(net.read_parameter("weight"), -3 * 1e-6 * 50000, rtol=1e-3)


CLIPPINGS = [{}, {"clip_norm": 1.0}, {"clip_parameter_norm": 1.0}, {"clip_value": 0.5}]


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_skipped_update_leaves_every_bit(clipping, accumulation):
    engine, net = make(
        optimizer=rules.AdamW(weight_decay=0.1), decays=frozenset({"weight"}), accumulation=accumulation,
        skip_nonfinite=True, ema=EMA(0.9, warmup=True), **clipping,
    )  # fmt: skip
    totals = step(engine, 0.75, 0.25, totals=step(engine, 1.0, 0.5))
    before, sums = everything(engine), engine.read(totals, False)
    for number, (x, y, names) in enumerate([(np.nan, 1.0, ["weight"]), (0.0, -np.inf, ["offset"])]):
        totals = step(engine, x, y, totals=totals, step=number)
        after = everything(engine)
        for name in before:
            if not name.startswith("loss_scale."):
                np.testing.assert_array_equal(after[name], before[name], err_msg=name)
        assert engine.nonfinite() == names
        sums[-1] += 1.0
        np.testing.assert_array_equal(engine.read(totals, False), sums)
    step(engine, 1.0, totals=totals)
    assert engine.nonfinite() == ["offset"]  # of the last skip
    assert engine.iterations() == 3
    assert np.all(np.isfinite(net.read_parameter("weight")))


def test_huge_finite_gradients_are_no_overflow():
    engine, _ = make(skip_nonfinite=True)
    totals = step(engine, 1e30)
    assert own_sums(engine, totals)["updates"] == 1.0
    assert engine.scaling().skipped == 0


def test_without_the_wish_nothing_is_skipped_or_kept():
    engine, net = make()
    totals = step(engine, np.nan)
    assert np.all(np.isnan(net.read_parameter("weight")))
    assert own_sums(engine, totals) == {"updates": 1.0, "empty": 0.0, "grad_norm": 0.0, "nonfinite": 0.0}
    assert set(engine.read_slots()) == {"iterations"}
    assert "is_finite" not in lowered(engine).as_text()


def lowered(engine):
    return engine._train.lower(*engine.arguments(engine.zeros(False), engine.place(window(engine, 1.0))))


# Clipping


@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize(
    ("clipping", "weight", "norm"),
    [
        ({"clip_norm": 1.0}, -0.6, 5.0),
        ({"clip_parameter_norm": 1.0}, -1.0, 0.0),
        ({"clip_parameter_norm": 3.5}, -3.0, 0.0),
        ({"clip_value": 0.5}, -0.5, 0.0),
    ],
)
def test_clipping_sees_unscaled_gradients(scale, clipping, weight, norm):
    loss_scale = None if scale is None else LossScale(scale)
    engine, net = make(size=1, skip_nonfinite=scale is not None, loss_scale=loss_scale, **clipping)
    totals = step(engine, 3.0, 4.0)
    np.testing.assert_allclose(net.read_parameter("weight"), [weight], rtol=1e-6)
    np.testing.assert_allclose(own_sums(engine, totals)["grad_norm"], norm, rtol=1e-6)


def test_a_zero_gradient_is_clipped_to_zero():
    engine, net = make(clip_parameter_norm=1.0)
    step(engine, 0.0, 3.0)
    np.testing.assert_array_equal(net.read_parameter("weight"), 0.0)


# Averages


def test_average_ticks_once_an_update():
    engine, net = make(accumulation=2, ema=EMA(0.5))
    for weight, average in [(-1.0, -0.5), (-2.0, -1.25)]:
        step(engine, 1.0)
        np.testing.assert_array_equal(net.read_parameter("weight"), weight)
        np.testing.assert_array_equal(engine.read_slots()["ema.weight"], average)
    assert engine.read_slots()["ema.updates"] == 2
    assert engine.read_slots()["ema.updates"].dtype == np.int64


@pytest.mark.parametrize("decay", [0.999, 0.3])
def test_average_warms_up(decay):
    engine, _ = make(start=1.0, ema=EMA(decay, warmup=True), rates=(0.1,))
    weight, average = 1.0, 1.0
    for n in range(30):
        step(engine, 1.0)
        weight -= 0.1
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * weight
    np.testing.assert_allclose(engine.read_slots()["ema.weight"], average, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_averages_are_lent_and_given_back(dtype):
    engine, net = make(dtype=dtype, ema=EMA(0.5), start=2.0)
    step(engine, 1.0)
    batch = MicroBatch(*(None if leaf is None else leaf[0] for leaf in window(engine, 1.0).batch))
    with pytest.raises(RuntimeError, match="on purpose"):
        with engine.averaged():
            assert net.weight.dtype == dtype and net.read_parameter("weight").dtype == np.float32
            np.testing.assert_array_equal(net.read_parameter("weight").astype("float32"), 1.5)
            np.testing.assert_array_equal(engine.predict(batch).astype("float32"), 1.5)
            raise RuntimeError("on purpose")
    np.testing.assert_array_equal(net.read_parameter("weight").astype("float32"), 1.0)
    np.testing.assert_array_equal(engine.predict(batch).astype("float32"), 1.0)
    step(engine, 1.0)
    np.testing.assert_array_equal(engine.read_slots()["ema.weight"], 0.75)


# Slots


def test_slots_go_round():
    options = dict(
        optimizer=rules.Adam(), skip_nonfinite=True, loss_scale=LossScale(1024.0, growth_interval=3), ema=EMA(0.9, True)
    )
    one, net = make(**options)
    for gradient in (1.0, 2.0, 3.0, np.inf, 0.5):
        step(one, gradient)
    slots = {name: np.array(value) for name, value in one.read_slots().items()}
    kinds = {"loss_scale.scale": "float32", "loss_scale.good": "int64", "loss_scale.skipped": "int64"}
    kinds |= {"loss_scale.in_a_row": "int64", "ema.updates": "int64", "ema.weight": "float32", "ema.offset": "float32"}
    assert {name: slots[name].dtype.name for name in kinds} == kinds
    assert one.scaling() == (1024.0, 1, 1, 0)
    other, twin = make(**options)
    for name in ("weight", "offset", "passes"):
        twin.write_parameter(name, net.read_parameter(name))
    other.write_slots(slots)
    assert other.scaling() == one.scaling()
    for engine in (one, other):
        for gradient in (1.0, np.nan, 0.25, 0.125, 4.0):
            step(engine, gradient)
    first, second = everything(one), everything(other)
    assert set(first) == set(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    for name in kinds:
        with pytest.raises(KeyError):
            other.write_slots({key: value for key, value in slots.items() if key != name})


# Several devices


def record(devices):
    """What a run with a skip, averages and clipping leaves, and one with bfloat16 reductions; on the host."""
    engine, _ = make(
        devices, optimizer=rules.Adam(), accumulation=2, clip_parameter_norm=1.0,
        skip_nonfinite=True, loss_scale=LossScale(1024.0), ema=EMA(0.5),
    )  # fmt: skip
    totals = step(engine, 0.0, 1.0, rows=[1.0, 2.0])
    totals = step(engine, 0.0, 1.0, rows=[1.0, np.inf], totals=totals)  # on the last device alone
    totals = step(engine, 0.0, 1.0, rows=[4.0, -2.0], totals=totals)
    found = everything(engine) | {"sums": engine.read(totals, False), "state": np.array(engine.scaling())}
    found["nonfinite"] = np.array(["weight" in engine.nonfinite(), "offset" in engine.nonfinite()])
    with engine.averaged():
        found["lent"] = engine.model.read_parameter("weight")
    found["back"] = engine.model.read_parameter("weight")
    reduced, net = make(devices, reduction_dtype="bfloat16", accumulation=4)
    step(reduced, 1.0 + 2.0**-8)
    found["reduced"] = net.read_parameter("weight")
    rounded, net = make(devices, dtype="bfloat16", start=1.0, size=64, ema=EMA(0.5))
    for _ in range(4):
        step(rounded, 2.0**-10)
    with rounded.averaged():
        found["lent rounded"] = net.read_parameter("weight").astype("float32")
    found["rounded"] = net.read_parameter("weight").astype("float32")
    return {name: np.asarray(value, np.float64).tolist() for name, value in found.items()}


SCRIPT = """
import json, sys
sys.path.insert(0, {folder!r})
sys.path.insert(0, {tests!r})
from test_precision_jax import record
from unifit.backend import backend
from unifit.contract.distribution import DataParallel
from unifit.launch.environment import current_job

print(json.dumps(record(backend.distribution.prepare(DataParallel(devices=2), current_job()))), flush=True)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_two_devices_do_as_one(processes):
    here = Path(__file__).resolve().parent
    script, port = SCRIPT.format(folder=str(here), tests=str(here.parent)), worker._free_port()
    started = []
    for number in range(processes):
        environment = os.environ | {"UNIFIT_CPU_DEVICES": str(2 // processes), "OMP_NUM_THREADS": "1"}
        if processes > 1:
            environment |= {
                "UNIFIT_PROCESS": str(number), "UNIFIT_PROCESSES": "2", "UNIFIT_LOCAL_PROCESS": str(number),
                "UNIFIT_LOCAL_PROCESSES": "2", "UNIFIT_COORDINATOR": f"127.0.0.1:{port}",
            }  # fmt: skip
        command = [sys.executable, "-W", "ignore", "-c", script]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    until, outputs = time.monotonic() + LIMIT_S, []
    try:
        for process in started:
            outputs.append(process.communicate(timeout=max(1.0, until - time.monotonic()))[0])
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()
    alone = record(backend.distribution.prepare(None, None))
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output
        found = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
        # Four micro-batches of one row, each 1 + 2^-8: exact on one device. On two, bfloat16 holds 4 + 2^-6 no better
        # than as 4.
        assert alone.pop("reduced", [-(1 + 2.0**-8)] * 2) == [-(1 + 2.0**-8)] * 2
        assert found.pop("reduced") == [-1.0, -1.0]
        assert found == alone
    assert alone["nonfinite"] == [1.0, 0.0]
    assert alone["state"] == [512.0, 1.0, 1.0, 0.0]
    assert alone["back"] == alone["weight"] != alone["lent"]


# Parameters in bfloat16


def test_gradients_of_half_parameters_are_summed_in_float32():
    """S-GA-06: 512 micro-batches of gradient 1; a bfloat16 sum would stick at 256."""
    engine, net = make(dtype="bfloat16", accumulation=512)
    step(engine, 1.0)
    np.testing.assert_array_equal(net.read_parameter("weight").astype("float32"), -1.0)


def test_slots_of_half_parameters_are_float32():
    engine, _ = make(dtype="bfloat16", optimizer=rules.Adam())
    step(engine, 1.0)
    slots = engine.read_slots()
    assert slots["m.weight"].dtype == slots["v.weight"].dtype == np.float32
    np.testing.assert_allclose(slots["v.weight"], 1e-3, rtol=1e-5)


def test_rounding_to_bfloat16_is_unbiased():
    import jax

    from unifit_jax.rounding import to_bfloat16

    values = np.array([1.001, -1.001, 3.3e-5, 1.0039, -70000.0, 1e-40], np.float32)
    count = 2**14
    key = jax.random.key(3)
    got = np.asarray(jax.jit(to_bfloat16)(np.repeat(values[:, None], count, 1), key)).astype(np.float64)
    for value, row in zip(values.astype(np.float64), got, strict=True):
        near = np.unique(row)
        assert len(near) == 2 and near[0] < value < near[1]
        assert abs(row.mean() - value) < 5 * (near[1] - near[0]) / (2 * math.sqrt(count))
    np.testing.assert_array_equal(np.asarray(to_bfloat16(np.repeat(values[:, None], count, 1), key)).astype("f8"), got)


def test_rounding_keeps_what_bfloat16_holds():
    import jax

    from unifit_jax.rounding import to_bfloat16

    nan = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    exact = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, 2.0**100], np.float32)
    for number in range(20):
        got = np.asarray(to_bfloat16(np.concatenate([exact, nan]), jax.random.key(number))).astype(np.float32)
        np.testing.assert_array_equal(got[: len(exact)], exact)
        assert np.all(np.isnan(got[len(exact) :]))


def test_small_updates_of_half_parameters_are_not_lost():
    """1000 updates of 1e-4 at w = 1, where neighbours are 2^-8 apart: rounding to the nearest would stand still."""
    size, results = 256, []
    for seed in (0, 0, 1):
        engine, net = make(dtype="bfloat16", start=1.0, size=size, seed=seed)
        placed, totals = engine.place(window(engine, 1e-4)), engine.zeros(False)
        for _ in range(1000):
            totals = engine.train(totals, placed)
        assert net.weight.dtype == "bfloat16"
        results.append(net.read_parameter("weight").astype(np.float64))
    spread = math.sqrt(1000 * 1e-4 * 2.0**-8)  # of one weight: variance of an update = step * distance
    assert abs(results[0].mean() - 0.9) < 5 * spread / math.sqrt(size)
    np.testing.assert_array_equal(results[0], results[1])
    assert np.any(results[0] != results[2])


# Weights that read in another dtype


def test_reading_as_shadows_and_restores():
    _, net = make(start=1.001)
    weights = [(net, "weight", "bfloat16"), (net, "offset", "float16")]
    with pytest.raises(RuntimeError, match="on purpose"):
        with backend.module.reading_as(weights):
            assert (net.weight.dtype, net.offset.dtype) == ("bfloat16", "float16")
            assert net.weight is net.weight
            assert net.read_parameter("weight").dtype == np.float32
            with backend.module.reading_as(weights[:1]):
                assert net.weight.dtype == "bfloat16"
            assert net.weight.dtype == "bfloat16"
            net.assign("passes", uf.ops.ones((2,), "bfloat16"))
            raise RuntimeError("on purpose")
    assert net.weight.dtype == net.offset.dtype == net.passes.dtype == "float32"
    np.testing.assert_array_equal(net.read_parameter("weight"), np.float32(1.001))
    np.testing.assert_array_equal(net.read_parameter("passes"), 1.0)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_weight_is_cast_once_an_update(accumulation):
    """Not in the loop over micro-batches; there the gradient is cast back."""
    size = 1040
    engine, net = make(compute="bfloat16", accumulation=accumulation, size=size, start=1.0)
    text = lowered(engine).compile().as_text()
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    assert len(bodies) == (accumulation > 1)
    callers, casts, computation = {}, set(), ""
    for line in text.splitlines():
        header = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if header:
            computation = "ENTRY" if header[1] else header[2]
        for called in re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", line):
            callers[called] = computation
        if re.search(rf"= bf16\[{size}\]\S* convert\(", line) and "jvp()/convert" in line:
            casts.add(computation)
    for _ in range(4):
        casts = {callers.get(name, name) for name in casts}
    assert casts
    assert not casts & bodies
    step(engine, 1.0 + 2.0**-10)
    np.testing.assert_array_equal(net.read_parameter("weight"), 0.0)  # the row was cast, too


# Precision of float32 products


@pytest.mark.parametrize(("precision", "name"), [("highest", "HIGHEST"), ("high", "HIGH"), ("default", "DEFAULT")])
def test_matmul_precision_is_traced(precision, name):
    import jax

    engine, _ = make(matmul_precision=precision)
    kept = jax.config.jax_default_matmul_precision
    text = jax.jit(engine._precisely(lambda a: a @ a)).lower(np.ones((2, 2), np.float32)).as_text()
    assert f"[{name}, {name}]" in text
    step(engine, 1.0)
    assert jax.config.jax_default_matmul_precision == kept


# Ops on halves

SUMS = {
    "sum": (lambda o, x: o.sum(x), lambda x: x.sum()),
    "mean": (lambda o, x: o.mean(x), lambda x: x.mean()),
    "var": (lambda o, x: o.var(x), lambda x: x.var()),
    "std": (lambda o, x: o.std(x), lambda x: x.std()),
    "prod": (lambda o, x: o.prod(1 + (x - x) + x / x / 128), lambda x: (1 + 1 / 128) ** x.size),
    "cumsum": (lambda o, x: o.cumsum(x)[-1], lambda x: x.sum()),
    "norm": (lambda o, x: o.norm(x), lambda x: np.sqrt((x * x).sum())),
    "norm 1": (lambda o, x: o.norm(x, 1), lambda x: np.abs(x).sum()),
    "logsumexp": (lambda o, x: o.logsumexp(x / 8), lambda x: np.log(np.exp(x / 8).sum())),
    "softmax": (lambda o, x: o.sum(o.softmax(x * 0)), lambda x: 1.0),
    "log_softmax": (lambda o, x: o.log_softmax(x * 0)[0], lambda x: -np.log(x.size)),
    "moments": (lambda o, x: o.moments(x, [0])[1], lambda x: x.var()),
    "normalize": (lambda o, x: o.normalize(x)[0], lambda x: x[0] / np.sqrt((x * x).sum())),
    "average_pool": (lambda o, x: o.average_pool(x[None, :, None], x.shape[0])[0, 0, 0], lambda x: x.mean()),
    "dot": (lambda o, x: o.dot(x, x * 0 + 1), lambda x: x.sum()),
    "matmul": (lambda o, x: o.matmul(x[None], x[:, None] * 0 + 1)[0, 0], lambda x: x.sum()),
    "einsum": (lambda o, x: o.einsum("i,i->", x, x * 0 + 1), lambda x: x.sum()),
    "segment_sum": (lambda o, x: o.segment_sum(x, o.cast(x * 0, "int32"), 1)[0], lambda x: x.sum()),
}


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_halves_are_float32_inside(dtype):
    import jax

    x = (np.arange(480) % 5 + 4).astype(np.float32)  # exact in both; a bfloat16 sum would stick
    run = jax.jit(lambda given: {name: function(uf.ops, given) for name, (function, _) in SUMS.items()})
    for name, got in run(uf.ops.cast(uf.ops.convert_to_tensor(x), dtype)).items():
        assert got.dtype == dtype, name
        want = SUMS[name][1](x.astype(np.float64))
        tolerance = 4 if name in ("prod", "logsumexp") else 1  # their inputs are rounded, too
        assert abs(float(got) - want) <= tolerance * EPSILON[dtype] * abs(want), (name, float(got), want)


def test_float16_overflows_at_the_last_cast_only():
    ops, ones = uf.ops, uf.ops.ones((70000,), "float16")
    assert float(ops.sum(ones)) == np.inf
    assert float(ops.mean(ones)) == 1.0
    large = ops.full((4,), 300.0, "float16")
    assert float(ops.norm(large)) == 600.0
    assert float(ops.std(ops.concatenate([large, -large]))) == 300.0
    assert float(ops.var(ops.concatenate([large, -large]))) == np.inf
    assert float(ops.normalize(large)[0]) == 0.5
    assert float(ops.average_pool(ops.full((1, 4, 1), 60000.0, "float16"), 4)[0, 0, 0]) == 60000.0


GRADIENTS = {
    "take": lambda o, w, n: o.take(w, np.zeros(n, np.int32), axis=0),
    "take_along_axis": lambda o, w, n: o.take_along_axis(w, np.zeros((n, 1), np.int32), axis=0),
    "bias": lambda o, w, n: w + o.zeros((n, 1), w.dtype),
    "matmul": lambda o, w, n: o.matmul(o.ones((n, 1), w.dtype), w),
    "conv": lambda o, w, n: o.conv(o.ones((1, n, 1), w.dtype), w[None]),
    "depthwise": lambda o, w, n: o.depthwise_conv(o.ones((1, n, 1), w.dtype), w[None]),
    "resize": lambda o, w, n: o.resize(w[None, None], (n, 1), "nearest"),
}


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_halves_are_summed_in_float32(dtype):
    """A weight that 4096 rows use has a gradient of 4096; half-precision sums stick at 256 and 2048."""
    import jax

    def loss(weights):
        return sum(
            uf.ops.sum(uf.ops.cast(function(uf.ops, weights[name], 4096), "float32"))
            for name, function in GRADIENTS.items()
        )

    gradients = jax.jit(jax.grad(loss))({name: uf.ops.ones((1, 1), dtype) for name in GRADIENTS})
    for name, gradient in gradients.items():
        assert gradient.dtype == dtype, name
        assert float(gradient[0, 0]) == 4096.0, name


IMAGE, LINE = (2, 6, 6, 4), (2, 5, 4)
LAYERS = {
    "dense": (lambda u: u.Dense(3, "gelu"), LINE),
    "conv1": (lambda u: u.Conv1D(3, 2), LINE),
    "conv2": (lambda u: u.Conv2D(3, 2), IMAGE),
    "grouped": (lambda u: u.Conv2D(4, 2, groups=2), IMAGE),
    "depthwise": (lambda u: u.DepthwiseConv2D(2), IMAGE),
    "transposed": (lambda u: u.Conv2DTranspose(3, 3, 2), IMAGE),
    "max": (lambda u: u.MaxPooling2D(2), IMAGE),
    "average": (lambda u: u.AveragePooling2D(2, padding="same"), IMAGE),
    "global": (lambda u: u.GlobalAveragePooling2D(), IMAGE),
    "batch": (lambda u: u.BatchNormalization(), IMAGE),
    "layer": (lambda u: u.LayerNormalization(), LINE),
    "lstm": (lambda u: u.LSTM(3), LINE),
    "gru": (lambda u: u.GRU(3), LINE),
    "attention": (lambda u: u.MultiHeadAttention(2, 2), LINE),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_run_on_halves(name):
    import jax
    import jax.numpy as jnp

    make_layer, shape = LAYERS[name]
    layer, x = make_layer(uf.layers), np.random.default_rng(0).normal(size=shape).astype(np.float32)
    given = (x, x) if name == "attention" else (x,)
    wanted = np.asarray(layer(*given))

    def loss(dtype, *arrays):
        halves = [(owner, own, dtype) for _, owner, own in walk(layer) if "moving" not in own]
        with backend.module.reading_as(halves):
            y = layer(*arrays)
            return jnp.sum(y.astype(jnp.float32)), y

    by_dtype = {dtype: [jnp.asarray(array, dtype) for array in given] for dtype in HALVES}
    run = jax.jit(
        lambda by_dtype: {
            dtype: jax.value_and_grad(loss, argnums=1, has_aux=True)(dtype, *arrays)
            for dtype, arrays in by_dtype.items()
        }
    )
    for dtype, ((_, y), gradient) in run(by_dtype).items():
        assert y.dtype == gradient.dtype == dtype
        assert np.all(np.isfinite(np.asarray(gradient, np.float32)))
        atol = 16 * EPSILON[dtype] * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(y, np.float32), wanted, atol=atol)


@pytest.mark.parametrize("dtype", HALVES)
def test_selections_keep_halves(dtype):
    ops = uf.ops
    x = ops.cast(ops.convert_to_tensor(np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)), dtype)
    for got, want in [
        (ops.one_hot(ops.convert_to_tensor(np.array([1, 0])), 2, dtype=dtype), [[0, 1], [1, 0]]),
        (ops.where(x > 0, x, ops.zeros_like(x)), [[1, 0], [3, 0.5]]),
        (ops.take(x, np.array([1]), axis=0), [[3, 0.5]]),
        (ops.max(x, axis=0), [3, 0.5]),
        (ops.sort(x, axis=1), [[-2, 1], [0.5, 3]]),
    ]:
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got, np.float32), want)


@pytest.mark.parametrize("dtype", HALVES)
def test_attention_on_halves_has_a_float32_softmax(dtype):
    ops, r = uf.ops, np.random.default_rng(0)
    query, key, value = (
        ops.cast(ops.convert_to_tensor(r.normal(size=(1, 64, 2, 8)).astype("float32")), dtype) for _ in "qkv"
    )
    mask = ops.convert_to_tensor(r.random((1, 1, 64, 64)) > 0.3)
    got = ops.dot_product_attention(query, key, value, mask=mask)
    wide = [ops.cast(array, "float32") for array in (query, key, value)]
    want = ops.dot_product_attention(*wide, mask=mask)
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want), atol=2 * EPSILON[dtype])
