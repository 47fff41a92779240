"""The table that `model.summary` prints: layers, output shapes, numbers of weights."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from unifit.abstract import spec_of
from unifit.contract import tree
from unifit.input_specs import shapes_of
from unifit.symbol import infer_twice, merged
from unifit.weights import Weight, children_of, layers_of, records_of

_HEAD = ("Layer (type)", "Output shape", "Parameters")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Row(NamedTuple):
    """A layer's line: its indent and key, its type, the shapes of its first call's output, its number of weights."""

    label: str
    shape: str
    parameters: str


def table(model: Any, line_length: int | None, expand_nested: bool) -> str:
    """The whole text."""
    shapes = output_shapes(model)
    counted: set[int] = set()
    rows = list(_rows(model, shapes, counted, expand_nested, 0))
    own = [record for prefix, layer in layers_of(model) if layer is model for record in layer._records.values()]
    if own:
        rows.append(Row("(the model's own weights)", "", f"{sum(map(size_of, own)):,}"))
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(3)]
    if line_length is not None:
        widths[0] = max(12, min(widths[0], line_length - widths[1] - widths[2] - 4))
    rule = "-" * (sum(widths) + 4)
    lines = [f"Model: {model.name} ({type(model).__name__})", rule, _line(Row(*_HEAD), widths), rule]
    lines += [_line(row, widths) for row in rows]
    return "\n".join([*lines, rule, *_totals(model)])


def output_shapes(model: Any) -> dict[int, Any]:
    """The shapes of each layer's first output by the layer's identity, from abstract passes; None for unknown axes."""
    seen: list[dict[int, Any]] = []

    def run(*args: Any) -> Any:
        seen.append({})
        with _observed(model, seen[-1]):
            model(*args)

    infer_twice(model, run, model.arguments())
    small, large = seen
    return {key: shapes_of(merged(small[key], large[key])) for key in small if key in large}


@contextlib.contextmanager
def _observed(model: Any, outputs: dict[int, Any]) -> Iterator[None]:
    """Notes the specs of each layer's first output; an instance's attribute `call` goes before the class' method."""
    layers = [layer for _, layer in layers_of(model)]
    for layer in layers:

        @functools.wraps(layer.call)
        def call(*args: Any, _layer: Any = layer, _call: Any = layer.call, **kwargs: Any) -> Any:
            output = _call(*args, **kwargs)
            outputs.setdefault(id(_layer), tree.map(_spec, output))
            return output

        layer.__dict__["call"] = call
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["call"]


def _spec(leaf: Any) -> Any:
    return spec_of(leaf) if hasattr(leaf, "shape") else None


def size_of(record: Weight) -> int:
    """Number of elements."""
    return int(np.prod(record.shape, dtype=np.int64))


def _rows(layer: Any, shapes: dict[int, Any], counted: set[int], expand: bool, depth: int) -> Iterator[Row]:
    for key, child in children_of(layer):
        again = id(child) in counted
        size = sum(size_of(record) for *_, record in records_of(child))
        label = f"{'  ' * depth}{key} ({type(child).__name__})"
        yield Row(label, _shown(shapes.get(id(child))), "shared" if again else f"{size:,}")
        counted.add(id(child))
        if expand and not again:
            yield from _rows(child, shapes, counted, expand, depth + 1)


def _shown(shape: Any) -> str:
    """Shapes as Python writes them; "?" for a layer that was not called."""
    return "?" if shape is None else str(shape)


def _line(row: Row, widths: list[int]) -> str:
    label = row.label if len(row.label) <= widths[0] else row.label[: widths[0] - 3] + "..."
    return f"{label:<{widths[0]}}  {row.shape:<{widths[1]}}  {row.parameters:>{widths[2]}}"


def _totals(model: Any) -> list[str]:
    sums = {"Trainable": [0, 0], "Non-trainable": [0, 0]}
    for _, owner, _, record in records_of(model):
        kind = sums["Trainable" if record.trainable and owner.trainable else "Non-trainable"]
        kind[0] += size_of(record)
        kind[1] += size_of(record) * _item_bytes(record.dtype)
    total = [sum(column) for column in zip(*sums.values(), strict=True)]
    return [f"{name} parameters: {n:,} ({_bytes(size)})" for name, (n, size) in {"Total": total, **sums}.items()]


def _item_bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _bytes(size: float) -> str:
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("the last unit has returned")
