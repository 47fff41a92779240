"""The base of metrics: sums on the device, the figure on the host. So one reduction serves any distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.config import Configurable
from unifit.errors import ArgumentError, UnknownNameError, unknown_name
from unifit.losses import Loss, align, losses_registry, snake_name
from unifit.losses.base import in_float32
from unifit.losses.shapes import Shape, match, require_elements
from unifit.names import register_serializable, snake_case
from unifit.registry import Registry

metrics_registry = Registry("metric")


class Metric(Configurable):
    """Base of metrics: write `sums` (on the device, in `uf.ops`) and `compute` (on the host, in NumPy).

    `sums` of disjoint rows add up: over batches, devices and processes. In fit they are part of the compiled step. For
    use by hand the Keras methods `update_state`, `result` and `reset_state` keep the running sums in the object.

    Args:
        name: Key of the metric in logs.

    Example:
        >>> metric = get("mae")
        >>> metric.update_state([[0.0], [2.0]], [[1.0], [2.0]])
        >>> metric.result()
        0.5
    """

    def __init__(self, name: str | None = None):
        self.name = name or snake_case(type(self).__name__)
        self._state: dict[str, np.ndarray] | None = None

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        """Sums over the given rows.

        Args:
            y_true, y_pred: Labels and predictions, rows on axis 0.
            weight: float32, a prefix of the elements' shape; 0 for what does not count, whose labels may be anything.
                None counts everything once.

        Returns:
            Named float32 arrays of fixed shapes.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method sums(self, y_true, y_pred, weight).")

    def compute(self, sums: dict[str, np.ndarray]) -> Any:
        """The figure, from float64 sums: a float, or a list of floats, which `check` then refuses for training."""
        raise NotImplementedError(f"{type(self).__name__} needs a method compute(self, sums).")

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        """Refuses, before training starts, what cannot be logged: shapes that do not fit, more than one figure.

        Raises:
            ShapeError: With both shapes and what was expected.
            ArgumentError: When `compute` would return a list.
        """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds rows to the object's own sums.

        Raises:
            ShapeError: When labels and predictions do not fit.
        """
        y_true, y_pred = (in_float32(ops.convert_to_tensor(array)) for array in (y_true, y_pred))
        weight = None if sample_weight is None else ops.cast(ops.convert_to_tensor(sample_weight), "float32")
        sums = self.sums(y_true, y_pred, weight)
        more = {name: ops.convert_to_numpy(value).astype(np.float64) for name, value in sums.items()}
        self._state = more if self._state is None else {k: self._state[k] + v for k, v in more.items()}

    def result(self) -> Any:
        """The figure over all rows since `reset_state`; 0.0 before any."""
        return 0.0 if self._state is None else self.compute(self._state)

    def reset_state(self) -> None:
        """Forgets the rows."""
        self._state = None

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.update_state(y_true, y_pred, sample_weight)
        return self.result()


class MeanMetric(Metric):
    """Base of metrics that are a weighted mean of per-element values: write `values`."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Per-element values, bool or float, shape (rows, ...)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method values(self, y_true, y_pred).")

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        return mean_sums(self.values(y_true, y_pred), weight)

    def compute(self, sums: dict[str, np.ndarray]) -> float:
        return float(sums["total"] / sums["count"]) if sums["count"] else 0.0


@register_serializable("unifit.metric")
class LossMetric(MeanMetric):
    """The mean of a loss over its valid elements; the loss' own reduction plays no part.

    Args:
        loss: A Loss.
        name: Key of the metric in logs.
    """

    def __init__(self, loss: Loss, name: str | None = None):
        super().__init__(name or snake_name(loss))
        self.loss = loss

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        valid = self.loss.mask(y_true)
        if weight is not None:
            y_true = without_ignored(y_true, weight)
        values = self.loss.call(y_true, y_pred)
        if valid is not None:
            valid = ops.cast(align(valid, values), "float32")
            weight = valid if weight is None else valid * align(weight, values)
        return mean_sums(values, weight)

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        self.loss.check(y_true, y_pred)


@register_serializable("unifit.metric")
class FunctionMetric(MeanMetric):
    """The mean of a plain function (y_true, y_pred) -> per-element values.

    Raises:
        ShapeError: In use, when the function returns a scalar or loses the rows.
    """

    def __init__(self, function: Callable[[Any, Any], Any], name: str | None = None):
        super().__init__(name or getattr(function, "__name__", "metric"))
        self.function = function

    def sums(self, y_true: Any, y_pred: Any, weight: Any) -> dict[str, Any]:
        if weight is not None:
            y_true = without_ignored(y_true, weight)
        y_true, y_pred = in_float32(match(y_true, y_pred)), in_float32(y_pred)
        values = self.function(y_true, y_pred)
        return mean_sums(require_elements(f"Metric '{self.name}'", values, y_pred), weight)


@metrics_registry.register
class Mean(MeanMetric):
    """The weighted mean of values that are given by hand: `update_state(values, sample_weight=None)`."""

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return y_pred

    def check(self, y_true: Shape, y_pred: Shape) -> None:
        raise ArgumentError(
            f"Metric '{self.name}' takes values by hand, not labels and predictions; give compile a function "
            "(y_true, y_pred) -> per-element values, of which it takes the mean."
        )

    def update_state(self, values: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        super().update_state(values, values, sample_weight)

    def __call__(self, values: Any, sample_weight: Any = None) -> float:  # type: ignore[override]
        self.update_state(values, sample_weight)
        return self.result()


def mean_sums(values: Any, weight: Any) -> dict[str, Any]:
    """Weighted sum of per-element values and sum of the weights. A value of weight 0 may be NaN or infinite."""
    is_finite = ops.dtype(values) == "bool"
    if weight is None:
        total = ops.cast(ops.sum(values if is_finite else ops.cast(values, "float32")), "float32")
        return {"total": total, "count": ops.full((), float(ops.size(values)), "float32")}
    weight, values = align(weight, values), ops.cast(values, "float32")
    weighted = values * weight if is_finite else ops.where(ops.not_equal(weight, 0.0), values * weight, 0.0)
    # A weight of fewer elements than there are values stands for equally many of them each.
    count, repeats = ops.sum(weight), ops.size(values) // max(ops.size(weight), 1)
    return {"total": ops.sum(weighted), "count": count if repeats == 1 else count * float(repeats)}


def without_ignored(y_true: Any, weight: Any) -> Any:
    """Labels with 0 where the weight is 0: there they may be no class, or NaN."""
    return ops.where(ops.not_equal(align(weight, y_true), 0.0), y_true, 0)


def ratio(numerator: Any, denominator: Any) -> Any:
    """numerator / denominator, 0 where the denominator is; broadcast."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator != 0)


def figure(values: Any) -> Any:
    """A float from one value, a list of floats from several."""
    return np.asarray(values, np.float64).tolist()


def refuse_list(metric: Metric, given: str, instead: str) -> None:
    """Raises the error about a metric whose figure is a list."""
    raise ArgumentError(
        f"Metric '{metric.name}' with {given} gives several figures, and logs hold one number for each metric; give "
        f"compile {instead}. By hand, with update_state and result, the list is fine."
    )


def get(identifier: Any) -> Metric:
    """A metric from its Keras name, a Metric, a loss (name, class or object), or a function (y_true, y_pred) -> values.

    A metric that was asked for by name is logged under that name.

    Raises:
        UnknownNameError: For an unknown name, with the nearest ones.
        ArgumentError: For an object that is no metric.
    """
    metric = metrics_registry.get(find(identifier) if isinstance(identifier, str) else identifier)
    if isinstance(metric, Loss):
        metric = LossMetric(metric)
    elif not isinstance(metric, Metric):
        if not callable(metric) or isinstance(metric, Configurable):
            raise ArgumentError(
                f"Expected a metric, got {metric!r} of type {type(metric).__name__}; pass a name (one of "
                f"{', '.join(metrics_registry.names())}), a Metric, a loss or a function (y_true, y_pred) -> values."
            )
        metric = FunctionMetric(metric)
    if isinstance(identifier, str):
        metric.name = identifier
    return metric


def find(name: str) -> Any:
    """The metric's class of that name, else the loss' class."""
    for registry in (metrics_registry, losses_registry):
        try:
            return registry.find(name)
        except UnknownNameError:
            continue
    raise unknown_name("metric", name, {*metrics_registry.names(), *losses_registry.names()})
