"""Learning rate schedules against values derived by hand. Against Keras: tests/parity/test_schedules_keras.py."""

import json
import math

import numpy as np
import pytest

from unifit import schedules
from unifit.config import deserialize, serialize
from unifit.errors import ArgumentError, UnknownNameError
from unifit.names import register_serializable

HALF_ROOT = math.sqrt(0.5)

# schedule, {step: rate}
CASES = [
    (schedules.Constant(0.25), {0: 0.25, 10**9: 0.25}),
    (schedules.ExponentialDecay(0.8, 10, 0.25), {0: 0.8, 5: 0.4, 10: 0.2, 20: 0.05}),
    (schedules.ExponentialDecay(0.8, 10, 0.25, staircase=True), {0: 0.8, 9: 0.8, 10: 0.2, 19: 0.2}),
    (schedules.InverseTimeDecay(0.6, 10, 2.0), {0: 0.6, 5: 0.3, 10: 0.2}),
    (schedules.InverseTimeDecay(0.6, 10, 2.0, staircase=True), {9: 0.6, 10: 0.2, 19: 0.2}),
    (schedules.PolynomialDecay(1.0, 4, 0.2, power=2.0), {0: 1.0, 2: 0.4, 4: 0.2, 100: 0.2}),
    # The span becomes 8 from step 5 on: 1 - 6/8 is left at step 6.
    (schedules.PolynomialDecay(1.0, 4, 0.0, cycle=True), {0: 1.0, 2: 0.5, 4: 0.0, 6: 0.25, 8: 0.0, 9: 0.25}),
    (schedules.PiecewiseConstantDecay([2, 5], [1.0, 0.5, 0.1]), {0: 1.0, 2: 1.0, 3: 0.5, 5: 0.5, 6: 0.1}),
    (schedules.CosineDecay(2.0, 100), {0: 2.0, 25: 1 + HALF_ROOT, 50: 1.0, 100: 0.0, 500: 0.0}),
    (schedules.CosineDecay(2.0, 100, alpha=0.5), {0: 2.0, 50: 1.5, 100: 1.0, 500: 1.0}),
    (schedules.CosineDecay(2.0, 100, warmup_steps=10), {0: 0.0, 1: 0.2, 9: 1.8, 10: 2.0, 60: 1.0, 110: 0.0, 111: 0.0}),
    (
        schedules.CosineDecay(0.5, 100, warmup_target=2.0, warmup_steps=10),
        {0: 0.5, 1: 0.65, 5: 1.25, 10: 2.0, 60: 1.0, 110: 0.0},
    ),
    (schedules.CosineDecay(0.5, 100, warmup_target=2.0), {0: 2.0, 50: 1.0}),
    # Periods of 10, 20, 40 steps begin at 0, 10, 30.
    (schedules.CosineDecayRestarts(1.0, 10), {0: 1.0, 5: 0.5, 10: 1.0, 20: 0.5, 30: 1.0, 50: 0.5, 70: 1.0}),
    (schedules.CosineDecayRestarts(1.0, 10, t_mul=1.0, m_mul=0.5), {5: 0.5, 10: 0.5, 15: 0.25, 20: 0.25}),
    (schedules.CosineDecayRestarts(1.0, 10, alpha=0.2), {5: 0.6, 10: 1.0}),
    (schedules.WarmupStableDecay(1.0, 2, 4, 4), {0: 0.0, 1: 0.5, 2: 1.0, 6: 1.0, 7: 0.75, 9: 0.25, 10: 0.0, 11: 0.0}),
    (schedules.WarmupStableDecay(1.0, 0, 4, 4, alpha=0.5), {0: 1.0, 4: 1.0, 6: 0.75, 8: 0.5, 99: 0.5}),
    (schedules.WarmupStableDecay(1.0, 0, 0, 4, decay="sqrt"), {0: 1.0, 1: 0.5, 4: 0.0}),
    (schedules.WarmupStableDecay(1.0, 0, 0, 4, decay="cosine"), {0: 1.0, 1: (1 + HALF_ROOT) / 2, 2: 0.5}),
    (schedules.FromFunction(lambda step: 1.0 / (1 + step)), {0: 1.0, 3: 0.25}),
]
FLOAT64_TOLERANCE = 1e-14


@pytest.mark.parametrize(("schedule", "expected"), CASES, ids=lambda value: str(value))
def test_schedule_has_hand_derived_values(schedule, expected):
    for step, rate in expected.items():
        assert schedule(step) == pytest.approx(rate, rel=FLOAT64_TOLERANCE, abs=FLOAT64_TOLERANCE), step


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in CASES], ids=str)
def test_values_equal_calls_wherever_the_table_starts(schedule):
    table = schedule.values(0, 300)
    assert table.dtype == np.float32 and table.shape == (300,)
    np.testing.assert_array_equal(table, np.array([schedule(step) for step in range(300)], np.float32))
    for start, count in ((1, 1), (7, 13), (129, 171), (3, 0)):
        np.testing.assert_array_equal(schedule.values(start, count), table[start : start + count])


@pytest.mark.parametrize("t_mul", [1.5, 2.0, 3.0, 10.0])
def test_cosine_restarts_restart_exactly_at_their_steps(t_mul):
    schedule = schedules.CosineDecayRestarts(1.0, first_decay_steps=1024, t_mul=t_mul)
    begin = 0.0
    for period in range(6):
        assert schedule(round(begin)) == pytest.approx(1.0, abs=1e-9)
        assert schedule(round(begin) - 1) < 1e-4 or period == 0
        begin += 1024 * t_mul**period


def test_user_schedule_needs_only_a_call():
    class Halving(schedules.LearningRateSchedule):
        def __call__(self, step):
            assert type(step) is int
            return np.float32(0.5) ** step

    np.testing.assert_array_equal(Halving().values(1, 3), np.array([0.5, 0.25, 0.125], np.float32))


@register_serializable(package="tests")
def square_root_decay(step):
    return 1 / math.sqrt(1 + step)


def test_get_accepts_numbers_schedules_functions_and_configs():
    schedule = schedules.CosineDecay(0.1, 10)
    assert schedules.get(schedule) is schedule
    for number in (1, 0.5, np.float32(0.5), np.array(0.5)):
        assert schedules.get(number)(3) == float(number)
    assert schedules.get(lambda step: 0.5 * step)(3) == 1.5
    assert (
        schedules.get({"class": "CosineDecay", "config": {"initial_learning_rate": 0.1, "decay_steps": 10}})(0) == 0.1
    )


def test_schedules_round_trip_through_json():
    examples = [schedule for schedule, _ in CASES if not isinstance(schedule, schedules.FromFunction)]
    for schedule in [*examples, schedules.get(square_root_decay)]:
        back = deserialize(json.loads(json.dumps(serialize(schedule))))
        np.testing.assert_array_equal(back.values(0, 120), schedule.values(0, 120))


@pytest.mark.parametrize("wrong", [None, True, "0.1x", [0.1], np.array([0.1]), -0.1, float("nan"), float("inf")])
def test_get_refuses_what_is_no_learning_rate(wrong):
    with pytest.raises(ArgumentError):
        schedules.get(wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.CosineDecay(0.1, 0), r"decay_steps=0 of a schedule must be a finite number above 0"),
        (lambda: schedules.CosineDecay(-0.1, 10), r"initial_learning_rate=-0.1 .* at least 0"),
        (lambda: schedules.CosineDecay("0.1", 10), r"initial_learning_rate='0.1'"),
        (lambda: schedules.CosineDecayRestarts(0.1, 10, t_mul=0.5), r"t_mul=0.5 .* at least 1"),
        (lambda: schedules.PiecewiseConstantDecay([1], [0.1]), "1 boundaries and 1 values; it needs one value more"),
        (lambda: schedules.PiecewiseConstantDecay([2, 2], [1, 2, 3]), "must increase"),
        (
            lambda: schedules.WarmupStableDecay(1.0, 1, 1, 1, decay="log"),
            "decay='log'; expected one of linear, cosine, sqrt",
        ),
        (lambda: schedules.get(lambda step: 1 / 0.0 if step < 0 else float("nan")).values(2, 2), "rate nan at step 2"),
    ],
)
def test_wrong_argument_is_named_with_what_was_expected(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_schedule_by_name_says_what_it_needs():
    with pytest.raises(ArgumentError, match=r"needs initial_learning_rate, decay_steps"):
        schedules.get("cosine_decay")
    with pytest.raises(UnknownNameError, match="did you mean 'cosine_decay'"):
        schedules.get("cosin_decay")
