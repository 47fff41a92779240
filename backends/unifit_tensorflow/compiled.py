"""A function over one host batch: traced once for each shape of it, and called the shortest way TensorFlow has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from unifit.contract import tree
from unifit.contract.tree import Tree


class Kind(NamedTuple):
    """What a trace of a batch depends on: the batch's tree, and (shape, dtype) of each leaf."""

    structure: Tree
    leaves: list[tuple[tuple[int, ...], np.dtype]]


class Leaves(NamedTuple):
    """A batch on its way into a compiled function: its leaves as tensors, and what is known of them on the host."""

    kind: Kind
    tensors: list[Any]


def flattened(batch: Tree) -> Leaves:
    """The host batch, copied to tensors."""
    arrays = tree.leaves(batch)
    kind = Kind(tree.structure(batch), [(array.shape, array.dtype) for array in arrays])
    return Leaves(kind, [tf.constant(array) for array in arrays])


class Compiled:
    """`function(batch, *others)`, which returns one float32 tensor, as a graph. The sizes of `others` may vary.

    A call of a tf.function of this size costs some 1,600 Python calls, more time than a small model's whole step: it
    works out anew which trace its arguments fit. Here the batch's kind says so, and the trace is called as the one
    operation that it is, on its arguments and captures. Where there are GPUs, on which that was never tried, the trace
    is called by its own `__call__`.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self._traces: list[tuple[Kind, Any]] = []
        self._direct = not tf.config.list_physical_devices("GPU")

    def __call__(self, batch: Leaves, *others: Any) -> Any:
        trace = self.trace(batch, *others)
        if not self._direct:
            return trace(*batch.tensors, *others)
        # Captures are asked for anew: those of collectives are values of the time of the call.
        arguments = [*batch.tensors, *others, *trace.captured_inputs]
        return tf.raw_ops.StatefulPartitionedCall(args=arguments, Tout=[tf.float32], f=trace)[0]

    def trace(self, batch: Leaves, *others: Any) -> Any:
        """The concrete function for batches of this kind."""
        for kind, trace in self._traces:
            if kind == batch.kind:
                return trace
        structure, count = batch.kind.structure, len(batch.tensors)

        def flat(*tensors: Any) -> Any:
            return self.function(tree.pack(structure, list(tensors[:count])), *tensors[count:])

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in batch.tensors]
        specs += [tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype) for tensor in others]
        trace = tf.function(flat, autograph=False).get_concrete_function(*specs)
        self._traces.append((batch.kind, trace))
        return trace
