"""Shape inference: a forward pass under the backend's abstract evaluation; unbuilt layers record their weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import unifit.ops as ops
from unifit.backend import backend
from unifit.context import CallContext
from unifit.contract import tree
from unifit.contract.values import ArraySpec
from unifit.weights import layers_of, records_of


def spec_of(array: Any) -> ArraySpec:
    """Shape and dtype of a host or device array, with the dtype that placement gives it."""
    dtype = array.dtype.name if isinstance(array, np.ndarray) else ops.dtype(array)
    return ArraySpec(tuple(array.shape), {"float64": "float32", "int64": "int32"}.get(dtype, dtype))


def infer(
    root: Any,
    function: Callable[..., Any],
    *specs: Any,
    valid: Any = None,
    training: bool = False,
    compute: str | None = None,
) -> Any:
    """Runs `function(*arrays)` on `root`'s layers abstractly; trees of ArraySpec in, a tree of ArraySpec out.

    Unbuilt layers are built by the way. `valid` is the ArraySpec of the rows' validity, or None; `compute` the dtype in
    which layers compute, or None for float32.
    """

    def body(rows: Any, *arrays: Any) -> Any:
        context = CallContext(
            training=training, stream=lambda: backend.random.stream(0), valid=rows, abstract=True, compute=compute
        )
        with placeholders(root, compute), context.open():
            return function(*arrays)

    return backend.module.abstract_call(body, valid, *specs)


@contextlib.contextmanager
def placeholders(root: Any, compute: str | None = None) -> Iterator[None]:
    """Shadows every weight below `root` by abstract zeros, and those that are recorded meanwhile.

    When the pass fails, nothing has been built: it can be tried again on other inputs.
    """
    unbuilt = [module for _, module in layers_of(root) if not module.built]
    failed = True
    shadows: dict[tuple[int, str], tuple[Any, str, Any]] = {}
    for _, owner, name, record in records_of(root):
        shadows[id(owner), name] = (owner, name, owner.__dict__.get(name))
        owner.__dict__[name] = ops.zeros(record.shape, record.read_dtype(owner.reads_in(compute)))
    try:
        yield
        failed = False
    finally:
        for owner, name, kept in shadows.values():
            if kept is None:
                owner.__dict__.pop(name, None)
            else:
                owner.__dict__[name] = kept
        for _, owner, name, record in list(records_of(root)):
            if (id(owner), name) in shadows:
                continue
            owner.__dict__[name] = record
            if failed:
                del owner.__dict__[name], owner._records[name]
        for module in unbuilt if failed else ():
            module.__dict__["built"] = False


def shapes(specs: Any) -> Any:
    """The shapes of a tree of arrays or specs; a lone array gives a lone tuple."""
    return tree.map(lambda leaf: tuple(leaf.shape), specs)
