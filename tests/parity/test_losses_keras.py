"""Losses against Keras 3: elements, and the three reductions with sample weights."""

import numpy as np
import pytest

from unifit import losses, ops

pytestmark = pytest.mark.backends("tensorflow", reason="keras is imported with its TensorFlow backend")

FLOAT32_TOLERANCE = 3e-6

RNG = np.random.default_rng(2)
ROWS, CLASSES = 12, 4
REAL = RNG.normal(size=(ROWS, CLASSES)).astype(np.float32)
REAL_LABELS = RNG.normal(size=(ROWS, CLASSES)).astype(np.float32)
BINARY = RNG.integers(0, 2, (ROWS, CLASSES))
INDEX = RNG.integers(0, CLASSES, ROWS)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[INDEX]
PROBABILITY = RNG.uniform(0.01, 0.99, (ROWS, CLASSES)).astype(np.float32)
PROBABILITY[0] = [0.0, 1.0, 0.5, 1.0]
DISTRIBUTION = np.exp(REAL) / np.exp(REAL).sum(-1, keepdims=True)
EXTREME = (20 * REAL).astype(np.float32)
WEIGHT = RNG.uniform(0.0, 2.0, ROWS).astype(np.float32)
WEIGHT[3] = 0.0

CASES = [
    ("MeanSquaredError", {}, REAL_LABELS, REAL),
    ("MeanSquaredError", {}, BINARY, REAL),
    ("MeanAbsoluteError", {}, REAL_LABELS, REAL),
    ("MeanAbsolutePercentageError", {}, REAL_LABELS, REAL),
    ("MeanAbsolutePercentageError", {}, BINARY.astype(np.float32), PROBABILITY),
    ("MeanSquaredLogarithmicError", {}, REAL_LABELS, REAL),
    ("Huber", {}, REAL_LABELS, REAL),
    ("Huber", {"delta": 0.25}, REAL_LABELS, REAL),
    ("LogCosh", {}, REAL_LABELS, REAL),
    ("LogCosh", {}, REAL_LABELS, EXTREME),
    ("Poisson", {}, np.abs(REAL_LABELS), np.abs(REAL)),
    ("CosineSimilarity", {}, REAL_LABELS, REAL),
    ("CosineSimilarity", {"axis": 1}, REAL_LABELS, REAL),
    ("Hinge", {}, BINARY, REAL),
    ("Hinge", {}, 2 * BINARY - 1, REAL),
    ("SquaredHinge", {}, BINARY, REAL),
    ("CategoricalHinge", {}, ONE_HOT, REAL),
    ("KLDivergence", {}, ONE_HOT, DISTRIBUTION),
    ("KLDivergence", {}, DISTRIBUTION[::-1], DISTRIBUTION),
    ("BinaryCrossentropy", {}, BINARY, PROBABILITY),
    ("BinaryCrossentropy", {"label_smoothing": 0.1}, BINARY, PROBABILITY),
    ("BinaryCrossentropy", {"from_logits": True}, BINARY, EXTREME),
    ("BinaryCrossentropy", {"from_logits": True, "label_smoothing": 0.3}, BINARY, REAL),
    ("BinaryFocalCrossentropy", {}, BINARY, PROBABILITY),
    ("BinaryFocalCrossentropy", {"gamma": 3.0, "apply_class_balancing": True}, BINARY, PROBABILITY),
    ("BinaryFocalCrossentropy", {"from_logits": True, "alpha": 0.4, "label_smoothing": 0.1}, BINARY, REAL),
    ("CategoricalCrossentropy", {}, ONE_HOT, DISTRIBUTION),
    ("CategoricalCrossentropy", {}, ONE_HOT, PROBABILITY),
    ("CategoricalCrossentropy", {"label_smoothing": 0.2}, ONE_HOT, DISTRIBUTION),
    ("CategoricalCrossentropy", {"from_logits": True}, ONE_HOT, EXTREME),
    ("CategoricalCrossentropy", {"from_logits": True, "label_smoothing": 0.1}, ONE_HOT, REAL),
    ("CategoricalFocalCrossentropy", {}, ONE_HOT, DISTRIBUTION),
    ("CategoricalFocalCrossentropy", {"from_logits": True, "gamma": 1.0, "alpha": 0.5}, ONE_HOT, REAL),
    ("CategoricalFocalCrossentropy", {"label_smoothing": 0.1}, ONE_HOT, PROBABILITY),
    ("SparseCategoricalCrossentropy", {}, INDEX, DISTRIBUTION),
    ("SparseCategoricalCrossentropy", {}, INDEX[:, None], DISTRIBUTION),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, INDEX, EXTREME),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, INDEX.astype(np.float32), REAL),
    ("SparseCategoricalCrossentropy", {"from_logits": True, "ignore_class": 1}, INDEX, REAL),
]
IDS = [f"{name}-{arguments}" for name, arguments, *_ in CASES]


@pytest.mark.parametrize(("name", "arguments", "y", "p"), CASES, ids=IDS)
def test_elements_equal_keras(name, arguments, y, p):
    import keras

    ours, theirs = getattr(losses, name)(**arguments), getattr(keras.losses, name)(**arguments)
    elements = ops.convert_to_numpy(ours.call(ops.convert_to_tensor(y), ops.convert_to_tensor(p)))
    expected = np.asarray(theirs.call(keras.ops.convert_to_tensor(y), keras.ops.convert_to_tensor(p)))
    if ours.mask(ops.convert_to_tensor(y)) is not None:
        valid = ops.convert_to_numpy(ours.mask(ops.convert_to_tensor(y)))
        elements, expected = elements[valid], expected[valid]
    np.testing.assert_allclose(elements, expected, rtol=FLOAT32_TOLERANCE, atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
@pytest.mark.parametrize("weight", [None, WEIGHT, WEIGHT[:, None]], ids=["unweighted", "rows", "column"])
@pytest.mark.parametrize(("name", "arguments", "y", "p"), CASES, ids=IDS)
def test_reduced_loss_equals_keras(name, arguments, y, p, weight, reduction):
    import keras

    ours = getattr(losses, name)(reduction=reduction, **arguments)
    theirs = getattr(keras.losses, name)(reduction=reduction, **arguments)
    expected = float(theirs(y, p, weight))
    np.testing.assert_allclose(float(ours(y, p, weight)), expected, rtol=FLOAT32_TOLERANCE, atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("name", ["MeanSquaredError", "MeanAbsoluteError", "BinaryCrossentropy", "Huber"])
@pytest.mark.parametrize(("true", "pred"), [((ROWS,), (ROWS, 1)), ((ROWS, 1), (ROWS,)), ((3, 4), (3, 4, 1))])
def test_missing_last_axis_equals_keras(name, true, pred):
    import keras

    y, p = BINARY.ravel()[:ROWS].reshape(true).astype(np.float32), PROBABILITY.ravel()[:ROWS].reshape(pred)
    result = float(getattr(losses, name)()(y, p))
    np.testing.assert_allclose(result, float(getattr(keras.losses, name)()(y, p)), rtol=FLOAT32_TOLERANCE)


def test_every_loss_has_keras_arguments_and_defaults():
    import inspect

    import keras

    for cls in {cls for cls in vars(losses).values() if inspect.isclass(cls) and hasattr(keras.losses, cls.__name__)}:
        if cls is losses.Loss:
            continue
        theirs = inspect.signature(getattr(keras.losses, cls.__name__).__init__).parameters
        ours = inspect.signature(cls.__init__).parameters
        assert set(theirs) - {"dtype"} <= set(ours), cls
        for name, parameter in theirs.items():
            if name not in ("dtype", "name", "self"):
                assert ours[name].default == parameter.default, (cls, name)


def test_names_equal_keras():
    import keras

    for name in ["mse", "MSE", "mae", "mape", "msle", "bce", "BCE", "kld", "huber", "log_cosh", "poisson", "hinge"]:
        y, p = np.abs(REAL_LABELS), np.clip(np.abs(REAL), 0.01, 0.99)
        expected = float(np.mean(keras.losses.get(name)(y, p)))
        np.testing.assert_allclose(float(losses.get(name)(y, p)), expected, rtol=FLOAT32_TOLERANCE)
