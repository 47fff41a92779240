"""The user's optimizers, their rules, and the reference of the equations against values derived by hand."""

import dataclasses
import json
import math

import numpy as np
import pytest

from optimizer_reference import run
from unifit import optimizers, schedules
from unifit.config import deserialize, serialize
from unifit.contract import optimizers as rules
from unifit.errors import ArgumentError, UnknownNameError
from unifit.names import register_serializable

# name, class, learning rate and rule with Keras' default values
DEFAULTS = [
    ("sgd", optimizers.SGD, 0.01, rules.SGD(momentum=0.0, nesterov=False, weight_decay=0.0)),
    ("adam", optimizers.Adam, 0.001, rules.Adam(0.9, 0.999, 1e-7, 0.0)),
    ("adamw", optimizers.AdamW, 0.001, rules.AdamW(0.9, 0.999, 1e-7, 0.004)),
    ("rmsprop", optimizers.RMSprop, 0.001, rules.RMSprop(0.9, 0.0, 1e-7, False, 0.0)),
    ("adagrad", optimizers.Adagrad, 0.001, rules.Adagrad(0.1, 1e-7, 0.0)),
    ("lion", optimizers.Lion, 0.001, rules.Lion(0.9, 0.99, 0.0)),
]
CLASSES = [cls for _, cls, _, _ in DEFAULTS]
FLOAT64_TOLERANCE = 1e-12


@pytest.mark.parametrize(("name", "cls", "learning_rate", "rule"), DEFAULTS)
def test_name_gives_keras_defaults(name, cls, learning_rate, rule):
    for identifier in (name, name.upper(), cls.__name__, cls):
        optimizer = optimizers.get(identifier)
        assert type(optimizer) is cls
        assert (optimizer.learning_rate, optimizer.rule, optimizer.name) == (learning_rate, rule, name)


@pytest.mark.parametrize(("name", "cls", "learning_rate", "rule"), DEFAULTS)
def test_rule_of_defaults_is_the_contracts_default(name, cls, learning_rate, rule):
    assert type(rule)() == rule
    assert dataclasses.fields(rule) and hash(rule) == hash(type(rule)())


def test_positional_arguments_have_keras_order():
    assert optimizers.SGD(0.1, 0.9, True, 0.2).rule == rules.SGD(0.9, True, 0.2)
    assert optimizers.Adam(0.1, 0.8, 0.9, 1e-3).rule == rules.Adam(0.8, 0.9, 1e-3)
    assert optimizers.AdamW(0.1, 0.2, 0.8, 0.9, 1e-3).rule == rules.AdamW(0.8, 0.9, 1e-3, 0.2)
    assert optimizers.RMSprop(0.1, 0.8, 0.5, 1e-3, True, 0.2).rule == rules.RMSprop(0.8, 0.5, 1e-3, True, 0.2)
    assert optimizers.Adagrad(0.1, 0.2, 1e-3, 0.3).rule == rules.Adagrad(0.2, 1e-3, 0.3)
    assert optimizers.Lion(0.1, 0.8, 0.9, 0.2).rule == rules.Lion(0.8, 0.9, 0.2)


def test_numpy_hyper_parameters_become_floats():
    rule = optimizers.SGD(0.1, momentum=np.float64(0.5), weight_decay=1).rule
    assert type(rule.momentum) is float and type(rule.weight_decay) is float


def test_nesterov_without_momentum_is_plain_descent():
    assert optimizers.SGD(nesterov=True).rule == rules.SGD()


def test_slots_are_those_that_the_rule_uses():
    assert rules.SGD().slot_names == ()
    assert rules.SGD(0.9).slot_names == ("velocity",)
    assert rules.AdamW().slot_names == ("m", "v")
    assert rules.RMSprop().slot_names == ("square_average",)
    assert rules.RMSprop(momentum=0.5, centered=True).slot_names == ("square_average", "gradient_average", "velocity")


# The learning rate


def test_schedule_gives_rates_and_is_readable():
    schedule = schedules.PiecewiseConstantDecay([2], [0.5, 0.25])
    optimizer = optimizers.Adam(schedule)
    assert optimizer.learning_rate is schedule
    np.testing.assert_array_equal(optimizer.rates(1, 4), np.array([0.5, 0.5, 0.25, 0.25], np.float32))
    assert optimizer.rates(0, 4).dtype == np.float32


def test_function_is_a_learning_rate():
    np.testing.assert_array_equal(optimizers.SGD(lambda step: 2.0**-step).rates(0, 3), [1.0, 0.5, 0.25])


def test_setting_the_learning_rate_replaces_the_schedule_and_is_noticed():
    optimizer = optimizers.SGD(schedules.CosineDecay(0.1, 10))
    version = optimizer.learning_rate_version
    optimizer.learning_rate = 0.5
    assert optimizer.learning_rate == 0.5
    assert optimizer.learning_rate_version == version + 1
    np.testing.assert_array_equal(optimizer.rates(100, 2), [0.5, 0.5])
    optimizer.learning_rate = optimizer.learning_rate * 0.5
    assert (optimizer.learning_rate, optimizer.learning_rate_version) == (0.25, version + 2)


def test_setting_a_wrong_learning_rate_changes_nothing():
    optimizer = optimizers.SGD(0.1)
    with pytest.raises(ArgumentError):
        optimizer.learning_rate = float("nan")
    assert (optimizer.learning_rate, optimizer.learning_rate_version) == (0.1, 0)


# Weight decay

KERNEL, BIAS, GAMMA = ("blocks.0.dense.kernel", (4, 3)), ("blocks.0.dense.bias", (3,)), ("blocks.0.norm.gamma", (4, 3))
HEAD_BIAS = ("attention.query.bias", (8, 16))


@pytest.mark.parametrize(
    ("exclude", "decaying"),
    [
        (None, (True, True, True, True)),
        ("norms_and_biases", (True, False, False, False)),
        (["bias"], (True, False, True, False)),
        (("norm", "query"), (True, True, False, False)),
        ([], (True, True, True, True)),
        (lambda path: path.startswith("blocks"), (False, False, False, True)),
    ],
)
def test_exclusion_from_weight_decay(exclude, decaying):
    optimizer = optimizers.AdamW(weight_decay=0.1, exclude_from_weight_decay=exclude)
    assert tuple(optimizer.decays(*weight) for weight in (KERNEL, BIAS, GAMMA, HEAD_BIAS)) == decaying


def test_nothing_decays_without_weight_decay():
    assert not optimizers.SGD().decays(*KERNEL)
    assert not optimizers.AdamW(weight_decay=None).decays(*KERNEL)


# Refusals


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("clipnorm", 1.0, r"compile\(clip_norm"),
        ("global_clipnorm", 1.0, r"compile\(clip_norm"),
        ("clipvalue", 1.0, r"compile\(clip_value"),
        ("clip_norm", 1.0, r"compile\(clip_norm"),
        ("gradient_accumulation_steps", 4, r"compile\(gradient_accumulation_steps"),
        ("use_ema", True, "compile"),
        ("loss_scale_factor", 1024.0, r"compile\(precision"),
        ("amsgrad", True, "AMSGrad"),
    ],
)
def test_keras_argument_with_another_home_is_refused_with_its_home(cls, argument, value, message):
    with pytest.raises(ArgumentError, match=rf"{cls.__name__} got {argument}=.*{message}"):
        cls(**{argument: value})


def test_keras_defaults_of_those_arguments_are_accepted():
    optimizers.Adam(
        amsgrad=False,
        clipnorm=None,
        clipvalue=None,
        global_clipnorm=None,
        use_ema=False,
        ema_momentum=0.99,
        ema_overwrite_frequency=None,
        loss_scale_factor=None,
        gradient_accumulation_steps=None,
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: optimizers.SGD(learning_rte=0.1),
            "Unknown argument of SGD 'learning_rte'; did you mean 'learning_rate'",
        ),
        (lambda: optimizers.SGD(-0.1), "learning_rate=-0.1"),
        (lambda: optimizers.SGD(momentum=1.5), r"SGD got momentum=1.5; expected a number in \[0, 1\]"),
        (lambda: optimizers.Adam(beta_1=1.0), r"Adam got beta_1=1.0; expected a number in \[0, 1\)"),
        (lambda: optimizers.Adam(epsilon="1e-7"), "Adam got epsilon='1e-7'"),
        (lambda: optimizers.AdamW(weight_decay=-1), "AdamW got weight_decay=-1; expected a number of at least 0"),
        (lambda: optimizers.AdamW(exclude_from_weight_decay="bias"), r"'norms_and_biases', .* such as \['bias'\]"),
        (lambda: optimizers.AdamW(exclude_from_weight_decay=[3]), "must hold substrings"),
        (lambda: optimizers.get("adm"), "Unknown optimizer 'adm'; did you mean 'adam'"),
        (lambda: optimizers.get(3), "Got 3 of type int for the optimizer; pass a name"),
    ],
)
def test_wrong_argument_is_named_with_what_was_expected(make, message):
    with pytest.raises((ArgumentError, UnknownNameError), match=message):
        make()


def test_native_optimizers_are_wrapped():
    class Transformation:
        def init(self, params): ...

        def update(self, updates, state, params=None): ...

    native = Transformation()
    assert optimizers.get(native).rule.optimizer is native
    make = lambda params: None  # noqa: E731
    assert optimizers.get(make).rule.optimizer is make


# Configs


@register_serializable(package="tests")
def only_kernels(path):
    return not path.endswith("kernel")


@pytest.mark.parametrize("cls", CLASSES)
def test_optimizer_round_trips_through_json(cls):
    schedule = schedules.CosineDecay(0.3, 100, warmup_steps=10)
    optimizer = cls(schedule, weight_decay=0.25, exclude_from_weight_decay=only_kernels, name="mine")
    back = deserialize(json.loads(json.dumps(serialize(optimizer))))
    assert (type(back), back.rule, back.name) == (cls, optimizer.rule, "mine")
    np.testing.assert_array_equal(back.rates(0, 120), optimizer.rates(0, 120))
    assert back.decays(*KERNEL) and not back.decays(*BIAS)


def test_config_has_the_learning_rate_as_it_was_set_last():
    optimizer = optimizers.SGD(schedules.CosineDecay(0.3, 100))
    optimizer.learning_rate = 0.125
    assert optimizers.get(serialize(optimizer)).learning_rate == 0.125


# The reference of the equations, by hand: one weight at 1, gradients 1 and then 2, rate 0.1.


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (rules.SGD(), (0.9, 0.7)),
        (rules.SGD(momentum=0.5), (0.9, 0.65)),  # velocities 1, 2.5
        (rules.SGD(momentum=0.5, nesterov=True), (0.85, 0.525)),  # 1 + 0.5, 2 + 1.25
        (rules.SGD(weight_decay=0.5), (0.85, 0.85 * 0.95 - 0.2)),
        # m, v: 0.5, 0.25, corrected 1, 1; then 1.25, 1.1875, corrected by 0.75, 0.4375
        (rules.Adam(0.5, 0.75, 0.0), (0.9, 0.9 - 0.1 * (5 / 3) / math.sqrt((0.1875 + 1.0) / 0.4375))),
        (rules.Adam(0.5, 0.75, 1.0), (0.95, 0.95 - 0.1 * (5 / 3) / (math.sqrt((0.1875 + 1.0) / 0.4375) + 1))),
        (rules.AdamW(0.5, 0.75, 1.0, 0.5), (0.9, 0.9 * 0.95 - 0.1 * (5 / 3) / (math.sqrt(1.1875 / 0.4375) + 1))),
        # averages 0.25 and 0.1875 + 1
        (rules.RMSprop(0.75, 0.0, 0.5), (0.9, 0.9 - 0.2 / (math.sqrt(1.1875) + 0.5))),
        (rules.RMSprop(0.75, 0.5, 0.5), (0.9, 0.9 - 0.1 * (0.5 + 2 / (math.sqrt(1.1875) + 0.5)))),
        # variances 0.25 - 0.0625 and 1.1875 - 0.6875^2
        (
            rules.RMSprop(0.75, 0.0, 0.5, True),
            (
                1 - 0.1 / (math.sqrt(0.1875) + 0.5),
                1 - 0.1 / (math.sqrt(0.1875) + 0.5) - 0.2 / (math.sqrt(1.1875 - 0.6875**2) + 0.5),
            ),
        ),
        (rules.Adagrad(3.0, 0.5), (1 - 0.1 / 2.5, 1 - 0.1 / 2.5 - 0.2 / (math.sqrt(8.0) + 0.5))),
        (rules.Lion(), (0.9, 0.8)),
        (rules.Lion(weight_decay=0.5), (0.85, 0.85 * 0.95 - 0.1)),
    ],
)
def test_reference_has_hand_derived_values(rule, expected):
    gradients = [{"w": np.array(1.0)}, {"w": np.array(2.0)}]
    for steps in (1, 2):
        actual = run(rule, {"w": np.array(1.0)}, gradients[:steps], [0.1] * steps)["w"]
        assert actual == pytest.approx(expected[steps - 1], rel=FLOAT64_TOLERANCE), steps


def test_reference_lion_keeps_beta_2_of_the_momentum_and_beta_1_for_the_step():
    # m after g = 1 is 0.1; for g = -0.3 the step is the sign of 0.05 - 0.15 with beta_1 = 0.5, of 0.09 - 0.03 with 0.9.
    gradients = [{"w": np.array(1.0)}, {"w": np.array(-0.3)}]
    assert run(rules.Lion(0.5, 0.9), {"w": np.array(0.0)}, gradients, [1.0, 1.0])["w"] == 0.0
    assert run(rules.Lion(0.9, 0.9), {"w": np.array(0.0)}, gradients, [1.0, 1.0])["w"] == -2.0


def test_reference_without_gradient_decays_and_keeps_its_momentum():
    params = {"w": np.array(1.0), "b": np.array(1.0)}
    gradients = [{"w": np.array(1.0)}, {}]
    actual = run(rules.SGD(momentum=0.5, weight_decay=0.5), params, gradients, [0.1, 0.1], decayed={"b"})
    assert actual["w"] == pytest.approx(1 - 0.1 - 0.05)
    assert actual["b"] == pytest.approx(0.95**2)
    assert params["w"] == 1.0


def test_reference_centered_rmsprop_survives_a_constant_gradient():
    gradients = [{"w": np.full(100, 0.1) * np.arange(1, 101)}] * 500
    assert np.all(np.isfinite(run(rules.RMSprop(centered=True), {"w": np.ones(100)}, gradients, [1e-3] * 500)["w"]))
