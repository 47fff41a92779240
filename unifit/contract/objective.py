"""The objective: what the front end gives an engine to wrap, differentiate and compile. It is written in ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from unifit.contract.module import Module
    from unifit.contract.values import MicroBatch


class Scope(NamedTuple):
    """What an engine lends to one forward pass.

    Attributes:
        stream: Makes the random stream keyed by (seed, step, micro-batch, device); called at most once, when something
            draws.
        sum_over_devices: Differentiable sum of an array over all devices; None on one device and in evaluation.
        pieces: Forward passes in a whole window over all devices: accumulation * devices.
        totals: The window's summed counts (`Objective.count`), where the objective asked for them, else None.
    """

    stream: Callable[[], Any]
    sum_over_devices: Callable[[Any], Any] | None = None
    pieces: int = 1
    totals: Any = None


class Update(NamedTuple):
    """What the window's sums say about its update: device scalars."""

    factor: Any
    """float32: gradients, summed over the window, are multiplied by it."""
    applied: Any
    """bool: False when the window had no valid element; the update is skipped then."""


class Objective(Protocol):
    """(model, micro-batch) -> sums.

    Every number that is reported is a sum in one flat vector, so one reduction is enough.

    For one update an engine calls, in this order: `count` on every live micro-batch when `counts_first` is set, sums
    the results over micro-batches and devices and passes them on as `Scope.totals`; `train` on every live micro-batch;
    sums the gradients of its loss and its sums over micro-batches and devices in one reduction; `update` on the summed
    vector, unless `known_factor` has told the factor before. Then it multiplies the gradients by
    `factor`, clips, and applies them where `applied` holds. With a loss scale it multiplies the seed by it, and
    `factor` by its inverse; where a summed gradient is not finite, the update is skipped too (`Plan.skip_nonfinite`).

    Attributes:
        num_sums: Length of the vector that `train` returns.
        num_evaluation_sums: Length of the vector that `evaluate` returns.
        counts_first: Whether `count` must run before the first `train` of a window.
    """

    num_sums: int
    num_evaluation_sums: int
    counts_first: bool

    def train(self, model: Module, batch: MicroBatch, scope: Scope) -> tuple[Any, float, Any]:
        """The loss (float32 scalar), the seed of its gradient, and the sums (float32, shape (num_sums,), no gradient).

        What is differentiated is loss * seed; in an eager engine the seed is where the backward pass starts.
        """
        ...

    def count(self, model: Module, batch: MicroBatch, scope: Scope) -> Any:
        """The losses' divisors in this micro-batch: float32 vector, no gradient, no side effect on buffers."""
        ...

    def update(self, sums: Any) -> Update:
        """Factor and verdict from the window's reduced sums."""
        ...

    def known_factor(self, batch: MicroBatch, live: int, accumulation: int) -> float | None:
        """What `update` would say of a window without padding, where the host knows it; then the update is applied.

        None where masks, ignored labels or the model decide which elements are valid. An eager engine saves itself a
        dozen calls by it.

        Args:
            batch: One of its micro-batches.
            live: Micro-batches in it.
            accumulation: Micro-batches of a whole window.
        """
        ...

    def evaluate(self, model: Module, batch: MicroBatch, scope: Scope) -> Any:
        """The sums of a micro-batch in evaluation mode: float32, shape (num_evaluation_sums,)."""
        ...

    def predict(self, model: Module, batch: MicroBatch, scope: Scope) -> Any:
        """The model's output: a tree of arrays with rows on axis 0."""
        ...
