"""Metrics under Keras' names: sums on the device, figures on the host."""

from unifit.metrics.accuracy import (
    Accuracy,
    BinaryAccuracy,
    CategoricalAccuracy,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from unifit.metrics.auc import AUC
from unifit.metrics.base import FunctionMetric, LossMetric, Mean, MeanMetric, Metric, get, metrics_registry
from unifit.metrics.decisions import FalseNegatives, FalsePositives, Precision, Recall, TrueNegatives, TruePositives
from unifit.metrics.fscore import F1Score, FBetaScore
from unifit.metrics.iou import IoU, MeanIoU
from unifit.metrics.means import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    CosineSimilarity,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Perplexity,
    RootMeanSquaredError,
    SparseCategoricalCrossentropy,
)
from unifit.metrics.r2 import R2Score

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
    "CosineSimilarity",
    "F1Score",
    "FBetaScore",
    "FalseNegatives",
    "FalsePositives",
    "FunctionMetric",
    "IoU",
    "LossMetric",
    "Mean",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanIoU",
    "MeanMetric",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Metric",
    "Perplexity",
    "Precision",
    "R2Score",
    "Recall",
    "RootMeanSquaredError",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "TrueNegatives",
    "TruePositives",
    "get",
    "metrics_registry",
]
