"""Which loss and which metrics belong to which output of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import unifit.losses as losses
import unifit.metrics as metrics
from unifit.contract.values import ArraySpec
from unifit.errors import ArgumentError, ShapeError, unknown_name


@dataclass(frozen=True)
class Output:
    """One output of a model: its name, and its place where outputs come as a list. `lone` when it is the only one."""

    name: str
    index: int
    lone: bool

    def of(self, tree: Any, what: str) -> Any:
        """This output's part of labels, predictions or weights.

        Raises:
            ArgumentError: When the tree has no such part.
        """
        if tree is None:
            return None
        if isinstance(tree, dict):
            if self.name in tree:
                return tree[self.name]
        elif isinstance(tree, (list, tuple)) and not isinstance(tree, ArraySpec):
            if self.index < len(tree):
                return tree[self.index]
        elif self.lone:
            return tree
        found: Any = f"one array of shape {tuple(tree.shape)}" if hasattr(tree, "shape") else f"{len(tree)} items"
        if isinstance(tree, dict):
            found = sorted(tree)
        raise ArgumentError(
            f"The {what} have nothing for output '{self.name}' (found {found}); give a dict with that key."
        )


class Term(NamedTuple):
    """A loss on one output, and its weight in the total."""

    loss: losses.Loss
    output: Output
    weight: float


@dataclass(frozen=True)
class BoundMetric:
    """A metric on one output, and whether sample weights enter it."""

    output: Output
    metric: metrics.Metric
    weighted: bool
    name: str


def outputs_of(predictions: Any, names: list[str] | None) -> list[Output]:
    """The outputs in a tree of predictions (specs). `names` names the items of a list."""
    if isinstance(predictions, ArraySpec):
        return [Output((names or ["output"])[0], 0, True)]
    if isinstance(predictions, dict):
        return [Output(key, index, len(predictions) == 1) for index, key in enumerate(predictions)]
    names = names or [f"output_{index}" for index in range(len(predictions))]
    return [Output(name, index, len(predictions) == 1) for index, name in enumerate(names)]


def assign(kind: str, given: Any, outputs: list[Output]) -> list[tuple[Output, Any]]:
    """Spreads a user's loss, weights or metrics (one for all, a list by position, a dict by name) over the outputs.

    Raises:
        UnknownNameError: For a dict key that is no output.
        ArgumentError: For a list of another length.
    """
    if given is None:
        return []
    if isinstance(given, dict) and not {"class", "config"} <= given.keys():
        by_name = {output.name: output for output in outputs}
        for key in given:
            if key not in by_name:
                raise unknown_name(f"output in {kind}", key, by_name)
        return [(by_name[key], value) for key, value in given.items() if value is not None]
    if isinstance(given, (list, tuple)):
        if len(given) != len(outputs):
            raise ArgumentError(f"compile got {kind} for {len(given)} outputs; the model has {len(outputs)}.")
        return [(output, value) for output, value in zip(outputs, given, strict=True) if value is not None]
    return [(output, given) for output in outputs]


def resolve_terms(loss: Any, loss_weights: Any, outputs: list[Output], labels: Any, predictions: Any) -> list[Term]:
    """The loss terms, in the order of the outputs."""
    weights = {output.name: float(value) for output, value in assign("loss_weights", loss_weights, outputs)}
    return [
        Term(losses.get(_specific(value, output, labels, predictions)), output, weights.get(output.name, 1.0))
        for output, value in assign("loss", loss, outputs)
    ]


def resolve_metrics(
    given: Any, weighted: bool, outputs: list[Output], labels: Any, predictions: Any
) -> list[BoundMetric]:
    """The metrics of each output; "accuracy" and "crossentropy" become the kind that fits labels and predictions."""
    if given is None:
        return []
    if not isinstance(given, (dict, list, tuple)):
        given = [given]
    nested = isinstance(given, dict) or (len(outputs) > 1 and any(isinstance(item, (list, tuple)) for item in given))
    spread = assign("metrics", given, outputs) if nested else [(output, given) for output in outputs]
    bound = []
    for output, items in spread:
        for item in items if isinstance(items, (list, tuple)) else [items]:
            metric = metrics.get(_specific(item, output, labels, predictions))
            y, p = output.of(labels, "labels"), output.of(predictions, "predictions")
            if isinstance(y, ArraySpec) and isinstance(p, ArraySpec):
                metric.check(y.shape, p.shape)
            name = item if is_family(item) else metric.name
            bound.append(BoundMetric(output, metric, weighted, name if output.lone else f"{output.name}_{name}"))
    return bound


def with_unique_names(bound: list[BoundMetric]) -> list[BoundMetric]:
    """Keras' rule for metrics of one name: weighted ones get `weighted_` in front, others a number behind."""
    taken: dict[str, int] = {}
    unique = []
    for metric in bound:
        name = metric.name
        if name in taken and metric.weighted:
            name = f"weighted_{name}"
        if name in taken:
            taken[name] += 1
            name = f"{name}_{taken[name] - 1}"
        taken[name] = 1
        unique.append(replace(metric, name=name))
    return unique


def is_family(identifier: Any) -> bool:
    """Whether a name stands for a binary, a sparse or a categorical kind, as the shapes will tell."""
    return isinstance(identifier, str) and identifier in ("acc", "accuracy", "ce", "crossentropy")


def _specific(identifier: Any, output: Output, labels: Any, predictions: Any) -> Any:
    """Keras' rule for the families: binary, sparse or categorical by the shapes.

    Raises:
        ShapeError: When there are no labels to tell by.
    """
    if not is_family(identifier):
        return identifier
    y, p = output.of(labels, "labels"), output.of(predictions, "predictions")
    if y is None:
        raise ShapeError(f"'{identifier}' needs labels for output '{output.name}', and the data has none.")
    family = "accuracy" if identifier in ("acc", "accuracy") else "crossentropy"
    if p.shape[-1:] == (1,) or len(p.shape) == 1:
        return f"binary_{family}"
    sparse = len(y.shape) < len(p.shape) or y.shape[-1] == 1
    return f"{'sparse_' if sparse else ''}categorical_{family}"


def check_labels(terms: list[Term], labels: Any, predictions: Any) -> None:
    """Refuses labels that do not fit, before training.

    Raises:
        ShapeError: From the loss' own check, or when labels are missing.
    """
    for term in terms:
        y, p = term.output.of(labels, "labels"), term.output.of(predictions, "predictions")
        if y is None:
            raise ShapeError(
                f"Loss '{losses.snake_name(term.loss)}' needs labels for output '{term.output.name}', and the data has "
                "none."
            )
        term.loss.check(y.shape, p.shape)


def check_label_values(terms: list[Term], labels: Any, predictions: Any) -> None:
    """Refuses values that no label can have, before training.

    Args:
        terms: The loss terms.
        labels: Host arrays of a batch.
        predictions: Specs.

    Raises:
        ArgumentError: From the loss' own check.
    """
    for term in terms:
        term.loss.check_values(term.output.of(labels, "labels"), term.output.of(predictions, "predictions").shape)
