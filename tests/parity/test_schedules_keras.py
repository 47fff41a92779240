"""Schedules against keras.optimizers.schedules, which compute in float32."""

import numpy as np
import pytest

from unifit import schedules

STEPS = [0, 1, 2, 3, 7, 10, 11, 19, 24, 25, 33, 50, 57, 99, 101, 150, 333]
FLOAT32_TOLERANCE = 2e-6

CASES = [
    ("ExponentialDecay", (0.1, 10, 0.9), {}),
    ("ExponentialDecay", (0.1, 10, 0.9, True), {}),
    ("InverseTimeDecay", (0.1, 10, 0.5), {}),
    ("InverseTimeDecay", (0.1, 10, 0.5, True), {}),
    ("PolynomialDecay", (0.1, 50), {}),
    ("PolynomialDecay", (0.1, 50, 0.01, 2.0), {}),
    ("PolynomialDecay", (0.1, 50, 0.01, 0.5, True), {}),
    ("PiecewiseConstantDecay", ([2, 10, 50], [1.0, 0.5, 0.25, 0.125]), {}),
    ("CosineDecay", (0.1, 100), {}),
    ("CosineDecay", (0.1, 100, 0.1), {}),
    ("CosineDecay", (0.01, 100, 0.1), {"warmup_target": 0.1, "warmup_steps": 20}),
    ("CosineDecay", (0.01, 100), {"warmup_target": 0.1}),
    # Periods that begin between the steps above: at a restart itself Keras' logarithm rounds either way.
    ("CosineDecayRestarts", (0.1, 30), {}),
    ("CosineDecayRestarts", (0.1, 30, 1.5, 0.5, 0.1), {}),
    ("CosineDecayRestarts", (0.1, 30, 1.0, 0.5), {}),
]


@pytest.mark.backends("tensorflow", reason="keras is imported with its TensorFlow backend")
@pytest.mark.parametrize(("name", "arguments", "named"), CASES)
def test_schedule_equals_keras(name, arguments, named):
    from keras.optimizers import schedules as keras_schedules

    ours = getattr(schedules, name)(*arguments, **named)
    theirs = getattr(keras_schedules, name)(*arguments, **named)
    expected = [float(theirs(step)) for step in STEPS]
    np.testing.assert_allclose([ours(step) for step in STEPS], expected, rtol=FLOAT32_TOLERANCE, atol=1e-8)


@pytest.mark.backends("tensorflow", reason="keras is imported with its TensorFlow backend")
def test_warmup_steps_alone_differs_from_keras_as_documented():
    from keras.optimizers import schedules as keras_schedules

    assert float(keras_schedules.CosineDecay(0.1, 100, warmup_steps=10)(0)) == pytest.approx(0.1)
    assert schedules.CosineDecay(0.1, 100, warmup_steps=10)(0) == 0.0
