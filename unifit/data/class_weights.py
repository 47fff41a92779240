"""class_weight: turned into sample weights on the host, batch by batch, for every kind of source."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.tree import Tree
from unifit.errors import ArgumentError


class ClassWeights:
    """Keras' class_weight: a sample (or token) counts as often as its class says; classes that are not named count
    once.

    Labels are class numbers, of shape (rows,), (rows, 1) or (rows, T), or one-hot, of shape (rows, classes). Which of
    the two an integer array (rows, n > 1) means, the loss tells; where it does not, the first batch decides (one-hot
    when each row is 0 but for a single 1), and a later batch that contradicts it is refused.

    Args:
        weights: From class number to weight.
        sparse: Whether labels are class numbers; None when the loss does not tell.

    Raises:
        ArgumentError: For keys that are no class numbers, or weights that are no finite numbers.
    """

    def __init__(self, weights: dict[int, float], sparse: bool | None = None):
        if not isinstance(weights, dict) or not weights:
            raise ArgumentError(f"class_weight is {weights!r}; it needs a dict from class number to weight.")
        for key, value in weights.items():
            if not isinstance(key, (int, np.integer)) or isinstance(key, bool) or key < 0:
                raise ArgumentError(f"class_weight has the key {key!r}; keys are class numbers from 0 on.")
            if not isinstance(value, (numbers.Real, np.number)) or not np.isfinite(value):
                raise ArgumentError(f"class_weight[{key}] is {value!r}; it needs a finite number.")
        self._classes = np.array(sorted(weights), np.int64)
        self._weights = np.array([weights[key] for key in sorted(weights)], np.float32)
        self._sparse = sparse
        self._decided: bool | None = None

    def times(self, labels: Tree, sample_weight: Tree) -> Tree:
        """The sample weights of a batch, multiplied with its classes' weights. float32.

        Raises:
            ArgumentError: For several outputs, missing labels, labels that are no classes, or a sample_weight that is
                a mask.
        """
        found = tree.leaves(labels)
        if len(found) != 1:
            count = "no labels" if not found else f"labels for {len(found)} outputs"
            raise ArgumentError(
                f"class_weight was given and the data has {count}; it needs those of one output. Pass sample_weight "
                "instead."
            )
        weights = self._of(self._classes_in(np.asarray(found[0])))
        given = tree.leaves(sample_weight)
        if not given:
            return weights
        if given[0].dtype == np.bool_:
            raise ArgumentError(
                "class_weight was given with a sample_weight of dtype bool. That is a mask: what it leaves out does "
                "not count in the mean, while a class weight scales the loss and leaves the count alone; one array "
                "cannot be both. Mark such labels with the loss' ignore_class, or pass sample_weight as floats (0 "
                "then counts in the mean)."
            )
        return _product(given[0].astype(np.float32), weights)

    def _of(self, classes: np.ndarray) -> np.ndarray:
        places = np.minimum(np.searchsorted(self._classes, classes), len(self._classes) - 1)
        return np.where(self._classes[places] == classes, self._weights[places], np.float32(1))

    def _classes_in(self, labels: np.ndarray) -> np.ndarray:
        """The class number of each sample or token."""
        if labels.ndim > 1 and labels.shape[-1] == 1:
            labels = labels[..., 0]
        elif labels.ndim > 1 and self._is_one_hot(labels):
            return labels.argmax(axis=-1)
        if labels.dtype.kind == "f" and not np.array_equal(labels, np.floor(labels)):
            raise ArgumentError(
                f"class_weight needs labels that are class numbers, or one-hot; got {labels.dtype} of shape "
                f"{labels.shape} with values such as {labels.flat[np.argmax(labels != np.floor(labels))]}."
            )
        return labels

    def _is_one_hot(self, labels: np.ndarray) -> bool:
        if self._sparse is not None:
            return not self._sparse
        looks = bool(np.all((labels == 0) | (labels == 1)) and np.all(labels.sum(axis=-1) == 1))
        if not looks and labels.dtype.kind in "fb":
            raise ArgumentError(
                f"class_weight needs labels that are class numbers, or one-hot; got {labels.dtype} of shape "
                f"{labels.shape} whose rows are not 0 but for a single 1."
            )
        if self._decided is None:
            self._decided = looks
        elif self._decided and not looks:
            raise ArgumentError(
                f"class_weight got integer labels of shape {labels.shape} that were one-hot in the first batch and are "
                "not in this one. Name a loss that tells ('sparse_categorical_crossentropy' or "
                "'categorical_crossentropy')."
            )
        return self._decided


def labels_are_sparse(loss: Any) -> bool | None:
    """What a compiled loss says about its labels: class numbers (True), one-hot (False), or nothing (None)."""
    found = tree.leaves(loss)
    if len(found) != 1:
        return None
    name = found[0] if isinstance(found[0], str) else type(found[0]).__name__
    name = name.replace("_", "").lower()
    if name.startswith("sparsecategorical"):
        return True
    return False if name.startswith("categorical") else None


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * b, where the one with fewer axes has a weight for each prefix of the other's."""
    if a.ndim > 1 and a.shape[-1] == 1 and a.ndim > b.ndim:
        a = a[..., 0]
    axes = max(a.ndim, b.ndim)
    a, b = (value.reshape(value.shape + (1,) * (axes - value.ndim)) for value in (a, b))
    try:
        return a * b
    except ValueError as error:
        raise ArgumentError(f"sample_weight of shape {a.shape} does not fit labels of shape {b.shape}.") from error
