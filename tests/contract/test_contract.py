"""The border: every backend has every member of the contract, with the contract's parameters, and each one works."""

import inspect

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend
from unifit.contract import engine as engine_contract
from unifit.contract import module as module_contract
from unifit.contract import optimizers as rules
from unifit.contract.distribution import DataParallel
from unifit.contract.module import walk
from unifit.contract.values import ArraySpec, MicroBatch, Placement, Plan, Window
from unifit.training.objective import Layout, Objective
from unifit.training.outputs import Output, Term

PROTOCOLS = {
    "module.Module": module_contract.Module,
    "engine.Engine": engine_contract.Engine,
    "distribution.Devices": engine_contract.Devices,
}
MEMBERS = [
    (name, member)
    for name, protocol in PROTOCOLS.items()
    for member, value in vars(protocol).items()
    if inspect.isfunction(value) and not member.startswith("_") or member == "__call__"
]


def implementation(dotted):
    part, name = dotted.split(".")
    return getattr(getattr(backend, part), name)


@pytest.mark.parametrize(("protocol", "member"), MEMBERS)
def test_member_has_the_contracts_parameters(protocol, member):
    wanted = list(inspect.signature(getattr(PROTOCOLS[protocol], member)).parameters)
    found = getattr(implementation(protocol), member, None)
    assert found is not None, f"{backend.name} lacks {protocol}.{member}"
    have = inspect.signature(found).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in have.values()):
        return
    # torch's own add_module and named_children stand; they may take more, with defaults.
    assert list(have)[: len(wanted)] == wanted
    assert all(p.default is not p.empty for p in list(have.values())[len(wanted) :])


@pytest.mark.parametrize(
    ("part", "function", "wanted"),
    [
        ("module", "abstract_call", module_contract.abstract_call),
        ("distribution", "prepare", lambda distribution, job: None),
        ("random", "stream", lambda *keys: None),
    ],
)
def test_function_has_the_contracts_parameters(part, function, wanted):
    have = inspect.signature(getattr(getattr(backend, part), function)).parameters
    want = inspect.signature(wanted).parameters
    assert [p.kind for p in have.values()] == [p.kind for p in want.values()]


def test_engine_sums_are_the_contracts():
    assert implementation("engine.Engine").ENGINE_SUMS == engine_contract.Engine.ENGINE_SUMS


class Leaf(uf.Layer):
    def call(self, x):
        return x * self.weight + self.state


def leaf():
    module = Leaf()
    module.add_parameter("weight", np.array([1.0, 2.0], np.float32), True)
    module.add_parameter("state", np.array([5.0, 5.0], np.float32), False)
    return module


def test_module_keeps_parameters():
    module = leaf()
    assert module.parameter_names() == ["weight", "state"]
    np.testing.assert_array_equal(module.read_parameter("weight"), [1.0, 2.0])
    module.write_parameter("weight", np.array([3.0, 4.0], np.float32))
    np.testing.assert_array_equal(uf.ops.convert_to_numpy(module.weight), [3.0, 4.0])
    value = module.read_parameter("weight")
    value[:] = 0.0
    np.testing.assert_array_equal(module.read_parameter("weight"), [3.0, 4.0])


def test_module_assign_replaces_a_buffer():
    module = leaf()
    module.assign("state", uf.ops.convert_to_tensor(np.array([7.0, 8.0], np.float32)))
    np.testing.assert_array_equal(module.read_parameter("state"), [7.0, 8.0])


def test_module_keeps_children_once_and_in_order():
    parent, first, second = uf.Layer(), leaf(), leaf()
    parent.add_module("b", first)
    parent.a = second
    parent.add_module("again", first)
    assert [(name, child) for name, child in parent.named_children()] == [("b", first), ("a", second)]
    assert parent.b is first and parent.a is second
    assert [path for path, _, _ in walk(parent)] == ["b.weight", "b.state", "a.weight", "a.state"]


def test_module_call_runs():
    class Twice(backend.module.Module):
        def run(self, x, *, times=2):
            return x * times

    assert Twice()(3) == 6
    assert Twice()(3, times=4) == 12


def test_abstract_call_gives_shapes_without_values():
    def function(x, pair):
        assert pair[1] is None
        return {"sum": uf.ops.matmul(x, uf.ops.zeros((3, 4))), "rest": (pair[0], None)}

    got = backend.module.abstract_call(function, ArraySpec((2, 3), "float32"), (ArraySpec((5,), "int32"), None))
    assert got == {"sum": ArraySpec((2, 4), "float32"), "rest": (ArraySpec((5,), "int32"), None)}


@pytest.fixture
def devices():
    return backend.distribution.prepare(None, None)


def test_devices_of_no_intent_are_one(devices):
    assert devices.placement == Placement(process=0, processes=1, devices=1)
    assert backend.distribution.prepare(DataParallel(devices=1), None).placement == devices.placement
    assert devices.store is None
    with devices.scope():
        pass


# An engine by hand: y = x * weight + state, squared error, two rows an update.
ROWS = 4


def make_engine(devices, accumulation=1, **plan):
    module = leaf()
    objective = Objective(
        [Term(uf.losses.get("mse"), Output("output", 0, True), 1.0)], Layout(("output",), (1.0,), (False,))
    )
    plan = {
        "trainable": frozenset({"weight"}),
        "optimizer": rules.AdamW(weight_decay=0.1),
        "decays": frozenset({"weight"}),
    } | plan
    with devices.scope():
        engine = backend.engine.Engine(module, Plan(objective, accumulation=accumulation, **plan), devices)
    engine.set_rates(0, np.array([0.1, 0.2, 0.3], np.float32))
    return engine, module, objective


def window(valid=ROWS, live=1, accumulation=1, step=0):
    x = np.arange(2.0 * ROWS * accumulation, dtype=np.float32).reshape(accumulation, ROWS, 2) / 8
    mask = np.zeros((accumulation, ROWS), np.bool_)
    mask[:live, :valid] = True
    return Window(MicroBatch(x, x * 0, None, mask), live, valid == ROWS and live == accumulation, step)


def test_engine_trains_reads_and_counts(devices):
    engine, module, objective = make_engine(devices)
    before = module.read_parameter("weight")
    totals = engine.train(engine.zeros(False), engine.place(window()))
    sums = engine.read(totals, False)
    assert sums.dtype == np.float64 and sums.shape == (objective.num_sums + len(engine.ENGINE_SUMS),)
    x = window().batch.x[0]
    np.testing.assert_allclose(sums[0], ((x * before + 5.0) ** 2).mean(-1).sum(), rtol=1e-6)
    assert sums[1] == ROWS and engine.iterations() == 1
    assert dict(zip(engine.ENGINE_SUMS, sums[objective.num_sums :], strict=True)) == {
        "updates": 1.0, "empty": 0.0, "grad_norm": 0.0, "nonfinite": 0.0,
    }  # fmt: skip
    # Adam's first step is the rate in the gradient's direction; the decay is apart.
    np.testing.assert_allclose(module.read_parameter("weight"), before - 0.1 * 0.1 * before - 0.1, rtol=1e-5)


def test_engine_takes_each_updates_own_rate(devices):
    engine, module, _ = make_engine(devices, optimizer=uf.optimizers.SGD(1.0).rule, decays=frozenset(), clip_norm=1.0)
    totals, values = engine.zeros(False), [module.read_parameter("weight")]
    for step in range(4):
        totals = engine.train(totals, engine.place(window(step=step)))
        values.append(module.read_parameter("weight"))
    steps = [np.linalg.norm(b - a) for a, b in zip(values, values[1:], strict=False)]
    np.testing.assert_allclose(steps, [0.1, 0.2, 0.3, 0.3], rtol=1e-4)  # clipped to norm 1; the last rate stays


def test_engine_skips_a_window_without_valid_rows(devices):
    engine, module, objective = make_engine(devices)
    totals = engine.train(engine.zeros(False), engine.place(window()))
    before, slots, sums = module.read_parameter("weight"), engine.read_slots(), engine.read(totals, False)
    totals = engine.train(totals, engine.place(window(valid=0, step=1)))
    np.testing.assert_array_equal(module.read_parameter("weight"), before)
    assert engine.iterations() == 1
    for name, value in engine.read_slots().items():
        np.testing.assert_array_equal(value, slots[name], err_msg=name)
    after = engine.read(totals, False)
    np.testing.assert_array_equal(after[: objective.num_sums], sums[: objective.num_sums])
    assert list(after[objective.num_sums :]) == [1.0, 1.0, 0.0, 0.0]


def test_engine_evaluates_and_predicts(devices):
    engine, module, objective = make_engine(devices)
    batch = MicroBatch(*(None if leaf is None else leaf[0] for leaf in window(valid=3).batch))
    totals = engine.evaluate(engine.zeros(True), batch)
    totals = engine.evaluate(totals, batch)
    sums = engine.read(totals, True)
    weight = module.read_parameter("weight")
    np.testing.assert_allclose(sums[0], 2 * ((batch.x[:3] * weight + 5.0) ** 2).mean(-1).sum(), rtol=1e-6)
    assert sums[1] == 6.0
    got = engine.predict(batch._replace(y=None))
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, batch.x * weight + 5.0, rtol=1e-6)


RULES = [
    rules.SGD(),
    rules.SGD(momentum=0.9, nesterov=True),
    rules.AdamW(weight_decay=0.1),
    rules.RMSprop(momentum=0.5, centered=True),
    rules.Adagrad(),
    rules.Lion(),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_engine_slots_exist_at_once_and_go_round(devices, rule):
    engine, _, _ = make_engine(devices, optimizer=rule)
    fresh = engine.read_slots()
    assert set(fresh) == {f"{slot}.weight" for slot in rule.slot_names} | {"iterations"}
    initial = np.float32(getattr(rule, "initial_accumulator_value", 0.0))
    assert all(np.all(value == initial) for name, value in fresh.items() if name != "iterations")
    totals = engine.zeros(False)
    for step in range(2):
        totals = engine.train(totals, engine.place(window(step=step)))
    slots = engine.read_slots()
    assert int(slots["iterations"]) == 2
    assert all(np.any(slots[name] != fresh[name]) for name in fresh)
    other, module, _ = make_engine(devices, optimizer=rule)
    module.write_parameter("weight", engine.model.read_parameter("weight"))
    other.write_slots(slots)
    assert other.iterations() == 2
    for one in (engine, other):
        one.train(one.zeros(False), one.place(window(step=2)))
    np.testing.assert_array_equal(module.read_parameter("weight"), engine.model.read_parameter("weight"))
    for name, value in engine.read_slots().items():
        np.testing.assert_array_equal(other.read_slots()[name], value, err_msg=name)
    with pytest.raises(KeyError):
        other.write_slots({"iterations": np.int64(0)} if rule.slot_names else {})


@pytest.mark.parametrize("accumulation", [2, 3])
def test_engine_accumulates_a_short_window(devices, accumulation):
    """Two live micro-batches, whatever the window's length, are one update on their rows together."""
    engine, module, objective = make_engine(devices, accumulation, clip_value=1e6)
    totals = engine.train(engine.zeros(False), engine.place(window(live=2, accumulation=accumulation)))
    x = window(live=2, accumulation=2).batch.x.reshape(-1, 2)
    sums = engine.read(totals, False)
    np.testing.assert_allclose(sums[0], ((x * np.array([1.0, 2.0]) + 5.0) ** 2).mean(-1).sum(), rtol=1e-6)
    assert sums[1] == 2 * ROWS
