"""class_weight: which labels give which weights, with sample weights, and what is refused."""

import numpy as np
import pytest

import unifit as uf
from data_tools import slicer_of
from unifit.data.adapt import make_source
from unifit.data.class_weights import ClassWeights, labels_are_sparse
from unifit.errors import ArgumentError

WEIGHTS = {0: 1.0, 1: 5.0, 3: 0.5}
ONE_HOT = np.eye(4)[[0, 1, 2, 3]]

LABELS = {
    "rows": (np.array([0, 1, 2, 3]), [1, 5, 1, 0.5]),
    "column": (np.array([[0], [1], [2], [3]]), [1, 5, 1, 0.5]),
    "whole floats": (np.array([0.0, 1.0, 2.0, 3.0]), [1, 5, 1, 0.5]),
    "bool": (np.array([False, True]), [1, 5]),
    "tokens": (np.array([[0, 1, 1], [3, 2, 0]]), [[1, 5, 5], [0.5, 1, 1]]),
    "tokens with an axis more": (np.array([[[0], [1]], [[3], [2]]]), [[1, 5], [0.5, 1]]),
    "ignored": (np.array([-1, 255, 1]), [1, 1, 5]),
    "one-hot floats": (ONE_HOT, [1, 5, 1, 0.5]),
    "one-hot ints": (ONE_HOT.astype(int), [1, 5, 1, 0.5]),
    "one-hot tokens": (ONE_HOT[None], [[1, 5, 1, 0.5]]),
}


@pytest.mark.parametrize(("labels", "expected"), LABELS.values(), ids=LABELS)
def test_class_weights_follow_the_labels(labels, expected):
    weights = ClassWeights(WEIGHTS).times({"out": labels}, None)
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, np.float32(expected))


def test_class_weights_the_loss_settles_what_labels_leave_open():
    tokens = np.array([[0, 1], [1, 0]])  # class numbers of two tokens, or one-hot rows of two classes
    assert ClassWeights(WEIGHTS, sparse=True).times(tokens, None).tolist() == [[1, 5], [5, 1]]
    assert ClassWeights(WEIGHTS, sparse=False).times(tokens, None).tolist() == [5, 1]
    soft = np.array([[0.2, 0.8], [0.9, 0.1]])
    assert ClassWeights(WEIGHTS, sparse=False).times(soft, None).tolist() == [5, 1]


def test_class_weights_first_batch_settles_it_for_all():
    weights = ClassWeights(WEIGHTS)
    assert weights.times(np.array([[2, 1], [1, 0]]), None).tolist() == [[1, 5], [5, 1]]
    assert weights.times(np.array([[0, 1], [1, 0]]), None).tolist() == [[1, 5], [5, 1]]
    weights = ClassWeights(WEIGHTS)
    assert weights.times(np.array([[0, 1], [1, 0]]), None).tolist() == [5, 1]
    with pytest.raises(ArgumentError, match="one-hot in the first batch"):
        weights.times(np.array([[2, 1], [1, 0]]), None)


LOSSES = {
    "sparse_categorical_crossentropy": True,
    "categorical_crossentropy": False,
    "mse": None,
    uf.losses.SparseCategoricalCrossentropy(): True,
    uf.losses.CategoricalCrossentropy(): False,
    (lambda y, p: p): None,
    None: None,
}


@pytest.mark.parametrize(("loss", "sparse"), LOSSES.items(), ids=str)
def test_labels_are_sparse_by_the_loss(loss, sparse):
    assert labels_are_sparse(loss) is sparse
    assert labels_are_sparse([loss]) is sparse and labels_are_sparse(["mse", loss or "mae"]) is None


PRODUCTS = {
    "rows": (np.array([0, 1]), np.array([2, 3]), [2, 15]),
    "column": (np.array([0, 1]), np.array([[2.0], [3.0]]), [2, 15]),
    "a weight a row for tokens": (np.array([[0, 1], [1, 0]]), np.array([2.0, 3.0]), [[2, 10], [15, 3]]),
    "a weight a token for rows": (np.array([[0], [1]]), np.array([[2.0, 4.0], [3.0, 6.0]]), [[2, 4], [15, 30]]),
    "both by token": (np.array([[0, 1]]), np.array([[2.0, 3.0]]), [[2, 15]]),
}


@pytest.mark.parametrize(("labels", "sample_weight", "expected"), PRODUCTS.values(), ids=PRODUCTS)
def test_class_weights_multiply_sample_weights(labels, sample_weight, expected):
    product = ClassWeights(WEIGHTS, sparse=True).times(labels, sample_weight)
    assert product.dtype == np.float32 and product.tolist() == expected


REFUSED = {
    "mask": (np.array([0, 1]), np.array([True, False]), "a mask"),
    "two outputs": ([np.array([0]), np.array([1])], None, "2 outputs"),
    "no labels": (None, None, "no labels"),
    "fractions": (np.array([0.0, 0.3]), None, "such as 0.3"),
    "soft rows": (np.array([[0.2, 0.8]]), None, "but for a single 1"),
    "shapes": (np.array([0, 1]), np.array([1.0, 2, 3]), "does not fit"),
}


@pytest.mark.parametrize(("labels", "weight", "message"), REFUSED.values(), ids=REFUSED)
def test_class_weights_labels_that_are_no_classes_are_refused(labels, weight, message):
    with pytest.raises(ArgumentError, match=message):
        ClassWeights(WEIGHTS).times(labels, weight)


@pytest.mark.parametrize("weights", [{}, [1, 2], {"a": 1}, {-1: 1}, {True: 1}, {0: "b"}, {0: float("nan")}], ids=str)
def test_class_weight_that_is_none_is_refused(weights):
    with pytest.raises(ArgumentError, match="class_weight"):
        make_source(np.ones(2), np.ones(2), class_weight=weights)


def test_class_weights_enter_every_kind_of_source():
    x, y = np.arange(4.0)[:, None], np.array([0, 1, 2, 3])

    class Indexed:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return x, y

    for data in ((x, y), (lambda: iter([(x, y)]),), (iter([(x, y)]),), (Indexed(),), ({"a": x}, y)):
        source = make_source(*data, class_weight=WEIGHTS)
        batch = next(source.epoch(0, 0, slicer_of(source).own))
        assert batch.sample_weight.tolist() == [1, 5, 1, 0.5]


def test_class_weights_with_ready_batches_are_refused():
    with pytest.raises(ArgumentError, match="ready"):
        make_source(make_source(np.ones(2)), class_weight=WEIGHTS)
