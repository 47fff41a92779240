"""Precision on torch: weights that read in another dtype, the scaled loss and skipped updates, averages, bfloat16."""

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend
from unifit.contract import optimizers as rules
from unifit.contract.job import Job
from unifit.contract.precision import EMA, LossScale
from unifit.contract.values import MicroBatch, Plan, Window
from unifit.training.objective import Layout, Objective
from unifit.training.outputs import Output, Term
from unifit.weights import trainable_paths

pytestmark = pytest.mark.backends("torch")

ROWS = 4
PAIR_LIMIT_S = 90.0
FLOAT32_TOLERANCE = 1e-6
BFLOAT16_TOLERANCE = 2.0**-7
HALVES = {"bfloat16": BFLOAT16_TOLERANCE, "float16": 2.0**-9}

RULES = [
    rules.SGD(weight_decay=0.1),
    rules.SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
    rules.AdamW(weight_decay=0.1),
    rules.RMSprop(momentum=0.5, centered=True, weight_decay=0.1),
    rules.Adagrad(),
    rules.Lion(weight_decay=0.1),
]


# Engines by hand


def torch():
    return importlib.import_module("torch")


def bfloat16(values):
    """A host array in bfloat16, as an extension of NumPy has it: its cells have no dtype of NumPy's own."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view("V2")


class Affine(uf.Layer):
    """y = x @ kernel + bias; keeps what `kernel` read as and torch's setting for products, in each pass."""

    kept = ()

    def call(self, x):
        self.kept.append((self.kernel, torch().get_float32_matmul_precision()))
        kernel, bias = (uf.ops.cast(weight, "float32") for weight in (self.kernel, self.bias))
        return uf.ops.matmul(x, kernel) + bias


def affine(kernel, bias, kind=np.float32):
    module = Affine()
    module.__dict__["kept"] = []
    for name, value in (("kernel", kernel), ("bias", bias)):
        module.add_parameter(name, bfloat16(value) if kind == "bfloat16" else np.asarray(value, np.float32), True)
    return module


class Reading(Objective):
    """Its passes read the weights in `readings`."""

    readings = ()

    def train(self, model, batch, scope):
        with backend.module.reading_as(self.readings):
            return super().train(model, batch, scope)


def make_engine(module, rule, devices=None, loss="mse", casts=(), rates=(0.1, 0.05, 0.02), **plan):
    layout = Layout(("output",), (1.0,), (False,))
    objective = Reading([Term(uf.losses.get(loss), Output("output", 0, True), 1.0)], layout)
    objective.readings = casts
    trainable = trainable_paths(module) or frozenset(module.parameter_names())
    decays = frozenset(path for path in trainable if "kernel" in path)
    plan = Plan(objective, trainable, rule, decays, **plan)
    engine = backend.engine.Engine(module, plan, devices or backend.distribution.prepare(None, None))
    engine.set_rates(0, np.array(rates, np.float32))
    return engine


def window(step, x=None, y=None, valid=True, accumulation=1):
    """Rows of shape (accumulation, ROWS, 3); labels of two numbers."""
    r = np.random.default_rng(step)
    rows, labels = r.normal(size=(accumulation, ROWS, 3)), r.normal(size=(accumulation, ROWS, 2))
    x = rows if x is None else np.broadcast_to(x, rows.shape)
    y = labels if y is None else np.broadcast_to(y, labels.shape)
    batch = MicroBatch(x.astype("float32"), y.astype("float32"), None, np.full((accumulation, ROWS), valid))
    return Window(batch, accumulation, valid, step)


def part(whole, process, processes=2):
    """A process' rows of a window."""
    rows = slice(process * ROWS // processes, (process + 1) * ROWS // processes)
    return whole._replace(batch=MicroBatch(*(None if leaf is None else leaf[:, rows] for leaf in whole.batch)))


def network():
    """Dense, BatchNormalization, Dense from 3 to 2, with its weights made."""
    uf.set_seed(0)
    model = uf.Sequential([uf.layers.Dense(5, "tanh"), uf.layers.BatchNormalization(), uf.layers.Dense(2)])
    model.build((None, 3))
    model.weights_by_path()
    return model


def state(engine, scaling=True):
    """All that a skipped update leaves alone; with `scaling` also what it changes."""
    variables = {path: value.numpy() for path, value in engine.model.state_dict().items() if value.element_size() > 2}
    short = {path: value.float().numpy() for path, value in engine.model.state_dict().items() if path not in variables}
    slots = {name: value for name, value in engine.read_slots().items() if scaling or "loss_scale" not in name}
    return {name: np.array(value) for name, value in (variables | short | slots).items()}


def assert_same(after, before):
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def train(engine, windows, totals=None):
    totals = engine.zeros(False) if totals is None else totals
    for each in windows:
        totals = engine.train(totals, engine.place(each))
    return totals


def own_sums(engine, totals):
    return dict(zip(engine.ENGINE_SUMS, engine.read(totals, False)[-len(engine.ENGINE_SUMS) :], strict=True))


# Weights that read in another dtype


def test_weight_reads_in_a_dtype_and_its_gradient_is_the_variables():
    module = affine(np.ones((3, 2)), np.ones(2))
    with backend.module.reading_as([(module, "kernel", "bfloat16"), (module, "bias", "float16")]):
        assert module.kernel is module.kernel
        assert (uf.ops.dtype(module.kernel), uf.ops.dtype(module.bias)) == ("bfloat16", "float16")
        uf.ops.sum(uf.ops.cast(module.kernel, "float32") * 2).backward()
        assert module.read_parameter("kernel").dtype == np.float32
    assert uf.ops.dtype(module.kernel) == "float32"
    assert module.kernel.grad.dtype is torch().float32
    np.testing.assert_array_equal(module.kernel.grad, np.full((3, 2), 2.0))


def test_weight_reads_as_before_after_an_error_and_where_it_is_lent():
    module = affine(np.ones((3, 2)), np.ones(2))
    with (
        pytest.raises(ValueError, match="in the pass"),
        backend.module.reading_as([(module, "kernel", "bfloat16")]),
    ):
        raise ValueError("in the pass")
    assert uf.ops.dtype(module.kernel) == "float32"
    lent = module.__dict__["kernel"] = uf.ops.zeros((3, 2))
    with backend.module.reading_as([(module, "kernel", "bfloat16")]):
        assert module.kernel is lent
    assert module.kernel is lent


def test_cast_is_made_once_a_window():
    module = affine(np.ones((3, 2)), np.ones(2))
    engine = make_engine(module, rules.SGD(), casts=[(module, "kernel", "bfloat16")], accumulation=3)
    train(engine, [window(step, accumulation=3) for step in range(2)])
    kernels = [kernel for kernel, _ in module.kept]
    assert {kernel.dtype for kernel in kernels} == {torch().bfloat16}
    assert kernels[0] is kernels[1] is kernels[2] and kernels[3] is kernels[5]
    assert kernels[2] is not kernels[3]
    batch = window(0).batch
    engine.evaluate(engine.zeros(True), MicroBatch(*(None if leaf is None else leaf[0] for leaf in batch)))
    assert backend.module.window_casts.kept is None


def test_gradients_of_casts_are_summed_in_float32():
    """S-GA-06: 512 micro-batches of gradient 1."""
    module = affine(np.zeros((3, 2)), np.zeros(2))
    engine = make_engine(
        module, rules.SGD(), loss=first_output, casts=[(module, "kernel", "bfloat16")], rates=[1.0], accumulation=512
    )
    train(engine, [window(0, x=1.0, accumulation=512)])
    np.testing.assert_allclose(module.read_parameter("kernel")[:, 0], -1.0, rtol=FLOAT32_TOLERANCE)


def first_output(y_true, y_pred):
    return y_pred[:, 0]


# The scaled loss and skipped updates


SCALES = {
    "dynamic": LossScale(8.0, 4.0, 0.5, 3, minimum=2.0, maximum=64.0),
    "static": LossScale(1024.0, 1.0, 1.0, None, minimum=1024.0, maximum=1024.0),
    "default": LossScale(),
    "none": None,
}


class Reference:
    """The state machine in Python."""

    def __init__(self, constants):
        self.constants = constants or LossScale(1.0, 1.0, 1.0, None, minimum=1.0, maximum=1.0)
        self.scale, self.good, self.skipped, self.in_a_row = self.constants.initial, 0, 0, 0

    def advance(self, kind):
        constants = self.constants
        if kind == "finite":
            self.good, self.in_a_row = self.good + 1, 0
            if self.good == constants.growth_interval:
                self.good, self.scale = 0, min(self.scale * constants.growth_factor, constants.maximum)
        elif kind == "nonfinite":
            self.good, self.skipped, self.in_a_row = 0, self.skipped + 1, self.in_a_row + 1
            self.scale = max(self.scale * constants.backoff_factor, constants.minimum)


@pytest.mark.parametrize("name", SCALES)
def test_state_machine_step_by_step(name):
    engine = make_engine(
        affine(np.ones((3, 2)), np.ones(2)), rules.SGD(), skip_nonfinite=True, loss_scale=SCALES[name], rates=[1e-3]
    )
    reference, totals = Reference(SCALES[name]), engine.zeros(False)
    r = np.random.default_rng(3)
    kinds = (
        ["finite"] * 11 + ["nonfinite"] * 9 + list(r.choice(["finite", "nonfinite", "empty"], 40, p=[0.7, 0.2, 0.1]))
    )
    for step, kind in enumerate(kinds):
        filled = {"nonfinite": [np.nan, np.inf, 1e30][step % 3]}.get(kind)
        totals = train(engine, [window(step, filled, valid=kind != "empty")], totals)
        reference.advance(kind)
        expected = (reference.scale, reference.good, reference.skipped, reference.in_a_row)
        assert tuple(engine.scaling()) == expected, (step, kind)
    counts = {kind: kinds.count(kind) for kind in ("finite", "nonfinite", "empty")}
    own = own_sums(engine, totals)
    assert (own["updates"], own["nonfinite"], own["empty"]) == tuple(counts.values())
    assert engine.iterations() == counts["finite"]
    assert np.isfinite(engine.read(totals, False)).all()


@pytest.mark.parametrize("clip", ["clip_norm", "clip_value", "clip_parameter_norm"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_scaled_run_is_the_unscaled_one(rule, clip):
    ends = []
    for options in ({}, {"skip_nonfinite": True, "loss_scale": LossScale(2.0**10, growth_interval=2)}):
        engine = make_engine(network(), rule, accumulation=2, **{clip: 0.1}, **options)
        train(engine, [window(step, accumulation=2) for step in range(4)])
        ends.append(state(engine, scaling=False))
    # Powers of two change no digit.
    assert_same(ends[1], ends[0])


@pytest.mark.parametrize("clip", ["clip_norm", "clip_parameter_norm"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("fill", [np.nan, np.inf, 3e38], ids=["nan", "inf", "overflow when scaled"])
def test_skipped_update_leaves_everything_as_it_was(rule, clip, fill):
    engine = make_engine(
        network(), rule, skip_nonfinite=True, loss_scale=LossScale(), ema=EMA(0.9, warmup=True), accumulation=2,
        **{clip: 0.5},
    )  # fmt: skip
    totals = train(engine, [window(0, accumulation=2)])
    before, sums, y = state(engine, scaling=False), engine.read(totals, False), window(1, accumulation=2).batch.y
    y[1, 2, 0] = fill  # one row of one micro-batch
    totals = train(engine, [window(1, y=y, accumulation=2)], totals)
    assert_same(state(engine, scaling=False), before)
    after = engine.read(totals, False)
    np.testing.assert_array_equal(after[:-1], sums[:-1])
    assert (sums[-1], after[-1]) == (0.0, 1.0)
    train(engine, [window(2, accumulation=2)], totals)
    changed = state(engine, scaling=False)
    assert engine.iterations() == 2 and all(
        np.any(changed[name] != before[name]) for name in before if "bias" not in name
    )


def test_parameters_with_nonfinite_gradients_are_named():
    engine = make_engine(affine(np.ones((3, 2)), np.ones(2)), rules.SGD(), skip_nonfinite=True)
    assert engine.nonfinite() == []
    train(engine, [window(0, x=1e30)])  # the bias' gradient is near 1e30, the kernel's near 1e60
    assert engine.nonfinite() == ["kernel"]
    train(engine, [window(1), window(2, valid=False)])
    assert engine.nonfinite() == ["kernel"]
    train(engine, [window(3, x=np.nan)])
    assert sorted(engine.nonfinite()) == ["bias", "kernel"]


def test_finite_gradients_whose_squares_overflow_are_no_reason_to_skip():
    engine = make_engine(affine(np.zeros((3, 2)), np.zeros(2)), rules.SGD(), skip_nonfinite=True, loss=first_output)
    train(engine, [window(0, x=1e25)])
    assert engine.scaling() == (1.0, 1, 0, 0)
    np.testing.assert_allclose(engine.model.read_parameter("kernel")[:, 0], -1e24, rtol=FLOAT32_TOLERANCE)


def test_each_parameters_gradient_is_clipped_to_a_norm():
    x, y = window(0).batch.x[0], window(0).batch.y[0]
    kernel, bias = np.random.default_rng(5).normal(size=(3, 2)).astype("float32"), np.zeros(2, np.float32)
    engine = make_engine(affine(kernel, bias), rules.SGD(), rates=[1.0], clip_parameter_norm=0.3)
    train(engine, [window(0)])
    error = 2 * (x @ kernel + bias - y) / y.size
    for name, start, gradient in (("kernel", kernel, x.T @ error), ("bias", bias, error.sum(0))):
        expected = start - gradient * min(1.0, 0.3 / np.linalg.norm(gradient))
        np.testing.assert_allclose(engine.model.read_parameter(name), expected, rtol=0, atol=FLOAT32_TOLERANCE)
    assert engine.model.read_parameter("bias") @ engine.model.read_parameter("bias") <= 0.3**2 * (1 + FLOAT32_TOLERANCE)


# Averages


@pytest.mark.parametrize("warmup", [False, True])
def test_averages_follow_applied_updates(warmup):
    engine = make_engine(
        affine(np.ones((3, 2)), np.ones(2)), rules.SGD(), skip_nonfinite=True, ema=EMA(0.6, warmup), rates=[0.3]
    )
    average, count = engine.model.read_parameter("kernel"), 0
    for step in range(12):
        skipped = step in (2, 7)
        train(engine, [window(step, x=np.nan if skipped else None)])
        if not skipped:
            decay = min(0.6, (1 + count) / (10 + count)) if warmup else 0.6
            average, count = decay * average + (1 - decay) * engine.model.read_parameter("kernel"), count + 1
        slots = engine.read_slots()
        np.testing.assert_allclose(slots["ema.kernel"], average, rtol=FLOAT32_TOLERANCE)
        assert slots["ema.kernel"].dtype == np.float32
        assert int(slots["ema.updates"]) == count and slots["ema.updates"].dtype == np.int64


def test_model_holds_averages_for_a_while():
    engine = make_engine(affine(np.ones((3, 2)), np.ones(2)), rules.SGD(), ema=EMA(0.6))
    train(engine, [window(step) for step in range(3)])
    own, slots, kernel = engine.model.read_parameter("kernel"), engine.read_slots(), engine.model.kernel
    with pytest.raises(ValueError, match="inside"), engine.averaged():
        assert engine.model.kernel is kernel
        np.testing.assert_array_equal(engine.model.read_parameter("kernel"), slots["ema.kernel"])
        assert np.any(own != slots["ema.kernel"])
        raise ValueError("inside")
    np.testing.assert_array_equal(engine.model.read_parameter("kernel"), own)
    assert_same(engine.read_slots(), slots)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_slots_go_round(kind):
    def made():
        return make_engine(
            affine(np.ones((3, 2)), np.ones(2), kind), rules.AdamW(), skip_nonfinite=True, ema=EMA(0.6, warmup=True),
            loss_scale=LossScale(1024.0, growth_interval=3),
        )  # fmt: skip

    one, other = made(), made()
    train(one, [window(0), window(1, x=np.nan), *(window(step) for step in range(2, 5))])
    slots = one.read_slots()
    assert tuple(slots[f"loss_scale.{name}"] for name in ("scale", "good", "skipped", "in_a_row")) == (1024, 0, 1, 0)
    for name in ("kernel", "bias"):
        other.model.write_parameter(name, one.model.read_parameter(name))
    other.write_slots(slots)
    assert other.scaling() == one.scaling()
    for engine in (one, other):
        train(engine, [window(5), window(6)])
    assert_same(state(other), state(one))
    for name in ("loss_scale.good", "ema.kernel", "ema.updates", "m.kernel"):
        with pytest.raises(KeyError, match=name):
            other.write_slots({key: value for key, value in slots.items() if key != name})


# Parameters in bfloat16


def test_rounding_at_random_is_right_on_average_and_leaves_what_needs_none():
    from unifit_torch import random, rounding

    values = torch().tensor([1.0 + 2.0**-7 * 0.3, -1.0 - 2.0**-7 * 0.3, 2.0**-100, 3.0, 0.0, -2.5])
    draws = rounding.round_at_random(values.repeat(20000, 1), random.stream(0, 1))
    assert draws.dtype is torch().bfloat16
    deviation = 2.0**-7 * (0.3 * 0.7 / 20000) ** 0.5
    np.testing.assert_allclose(draws.float().mean(0)[:2], values[:2], rtol=0, atol=4 * deviation)
    assert set(draws[:, 0].tolist()) == {1.0, 1.0 + 2.0**-7}
    np.testing.assert_array_equal(draws[:, 2:].float(), values[2:].repeat(20000, 1))
    odd = torch().tensor([np.nan, np.inf, -np.inf, 3.4028234e38, -3.4028234e38])
    odd.view(torch().int32)[0] = 0x7FFFFFFF  # the NaN of GPUs, from which a carry would make -0
    rounded = rounding.round_at_random(odd.repeat(100, 1), random.stream(0, 1)).float()
    assert torch().isnan(rounded[:, 0]).all()
    assert torch().isinf(rounded[:, 1:]).any(0).all()
    assert (torch().sign(rounded[:, 1:]) == torch().sign(odd[1:])).all()


def sum_of_outputs(y_true, y_pred):
    return uf.ops.sum(y_pred, -1)


def thousand_small_updates(seed, steps=1000):
    engine = make_engine(
        affine(np.ones((3, 50)), np.ones(50), "bfloat16"), rules.SGD(), loss=sum_of_outputs, rates=[1e-4], seed=seed
    )
    train(engine, [window(step, x=1.0) for step in range(steps)])
    return engine.model.read_parameter("kernel")


def test_small_updates_of_bfloat16_weights_are_not_lost():
    kernel = thousand_small_updates(0)
    # A weight moves by 2^-8 with probability 0.0256 a step: 0.1 +- 0.02.
    np.testing.assert_allclose(kernel.mean(), 0.9, rtol=0, atol=4 * 0.02 / kernel.size**0.5)
    assert 0.01 < kernel.std() < 0.03
    np.testing.assert_array_equal(thousand_small_updates(4, 100), thousand_small_updates(4, 100))
    assert np.any(thousand_small_updates(4, 100) != thousand_small_updates(5, 100))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_bfloat16_weights_train_as_float32_ones_and_skip(rule):
    kernel = np.random.default_rng(1).normal(size=(3, 2)).astype("float32")
    kernel = (kernel.view(np.uint32) & 0xFFFF0000).view(np.float32)
    engines = [
        make_engine(affine(kernel, np.ones(2), kind), rule, skip_nonfinite=True, ema=EMA(0.5), accumulation=2)
        for kind in ("float32", "bfloat16")
    ]
    for engine in engines:
        train(engine, [window(step, accumulation=2) for step in range(3)])
    wide, short = (state(engine) for engine in engines)
    for name, value in wide.items():
        np.testing.assert_allclose(short[name], value, rtol=5 * BFLOAT16_TOLERANCE, atol=5 * BFLOAT16_TOLERANCE)
    parameter = engines[1].model.kernel
    assert parameter.dtype is torch().bfloat16 and parameter.grad is None
    before = state(engines[1], scaling=False)
    train(engines[1], [window(3, x=np.nan, accumulation=2), window(4, valid=False, accumulation=2)])
    assert_same(state(engines[1], scaling=False), before)


def test_native_optimizer_updates_bfloat16_weights():
    rule = rules.Native(lambda params: torch().optim.SGD(params, lr=0.5))
    engine = make_engine(affine(np.ones((3, 2)), np.ones(2), "bfloat16"), rule, loss=first_output)
    train(engine, [window(0, x=1.0)])
    np.testing.assert_array_equal(engine.model.read_parameter("kernel")[:, 0], 0.5)


def test_gradients_of_bfloat16_weights_are_summed_in_float32():
    """S-GA-06: 512 micro-batches of gradient 1."""
    engine = make_engine(
        affine(np.zeros((3, 2)), np.zeros(2), "bfloat16"), rules.SGD(), loss=first_output, rates=[1.0], accumulation=512
    )
    train(engine, [window(0, x=1.0, accumulation=512)])
    np.testing.assert_array_equal(engine.model.read_parameter("kernel")[:, 0], -1.0)


# Float32 products


@pytest.mark.parametrize(("name", "expected"), [("highest", "highest"), ("high", "high"), ("default", "medium")])
def test_precision_of_products_holds_inside_passes(name, expected):
    before = torch().get_float32_matmul_precision(), torch().backends.cudnn.allow_tf32
    engine = make_engine(affine(np.ones((3, 2)), np.ones(2)), rules.SGD(), matmul_precision=name)
    train(engine, [window(0)])
    batch = MicroBatch(*(None if leaf is None else leaf[0] for leaf in window(0).batch))
    engine.evaluate(engine.zeros(True), batch)
    engine.predict(batch)
    engine.probe(engine.place(window(0)))
    assert [setting for _, setting in engine.model.kept] == [expected] * 4
    assert (torch().get_float32_matmul_precision(), torch().backends.cudnn.allow_tf32) == before


# Functions in half precision


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


MASK = np.arange(15).reshape(3, 5) % 5 <= np.arange(3)[:, None] + 1
LSTM = [normal(3, 5, 4), None, None, normal(4, 24), normal(6, 24), normal(24)]
GRU = [normal(3, 5, 4), None, normal(4, 18), normal(6, 18), normal(2, 18)]
FUNCTIONS = {
    "matmul": (uf.ops.matmul, normal(4, 64), normal(64, 3)),
    "einsum": (lambda x, y: uf.ops.einsum("bij,bjk->bik", x, y), normal(2, 4, 8), normal(2, 8, 3)),
    "conv 1d": (lambda x, k: uf.ops.conv(x, k, 2, "same"), normal(2, 9, 4), normal(3, 4, 6)),
    "conv 2d": (lambda x, k: uf.ops.conv(x, k, 1, "same", 2), normal(2, 7, 7, 4), normal(3, 3, 4, 6)),
    "conv in groups": (uf.ops.conv, normal(2, 7, 7, 4), normal(3, 3, 2, 6)),
    "depthwise 1d": (uf.ops.depthwise_conv, normal(2, 9, 4), normal(3, 4, 2)),
    "depthwise 2d": (uf.ops.depthwise_conv, normal(2, 7, 7, 4), normal(3, 3, 4, 2)),
    "transposed 1d": (lambda x, k: uf.ops.conv_transpose(x, k, 2, "same"), normal(2, 5, 4), normal(3, 6, 4)),
    "transposed 2d": (lambda x, k: uf.ops.conv_transpose(x, k, 2), normal(2, 5, 5, 4), normal(3, 3, 6, 4)),
    "max pool": (lambda x: uf.ops.max_pool(x, 3, 2, "same"), normal(2, 7, 7, 4)),
    "average pool": (lambda x: uf.ops.average_pool(x, 3, 2, "same"), normal(2, 7, 7, 4)),
    "average pool 1d": (lambda x: uf.ops.average_pool(x, 3), normal(2, 9, 4)),
    "bilinear": (lambda x: uf.ops.resize(x, (9, 5)), normal(2, 4, 4, 3)),
    "attention": (uf.ops.dot_product_attention, *(normal(2, 6, 4, 8, seed=n) for n in range(3))),
    "causal attention": (
        lambda q, k, v: uf.ops.dot_product_attention(q, k, v, is_causal=True),
        *(normal(2, 6, 4, 8, seed=n) for n in range(3)),
    ),
    "attention with a bias": (
        lambda q, k, v, b: uf.ops.dot_product_attention(q, k, v, bias=b),
        *(normal(2, 6, 4, 8, seed=n) for n in range(3)),
        normal(2, 4, 6, 6),
    ),
    "lstm": (lambda *given: backend.recurrent.lstm(*given)[0], *LSTM),
    "masked lstm": (lambda *given: backend.recurrent.lstm(*given, mask=uf.ops.convert_to_tensor(MASK))[2], *LSTM),
    "gru": (lambda *given: backend.recurrent.gru(*given)[0], *GRU),
    "masked gru": (lambda *given: backend.recurrent.gru(*given, mask=uf.ops.convert_to_tensor(MASK))[0], *GRU),
    "softmax": (uf.ops.softmax, normal(3, 50)),
    "softmax of two axes": (lambda x: uf.ops.softmax(x, (1, 2)), normal(2, 5, 6)),
    "log_softmax": (uf.ops.log_softmax, normal(3, 50)),
    "where": (lambda x: uf.ops.where(x > 0, x, 0.0), normal(5, 3)),
    "take": (lambda x: uf.ops.take(x, np.array([1, 3, 1]), 0), normal(5, 3)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_runs_in_half_precision(name, dtype):
    function, *given = FUNCTIONS[name]
    found = []
    for each in (dtype, "float32"):
        tensors = [
            None if a is None else uf.ops.cast(uf.ops.cast(uf.ops.convert_to_tensor(a), dtype), each) for a in given
        ]
        leaves = [tensor.detach().requires_grad_() for tensor in tensors if tensor is not None]
        ready = iter(leaves)
        y = function(*(None if tensor is None else next(ready) for tensor in tensors))
        assert uf.ops.dtype(y) == each
        uf.ops.sum(uf.ops.cast(y, "float32") ** 2).backward()
        found.append([uf.ops.convert_to_numpy(array) for array in (y, *(leaf.grad for leaf in leaves))])
        assert all(uf.ops.dtype(leaf.grad) == each for leaf in leaves)
    for short, exact in zip(*found, strict=True):
        np.testing.assert_allclose(short, exact, rtol=0, atol=4 * HALVES[dtype] * np.abs(exact).max(), err_msg=name)


SUMS = {
    "sum": (uf.ops.sum, np.ones(4096), 4096.0),
    "sum beyond float16": (lambda x: uf.ops.sum(x) / 2, np.ones(70000), {"float16": np.inf, "bfloat16": 35000.0}),
    "mean": (uf.ops.mean, np.full(70000, 3.0), 3.0),
    "mean of an axis": (lambda x: uf.ops.mean(x, 0)[0], np.full((70000, 2), 3.0), 3.0),
    "var": (uf.ops.var, np.tile([256.0, 258.0], 4000), 1.0),
    "std": (uf.ops.std, np.tile([0.0, 2000.0], 4000), 1000.0),
    "moments": (lambda x: backend.nn.moments(x, 0)[1], np.tile([256.0, 258.0], 4000), 1.0),
    "prod": (uf.ops.prod, np.tile([1.5, 0.75, 0.890625], 512), (1.5 * 0.75 * 0.890625) ** 512),
    "logsumexp": (uf.ops.logsumexp, np.zeros(70000), np.log(70000)),
    "norm": (uf.ops.norm, np.full(4096, 100.0), 6400.0),
    "nuclear norm": (lambda x: uf.ops.norm(x, "nuc"), np.diag([3.0, 4.0]), 7.0),
    "softmax": (lambda x: uf.ops.sum(uf.ops.cast(uf.ops.softmax(x), "float32")), np.zeros(4096), 1.0),
    "cumsum": (lambda x: uf.ops.cumsum(x, 0)[-1], np.ones(4096), 4096.0),
    "matmul": (lambda x: uf.ops.matmul(x, uf.ops.transpose(x))[0, 0], np.ones((1, 4096)), 4096.0),
    "segment_sum": (lambda x: uf.ops.segment_sum(x, uf.ops.zeros((4096,), "int32"), 1)[0], np.ones(4096), 4096.0),
    "bincount": (lambda x: uf.ops.bincount(uf.ops.zeros((4096,), "int32"), x, 1)[0], np.ones(4096), 4096.0),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SUMS)
def test_many_terms_are_added_up_in_float32(name, dtype):
    function, values, expected = SUMS[name]
    expected = expected[dtype] if isinstance(expected, dict) else expected
    x = uf.ops.cast(uf.ops.convert_to_tensor(values), dtype)
    np.testing.assert_allclose(uf.ops.convert_to_numpy(function(x)), expected, rtol=HALVES[dtype])


GRADIENTS = {
    "take": lambda x: uf.ops.take(x, np.zeros(4096, np.int32), 0),
    "take_along_axis": lambda x: uf.ops.take_along_axis(x, uf.ops.zeros((4096,), "int32"), 0),
    "broadcast": lambda x: x + uf.ops.zeros((4096, 1), uf.ops.dtype(x)),
    "nearest": lambda x: uf.ops.resize(uf.ops.reshape(x, (1, 1, 1, 1)), (64, 64), "nearest"),
    "convolution": lambda x: uf.ops.conv(
        uf.ops.ones((4096, 1, 1), uf.ops.dtype(x)), uf.ops.reshape(x, (1, 1, 1))
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_many_uses_are_added_up_in_float32(name, dtype):
    x = uf.ops.cast(uf.ops.ones((1,)), dtype).requires_grad_()
    uf.ops.sum(uf.ops.cast(GRADIENTS[name](x), "float32")).backward()
    assert uf.ops.dtype(x.grad) == dtype
    assert float(x.grad) == 4096.0


# Two devices: this file's `main` in two processes


RUNS = {
    "skip": dict(skip_nonfinite=True, loss_scale=LossScale(1024.0), ema=EMA(0.9), clip_norm=0.5),
    "reduction": dict(reduction_dtype="bfloat16", clip_norm=0.5),
    "bfloat16": dict(skip_nonfinite=True),
    "bfloat16 reduction": dict(reduction_dtype="bfloat16"),
    "casts": dict(),
}
WINDOWS = 4
SKIPPED = 2


def run(name, devices=None, process=None):
    """Trains in one of RUNS; returns the state after each window, and the sums."""
    if name.startswith("bfloat16"):
        model, casts = affine(np.full((3, 2), 0.5), np.zeros(2), "bfloat16"), ()
    else:
        model = network()
        casts = (
            [(owner, "kernel", "bfloat16") for owner in (model.layers[0], model.layers[2])] if name == "casts" else ()
        )
    engine = make_engine(model, rules.AdamW(weight_decay=0.1), devices, casts=casts, accumulation=2, **RUNS[name])
    totals, found = engine.zeros(False), {}
    for step in range(WINDOWS):
        whole = window(step, accumulation=2)
        if step == SKIPPED and "skip_nonfinite" in RUNS[name]:
            whole.batch.y[0, -1, 0] = np.inf  # the last process' row, in the first micro-batch
        totals = train(engine, [whole if process is None else part(whole, process)], totals)
        found |= {f"{step} {key}": value for key, value in state(engine).items()}
        found.setdefault("first sums", engine.read(totals, False))
    if "skip_nonfinite" in RUNS[name]:
        found["nonfinite"] = np.array(engine.nonfinite())
    return found | {"sums": engine.read(totals, False)}


def main(folder, process, port):
    devices = backend.distribution.prepare(None, Job("unifit", process, 2, process, 2, f"127.0.0.1:{port}"))
    for name in RUNS:
        np.savez(f"{folder}/{name}-{process}.npz", **run(name, devices, process))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What two processes found in RUNS."""
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = str(Path(__file__).parent)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*sys.path, here])}
    started, logs = [], [folder / f"{process}.log" for process in range(2)]
    for process, log in enumerate(logs):
        script = f"import test_precision_torch as t; t.main({str(folder)!r}, {process}, {port})"
        with log.open("w") as output:
            command = [sys.executable, "-W", "ignore", "-c", script]
            started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
    try:
        statuses = [process.wait(PAIR_LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert statuses == [0, 0], "\n".join(log.read_text() for log in logs)
    found = {}
    for name in RUNS:
        found[name] = []
        for process in range(2):
            with np.load(folder / f"{name}-{process}.npz") as arrays:
                found[name].append(dict(arrays))
    return found


@pytest.mark.parametrize("name", RUNS)
def test_processes_agree_in_every_bit(pair, name):
    first, second = pair[name]
    assert_same(second, first)


@pytest.mark.parametrize("name", ["skip", "bfloat16"])
def test_one_devices_infinity_skips_the_update_on_all(pair, name):
    for found in pair[name]:
        before, after = (
            {key.split(" ", 1)[1]: value for key, value in found.items() if key.startswith(f"{step} ")}
            for step in (SKIPPED - 1, SKIPPED)
        )
        for key, value in before.items():
            if "loss_scale" not in key:
                np.testing.assert_array_equal(after[key], value, err_msg=key)
        assert int(after["loss_scale.skipped"]) == 1 and int(after["loss_scale.good"]) == 0
        assert int(found[f"{WINDOWS - 1} iterations"]) == WINDOWS - 1
        assert len(found["nonfinite"]) > 0
        assert found["sums"][-1] == 1.0 and np.isfinite(found["sums"]).all()


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("skip", 1e-5), ("bfloat16", 4 * BFLOAT16_TOLERANCE), ("casts", 4 * BFLOAT16_TOLERANCE)],
)
def test_two_devices_train_as_one(pair, name, tolerance):
    alone = run(name)
    for found in pair[name]:
        assert found.keys() == alone.keys()
        for key, value in alone.items():
            if key != "nonfinite":
                np.testing.assert_allclose(found[key], value, rtol=tolerance, atol=tolerance, err_msg=f"{name} {key}")


@pytest.mark.parametrize("name", ["reduction", "bfloat16 reduction"])
def test_gradients_travel_in_bfloat16_and_sums_do_not(pair, name):
    alone = run(name)
    rounded, sums = pair[name][0], len(alone["sums"]) - 4
    # The sums of the first window, which no rounded gradient has touched yet.
    expected = alone["first sums"][:sums]
    np.testing.assert_allclose(rounded["first sums"][:sums], expected, rtol=FLOAT32_TOLERANCE)
    first = [key for key in alone if key.startswith("0 m.")]
    differ = [key for key in first if np.any(rounded[key] != alone[key])]
    assert differ, "nothing was rounded"
    for key in first:
        scale = np.abs(alone[key]).max()
        np.testing.assert_allclose(rounded[key], alone[key], rtol=0, atol=2 * BFLOAT16_TOLERANCE * scale, err_msg=key)
