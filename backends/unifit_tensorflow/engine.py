"""The TensorFlow engine: one graph a window. A loop over micro-batches outside strategy.run, one reduction after it."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from unifit.contract import tree
from unifit.contract.objective import Scope
from unifit.contract.values import MicroBatch, Plan, Window
from unifit_tensorflow import random
from unifit_tensorflow.compiled import Compiled, Leaves, flattened
from unifit_tensorflow.distribution import Devices
from unifit_tensorflow.module import Module, adopt
from unifit_tensorflow.optimizers import Optimizer


class Placed(NamedTuple):
    """A window's arguments of the compiled function."""

    batch: Leaves
    live: Any
    step: Any


class Rates(NamedTuple):
    """Learning rates of updates `start`, `start + 1`, ..."""

    start: Any
    table: Any


class Engine:
    """unifit.contract.engine.Engine on TensorFlow: one process drives all local devices.

    The loop lies outside `strategy.run` because layers may reduce over devices in their forward pass: a collective is
    legal in replica context only where no new graph is being defined. So each micro-batch is a `run` of its own that
    adds to accumulators, and a last `run` reduces and applies them.
    """

    ENGINE_SUMS = ("updates", "empty", "grad_norm")

    def __init__(self, model: Module, plan: Plan, devices: Devices):
        self.model, self.plan, self.devices = model, plan, devices
        self.placement = devices.placement
        variables = adopt(model, devices)
        self._paths = [path for path in variables if path in plan.trainable]
        self._params = [variables[path] for path in self._paths]
        self._buffers = [variable for variable in variables.values() if not variable.trainable]
        with devices.scope():
            self._iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
            if plan.optimizer is not None:
                self._optimizer = Optimizer(plan.optimizer, self._params, [path in plan.decays for path in self._paths])
            if plan.accumulation > 1:
                self._sums = accumulator((plan.objective.num_sums,))
                self._gradients = [accumulator(variable.shape) for variable in self._params]
        self._live = [tf.constant(number) for number in range(plan.accumulation + 1)]
        self._counts_first = plan.objective.counts_first
        self.traces = 0
        self._train, self._evaluate = Compiled(self._update), Compiled(self._evaluation)
        self._predict = Compiled(self._prediction)

    # The border

    def zeros(self, evaluation: bool) -> Any:
        objective = self.plan.objective
        return tf.zeros(objective.num_evaluation_sums if evaluation else objective.num_sums + len(self.ENGINE_SUMS))

    def place(self, window: Window) -> Placed:
        with self.devices.host():
            return Placed(flattened(window.batch), self._live[window.live], tf.constant(window.step, tf.int32))

    def train(self, totals: Any, placed: Placed) -> Any:
        return self._train(*placed, totals, *self._rates)

    def evaluate(self, totals: Any, batch: MicroBatch) -> Any:
        with self.devices.host():
            leaves = flattened(batch)
        return self._evaluate(leaves, totals)

    def predict(self, batch: MicroBatch) -> Any:
        with self.devices.host():
            leaves = flattened(batch)
        # The trace is asked for by name: a tf.function warns of retracing where data of many sizes is predicted.
        return tree.map(lambda leaf: leaf.numpy(), self._predict.trace(leaves)(*leaves.tensors))

    def read(self, totals: Any, evaluation: bool) -> np.ndarray:
        return totals.numpy().astype(np.float64)

    def iterations(self) -> int:
        return int(self._iterations.numpy())

    def set_rates(self, start: int, rates: np.ndarray) -> None:
        self._rates = Rates(tf.constant(start, tf.int64), tf.constant(rates, tf.float32))

    def read_slots(self) -> dict[str, np.ndarray]:
        named = {name: np.array(variable.numpy()) for name, variable in self._named_slots()}
        return named | {"iterations": np.asarray(self.iterations(), np.int64)}

    def write_slots(self, slots: dict[str, np.ndarray]) -> None:
        values = [(variable, slots[name]) for name, variable in self._named_slots()]
        for variable, value in [*values, (self._iterations, slots["iterations"])]:
            variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))

    def _named_slots(self) -> list[tuple[str, tf.Variable]]:
        """(canonical name, variable) of every slot."""
        return [
            (f"{slot}.{path}", variable)
            for slot, variables in self._optimizer.slots.items()
            for path, variable in zip(self._paths, variables, strict=True)
        ]

    # The functions: what is traced once, seen from outside the replicas

    def _update(self, batch: MicroBatch, live: Any, step: Any, totals: Any, start: Any, table: Any) -> Any:
        self.traces += 1
        pieces, rates = self._pieces(batch, axis=1), Rates(start, table)
        if self.plan.accumulation == 1:
            added = self._update_at_once(pieces, step, rates)
        else:
            added = self._update_in_pieces(pieces, live, step, rates)
        return totals + self.devices.results(added)[0]

    def _update_at_once(self, pieces: list[MicroBatch], step: Any, rates: Rates) -> Any:
        def replica() -> Any:
            batch = tree.map(lambda leaf: leaf[0], pieces[self.devices.replica()])
            before = [tf.identity(buffer) for buffer in self._buffers]
            counts = self.devices.all_reduce(self._count(batch, step)) if self._counts_first else None
            summed = self.devices.all_reduce(self._differentiated(batch, self._scope(step, 0, counts)))
            return self._apply(summed, before, rates)

        return self.devices.run(replica)

    def _update_in_pieces(self, pieces: list[MicroBatch], live: Any, step: Any, rates: Rates) -> Any:
        def piece(number: Any) -> MicroBatch:
            return tree.map(lambda leaf: leaf[number], pieces[self.devices.replica()])

        def begin() -> list[Any]:
            for variable in (self._sums, *self._gradients):
                variable.assign(tf.zeros(variable.shape))
            return [tf.identity(buffer) for buffer in self._buffers]

        def accumulate(number: Any) -> None:
            scope = self._scope(step, number, None if counts is None else self._own(counts))
            values = self._differentiated(piece(number), scope)
            for variable, value in zip((*self._gradients, self._sums), values, strict=True):
                variable.assign_add(value)

        def finish() -> Any:
            summed = self.devices.all_reduce([variable.read_value() for variable in (*self._gradients, self._sums)])
            return self._apply(summed, [self._own(value) for value in before], rates)

        counts = self._counts(piece, live, step) if self._counts_first else None
        before = self.devices.run(begin)
        tf.while_loop(
            lambda number: number < live,
            lambda number: (self.devices.run(partial(accumulate, number)), number + 1)[1:],
            (tf.constant(0),),
            parallel_iterations=1,
        )
        return self.devices.run(finish)

    def _counts(self, piece: Any, live: Any, step: Any) -> Any:
        """The window's counts on each device. The first micro-batch lies outside the loop, and gives the shape."""

        def count(number: Any) -> tuple[Any, ...]:
            return self.devices.results(self.devices.run(lambda: self._count(piece(number), step)))

        _, *counts = tf.while_loop(
            lambda number, *_: number < live,
            lambda number, *sums: (number + 1, *(a + b for a, b in zip(sums, count(number), strict=True))),
            (tf.constant(1), *count(0)),
            parallel_iterations=1,
        )
        return self.devices.run(lambda: self.devices.all_reduce(counts[self.devices.replica()]))

    def _evaluation(self, batch: MicroBatch, totals: Any) -> Any:
        pieces = self._pieces(batch, axis=0)

        def replica() -> Any:
            scope = self._scope(0, 0, training=False)
            return self.plan.objective.evaluate(self.model, pieces[self.devices.replica()], scope)

        return tf.add_n([totals, *self.devices.results(self.devices.run(replica))])

    def _prediction(self, batch: MicroBatch) -> Any:
        pieces = self._pieces(batch, axis=0)

        def replica() -> Any:
            scope = self._scope(0, 0, training=False)
            return self.plan.objective.predict(self.model, pieces[self.devices.replica()], scope)

        return tree.map(lambda leaf: tf.concat(self.devices.results(leaf), axis=0), self.devices.run(replica))

    def _pieces(self, batch: MicroBatch, axis: int) -> list[MicroBatch]:
        """Each device's rows, in order: cut before they travel."""
        number = self.placement.devices
        if number == 1:
            return [batch]
        cut = [tf.split(leaf, number, axis=axis) for leaf in tree.leaves(batch)]
        return [tree.pack(batch, [shares[device] for shares in cut]) for device in range(number)]

    def _own(self, value: Any) -> Any:
        """This device's share of what an earlier `run` returned."""
        return self.devices.results(value)[self.devices.replica()]

    # What runs on each device

    def _scope(self, step: Any, micro: Any, totals: Any = None, training: bool = True) -> Scope:
        return Scope(
            stream=partial(random.stream, self.plan.seed, step, micro, self.devices.replica()),
            sum_over_devices=self.devices.all_reduce if training and self.placement.devices > 1 else None,
            pieces=self.plan.accumulation * self.placement.devices,
            totals=totals,
        )

    def _count(self, batch: MicroBatch, step: Any) -> Any:
        return self.plan.objective.count(self.model, batch, self._scope(step, 0, training=False))

    def _differentiated(self, batch: MicroBatch, scope: Scope) -> list[Any]:
        """One micro-batch's gradients, and last its sums."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in self._params:
                tape.watch(variable)
            value, sums = self.plan.objective.train(self.model, batch, scope)
        gradients = tape.gradient(value, self._params)
        return [*(dense(g, v.shape) for g, v in zip(gradients, self._params, strict=True)), sums]

    def _apply(self, summed: list[Any], before: list[Any], rates: Rates) -> Any:
        """The update from the window's sums; returns what it adds to the totals. `before` is what a skip restores."""
        *gradients, sums = summed
        verdict = self.plan.objective.update(sums)
        gradients, norm = clip(gradients, verdict.factor, self.plan)

        def update() -> Any:
            last = tf.cast(tf.size(rates.table), tf.int64) - 1
            rate = rates.table[tf.clip_by_value(self._iterations - rates.start, 0, last)]
            self._optimizer.apply(gradients, rate, self._iterations)
            self._iterations.assign_add(1)
            return tf.concat([sums, tf.stack([1.0, 0.0, norm])], axis=0)

        def skip() -> Any:
            for buffer, value in zip(self._buffers, before, strict=True):
                buffer.assign(value)
            return tf.concat([tf.zeros_like(sums), [0.0, 1.0, 0.0]], axis=0)

        return tf.cond(verdict.applied, update, skip)


def accumulator(shape: Any) -> tf.Variable:
    """A float32 variable with a value of its own on each device."""
    return tf.Variable(
        tf.zeros(shape),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def dense(gradient: Any, shape: Any) -> Any:
    """The gradient as a tensor: zeros where there is none, rows summed where an embedding gave (indices, rows)."""
    if gradient is None:
        return tf.zeros(shape)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
    return gradient


def clip(gradients: list[Any], factor: Any, plan: Plan) -> tuple[list[Any], Any]:
    """Gradients times `factor`, clipped by global norm, by min(1, c / norm), or by value.

    Returns the norm before clipping too, 0 when it is not needed.
    """
    norm = tf.zeros(())
    if plan.clip_norm is not None:
        norm = tf.sqrt(2.0 * sum((tf.nn.l2_loss(g) for g in gradients), tf.zeros(()))) * factor
        factor = factor * tf.minimum(1.0, plan.clip_norm / norm)
    gradients = [g * factor for g in gradients]
    if plan.clip_value is not None:
        gradients = [tf.clip_by_value(g, -plan.clip_value, plan.clip_value) for g in gradients]
    return gradients, norm
