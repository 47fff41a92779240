"""Metrics: sums on the device, the figure from the summed sums on the host. So one reduction serves any distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.losses import align
from unifit.registry import Configurable, Registry, snake_case

metrics_registry = Registry("metric")


class Metric(Configurable):
    """Base of metrics: write `sums` (on the device, in `uf.ops`) and `compute` (on the host, in NumPy).

    `sums` of disjoint rows add up: over batches, devices and processes. In fit they are part of the compiled step. For use
    by hand the Keras methods `update_state`, `result` and `reset_state` keep the running sums in the object.

    Args:
        name: Key of the metric in logs.
    """

    def __init__(self, name: str | None = None):
        self.name = name or snake_case(type(self).__name__)
        self._state: dict[str, np.ndarray] | None = None

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        """Sums over the given rows.

        Args:
            y_true, y_pred: Labels and predictions, rows on axis 0.
            weight: float32, a prefix of the elements' shape; 0 for what does not count. None counts everything once.

        Returns:
            Named float32 arrays of fixed shapes.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method sums(self, y_true, y_pred, weight).")

    def compute(self, sums: dict[str, np.ndarray]) -> float:
        """The figure, from float64 sums."""
        raise NotImplementedError(f"{type(self).__name__} needs a method compute(self, sums).")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds rows to the object's own sums."""
        arrays = [ops.convert_to_tensor(a) for a in (y_true, y_pred)]
        weight = None if sample_weight is None else ops.cast(ops.convert_to_tensor(sample_weight), "float32")
        more = {k: ops.convert_to_numpy(v).astype(np.float64) for k, v in self.sums(*arrays, weight).items()}
        self._state = more if self._state is None else {k: self._state[k] + v for k, v in more.items()}

    def result(self) -> float:
        """The figure over all rows since `reset_state`; 0.0 before any."""
        return 0.0 if self._state is None else float(self.compute(self._state))

    def reset_state(self) -> None:
        """Forgets the rows."""
        self._state = None

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> float:
        self.update_state(y_true, y_pred, sample_weight)
        return self.result()


class MeanMetric(Metric):
    """Base of metrics that are a weighted mean of per-element values: write `values`."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Per-element values, shape (rows, ...)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method values(self, y_true, y_pred).")

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        values = ops.cast(self.values(y_true, y_pred), "float32")
        if weight is None:
            return {"total": ops.sum(values), "count": ops.full((), float(ops.size(values)), "float32")}
        weight = ops.broadcast_to(align(weight, values), values.shape)
        return {"total": ops.sum(ops.where(weight > 0, values * weight, 0.0)), "count": ops.sum(weight)}

    def compute(self, sums: dict[str, np.ndarray]) -> float:
        return float(sums["total"] / sums["count"]) if sums["count"] else 0.0


@metrics_registry.register("sparse_categorical_accuracy")
class SparseCategoricalAccuracy(MeanMetric):
    """Share of rows whose class index is the most probable one."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        if len(y_true.shape) == len(y_pred.shape):
            y_true = ops.squeeze(y_true, -1)
        return ops.equal(ops.cast(y_true, "int32"), ops.cast(ops.argmax(y_pred, axis=-1), "int32"))


def get(identifier: Any) -> Metric:
    """A metric from its Keras name, a Metric, or a function (y_true, y_pred) -> per-element values.

    Raises:
        UnknownNameError: For an unknown name, with the nearest ones.
    """
    return metrics_registry.get(identifier)
