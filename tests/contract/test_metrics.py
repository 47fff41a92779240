"""Metrics: figures against NumPy and scikit-learn, sums that add up, weights of zero, refusals before training."""

import json
import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from unifit import losses, metrics, ops
from unifit.config import deserialize, serialize
from unifit.errors import ArgumentError, ShapeError, UnknownNameError
from unifit.names import register_serializable

FLOAT32_TOLERANCE = 2e-6
HISTOGRAM_TOLERANCE = 2e-3  # 2000 thresholds instead of all

ROWS, CLASSES = 33, 5
RNG = np.random.default_rng(1)
LOGITS = RNG.normal(size=(ROWS, CLASSES))
DISTRIBUTION = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
INDEX = np.where(RNG.random(ROWS) < 0.5, LOGITS.argmax(-1), RNG.integers(0, CLASSES, ROWS))
ONE_HOT = np.eye(CLASSES)[INDEX]
BINARY = RNG.integers(0, 2, ROWS)
SCORE = np.clip(0.35 * BINARY + RNG.random(ROWS) * 0.65, 0, 1)
REAL_TRUE = RNG.normal(size=(ROWS, 3)) + 1.0
REAL_PRED = REAL_TRUE + 0.4 * RNG.normal(size=(ROWS, 3))
LABELS_2D = RNG.integers(0, 2, (ROWS, CLASSES))
PROBABILITY_2D = 1 / (1 + np.exp(-LOGITS - LABELS_2D))
WEIGHT = RNG.uniform(0.5, 2.0, ROWS)


@register_serializable("tests")
def squared_distance(y, p):
    return ops.square(ops.cast(y, "float32") - p)


def top_k(y, p, k):
    return (p > p[np.arange(len(p)), y][:, None]).sum(-1) < k


def mean(values, w):
    return np.average(values if values.ndim == 1 else values.mean(-1), weights=w)


def flat_weight(w):
    return np.repeat(w, CLASSES)


def per_class_iou(w):
    both = sklearn_metrics.confusion_matrix(INDEX, LOGITS.argmax(-1), sample_weight=w)
    return np.diag(both) / (both.sum(0) + both.sum(1) - np.diag(both))


def sklearn_f(average, beta):
    def reference(w):
        return sklearn_metrics.fbeta_score(
            LABELS_2D, PROBABILITY_2D > 0.4, beta=beta, average=average, sample_weight=w, zero_division=0
        )

    return reference


# (metric, labels, predictions, reference of the weights; ones where there are none)
CASES = [
    (lambda: metrics.Accuracy(), INDEX, LOGITS.argmax(-1), lambda w: mean(INDEX == LOGITS.argmax(-1), w)),
    (lambda: metrics.BinaryAccuracy(), BINARY, SCORE, lambda w: mean((SCORE > 0.5) == BINARY, w)),
    (lambda: metrics.BinaryAccuracy(), BINARY[:, None], SCORE[:, None], lambda w: mean((SCORE > 0.5) == BINARY, w)),
    (
        lambda: metrics.BinaryAccuracy(threshold=0.3),
        LABELS_2D,
        PROBABILITY_2D,
        lambda w: mean((PROBABILITY_2D > 0.3) == LABELS_2D, w),
    ),
    (lambda: metrics.CategoricalAccuracy(), ONE_HOT, LOGITS, lambda w: mean(INDEX == LOGITS.argmax(-1), w)),
    (lambda: metrics.SparseCategoricalAccuracy(), INDEX, LOGITS, lambda w: mean(INDEX == LOGITS.argmax(-1), w)),
    (
        lambda: metrics.SparseCategoricalAccuracy(),
        INDEX[:, None].astype(np.float32),
        LOGITS,
        lambda w: mean(INDEX == LOGITS.argmax(-1), w),
    ),
    (lambda: metrics.TopKCategoricalAccuracy(2), ONE_HOT, LOGITS, lambda w: mean(top_k(INDEX, LOGITS, 2), w)),
    (lambda: metrics.SparseTopKCategoricalAccuracy(3), INDEX, LOGITS, lambda w: mean(top_k(INDEX, LOGITS, 3), w)),
    (
        lambda: metrics.Precision(),
        BINARY,
        SCORE,
        lambda w: sklearn_metrics.precision_score(BINARY, SCORE > 0.5, sample_weight=w),
    ),
    (
        lambda: metrics.Recall(thresholds=0.6),
        BINARY[:, None],
        SCORE[:, None],
        lambda w: sklearn_metrics.recall_score(BINARY, SCORE > 0.6, sample_weight=w),
    ),
    (
        lambda: metrics.Recall(thresholds=[0.2, 0.5, 0.8]),
        BINARY,
        SCORE,
        lambda w: [sklearn_metrics.recall_score(BINARY, SCORE > t, sample_weight=w) for t in (0.2, 0.5, 0.8)],
    ),
    (
        lambda: metrics.Precision(thresholds=[0.3, 0.7]),
        LABELS_2D,
        PROBABILITY_2D,
        lambda w: [
            sklearn_metrics.precision_score(LABELS_2D.ravel(), PROBABILITY_2D.ravel() > t, sample_weight=flat_weight(w))
            for t in (0.3, 0.7)
        ],
    ),
    (
        lambda: metrics.Precision(top_k=1),
        ONE_HOT,
        LOGITS,
        lambda w: mean(INDEX == LOGITS.argmax(-1), w),
    ),
    (lambda: metrics.Recall(top_k=2), ONE_HOT, LOGITS, lambda w: mean(top_k(INDEX, LOGITS, 2), w)),
    (
        lambda: metrics.Recall(class_id=2),
        LABELS_2D,
        PROBABILITY_2D,
        lambda w: sklearn_metrics.recall_score(LABELS_2D[:, 2], PROBABILITY_2D[:, 2] > 0.5, sample_weight=w),
    ),
    (
        lambda: metrics.Precision(top_k=2, class_id=1, thresholds=0.0),
        ONE_HOT,
        LOGITS,
        lambda w: np.average(
            INDEX[chosen := (np.sort(LOGITS)[:, -2] <= LOGITS[:, 1]) & (LOGITS[:, 1] > 0)] == 1, weights=w[chosen]
        ),
    ),
    (lambda: metrics.TruePositives(), BINARY, SCORE, lambda w: w[(BINARY == 1) & (SCORE > 0.5)].sum()),
    (lambda: metrics.FalsePositives(0.4), BINARY, SCORE, lambda w: w[(BINARY == 0) & (SCORE > 0.4)].sum()),
    (lambda: metrics.TrueNegatives(), BINARY, SCORE, lambda w: w[(BINARY == 0) & (SCORE <= 0.5)].sum()),
    (lambda: metrics.FalseNegatives(), BINARY, SCORE, lambda w: w[(BINARY == 1) & (SCORE <= 0.5)].sum()),
    (lambda: metrics.F1Score("macro", 0.4), LABELS_2D, PROBABILITY_2D, sklearn_f("macro", 1)),
    (lambda: metrics.F1Score("micro", 0.4), LABELS_2D, PROBABILITY_2D, sklearn_f("micro", 1)),
    (lambda: metrics.F1Score("weighted", 0.4), LABELS_2D, PROBABILITY_2D, sklearn_f("weighted", 1)),
    (lambda: metrics.F1Score(threshold=0.4), LABELS_2D, PROBABILITY_2D, sklearn_f(None, 1)),
    (lambda: metrics.FBetaScore("macro", 2.0, 0.4), LABELS_2D, PROBABILITY_2D, sklearn_f("macro", 2)),
    (
        lambda: metrics.F1Score("macro"),
        ONE_HOT,
        LOGITS,
        lambda w: sklearn_metrics.f1_score(INDEX, LOGITS.argmax(-1), average="macro", sample_weight=w),
    ),
    (lambda: metrics.MeanSquaredError(), REAL_TRUE, REAL_PRED, lambda w: mean((REAL_TRUE - REAL_PRED) ** 2, w)),
    (lambda: metrics.MeanAbsoluteError(), REAL_TRUE, REAL_PRED, lambda w: mean(abs(REAL_TRUE - REAL_PRED), w)),
    (
        lambda: metrics.RootMeanSquaredError(),
        REAL_TRUE,
        REAL_PRED,
        lambda w: math.sqrt(mean((REAL_TRUE - REAL_PRED) ** 2, w)),
    ),
    (
        lambda: metrics.MeanAbsolutePercentageError(),
        REAL_TRUE,
        REAL_PRED,
        lambda w: 100 * sklearn_metrics.mean_absolute_percentage_error(REAL_TRUE, REAL_PRED, sample_weight=w),
    ),
    (
        lambda: metrics.MeanSquaredLogarithmicError(),
        abs(REAL_TRUE),
        abs(REAL_PRED),
        lambda w: sklearn_metrics.mean_squared_log_error(abs(REAL_TRUE), abs(REAL_PRED), sample_weight=w),
    ),
    (
        lambda: metrics.CosineSimilarity(),
        REAL_TRUE,
        REAL_PRED,
        lambda w: mean(1 - sklearn_metrics.pairwise.paired_cosine_distances(REAL_TRUE, REAL_PRED), w),
    ),
    (
        lambda: metrics.R2Score(),
        REAL_TRUE,
        REAL_PRED,
        lambda w: sklearn_metrics.r2_score(REAL_TRUE, REAL_PRED, sample_weight=w),
    ),
    (
        lambda: metrics.R2Score("variance_weighted_average"),
        REAL_TRUE,
        REAL_PRED,
        lambda w: sklearn_metrics.r2_score(REAL_TRUE, REAL_PRED, sample_weight=w, multioutput="variance_weighted"),
    ),
    (
        lambda: metrics.R2Score(None),
        REAL_TRUE,
        REAL_PRED,
        lambda w: sklearn_metrics.r2_score(REAL_TRUE, REAL_PRED, sample_weight=w, multioutput="raw_values"),
    ),
    (
        lambda: metrics.R2Score(num_regressors=4),
        REAL_TRUE[:, 0],
        REAL_PRED[:, 0],
        lambda w: (
            1
            - (1 - sklearn_metrics.r2_score(REAL_TRUE[:, 0], REAL_PRED[:, 0], sample_weight=w))
            * (ROWS - 1)
            / (ROWS - 5)
        ),
    ),
    (
        lambda: metrics.BinaryCrossentropy(),
        BINARY,
        SCORE * 0.98 + 0.01,
        lambda w: sklearn_metrics.log_loss(BINARY, SCORE * 0.98 + 0.01, sample_weight=w),
    ),
    (
        lambda: metrics.CategoricalCrossentropy(from_logits=True),
        ONE_HOT,
        LOGITS,
        lambda w: sklearn_metrics.log_loss(INDEX, DISTRIBUTION, sample_weight=w),
    ),
    (
        lambda: metrics.SparseCategoricalCrossentropy(from_logits=True),
        INDEX,
        LOGITS,
        lambda w: sklearn_metrics.log_loss(INDEX, DISTRIBUTION, sample_weight=w),
    ),
    (
        lambda: metrics.Perplexity(from_logits=True),
        INDEX,
        LOGITS,
        lambda w: math.exp(sklearn_metrics.log_loss(INDEX, DISTRIBUTION, sample_weight=w)),
    ),
    (
        lambda: metrics.Perplexity(ignore_class=2),
        INDEX,
        DISTRIBUTION,
        lambda w: math.exp(
            np.average(-np.log(DISTRIBUTION[np.arange(ROWS), INDEX])[INDEX != 2], weights=w[INDEX != 2])
        ),
    ),
    (
        lambda: metrics.MeanIoU(CLASSES, sparse_y_pred=False),
        INDEX,
        LOGITS,
        lambda w: per_class_iou(w).mean(),
    ),
    (
        lambda: metrics.IoU(CLASSES, [0, 3], sparse_y_true=False, sparse_y_pred=False),
        ONE_HOT,
        LOGITS,
        lambda w: per_class_iou(w)[[0, 3]].mean(),
    ),
    (
        lambda: metrics.MeanIoU(CLASSES),
        INDEX[:, None],
        LOGITS.argmax(-1),
        lambda w: per_class_iou(w).mean(),
    ),
    (
        lambda: metrics.get(losses.Huber(0.2)),
        REAL_TRUE,
        REAL_PRED,
        lambda w: mean(
            np.where(
                abs(REAL_TRUE - REAL_PRED) <= 0.2,
                (REAL_TRUE - REAL_PRED) ** 2 / 2,
                0.2 * abs(REAL_TRUE - REAL_PRED) - 0.02,
            ),
            w,
        ),
    ),
    (
        lambda: metrics.get(squared_distance),
        REAL_TRUE,
        REAL_PRED,
        lambda w: mean((REAL_TRUE - REAL_PRED) ** 2, w),
    ),
]
AUC_CASES = [
    (lambda: metrics.AUC(2000), BINARY, SCORE, lambda w: sklearn_metrics.roc_auc_score(BINARY, SCORE, sample_weight=w)),
    (
        lambda: metrics.AUC(2000, from_logits=True),
        BINARY[:, None],
        np.log(SCORE / (1 - SCORE))[:, None],
        lambda w: sklearn_metrics.roc_auc_score(BINARY, SCORE, sample_weight=w),
    ),
    (
        lambda: metrics.AUC(2000, "PR", "majoring"),
        BINARY,
        SCORE,
        lambda w: pr_area(w, np.maximum),
    ),
    (
        lambda: metrics.AUC(2000, "PR", "minoring"),
        BINARY,
        SCORE,
        lambda w: pr_area(w, np.minimum),
    ),
    (
        lambda: metrics.AUC(thresholds=sorted(SCORE)),
        BINARY,
        SCORE,
        lambda w: sklearn_metrics.roc_auc_score(BINARY, SCORE, sample_weight=w),
    ),
]


def pr_area(w, heights):
    precision, recall, _ = sklearn_metrics.precision_recall_curve(BINARY, SCORE, sample_weight=w)
    precision[-1] = 0  # where nothing is decided positive, Keras' convention; scikit-learn has 1
    return float((-np.diff(recall) * heights(precision[:-1], precision[1:])).sum())


ALL_CASES = [(*case, FLOAT32_TOLERANCE) for case in CASES] + [(*case, HISTOGRAM_TOLERANCE) for case in AUC_CASES]
IDS = [f"{index}-{case[0]().name}" for index, case in enumerate(ALL_CASES)]
every_metric = pytest.mark.parametrize(("make", "y", "p", "reference", "tolerance"), ALL_CASES, ids=IDS)


@every_metric
def test_figure_equals_reference(make, y, p, reference, tolerance):
    metric = make()
    np.testing.assert_allclose(metric(y, p), reference(np.ones(ROWS)), rtol=tolerance, atol=tolerance)


@every_metric
def test_weighted_figure_equals_reference(make, y, p, reference, tolerance):
    metric = make()
    np.testing.assert_allclose(metric(y, p, WEIGHT), reference(WEIGHT), rtol=tolerance, atol=tolerance)


@every_metric
def test_ragged_batches_add_up(make, y, p, reference, tolerance):
    """The figure does not depend on the cut; a row of one element is a batch too."""
    whole, parts = make(), make()
    expected = whole(y, p, WEIGHT)
    for rows in np.split(np.arange(ROWS), [16, 17]):
        parts.update_state(y[rows], p[rows], WEIGHT[rows])
    np.testing.assert_allclose(parts.result(), expected, rtol=FLOAT32_TOLERANCE, atol=1e-6)
    parts.reset_state()
    assert parts.result() == 0.0


@every_metric
def test_elements_of_weight_zero_may_be_anything(make, y, p, reference, tolerance):
    """Padding repeats rows; ignored labels may be no class at all, and predictions there not finite."""
    kept = np.isin(np.arange(ROWS), np.random.default_rng(5).permutation(ROWS)[:16])
    expected = make()(y[kept], p[kept], WEIGHT[kept])
    bad_y, bad_p = np.array(y), np.array(p, np.float32)
    bad_y[~kept] = -100
    if np.issubdtype(p.dtype, np.floating):
        bad_p[~kept] = np.nan
    np.testing.assert_allclose(make()(bad_y, bad_p, WEIGHT * kept), expected, rtol=FLOAT32_TOLERANCE, atol=1e-6)


@every_metric
def test_sums_are_float32_of_fixed_shapes(make, y, p, reference, tolerance):
    metric = make()
    shapes = []
    for rows, weighted in ((slice(0, 16), False), (slice(16, 17), False), (slice(0, ROWS), True)):
        weight = ops.convert_to_tensor(WEIGHT[rows].astype(np.float32)) if weighted else None
        sums = metric.sums(ops.convert_to_tensor(y[rows]), ops.convert_to_tensor(p[rows]), weight)
        assert {ops.dtype(value) for value in sums.values()} == {"float32"}
        shapes.append({name: tuple(value.shape) for name, value in sums.items()})
    assert shapes[0] == shapes[1] == shapes[2]


FLOAT_CASES = [case for case in ALL_CASES if np.issubdtype(case[2].dtype, np.floating)]


@pytest.mark.parametrize(("make", "y", "p"), [case[:3] for case in FLOAT_CASES])
def test_half_predictions_count_as_what_they_are(make, y, p):
    rounded = ops.cast(ops.convert_to_tensor(p), "bfloat16")
    figure = make()(y, ops.cast(rounded, "float32"), WEIGHT)
    # Sums of the 0/1 kind are equal; the ops may compute logits' softmax from either type, in float32.
    np.testing.assert_allclose(make()(y, rounded, WEIGHT), figure, rtol=1e-5, atol=1e-6)


# --- Tokens -----------------------------------------------------------------------------------------------------------

TOKENS = np.array([[1, 2, -100, -100], [3, 0, 4, -100], [-100, -100, -100, -100]])
TOKEN_LOGITS = RNG.normal(size=(3, 4, CLASSES))
VALID = TOKENS != -100


def token_losses():
    p = np.exp(TOKEN_LOGITS[VALID])
    return -np.log(p / p.sum(-1, keepdims=True))[np.arange(VALID.sum()), TOKENS[VALID]]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: metrics.SparseCategoricalCrossentropy(from_logits=True), token_losses().mean()),
        (lambda: metrics.get(losses.SparseCategoricalCrossentropy(from_logits=True)), token_losses().mean()),
        (lambda: metrics.Perplexity(from_logits=True), math.exp(token_losses().mean())),
        (lambda: metrics.SparseCategoricalAccuracy(), (TOKEN_LOGITS.argmax(-1) == TOKENS)[VALID].mean()),
        (
            lambda: metrics.SparseTopKCategoricalAccuracy(2),
            top_k(TOKENS[VALID], TOKEN_LOGITS[VALID], 2).mean(),
        ),
    ],
)
def test_token_metric_counts_valid_tokens(make, expected):
    """By the weights that the objective derives from a loss' ignore_class, or by the metric's own."""
    weight = VALID.astype(np.float32)
    assert make()(TOKENS, TOKEN_LOGITS, weight) == pytest.approx(expected, rel=FLOAT32_TOLERANCE)
    cut = make()
    for row in range(3):
        cut.update_state(TOKENS[row : row + 1], TOKEN_LOGITS[row : row + 1], weight[row : row + 1])
    assert cut.result() == pytest.approx(expected, rel=FLOAT32_TOLERANCE)


def test_perplexity_of_a_metric_with_ignore_class_is_exact_over_batches():
    metric = metrics.Perplexity(from_logits=True, ignore_class=-100)
    for row in range(3):
        metric.update_state(TOKENS[row : row + 1], TOKEN_LOGITS[row : row + 1])
    assert metric.result() == pytest.approx(math.exp(token_losses().mean()), rel=FLOAT32_TOLERANCE)
    metric = metrics.Perplexity(from_logits=True, ignore_class=-100)
    assert metric(TOKENS[2:], TOKEN_LOGITS[2:]) == 0.0
    assert metrics.Perplexity(from_logits=True)(np.array([0]), np.array([[-1e4, 1e4]])) == math.inf


def test_counts_are_exact_up_to_two_to_the_twentieth():
    rows = 2**20
    y = np.zeros(rows, np.int32)
    y[: rows // 3] = 1
    p = np.tile(np.float32([[1.0, 0.0]]), (rows, 1))
    right = rows - rows // 3
    for weight in (None, np.ones(rows, np.float32)):
        weight = None if weight is None else ops.convert_to_tensor(weight)
        sums = metrics.SparseCategoricalAccuracy().sums(ops.convert_to_tensor(y), ops.convert_to_tensor(p), weight)
        assert {k: float(v) for k, v in sums.items()} == {"total": right, "count": rows}


def test_mean_takes_values_by_hand():
    metric = metrics.Mean()
    metric.update_state([1.0, 3.0])
    metric.update_state(8.0)
    assert metric.result() == pytest.approx(4.0)
    assert metric([2.0, 100.0], sample_weight=[2.0, 0.0]) == pytest.approx(16 / 5)


def test_negative_weights_count():
    assert metrics.MeanAbsoluteError()([[0.0], [0.0]], [[1.0], [2.0]], [3.0, -1.0]) == pytest.approx(0.5)


# --- Refusals ---------------------------------------------------------------------------------------------------------

SHAPES = [
    ("sparse_categorical_accuracy", (8, 5), (8, 5), "For one-hot labels use 'categorical_accuracy'."),
    ("categorical_accuracy", (8,), (8, 5), "For class indices use 'sparse_categorical_accuracy'."),
    ("top_k_categorical_accuracy", (8,), (8, 5), "Metric 'top_k_categorical_accuracy' got labels of shape (8,)"),
    ("binary_accuracy", (8,), (8, 5), "it needs labels of shape (8, 5)."),
    ("precision", (8,), (8, 5), "Metric 'precision' got labels"),
    ("auc", (8,), (8, 2), "one probability for each label"),
    ("mse", (8,), (8, 8), "it needs labels of shape (8, 8)."),
    ("r2_score", (8,), (8, 3), "it needs labels of shape (8, 3)."),
    ("accuracy", (8,), (8, 3), "it needs labels of shape (8, 3)."),
]


@pytest.mark.parametrize(("name", "true", "pred", "message"), SHAPES)
def test_impossible_shapes_are_refused(name, true, pred, message):
    with pytest.raises(ShapeError) as caught:
        metrics.get(name).check(true, pred)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mse", "binary_accuracy", "precision", "auc", "r2_score", "accuracy"])
def test_update_does_not_broadcast(name):
    with pytest.raises(ShapeError):
        metrics.get(name).update_state(np.zeros(3), np.ones((3, 3)))


LISTS = [
    (lambda: metrics.F1Score(), "average='macro'"),
    (lambda: metrics.Precision(thresholds=[0.1, 0.2]), "one metric for each threshold"),
    (lambda: metrics.R2Score(class_aggregation=None), "class_aggregation='uniform_average'"),
    (lambda: metrics.Mean(), "give compile a function"),
]


@pytest.mark.parametrize(("make", "hint"), LISTS)
def test_what_is_no_single_number_is_refused_before_training(make, hint):
    with pytest.raises(ArgumentError, match=hint):
        make().check((8, 5), (8, 5))


ARGUMENTS = [
    lambda: metrics.F1Score("mean"),
    lambda: metrics.FBetaScore(beta=0.0),
    lambda: metrics.AUC(curve="roc curve"),
    lambda: metrics.AUC(num_thresholds=1),
    lambda: metrics.R2Score("mean"),
    lambda: metrics.IoU(3, [3]),
]


@pytest.mark.parametrize("make", ARGUMENTS)
def test_impossible_arguments_are_refused(make):
    with pytest.raises(ArgumentError, match="it needs"):
        make()


def test_scalar_function_is_refused():
    with pytest.raises(ShapeError, match="Metric 'mine' returned a scalar"):
        metrics.FunctionMetric(lambda y, p: ops.mean(p), name="mine").update_state([[1.0]], [[1.0]])


def test_mean_iou_with_scores_instead_of_indices_says_how_to_mend_it():
    with pytest.raises(ShapeError, match="Set sparse_y_pred=False"):
        metrics.MeanIoU(5).check((8,), (8, 5))


# --- Names ------------------------------------------------------------------------------------------------------------

NAMES = [
    ("mse", metrics.MeanSquaredError),
    ("MAE", metrics.MeanAbsoluteError),
    ("AUC", metrics.AUC),
    ("F1Score", None),  # a list by default, still a name
    ("f1_score", metrics.F1Score),
    ("fbeta_score", metrics.FBetaScore),
    ("mean_iou", None),
    ("SparseCategoricalAccuracy", metrics.SparseCategoricalAccuracy),
    ("hinge", metrics.LossMetric),
    ("huber", metrics.LossMetric),
    ("kld", metrics.LossMetric),
]


@pytest.mark.parametrize(("name", "cls"), NAMES)
def test_metric_by_name_is_logged_under_that_name(name, cls):
    if name == "mean_iou":
        with pytest.raises(ArgumentError, match="num_classes"):
            metrics.get(name)
        return
    metric = metrics.get(name)
    assert metric.name == name
    assert cls is None or type(metric) is cls


def test_own_names():
    assert metrics.F1Score().name == "f1_score"
    assert metrics.FBetaScore().name == "fbeta_score"
    assert metrics.AUC(curve="PR", name="pr").name == "pr"
    assert metrics.get(losses.Huber).name == "huber"
    assert metrics.get(metrics.Recall).name == "recall"

    def mine(y, p):
        return p

    assert metrics.get(mine).name == "mine"


def test_unknown_or_unfit_identifiers_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'sparse_categorical_accuracy'"):
        metrics.get("sparse_categorical_accurcy")
    with pytest.raises(ArgumentError, match="Expected a metric, got None"):
        metrics.get(None)


@every_metric
def test_config_round_trip(make, y, p, reference, tolerance):
    metric = make()
    again = deserialize(json.loads(json.dumps(serialize(metric))))
    assert type(again) is type(metric) and again.get_config() == metric.get_config() and again.name == metric.name
