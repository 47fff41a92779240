"""Losses under Keras' names: per-element values and their validity. The objective makes one number of them."""

from unifit.losses.base import FunctionLoss, Loss, PairedLoss, get, losses_registry, snake_name
from unifit.losses.crossentropy import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    KLDivergence,
    SparseCategoricalCrossentropy,
)
from unifit.losses.hinge import CategoricalHinge, Hinge, SquaredHinge
from unifit.losses.reduction import (
    REDUCTIONS,
    MeanOverRows,
    Total,
    align,
    count_valid,
    reduce_elements,
    validity_and_weight,
)
from unifit.losses.regression import (
    CosineSimilarity,
    Huber,
    LogCosh,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Poisson,
)

__all__ = [
    "REDUCTIONS",
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalHinge",
    "CosineSimilarity",
    "FunctionLoss",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "Loss",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanOverRows",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "PairedLoss",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "Total",
    "align",
    "count_valid",
    "get",
    "losses_registry",
    "reduce_elements",
    "snake_name",
    "validity_and_weight",
]
