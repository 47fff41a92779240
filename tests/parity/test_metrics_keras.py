"""Metrics against Keras 3, with and without sample weights, over ragged batches."""

import inspect

import numpy as np
import pytest

from unifit import metrics

pytestmark = pytest.mark.backends("tensorflow", reason="keras is imported with its TensorFlow backend")

FLOAT32_TOLERANCE = 3e-6
KERAS_EPSILON_TOLERANCE = 1e-5  # Keras adds 1e-7 to denominators of F scores and IoU

RNG = np.random.default_rng(3)
ROWS, CLASSES = 40, 6
REAL = RNG.normal(size=(ROWS, CLASSES)).astype(np.float32)
REAL_LABELS = (REAL + RNG.normal(size=(ROWS, CLASSES))).astype(np.float32)
INDEX = RNG.integers(0, CLASSES, ROWS)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[INDEX]
LABELS = RNG.integers(0, 2, (ROWS, CLASSES))
PROBABILITY = np.clip(0.4 * LABELS + RNG.uniform(0, 0.6, (ROWS, CLASSES)), 0.005, 0.995).astype(np.float32)
DISTRIBUTION = (np.exp(REAL) / np.exp(REAL).sum(-1, keepdims=True)).astype(np.float32)
BINARY, SCORE = LABELS[:, 0], PROBABILITY[:, 0]
WEIGHT = RNG.uniform(0.2, 2.0, ROWS).astype(np.float32)
WEIGHT[5] = 0.0
BATCHES = [slice(0, 1), slice(1, 17), slice(17, 33), slice(33, 40)]

CASES = [
    ("Accuracy", {}, INDEX, REAL.argmax(-1)),
    ("BinaryAccuracy", {}, BINARY, SCORE),
    ("BinaryAccuracy", {}, BINARY, SCORE[:, None]),
    ("BinaryAccuracy", {"threshold": 0.35}, LABELS, PROBABILITY),
    ("CategoricalAccuracy", {}, ONE_HOT, REAL),
    ("SparseCategoricalAccuracy", {}, INDEX, REAL),
    ("SparseCategoricalAccuracy", {}, INDEX[:, None], REAL),
    ("TopKCategoricalAccuracy", {}, ONE_HOT, REAL),
    ("TopKCategoricalAccuracy", {"k": 2}, ONE_HOT, REAL),
    ("SparseTopKCategoricalAccuracy", {}, INDEX, REAL),
    ("SparseTopKCategoricalAccuracy", {"k": 3}, INDEX, REAL),
    ("Precision", {}, BINARY, SCORE),
    ("Precision", {}, LABELS, PROBABILITY),
    ("Precision", {"thresholds": [0.2, 0.4, 0.9]}, BINARY, SCORE),
    ("Precision", {"top_k": 2}, LABELS, PROBABILITY),
    ("Precision", {"top_k": 3, "class_id": 1}, LABELS, PROBABILITY),
    ("Recall", {}, BINARY, SCORE),
    ("Recall", {"thresholds": 0.3}, LABELS, PROBABILITY),
    ("Recall", {"class_id": 2, "thresholds": 0.6}, LABELS, PROBABILITY),
    ("Recall", {"top_k": 2}, LABELS, PROBABILITY),
    ("TruePositives", {}, BINARY, SCORE),
    ("TrueNegatives", {"thresholds": 0.3}, BINARY, SCORE),
    ("FalsePositives", {"thresholds": [0.1, 0.4]}, BINARY, SCORE),
    ("FalseNegatives", {}, LABELS, PROBABILITY),
    ("F1Score", {}, ONE_HOT, DISTRIBUTION),
    ("F1Score", {"average": "macro"}, ONE_HOT, DISTRIBUTION),
    ("F1Score", {"average": "micro", "threshold": 0.3}, LABELS, PROBABILITY),
    ("F1Score", {"average": "weighted", "threshold": 0.3}, LABELS, PROBABILITY),
    ("FBetaScore", {"average": "macro", "beta": 2.0, "threshold": 0.5}, LABELS, PROBABILITY),
    ("FBetaScore", {"beta": 0.5}, ONE_HOT, DISTRIBUTION),
    ("AUC", {}, BINARY, SCORE),
    ("AUC", {}, LABELS, PROBABILITY),
    ("AUC", {"num_thresholds": 50, "summation_method": "minoring"}, BINARY, SCORE),
    ("AUC", {"summation_method": "majoring"}, BINARY, SCORE[:, None]),
    ("AUC", {"curve": "PR"}, BINARY, SCORE),
    ("AUC", {"curve": "PR", "summation_method": "minoring"}, BINARY, SCORE),
    ("AUC", {"curve": "PR", "summation_method": "majoring", "num_thresholds": 7}, BINARY, SCORE),
    ("AUC", {"curve": "PR", "from_logits": True}, BINARY, REAL[:, 0]),
    ("AUC", {"thresholds": [0.15, 0.2, 0.7]}, BINARY, SCORE),
    ("MeanSquaredError", {}, REAL_LABELS, REAL),
    ("MeanAbsoluteError", {}, REAL_LABELS, REAL),
    ("MeanAbsolutePercentageError", {}, REAL_LABELS, REAL),
    ("MeanSquaredLogarithmicError", {}, np.abs(REAL_LABELS), np.abs(REAL)),
    ("RootMeanSquaredError", {}, REAL_LABELS, REAL),
    ("CosineSimilarity", {}, REAL_LABELS, REAL),
    ("R2Score", {}, REAL_LABELS, REAL),
    ("R2Score", {"class_aggregation": "variance_weighted_average"}, REAL_LABELS, REAL),
    ("R2Score", {"class_aggregation": None}, REAL_LABELS, REAL),
    ("BinaryCrossentropy", {}, BINARY[:, None], SCORE[:, None]),
    ("BinaryCrossentropy", {"from_logits": True, "label_smoothing": 0.1}, LABELS, REAL),
    ("CategoricalCrossentropy", {"label_smoothing": 0.1}, ONE_HOT, DISTRIBUTION),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, INDEX, REAL),
    ("MeanIoU", {"num_classes": CLASSES}, INDEX, REAL.argmax(-1)),
    ("MeanIoU", {"num_classes": CLASSES, "sparse_y_pred": False, "ignore_class": 2}, INDEX, REAL),
    ("MeanIoU", {"num_classes": CLASSES + 3, "sparse_y_true": False, "sparse_y_pred": False}, ONE_HOT, REAL),
    ("IoU", {"num_classes": CLASSES, "target_class_ids": [1, 4]}, INDEX, REAL.argmax(-1)),
]
IDS = [f"{name}-{arguments}" for name, arguments, *_ in CASES]
WHOLE_NUMBERS = ("IoU", "MeanIoU")  # Keras truncates their weights


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize(("name", "arguments", "y", "p"), CASES, ids=IDS)
def test_metric_equals_keras(name, arguments, y, p, weighted):
    import keras

    ours, theirs = getattr(metrics, name)(**arguments), getattr(keras.metrics, name)(**arguments)
    weight = np.ceil(WEIGHT).astype(np.int32) if name in WHOLE_NUMBERS else WEIGHT
    for rows in BATCHES:
        given = weight[rows] if weighted else None
        ours.update_state(y[rows], p[rows], given)
        theirs.update_state(y[rows], p[rows], given)
    tolerance = KERAS_EPSILON_TOLERANCE if "Score" in name or "IoU" in name else FLOAT32_TOLERANCE
    np.testing.assert_allclose(ours.result(), np.asarray(theirs.result()), rtol=tolerance, atol=tolerance)
    assert ours.name == theirs.name or theirs.name.startswith(ours.name + "_")


def test_adjusted_r2_equals_keras_without_its_rows_of_weight_zero():
    import keras

    theirs, counts = keras.metrics.R2Score(num_regressors=3), WEIGHT > 0
    theirs.update_state(REAL_LABELS[counts, :1], REAL[counts, :1], WEIGHT[counts])
    ours = metrics.R2Score(num_regressors=3)(REAL_LABELS[:, 0], REAL[:, 0], WEIGHT)
    np.testing.assert_allclose(ours, float(theirs.result()), rtol=FLOAT32_TOLERANCE)


def test_ignored_class_equals_keras():
    import keras

    ours = metrics.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    theirs = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    labels = np.where(INDEX == 0, -1, INDEX)
    valid = labels != -1
    # Keras keeps the ignored rows in the count unless a weight says otherwise.
    theirs.update_state(labels[valid], REAL[valid])
    np.testing.assert_allclose(ours(labels, REAL), float(theirs.result()), rtol=FLOAT32_TOLERANCE)


def test_every_metric_has_keras_arguments_and_defaults():
    import keras

    left_out = {"dtype", "kwargs", "fn", "multi_label", "num_labels", "label_weights", "from_sorted_ids"}
    for cls in {cls for cls in vars(metrics).values() if inspect.isclass(cls) and hasattr(keras.metrics, cls.__name__)}:
        if cls is metrics.Metric:
            continue
        theirs = inspect.signature(getattr(keras.metrics, cls.__name__).__init__).parameters
        ours = inspect.signature(cls.__init__).parameters
        assert set(theirs) - left_out <= set(ours), cls
        for name, parameter in theirs.items():
            if name not in {*left_out, "name", "self"}:
                assert ours[name].default == parameter.default, (cls, name)
