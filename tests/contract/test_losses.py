"""Losses: values against NumPy in float64, validity, reductions, and what is refused before training."""

import json

import numpy as np
import pytest

import unifit as uf
from unifit import losses, ops
from unifit.config import deserialize, serialize
from unifit.errors import ArgumentError, ShapeError, UnknownNameError

FLOAT32_TOLERANCE = 2e-6
# One rounding of a half-precision prediction is part of the reference; what is left is float32.
HALF_TYPES = ["float16", "bfloat16"]

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(2, 3, 5))
LABELS = {
    "real": RNG.normal(size=(2, 3, 5)),
    "positive": RNG.uniform(0.1, 3.0, size=(2, 3, 5)),
    "binary": RNG.integers(0, 2, size=(2, 3, 5)),
    "one_hot": np.eye(5)[RNG.integers(0, 5, size=(2, 3))],
    "soft": RNG.dirichlet(np.ones(5), size=(2, 3)),
    "index": RNG.integers(0, 5, size=(2, 3)),
}
PREDICTIONS = {
    "real": REAL,
    "positive": np.abs(REAL) + 0.1,
    "probability": 1 / (1 + np.exp(-2 * REAL)),
    "distribution": np.exp(REAL) / np.exp(REAL).sum(-1, keepdims=True),
    "scores": np.abs(REAL) + 0.1,  # to be divided by their sum
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def bce(y, p):
    return -y * np.log(p) - (1 - y) * np.log(1 - p)


def cce(y, p):
    return -(y * np.log(p / p.sum(-1, keepdims=True))).sum(-1)


def focal(y, p, gamma):
    return bce(y, p) * (1 - (y * p + (1 - y) * (1 - p))) ** gamma


def categorical_focal(y, p, gamma):
    p = p / p.sum(-1, keepdims=True)
    return -((1 - p) ** gamma * y * np.log(p)).sum(-1)


def huber(e, delta):
    return np.where(np.abs(e) <= delta, e**2 / 2, delta * np.abs(e) - delta**2 / 2)


# (name, arguments, labels, predictions, reference of the elements)
CASES = [
    ("mse", {}, "real", "real", lambda y, p: ((y - p) ** 2).mean(-1)),
    ("mae", {}, "real", "real", lambda y, p: np.abs(y - p).mean(-1)),
    ("mape", {}, "real", "real", lambda y, p: 100 * np.abs((y - p) / y).mean(-1)),
    ("msle", {}, "positive", "positive", lambda y, p: ((np.log1p(y) - np.log1p(p)) ** 2).mean(-1)),
    ("huber", {}, "real", "real", lambda y, p: huber(y - p, 1.0).mean(-1)),
    ("huber", {"delta": 0.3}, "real", "real", lambda y, p: huber(y - p, 0.3).mean(-1)),
    ("log_cosh", {}, "real", "real", lambda y, p: np.log(np.cosh(y - p)).mean(-1)),
    ("poisson", {}, "positive", "positive", lambda y, p: (p - y * np.log(p)).mean(-1)),
    ("cosine_similarity", {}, "real", "real", lambda y, p: -(unit(y) * unit(p)).sum(-1)),
    ("hinge", {}, "binary", "real", lambda y, p: np.maximum(1 - (2 * y - 1) * p, 0).mean(-1)),
    ("squared_hinge", {}, "binary", "real", lambda y, p: (np.maximum(1 - (2 * y - 1) * p, 0) ** 2).mean(-1)),
    (
        "categorical_hinge",
        {},
        "one_hot",
        "real",
        lambda y, p: np.maximum(((1 - y) * p).max(-1) - (y * p).sum(-1) + 1, 0),
    ),
    ("bce", {}, "binary", "probability", lambda y, p: bce(y, p).mean(-1)),
    ("bce", {"from_logits": True}, "binary", "real", lambda y, p: bce(y, sigmoid(p)).mean(-1)),
    ("bce", {"label_smoothing": 0.2}, "binary", "probability", lambda y, p: bce(0.8 * y + 0.1, p).mean(-1)),
    ("binary_focal_crossentropy", {}, "binary", "probability", lambda y, p: focal(y, p, 2).mean(-1)),
    (
        "binary_focal_crossentropy",
        {"from_logits": True, "gamma": 1.5, "apply_class_balancing": True, "alpha": 0.3},
        "binary",
        "real",
        lambda y, p: (focal(y, sigmoid(p), 1.5) * np.where(y == 1, 0.3, 0.7)).mean(-1),
    ),
    ("categorical_crossentropy", {}, "one_hot", "scores", cce),
    ("categorical_crossentropy", {"from_logits": True}, "soft", "real", lambda y, p: cce(y, softmax(p))),
    (
        "categorical_crossentropy",
        {"from_logits": True, "label_smoothing": 0.1},
        "one_hot",
        "real",
        lambda y, p: cce(0.9 * y + 0.1 / 5, softmax(p)),
    ),
    (
        "categorical_focal_crossentropy",
        {},
        "one_hot",
        "scores",
        lambda y, p: 0.25 * categorical_focal(y, p, 2),
    ),
    (
        "categorical_focal_crossentropy",
        {"from_logits": True, "gamma": 1.0, "alpha": 0.5},
        "one_hot",
        "real",
        lambda y, p: 0.5 * categorical_focal(y, softmax(p), 1),
    ),
    ("sparse_categorical_crossentropy", {}, "index", "scores", lambda y, p: cce(np.eye(5)[y], p)),
    (
        "sparse_categorical_crossentropy",
        {"from_logits": True},
        "index",
        "real",
        lambda y, p: cce(np.eye(5)[y], softmax(p)),
    ),
    (
        "sparse_categorical_crossentropy",
        {"from_logits": True, "label_smoothing": 0.1},
        "index",
        "real",
        lambda y, p: cce(0.9 * np.eye(5)[y] + 0.02, softmax(p)),
    ),
    (
        "sparse_categorical_crossentropy",
        {"label_smoothing": 0.3},
        "index",
        "scores",
        lambda y, p: cce(0.7 * np.eye(5)[y] + 0.06, p),
    ),
    ("kld", {}, "soft", "distribution", lambda y, p: (y * np.log(y / p)).sum(-1)),
]
IDS = [f"{name}-{arguments}" for name, arguments, *_ in CASES]


def make(name, arguments):
    return losses.losses_registry.find(name)(**arguments)


def tensors(*arrays):
    return [ops.convert_to_tensor(np.asarray(a)) for a in arrays]


def host(value):
    return np.asarray(ops.convert_to_numpy(value), np.float64)


@pytest.mark.parametrize(("name", "arguments", "labels", "predictions", "reference"), CASES, ids=IDS)
def test_elements_equal_numpy(name, arguments, labels, predictions, reference):
    y, p = LABELS[labels], PREDICTIONS[predictions]
    elements = make(name, arguments).call(*tensors(y, p))
    assert ops.dtype(elements) == "float32"
    np.testing.assert_allclose(host(elements), reference(y, p), rtol=FLOAT32_TOLERANCE, atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize(("name", "arguments", "labels", "predictions", "reference"), CASES, ids=IDS)
def test_half_predictions_lose_nothing_but_their_own_rounding(name, arguments, labels, predictions, reference, dtype):
    y, p = tensors(LABELS[labels], PREDICTIONS[predictions])
    p = ops.cast(p, dtype)
    elements = make(name, arguments).call(y, p)
    assert ops.dtype(elements) == "float32"
    rounded = host(ops.cast(p, "float32"))
    np.testing.assert_allclose(host(elements), reference(LABELS[labels], rounded), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", *HALF_TYPES])
@pytest.mark.parametrize("label_type", ["int32", "float32"])
@pytest.mark.parametrize("label", [255, 257, 2049, 4099])
def test_class_index_survives_half_precision(label, label_type, dtype):  # S-MP-06
    logits = np.zeros((1, 5000), np.float32)
    logits[0, label] = 20.0
    y = ops.cast(ops.convert_to_tensor(np.array([label])), label_type)
    p = ops.cast(ops.convert_to_tensor(logits), dtype)
    expected = np.log1p(4999 * np.exp(-20))
    for loss in (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=256),
    ):
        np.testing.assert_allclose(host(loss(y, p)), expected, rtol=1e-2, atol=1e-6)


# --- Shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mse", "mae", "huber", "bce", "hinge", "poisson"])
@pytest.mark.parametrize(("true", "pred"), [((4,), (4, 1)), ((4, 1), (4,)), ((4,), (4,)), ((4, 1), (4, 1))])
def test_row_labels_and_column_predictions_are_never_broadcast(name, true, pred):
    y, p = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.1, 0.7, 0.4, 0.6])
    loss = losses.get(name)
    loss.check(true, pred)
    elements = loss.call(*tensors(y.reshape(true), p.reshape(pred)))
    assert tuple(elements.shape) == (4,)
    expected = host(loss.call(*tensors(y[:, None], p[:, None])))
    np.testing.assert_allclose(host(elements), expected, rtol=FLOAT32_TOLERANCE)


def test_labels_without_the_last_axis_fit_a_mask_of_positions():
    y, p = np.arange(6.0).reshape(2, 3), np.zeros((2, 3, 1))
    loss = losses.MeanSquaredError()
    weight = np.array([[True, False, False], [True, True, False]])
    assert float(loss(y, p, weight)) == pytest.approx((0 + 9 + 16) / 3)


REFUSED = [
    (
        "sparse_categorical_crossentropy",
        (32, 10),
        (32, 10),
        "Loss 'sparse_categorical_crossentropy' got labels of shape (32, 10) and predictions of shape (32, 10); it "
        "needs labels of shape (32,) (class indices). For one-hot labels use 'categorical_crossentropy'.",
    ),
    (
        "categorical_crossentropy",
        (32,),
        (32, 10),
        "Loss 'categorical_crossentropy' got labels of shape (32,) and predictions of shape (32, 10); it needs labels "
        "of shape (32, 10) (one-hot, or a probability for each class). For class indices use "
        "'sparse_categorical_crossentropy'.",
    ),
    (
        "categorical_crossentropy",
        (32, 1),
        (32, 10),
        "For class indices use 'sparse_categorical_crossentropy'.",
    ),
    (
        "mse",
        (32,),
        (32, 10),
        "Loss 'mean_squared_error' got labels of shape (32,) and predictions of shape (32, 10); it needs labels of "
        "shape (32, 10).",
    ),
    ("mse", (32,), (32, 32), "it needs labels of shape (32, 32)."),
    ("mse", (32, 1), (32, 10), "it needs labels of shape (32, 10)."),
    ("mse", (1, 10), (32, 10), "it needs labels of shape (32, 10)."),
    ("bce", (32,), (32, 10), "For class indices use 'sparse_categorical_crossentropy'."),
    ("sparse_categorical_crossentropy", (32, 7), (32, 20, 10), "it needs labels of shape (32, 20) (class indices)."),
    ("sparse_categorical_crossentropy", (32,), (32, 1), "at least 2 classes"),
    ("categorical_crossentropy", (32, 1), (32, 1), "at least 2 classes"),
    ("kld", (32, 4), (32, 10), "Loss 'kl_divergence' got"),
]


@pytest.mark.parametrize(("name", "true", "pred", "message"), REFUSED)
def test_impossible_shapes_are_refused(name, true, pred, message):
    loss = losses.get(name)
    with pytest.raises(ShapeError) as caught:
        loss.check(true, pred)
    assert message in str(caught.value)
    with pytest.raises(ShapeError):
        loss(np.zeros(true, np.float32), np.ones(pred, np.float32))


@pytest.mark.parametrize("name", ["mse", "kld", "categorical_crossentropy"])
def test_call_alone_does_not_broadcast_either(name):
    with pytest.raises(ShapeError, match="got labels of shape"):
        losses.get(name).call(*tensors(np.zeros(3), np.ones((3, 3))))


@pytest.mark.parametrize(
    ("true", "pred"), [((8,), (8, 4)), ((8, 1), (8, 4)), ((8, 5), (8, 5, 4)), ((8, 5, 1), (8, 5, 4))]
)
def test_class_indices_with_or_without_a_last_axis(true, pred):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3)
    loss.check(true, pred)
    y, p = RNG.integers(0, 4, size=true), RNG.normal(size=pred)
    flat = loss(y.reshape(-1), p.reshape(-1, 4))
    np.testing.assert_allclose(host(loss(y, p)), host(flat), rtol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("name", ["categorical_crossentropy", "categorical_focal_crossentropy"])
def test_class_axis_may_be_another_than_the_last(name):
    y, p = np.moveaxis(LABELS["one_hot"], -1, 1), np.moveaxis(REAL, -1, 1)
    first, last = make(name, {"axis": 1, "from_logits": True}), make(name, {"from_logits": True})
    np.testing.assert_allclose(
        host(first.call(*tensors(y, p))),
        host(last.call(*tensors(LABELS["one_hot"], REAL))),
        rtol=FLOAT32_TOLERANCE,
        atol=1e-6,
    )
    sparse = losses.SparseCategoricalCrossentropy(from_logits=True, axis=1)
    sparse.check((2, 3), (2, 5, 3))
    np.testing.assert_allclose(
        host(sparse.call(*tensors(LABELS["index"], p))),
        cce(np.eye(5)[LABELS["index"]], softmax(REAL)),
        rtol=FLOAT32_TOLERANCE,
        atol=1e-6,
    )


# --- Validity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ignore_class", "label_type"), [(-100, "int32"), (255, "uint8"), (-1, "float32"), (0, "int64")]
)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_ignored_labels_leave_sum_and_count(ignore_class, label_type, label_smoothing):
    y = np.array([[1, 2, ignore_class], [ignore_class, ignore_class, 4]])
    p = RNG.normal(size=(2, 3, 5))
    loss = losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=ignore_class, label_smoothing=label_smoothing
    )
    valid = y != ignore_class
    smoothed = (1 - label_smoothing) * np.eye(5)[y[valid]] + label_smoothing / 5
    elements = cce(smoothed, softmax(p[valid]))
    given = y.astype(label_type)
    assert np.isfinite(host(loss.call(*tensors(given, p)))).all()
    np.testing.assert_allclose(host(loss(given, p)), elements.mean(), rtol=1e-5)
    weight = np.array([2.0, 0.5])
    expected = (elements * np.array([2.0, 2.0, 0.5])).sum() / 3
    np.testing.assert_allclose(host(loss(given, p, weight)), expected, rtol=1e-5)


def test_smoothed_masked_token_loss_weighs_tokens_not_rows():  # S-GA-01, one batch
    """3.25 from per-token losses 1 and 4, 4, 4; rows' means would give 2.5."""

    def per_token(y, p):
        return p * y

    y = np.array([[1.0, 9.0, 9.0, 9.0], [4.0, 4.0, 4.0, 9.0]])
    p = np.ones((2, 4, 1))
    mask = np.array([[True, False, False, False], [True, True, True, False]])
    assert float(losses.FunctionLoss(per_token)(y, p, mask)) == pytest.approx(3.25)


REDUCTIONS = [
    # per-sample losses 1, 2, 3; S-DA-02's weights
    ("sum_over_batch_size", None, 2.0),
    ("sum_over_batch_size", [1.0, 1.0, 5.0], 6.0),
    ("sum_over_batch_size", [1.0, 1.0, 2.5], 3.5),
    ("mean_with_sample_weight", None, 2.0),
    ("mean_with_sample_weight", [1.0, 1.0, 5.0], 18 / 7),
    ("mean_with_sample_weight", [1.0, 1.0, 2.5], 10.5 / 4.5),
    ("sum", None, 6.0),
    ("sum", [1.0, 1.0, 5.0], 18.0),
    # bool is a mask: it also leaves the count
    ("sum_over_batch_size", [True, False, True], 2.0),
    ("mean_with_sample_weight", [True, False, True], 2.0),
    ("sum", [True, False, True], 4.0),
    ("sum_over_batch_size", [1.0, 0.0, 1.0], 4 / 3),
    # nothing valid
    ("sum_over_batch_size", [0.0, 0.0, 0.0], 0.0),
    ("mean_with_sample_weight", [0.0, 0.0, 0.0], 0.0),
    ("sum_over_batch_size", [False, False, False], 0.0),
    ("sum", [False, False, False], 0.0),
]


@pytest.mark.parametrize(("reduction", "weight", "expected"), REDUCTIONS)
@pytest.mark.parametrize("column", [False, True])
def test_reduction_by_hand(reduction, weight, expected, column):
    p = np.array([[1.0], [2.0], [3.0]])
    weight = None if weight is None else np.asarray(weight).reshape((3, 1) if column else (3,))
    loss = losses.MeanAbsoluteError(reduction=reduction)
    assert float(loss(np.zeros(3), p, weight)) == pytest.approx(expected, rel=1e-6)


def test_weights_of_elements_and_of_rows():
    p = np.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    loss = losses.MeanAbsoluteError(reduction="mean_with_sample_weight")
    assert float(loss(np.zeros((2, 2, 1)), p, np.array([3.0, 1.0]))) == pytest.approx((9 + 7) / 8)
    assert float(loss(np.zeros((2, 2, 1)), p, np.array([[1.0, 0.0], [0.0, 2.0]]))) == pytest.approx(3.0)
    with pytest.raises(ShapeError, match=r"sample_weight of shape \(3,\) does not fit elements of shape \(2, 2\)"):
        loss(np.zeros((2, 2, 1)), p, np.ones(3))
    with pytest.raises(ShapeError, match="does not fit"):
        loss(np.zeros((2, 2, 1)), p, np.ones((2, 2, 2)))


def test_masked_elements_may_be_infinite():
    y, p = np.array([[1.0], [1.0]]), np.array([[1.0], [np.inf]])
    assert float(losses.MeanSquaredError()(y, p, np.array([True, False]))) == 0.0


# --- Functions and names ----------------------------------------------------------------------------------------------


def test_plain_function_is_a_loss():
    def twice_the_error(y, p):
        assert tuple(y.shape) == tuple(p.shape)
        return 2 * ops.mean(ops.abs(y - p), axis=-1)

    loss = losses.get(twice_the_error)
    assert loss.name == "twice_the_error" and loss.reduction == "sum_over_batch_size"
    # (4,) against (4, 1) would broadcast to (4, 4) in the function
    assert float(loss(np.zeros(4), np.array([[1.0], [2.0], [3.0], [4.0]]))) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda y, p: ops.mean(ops.square(y - p)), "a scalar"),
        (lambda y, p: 0.5, "a scalar"),
        (lambda y, p: ops.mean(ops.square(y - p), axis=0), r"values of shape \(3,\)"),
        (lambda y, p: ops.expand_dims(p, 1) - ops.expand_dims(y, -1), r"values of shape \(5, 3, 3\)"),
    ],
)
def test_function_that_loses_the_rows_is_refused(function, returned):
    with pytest.raises(ShapeError, match=f"Loss '<lambda>' returned {returned}.* needs one value per row"):
        losses.get(function).call(*tensors(np.zeros((5, 3)), np.ones((5, 3))))


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_plain_function_gets_float32(dtype):
    def difference(y, p):
        return ops.abs(y - p)  # TensorFlow's operators want one dtype

    y, p = tensors([[1.0], [2.0]], [[0.5], [4.0]])
    assert float(losses.get(difference)(y, ops.cast(p, dtype))) == 1.25


def test_function_that_broadcasts_labels_is_refused():
    loss = losses.get(lambda y, p: ops.abs(p[:, 0] - y))
    with pytest.raises(ShapeError, match=r"returned values of shape \(4, 4\).*labels come with as many axes"):
        loss.call(*tensors(np.zeros(4), np.ones((4, 1))))


def test_loss_class_that_returns_a_scalar_is_refused():
    class Scalar(losses.Loss):
        def call(self, y_true, y_pred):
            return ops.mean(y_pred)

    with pytest.raises(ShapeError, match="returned a scalar"):
        Scalar()(np.zeros((2, 1)), np.ones((2, 1)))


ALIASES = [
    ("mse", losses.MeanSquaredError),
    ("MSE", losses.MeanSquaredError),
    ("MeanSquaredError", losses.MeanSquaredError),
    ("mean_squared_error", losses.MeanSquaredError),
    ("mae", losses.MeanAbsoluteError),
    ("mape", losses.MeanAbsolutePercentageError),
    ("msle", losses.MeanSquaredLogarithmicError),
    ("bce", losses.BinaryCrossentropy),
    ("binary_focal_crossentropy", losses.BinaryFocalCrossentropy),
    ("categorical_focal_crossentropy", losses.CategoricalFocalCrossentropy),
    ("kld", losses.KLDivergence),
    ("kl_divergence", losses.KLDivergence),
    ("logcosh", losses.LogCosh),
    ("log_cosh", losses.LogCosh),
    ("huber", losses.Huber),
    ("squared_hinge", losses.SquaredHinge),
]


@pytest.mark.parametrize(("name", "cls"), ALIASES)
def test_names(name, cls):
    assert type(losses.get(name)) is cls
    assert type(losses.get(cls)) is cls


def test_unknown_or_unfit_identifiers_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'huber'"):
        losses.get("hubr")
    with pytest.raises(ArgumentError, match="Expected a loss, got None"):
        losses.get(None)
    with pytest.raises(ArgumentError, match="of type AUC"):
        losses.get(uf.metrics.AUC())


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: losses.MeanSquaredError(reduction="none"), "use its method call"),
        (lambda: losses.BinaryCrossentropy(label_smoothing=1.5), "label_smoothing=1.5"),
        (lambda: losses.SparseCategoricalCrossentropy(label_smoothing=-0.1), "label_smoothing=-0.1"),
    ],
)
def test_impossible_arguments_are_refused(make_it, message):
    with pytest.raises(ArgumentError, match=message):
        make_it()


@pytest.mark.parametrize(("name", "arguments"), [case[:2] for case in CASES], ids=IDS)
def test_config_round_trip(name, arguments):
    loss = make(name, {**arguments, "reduction": "sum", "name": "mine"})
    again = deserialize(json.loads(json.dumps(serialize(loss))))
    assert type(again) is type(loss) and again.get_config() == loss.get_config()
    assert (again.reduction, again.name) == ("sum", "mine")
