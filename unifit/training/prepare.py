"""From a compiled model and a first batch to an engine: builds the model, resolves losses and metrics, checks them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import unifit.precision as precisions
from unifit.abstract import infer, spec_of
from unifit.backend import backend
from unifit.contract import tree
from unifit.contract.objective import Scope
from unifit.contract.precision import FLOATS, Precision
from unifit.contract.values import ArraySpec, MicroBatch, Plan
from unifit.errors import ArgumentError, ShapeError, UnifitError
from unifit.input_specs import fits, symbols_of_shapes
from unifit.losses import snake_name
from unifit.precision import casts_of
from unifit.seed import get_seed
from unifit.symbol import map_specs
from unifit.training.objective import Casts, Layout, Objective, row_shapes
from unifit.training.outputs import (
    check_label_values,
    check_labels,
    outputs_of,
    resolve_metrics,
    resolve_terms,
    with_unique_names,
)
from unifit.training.spec import TrainingSpec
from unifit.weights import layers_of, make_variables_live_in, make_weights, records_of, trainable_paths


def specs_of(batch: MicroBatch) -> MicroBatch:
    """Shapes and dtypes of a batch's arrays as they are placed."""
    return tree.map(spec_of, batch)


def specs_in(specs: Any) -> list[ArraySpec]:
    """The ArraySpecs of a tree."""
    found: list[ArraySpec] = []
    map_specs(found.append, specs)
    return found


def build_model(model: Any, x: Any, compute: str | None = None) -> Any:
    """Builds the model abstractly on the specs of its inputs; returns the specs of its predictions in `compute`.

    Raises:
        ShapeError: When that fails, and the inputs are not of the shape that the model is built for.
    """
    try:
        return infer(model, lambda given: model(given), x, compute=compute)
    except Exception as error:
        if isinstance(error, UnifitError) or not model.built or fits(model.arguments(), symbols_of_shapes(x)):
            raise
        raise ShapeError(
            f"{model.name} is built for inputs of shape {model.input_shape}; inputs of shape "
            f"{map_specs(lambda spec: spec.shape, x)} do not fit. {type(error).__name__}: {error}"
        ) from error


def make_objective(
    model: Any, spec: TrainingSpec | None, batch: MicroBatch, pieces: int = 1, labels: Any = None
) -> Objective:
    """The objective for batches like `batch` (specs).

    Args:
        model: The model; it is built by the way.
        spec: What compile was given; None for prediction alone: no loss and no metrics are resolved.
        batch: Specs of a batch, validity included.
        pieces: Forward passes in a window over all devices.
        labels: The first batch's labels on the host, which are checked by value; None for no such check.

    Raises:
        ShapeError, ArgumentError: When labels, weights or predictions do not fit the losses and metrics.
    """
    precision = compiled_precision(model)
    compute = compute_of(model, precision)
    predictions = float32_of(build_model(model, batch.x, compute))
    if spec is None:
        return Objective([], Layout((), (), ()), casts=Casts(compute, casts_of(model, compute), precision.output))
    outputs = outputs_of(predictions, model.output_names)
    overridden = model.compute_loss_override()
    terms = resolve_terms(spec.loss, spec.loss_weights, outputs, batch.y, predictions)
    if overridden is None:
        check_labels(terms, batch.y, predictions)
        # Where a layer or a bool sample_weight masks, labels may be anything.
        masks = any(leaf.dtype == "bool" for leaf in specs_in(batch.sample_weight))
        if (
            labels is not None
            and not masks
            and not any(getattr(layer, "makes_mask", False) for _, layer in layers_of(model))
        ):
            check_label_values(terms, labels, predictions)
        layout = Layout(
            tuple(term.output.name for term in terms),
            tuple(term.weight for term in terms),
            tuple(term.loss.reduction == "sum" for term in terms),
        )
    else:
        layout = Layout(("loss",), (1.0,), (False,))
    bound = resolve_metrics(spec.metrics, False, outputs, batch.y, predictions)
    bound += resolve_metrics(spec.weighted_metrics, True, outputs, batch.y, predictions)
    objective = Objective(terms, layout, overridden, casts=Casts(compute, casts_of(model, compute), precision.output))
    return with_metrics(model, objective, with_unique_names(bound), batch, pieces)


def compiled_precision(model: Any) -> Precision:
    """The policy that the model was compiled with; else the process' default."""
    return precisions.get(None) if model.training_spec is None else model.training_spec.precision


def compute_of(model: Any, precision: Precision) -> str | None:
    """The dtype in which layers compute; None where all of them do in float32, and nothing has to be cast."""
    own = any(getattr(layer, "compute_dtype", None) for _, layer in layers_of(model))
    return precision.compute if own or precision.compute != "float32" else None


def float32_of(specs: Any) -> Any:
    """Specs of predictions as losses and metrics get them."""
    return map_specs(lambda spec: spec._replace(dtype="float32") if spec.dtype in FLOATS else spec, specs)


def with_metrics(model: Any, objective: Objective, bound: list[Any], batch: MicroBatch, pieces: int) -> Objective:
    """The objective with its metrics' shapes, found by running it abstractly; refuses what does not fit by the way."""
    layout = objective.layout
    regularized = [(owner, name, record) for _, owner, name, record in records_of(model) if record.regularizer]
    trial = Objective(
        objective.terms, replace(layout, metrics=tuple(bound)), objective.compute_loss, regularized, objective.casts
    )
    bare: list[bool] = []
    sources: list[int] = []
    found: list[Any] = []
    rows: list[Any] = []

    def forward(x: Any, y: Any, weight: Any, valid: Any) -> Any:
        scope = Scope(stream=lambda: backend.random.stream(0), pieces=pieces)
        done = trial.forward(model, MicroBatch(x, y, weight, valid), scope, training=True)
        bare.extend(term.bare for term in done.terms)
        bare.append(pieces == 1 and len(done.added) > len(regularized))  # add_loss saw all rows, padding included
        sources.append(len(done.terms) + len(done.added))
        found.extend(done.terms)
        rows.append(row_shapes(x, y))
        return done.metric_sums, [term.total for term in done.terms]

    sums, totals = infer(
        model,
        forward,
        batch.x,
        batch.y,
        batch.sample_weight,
        batch.valid,
        training=True,
        compute=objective.casts.compute,
    )
    if not any(sources):
        raise ArgumentError(
            "The model has nothing to minimise: compile got loss=None, no layer calls add_loss, and compute_loss is "
            "not overridden. Pass a loss, for instance compile(loss='mse')."
        )
    for term, total in zip(objective.terms, totals, strict=False):
        if total.dtype != "float32":
            raise ArgumentError(
                f"Loss '{snake_name(term.loss)}' gave {total.dtype} values; losses need to be float32: "
                "ops.cast(loss, 'float32')."
            )
    for one, of in zip(sums, bound, strict=True):
        for name, spec in one.items():
            if spec.dtype != "float32":
                raise ArgumentError(
                    f"Metric '{of.name}' gave the sum '{name}' as {spec.dtype}; sums need to be float32."
                )
    shapes = tuple({name: spec.shape for name, spec in one.items()} for one in sums)
    layout = replace(layout, metrics=tuple(bound), shapes=shapes)
    ready = Objective(objective.terms, layout, objective.compute_loss, regularized, objective.casts)
    ready.whole_rows = any(bare)
    ready.sees_padding = any(term.summed for term in found)
    ready.learn(rows[-1], found)
    return ready


def make_engine(
    model: Any, objective: Objective, spec: TrainingSpec | None, devices: Any, accumulation: int = 1
) -> Any:
    """Makes the model's variables under the distribution and hands it to an engine of `accumulation` micro-batches."""
    with devices.scope():
        make_weights(model, get_seed())
        make_variables_live_in(model, compiled_precision(model).variables)
    if spec is None:
        return backend.engine.Engine(model, Plan(objective, seed=get_seed()), devices)
    trainable = trainable_paths(model)
    records = {path: record for path, _, _, record in records_of(model)}
    plan = Plan(
        objective,
        trainable=trainable,
        optimizer=spec.optimizer.rule,
        decays=frozenset(path for path in trainable if spec.optimizer.decays(path, records[path].shape)),
        accumulation=accumulation,
        clip_norm=spec.clip_norm,
        clip_value=spec.clip_value,
        clip_parameter_norm=spec.clip_parameter_norm,
        skip_nonfinite=spec.skips,
        loss_scale=spec.precision.scaling,
        ema=spec.ema,
        reduction_dtype=spec.reduction_dtype,
        matmul_precision=spec.matmul_precision,
        seed=get_seed(),
    )
    return backend.engine.Engine(model, plan, devices)
