"""The law for one micro-batch, written once in ops: what enters the loss, with which weight, and which sums stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import unifit.ops as ops
from unifit.backend import backend
from unifit.compute_dtype import cast_floats
from unifit.context import CallContext, context
from unifit.contract.objective import Scope, Update
from unifit.contract.tree import leaves
from unifit.contract.tree import map as map_arrays
from unifit.contract.values import MicroBatch
from unifit.errors import ShapeError, UnsupportedError
from unifit.losses import MeanOverRows, Total, align, reduce_elements, validity_and_weight
from unifit.training.outputs import BoundMetric, Term


@dataclass(frozen=True)
class Layout:
    """Where each sum lies in the flat vector.

    The order is: term sums, term divisors, add_loss, valid count, elements, passes, then metrics.

    Attributes:
        term_names: One name a loss term.
        term_weights: The weights of the terms in the total.
        undivided: For each term, whether its reduction is "sum".
        metrics: The bound metrics.
        shapes: For each metric, its sums' names and shapes.
    """

    term_names: tuple[str, ...]
    term_weights: tuple[float, ...]
    undivided: tuple[bool, ...]
    metrics: tuple[BoundMetric, ...] = ()
    shapes: tuple[dict[str, tuple[int, ...]], ...] = ()

    @property
    def head(self) -> int:
        """Length of the vector before the metrics."""
        return 2 * len(self.term_names) + 4

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.head + sum(prod(shape) for shapes in self.shapes for shape in shapes.values())


class Casts(NamedTuple):
    """What is cast in a forward pass.

    Attributes:
        compute: The dtype in which layers compute; None where all is float32.
        weights: (owner, name, dtype) of the weights that read in another dtype than they have.
        output: Dtype of what `predict` returns where it is a float.
    """

    compute: str | None = None
    weights: Sequence[tuple[Any, str, str]] = ()
    output: str = "float32"


class Objective:
    """unifit.contract.objective.Objective for a compiled model.

    With T terms the vector is [S_1..S_T, N_1..N_T, sum of n * aux, sum of n, elements, passes, metrics' sums...]: S is
    a term's weighted sum over valid elements, N its divisor, n the valid elements of a micro-batch, aux its add_loss
    terms; a pass adds its share of the window to `passes`, so that elements / passes is the window's capacity.
    One term of the default reduction is divided after the reduction (the factor); otherwise `count` runs first.

    Attributes:
        whole_rows: Whether the batch may not be padded, because a bare scalar or a row mean would count the padding; on
            one device without micro-batches it need not be.
        sees_padding: Whether `compute_loss` summed rows without looking at which are valid.
    """

    def __init__(
        self,
        terms: list[Term],
        layout: Layout,
        compute_loss: Any = None,
        regularized: list[Any] | None = None,
        casts: Casts = Casts(),  # noqa: B008
    ):
        """`regularized` holds (owner, name, record) of the weights that have a penalty."""
        self.casts = casts
        self.terms, self.layout, self.compute_loss = terms, layout, compute_loss
        self.regularized = regularized or []
        self._own_terms = [
            [i for i, term in enumerate(terms) if term.output == bound.output] for bound in layout.metrics
        ]
        self._all_scalars = all(shape == () for shapes in layout.shapes for shape in shapes.values())
        self.whole_rows = False
        self.sees_padding = False
        self.shapes: dict[Any, list[tuple[int, ...]]] = {}
        self.num_sums = self.num_evaluation_sums = layout.size
        one = len(layout.term_names) == 1
        self.counts_first = not (one and (compute_loss is not None or terms[0].loss.reduction == "sum_over_batch_size"))

    # What engines call

    def train(self, model: Any, batch: MicroBatch, scope: Scope) -> tuple[Any, float, Any]:
        sums, elements, added = self._sums(model, batch, scope, training=True)
        terms = len(self.layout.term_names)
        if scope.totals is None:
            loss, seed = sums[0], self.layout.term_weights[0] / (elements * scope.pieces)
            if added is not None:
                loss, seed = loss * self.layout.term_weights[0] + added, 1.0 / (elements * scope.pieces)
        else:
            loss, seed = ops.zeros((), "float32") if added is None else safe_divide(added, scope.totals[terms]), 1.0
            for i, weight in enumerate(self.layout.term_weights):
                divided = sums[i] if self.layout.undivided[i] else safe_divide(sums[i], scope.totals[i])
                loss = loss + weight * divided
        # What comes after is a number, or a sum of a metric, and has no gradient.
        ends = 2 * terms + 1
        return loss, seed, self._flat([*map(ops.stop_gradient, sums[:ends]), *sums[ends:]])

    def count(self, model: Any, batch: MicroBatch, scope: Scope) -> Any:
        shapes = self.shapes.get(row_shapes(batch.x, batch.y))
        if shapes is not None:
            return ops.stack(self._counts_by_labels(batch, shapes))
        sums, *_ = self._sums(model, batch, scope, training=False)
        terms = len(self.layout.term_names)
        return ops.stop_gradient(ops.stack([*sums[terms : 2 * terms], sums[2 * terms + 1]]))

    def learn(self, rows: Any, terms: list[Reduced]) -> None:
        """Notes the shapes of the loss elements that a forward pass gave for batches with such `row_shapes`.

        Where nothing but labels, weights and padding decides which elements are valid, `count` needs no model then.
        """
        if self.compute_loss is None and not any(term.masked for term in terms):
            self.shapes[rows] = [term.shape[1:] for term in terms]

    def update(self, sums: Any) -> Update:
        terms = len(self.layout.term_names)
        count, capacity, passes = (sums[2 * terms + i] for i in (1, 2, 3))
        factor = ops.ones((), "float32") if self.counts_first else safe_divide(capacity / passes, sums[terms])
        return Update(factor, ops.greater(count, 0.0))

    def known_factor(self, batch: MicroBatch, live: int, accumulation: int) -> float | None:
        if self.counts_first or self.compute_loss is not None:
            return None
        loss, output, _ = self.terms[0]
        if (
            is_mask(output.of(batch.sample_weight, "sample weights"))
            or loss.mask(output.of(batch.y, "labels")) is not None
        ):
            return None
        # Those of which a layer's mask decides what is valid are not among them.
        return accumulation / live if row_shapes(batch.x, batch.y) in self.shapes else None

    def evaluate(self, model: Any, batch: MicroBatch, scope: Scope) -> Any:
        sums, *_ = self._sums(model, batch, scope, training=False)
        return self._flat(sums)

    def predict(self, model: Any, batch: MicroBatch, scope: Scope) -> Any:
        call = call_context(batch, scope, False, self.casts.compute)
        with call.open():
            outputs = self._outputs(model, batch.x, call)
            return outputs if self.casts.output == "float32" else cast_floats(outputs, self.casts.output, call)

    # One forward pass

    def forward(self, model: Any, batch: MicroBatch, scope: Scope, training: bool) -> Forward:
        """Runs the model and reduces its losses and metrics over a micro-batch."""
        call = call_context(batch, scope, training, self.casts.compute)
        with call.open():
            predictions = self._outputs(model, batch.x, call)
            ignored = [term.loss.mask(term.output.of(batch.y, "labels")) for term in self.terms]
            if self.compute_loss is None:
                terms = [self._term(i, batch, predictions, ignored[i], call) for i in range(len(ignored))]
            else:
                call.looked_at_valid = False
                result = self.compute_loss(
                    x=batch.x, y=batch.y, y_pred=predictions, sample_weight=batch.sample_weight, training=training
                )
                term = custom_term(result, batch, scope)
                terms = [term._replace(summed=term.summed and not call.looked_at_valid)]
            added = call.losses
            if self.regularized:
                penalties = [record.regularizer(getattr(owner, name)) for owner, name, record in self.regularized]
                added = [*added, *penalties]
            metric_sums = self._metric_sums(batch, predictions, ignored, call)
        return Forward(terms, added, metric_sums)

    def _outputs(self, model: Any, x: Any, call: CallContext) -> Any:
        """The model's outputs, floats as float32, with their masks."""
        if self.casts.compute is None:
            return model(x)
        if call.abstract:  # weights are lent in the right dtype there
            outputs = model(x)
        else:
            with backend.module.reading_as(self.casts.weights):
                outputs = model(x)
        return cast_floats(outputs, "float32", call)

    def _sums(self, model: Any, batch: MicroBatch, scope: Scope, training: bool) -> tuple[list[Any], int, Any]:
        """The vector's entries, not yet flat, the number of loss elements with padding, and what layers added."""
        terms, added, metric_sums = self.forward(model, batch, scope, training)
        if len(terms) == 1:
            total, divisor, count = terms[0][:3]
            elements, head = prod(terms[0].shape), [total, divisor]
        else:
            count = sum(term.count for term in terms) if terms else count_rows(batch)
            elements = sum(prod(term.shape) for term in terms) or 1
            head = [*(term.total for term in terms), *(term.divisor for term in terms)]
        aux = sum(added) * count if added else None
        head += [
            ops.zeros((), "float32") if aux is None else aux,
            count,
            ops.full((), float(elements), "float32"),
            ops.full((), 1.0 / scope.pieces, "float32"),
        ]
        for sums in metric_sums:
            head += [sums[name] for name in sorted(sums)]
        return head, elements, aux

    def _flat(self, sums: list[Any]) -> Any:
        """One float32 vector of the entries, in order."""
        if self._all_scalars:
            return ops.stack(sums)
        return ops.concatenate([ops.reshape(entry, (-1,)) for entry in sums], axis=0)

    def _term(self, index: int, batch: MicroBatch, predictions: Any, ignored: Any, call: CallContext) -> Reduced:
        loss, output, _ = self.terms[index]
        y_pred = output.of(predictions, "predictions")
        weight = output.of(batch.sample_weight, "sample weights")
        mask = call.mask_of(y_pred)
        y_true = output.of(batch.y, "labels")
        losses = loss.call(without_invalid(y_true, mask, weight), y_pred)
        reduced = reduce_elements(losses, [batch.valid, ignored, mask], weight, loss.reduction)
        return Reduced(*reduced, tuple(losses.shape), masked=mask is not None)

    def _counts_by_labels(self, batch: MicroBatch, shapes: list[tuple[int, ...]]) -> list[Any]:
        """The terms' divisors, and the number of valid elements, without a forward pass."""
        divisors, counts = [], []
        for (loss, output, _), shape in zip(self.terms, shapes, strict=True):
            ignored = loss.mask(output.of(batch.y, "labels"))
            weight = output.of(batch.sample_weight, "sample weights")
            like = ops.zeros((batch_rows(batch), *shape), "float32")
            _, divisor, count = reduce_elements(like, [batch.valid, ignored], weight, loss.reduction)
            divisors.append(divisor)
            counts.append(count)
        return [*divisors, sum(counts) if counts else count_rows(batch)]

    def _metric_sums(
        self, batch: MicroBatch, predictions: Any, ignored: list[Any], call: CallContext
    ) -> list[dict[str, Any]]:
        if not self.layout.metrics:
            return []
        predictions = without_gradient(predictions, call)
        return [
            bound.metric.sums(*self._metric_arguments(i, batch, predictions, ignored, call))
            for i, bound in enumerate(self.layout.metrics)
        ]

    def _metric_arguments(
        self, index: int, batch: MicroBatch, predictions: Any, ignored: list[Any], call: CallContext
    ) -> tuple[Any, Any, Any]:
        """Labels, predictions and the weight of each element: 0 for padding, masked positions and ignored labels."""
        bound = self.layout.metrics[index]
        y_pred = bound.output.of(predictions, "predictions")
        y_true = bound.output.of(batch.y, "labels")
        sample_weight = bound.output.of(batch.sample_weight, "sample weights")
        masks = [batch.valid, call.mask_of(y_pred), *(ignored[i] for i in self._own_terms[index])]
        if sample_weight is not None and not bound.weighted and ops.dtype(sample_weight) != "bool":
            sample_weight = None
        given = [mask for mask in (*masks, sample_weight) if mask is not None]
        if not given:
            return y_true, y_pred, None
        # Masks are prefixes of the elements' shape: the longest one gives the weight's shape.
        like = max(given, key=lambda mask: len(mask.shape))
        valid, weight = validity_and_weight(like, masks, sample_weight)
        if weight is None:
            return y_true, y_pred, ops.cast(valid, "float32")
        weight = ops.broadcast_to(weight, like.shape)
        return y_true, y_pred, weight if valid is None else ops.where(valid, weight, 0.0)


class Reduced(NamedTuple):
    """A loss term of one micro-batch: weighted sum, divisor, number of valid elements, and the elements' shape.

    `bare`: reduced by the user where one pass sees a whole window. `masked`: a layer's mask decides too what is valid.
    `summed`: reduced by the user, who may not have left out the padding.
    """

    total: Any
    divisor: Any
    count: Any
    shape: tuple[int, ...]
    bare: bool = False
    masked: bool = False
    summed: bool = False


class Forward(NamedTuple):
    """What a forward pass gave: its loss terms, the scalars that layers added, each metric's sums."""

    terms: list[Reduced]
    added: list[Any]
    metric_sums: list[dict[str, Any]]


def call_context(batch: MicroBatch, scope: Scope, training: bool, compute: str | None = None) -> CallContext:
    """The context of a forward pass under an engine."""
    outer = context()
    return CallContext(
        training=training,
        stream=scope.stream,
        valid=batch.valid,
        abstract=outer is not None and outer.abstract,
        compute=compute,
        sum_over_devices=scope.sum_over_devices,
    )


def custom_term(result: Any, batch: MicroBatch, scope: Scope) -> Reduced:
    """What an overridden `compute_loss` returned, as a term.

    What it reduced itself is `bare` where one pass sees a whole window: padding rows would be in it.

    Raises:
        ShapeError: For what is no loss, or an array of another number of rows.
        UnsupportedError: For a bare scalar on several devices or micro-batches.
    """
    bare = scope.pieces == 1
    if isinstance(result, Total):
        total, count = (ops.cast(value, "float32") for value in result)
        return Reduced(total, count, count, (batch_rows(batch),), bare, summed=True)
    rows = count_rows(batch)
    if isinstance(result, MeanOverRows):
        return Reduced(ops.cast(result.value, "float32") * rows, rows, rows, (batch_rows(batch),), bare, summed=True)
    shape = getattr(result, "shape", None)
    if shape is None or (len(shape) and shape[0] != batch_rows(batch)):
        returned = f"a {type(result).__name__}" if shape is None else f"an array of shape {tuple(shape)}"
        raise ShapeError(
            f"compute_loss returned {returned} for a batch of {batch_rows(batch)} rows; it needs to return per-element "
            "losses with rows on axis 0, uf.losses.Total(sum, count), or uf.losses.MeanOverRows(scalar)."
        )
    losses = ops.cast(result, "float32")
    if len(shape):
        weight = batch.sample_weight if is_mask(batch.sample_weight) else None
        return Reduced(*reduce_elements(losses, [batch.valid], weight, "sum_over_batch_size"), tuple(losses.shape))
    if not bare:
        raise UnsupportedError(
            "compute_loss returned a bare scalar. On several devices or micro-batches unifit cannot know what it was "
            "divided by: return per-element losses, uf.losses.Total(sum, count), or uf.losses.MeanOverRows(scalar)."
        )
    return Reduced(losses * rows, rows, rows, (batch_rows(batch),), bare)


def without_invalid(labels: Any, *masks: Any) -> Any:
    """Labels with 0 in place of what bool masks leave out and what no loss can take: a class number there may be no
    class at all, and is gathered by; of NaN the gradient would be NaN, masked or not.
    """
    for mask in masks:
        if mask is not None and ops.dtype(mask) == "bool":
            kept = align(mask, labels)
            if "float" in ops.dtype(labels):
                kept = ops.logical_or(kept, ops.isfinite(labels))
            labels = ops.where(kept, labels, ops.zeros_like(labels))
    return labels


def without_gradient(predictions: Any, call: CallContext) -> Any:
    """The predictions as metrics get them: nothing that is made of them is recorded for the backward pass."""

    def stopped(leaf: Any) -> Any:
        given, mask = ops.stop_gradient(leaf), call.mask_of(leaf)
        if mask is not None:
            call.set_mask(given, mask)
        return given

    return map_arrays(stopped, predictions)


def is_mask(sample_weight: Any) -> bool:
    """Whether the weights are one bool array."""
    return hasattr(sample_weight, "shape") and ops.dtype(sample_weight) == "bool"


def batch_rows(batch: MicroBatch) -> int:
    """Rows of a micro-batch, padding included."""
    return int(leaves(batch.x)[0].shape[0])


def row_shapes(x: Any, y: Any) -> Any:
    """What the shapes of the loss elements of a batch follow from: the shapes of its rows, as a key."""
    return tuple(
        (node.shape[1:],) if hasattr(node, "shape") else tuple(tuple(leaf.shape[1:]) for leaf in leaves(node))
        for node in (x, y)
    )


def count_rows(batch: MicroBatch) -> Any:
    """Valid rows of a micro-batch, float32."""
    if batch.valid is None:
        return ops.full((), float(batch_rows(batch)), "float32")
    return ops.sum(ops.cast(batch.valid, "float32"))


def safe_divide(total: Any, count: Any) -> Any:
    """total / count, and 0 where count is 0."""
    return ops.where(count > 0, total / ops.where(count > 0, count, 1.0), 0.0)
