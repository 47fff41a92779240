"""The TensorFlow engine: one graph a window. A loop over micro-batches outside strategy.run, one reduction after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from unifit.contract import tree
from unifit.contract.engine import ScalingState
from unifit.contract.objective import Scope
from unifit.contract.values import MicroBatch, Plan, Window
from unifit_tensorflow import random
from unifit_tensorflow.averages import Averages
from unifit_tensorflow.compiled import Compiled, Leaves, flattened
from unifit_tensorflow.distribution import Devices
from unifit_tensorflow.gradients import accumulator, clip, dense, finite
from unifit_tensorflow.loss_scaling import LossScaling
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


Reduce = Callable[[Any], Any]
"""Sums of a tensor or a list of tensors over devices."""


class Ends(NamedTuple):
    """What a window's passes come to, on each device.

    Attributes:
        reduce: Sums over devices: the window's gradients and sums, its counts, and what layers sum in their passes.
        finish: (reduced gradients and, last, sums; the buffers' values before the window) -> what the device returns.
    """

    reduce: Reduce
    finish: Callable[[list[Any], list[Any]], Any]


class Engine:
    """unifit.contract.engine.Engine on TensorFlow: a process drives all of its local devices.

    The loop lies outside `strategy.run` because layers may reduce over devices in their forward pass: a collective is
    legal in replica context only where no new graph is being defined. So each micro-batch is a `run` of its own that
    adds to accumulators, and a last `run` reduces and applies them.
    """

    ENGINE_SUMS = ("updates", "empty", "grad_norm", "nonfinite")

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
                decayed = [path in plan.decays for path in self._paths]
                self._optimizer = Optimizer(plan.optimizer, self._params, decayed, plan.seed)
            self._scaling = LossScaling(plan.loss_scale, len(self._params)) if plan.skip_nonfinite else None
            self._averages = None if plan.ema is None else Averages(plan.ema, self._params)
            if plan.accumulation > 1:
                self._sums = accumulator((plan.objective.num_sums,))
                self._gradients = [accumulator(variable.shape) for variable in self._params]
        self._live = [tf.constant(number) for number in range(plan.accumulation + 1)]
        if plan.matmul_precision is not None:  # of the process: TensorFlow has no smaller scope
            tf.config.experimental.enable_tensor_float_32_execution(plan.matmul_precision != "highest")
        self._counts_first = plan.objective.counts_first
        self.traces = 0
        self._train, self._evaluate = Compiled(self._update), Compiled(self._evaluation)
        self._predict, self._probe = Compiled(self._prediction), Compiled(self._trial)
        self._totals_of_processes = tf.function(self._gathered_totals, autograph=False)

    # The border

    def zeros(self, evaluation: bool) -> Any:
        objective = self.plan.objective
        return tf.zeros(objective.num_evaluation_sums if evaluation else objective.num_sums + len(self.ENGINE_SUMS))

    def totals_of(self, sums: np.ndarray) -> Any:
        return tf.constant(np.asarray(sums, np.float32))

    def place(self, window: Window) -> Placed:
        with self.devices.host():
            return Placed(flattened(window.batch), self._live[window.live], tf.constant(window.step, tf.int32))

    def train(self, totals: Any, placed: Placed) -> Any:
        return self._train(*placed, totals, *self._rates)

    def probe(self, placed: Placed) -> None:
        before = [variable.numpy() for variable in self._buffers]
        try:
            self._probe(*placed).numpy()
        except Exception:
            # It may have stopped between a layer's assignment and the end, which takes it back.
            for variable, value in zip(self._buffers, before, strict=True):
                variable.assign(value)
            raise

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
        if evaluation and self.placement.processes > 1:
            # In the order of the processes, in float64: the same sum everywhere.
            return self._totals_of_processes(totals).numpy().astype(np.float64).sum(axis=0)
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
        """(canonical name, variable) of every slot, and of what else the updates move."""
        slots = dict(self._optimizer.slots)
        if self._averages is not None:
            slots["ema"] = self._averages.values
        named = [
            (f"{slot}.{path}", variable)
            for slot, variables in slots.items()
            for path, variable in zip(self._paths, variables, strict=True)
        ]
        if self._averages is not None:
            named.append(("ema.updates", self._averages.updates))
        return named if self._scaling is None else named + self._scaling.named()

    def scaling(self) -> ScalingState:
        assert self._scaling is not None, "Plan.skip_nonfinite is not set"
        return self._scaling.read()[0]

    def nonfinite(self) -> list[str]:
        flags = [] if self._scaling is None else self._scaling.read()[1]
        return [path for path, flag in zip(self._paths, flags, strict=False) if flag]

    def averaged(self) -> AbstractContextManager[None]:
        assert self._averages is not None, "Plan.ema is not set"
        return self._averages.lent()

    # The functions: what is traced once, seen from outside the replicas

    def _update(self, batch: MicroBatch, live: Any, step: Any, totals: Any, start: Any, table: Any) -> Any:
        self.traces += 1
        rates = Rates(start, table)
        ends = Ends(self.devices.all_reduce, lambda summed, before: self._apply(summed, before, rates))
        added = self._window(batch, live, step, ends)
        return totals + self.devices.results(added)[0]

    def _trial(self, batch: MicroBatch, live: Any, step: Any) -> Any:
        """An update without its end: buffers get back what they had. The result only keeps TensorFlow from pruning.

        Between processes nothing is summed, since one may run out of memory where others do not; what a reduction packs
        its values into is made all the same.
        """

        def finish(summed: list[Any], before: list[Any]) -> Any:
            self._restore(before)
            return tf.reduce_sum(tf.concat([tf.reshape(value, [-1]) for value in summed], axis=0))

        reduce = self.devices.all_reduce if self.placement.processes == 1 else own_share
        return self.devices.results(self._window(batch, live, step, Ends(reduce, finish)))[0]

    def _window(self, batch: MicroBatch, live: Any, step: Any, ends: Ends) -> Any:
        """Forward and backward passes of a window, and on each device what `ends` make of their gradients and sums."""
        pieces = self._pieces(batch, axis=1)
        if self.plan.accumulation == 1:
            return self._window_at_once(pieces, step, ends)
        return self._window_in_pieces(pieces, live, step, ends)

    def _window_at_once(self, pieces: list[MicroBatch], step: Any, ends: Ends) -> Any:
        def replica() -> Any:
            batch = tree.map(lambda leaf: leaf[0], pieces[self.devices.replica()])
            before = [tf.identity(buffer) for buffer in self._buffers]
            counts = ends.reduce(self._count(batch, step)) if self._counts_first else None
            values = self._differentiated(batch, self._training_scope(step, 0, counts, ends.reduce))
            return ends.finish(self._reduced(values, ends.reduce), before)

        return self.devices.run(replica)

    def _window_in_pieces(self, pieces: list[MicroBatch], live: Any, step: Any, ends: Ends) -> Any:
        def piece(number: Any) -> MicroBatch:
            return tree.map(lambda leaf: leaf[number], pieces[self.devices.replica()])

        def begin() -> list[Any]:
            for variable in (self._sums, *self._gradients):
                variable.assign(tf.zeros(variable.shape, tf.float32))
            return [tf.identity(buffer) for buffer in self._buffers]

        def accumulate(number: Any) -> None:
            own_counts = None if counts is None else self._own(counts)
            scope = self._training_scope(step, number, own_counts, ends.reduce)
            values = self._differentiated(piece(number), scope)
            for variable, value in zip((*self._gradients, self._sums), values, strict=True):
                variable.assign_add(value)

        def end() -> Any:
            values = [variable.read_value() for variable in (*self._gradients, self._sums)]
            summed = self._reduced(values, ends.reduce)
            return ends.finish(summed, [self._own(value) for value in before])

        counts = self._counts(piece, live, step, ends) if self._counts_first else None
        before = self.devices.run(begin)
        tf.while_loop(
            lambda number: number < live,
            lambda number: (self.devices.run(partial(accumulate, number)), number + 1)[1:],
            (tf.constant(0),),
            parallel_iterations=1,
        )
        return self.devices.run(end)

    def _counts(self, piece: Any, live: Any, step: Any, ends: Ends) -> Any:
        """The window's counts on each device. The first micro-batch lies outside the loop, and gives the shape."""

        def count(number: Any) -> tuple[Any, ...]:
            return self.devices.results(self.devices.run(lambda: self._count(piece(number), step)))

        _, *counts = tf.while_loop(
            lambda number, *_: number < live,
            lambda number, *sums: (number + 1, *(a + b for a, b in zip(sums, count(number), strict=True))),
            (tf.constant(1), *count(0)),
            parallel_iterations=1,
        )
        return self.devices.run(lambda: ends.reduce(counts[self.devices.replica()]))

    def _evaluation(self, batch: MicroBatch, totals: Any) -> Any:
        pieces = self._pieces(batch, axis=0)

        def replica() -> Any:
            scope = self._scope(0, 0)
            return self.plan.objective.evaluate(self.model, pieces[self.devices.replica()], scope)

        return tf.add_n([totals, *self.devices.results(self.devices.run(replica))])

    def _prediction(self, batch: MicroBatch) -> Any:
        pieces, several = self._pieces(batch, axis=0), self.placement.processes > 1

        def replica() -> Any:
            scope = self._scope(0, 0)
            output = self.plan.objective.predict(self.model, pieces[self.devices.replica()], scope)
            return tree.pack(output, self.devices.all_gather(tree.leaves(output))) if several else output

        def joined(leaf: Any) -> Any:
            parts = self.devices.results(leaf)
            return parts[0] if several else tf.concat(parts, axis=0)

        return tree.map(joined, self.devices.run(replica))

    def _gathered_totals(self, totals: Any) -> Any:
        """Each process' totals, one a row. Every device brings its process' own; one of each process is taken."""
        rows = self.devices.run(lambda: self.devices.all_gather([totals[tf.newaxis]])[0])
        return self.devices.results(rows)[0][:: self.devices.local]

    def _pieces(self, batch: MicroBatch, axis: int) -> list[MicroBatch]:
        """The rows of each of this process' devices, in order: cut before they travel."""
        number = self.devices.local
        if number == 1:
            return [batch]
        cut = [tf.split(leaf, number, axis=axis) for leaf in tree.leaves(batch)]
        return [tree.pack(batch, [shares[device] for shares in cut]) for device in range(number)]

    def _own(self, value: Any) -> Any:
        """This device's share of what an earlier `run` returned."""
        return self.devices.results(value)[self.devices.replica()]

    # What runs on each device

    def _scope(self, step: Any, micro: Any) -> Scope:
        return Scope(
            stream=partial(random.stream, self.plan.seed, step, micro, self.devices.number()),
            pieces=self.plan.accumulation * self.placement.devices,
        )

    def _training_scope(self, step: Any, micro: Any, totals: Any, reduce: Reduce) -> Scope:
        scope = self._scope(step, micro)._replace(totals=totals)
        return scope._replace(sum_over_devices=reduce) if self.placement.devices > 1 else scope

    def _count(self, batch: MicroBatch, step: Any) -> Any:
        return self.plan.objective.count(self.model, batch, self._scope(step, 0))

    def _differentiated(self, batch: MicroBatch, scope: Scope) -> list[Any]:
        """One micro-batch's gradients, and last its sums."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in self._params:
                tape.watch(variable)
            value, seed, sums = self.plan.objective.train(self.model, batch, scope)
        # The gradients start at the seed, scaled: the loss itself need not be multiplied, and cannot overflow.
        scale = self._scaling.scale if self._scaling is not None and self._scaling.is_scaled else None
        start = tf.constant(seed, value.dtype) if scale is None else tf.identity(scale) * seed
        gradients = tape.gradient(value, self._params, start)
        return [*(dense(g, v.shape) for g, v in zip(gradients, self._params, strict=True)), sums]

    def _reduced(self, values: list[Any], reduce: Reduce) -> list[Any]:
        """The window's gradients and, last, its sums, summed over devices."""
        wire = tf.as_dtype(self.plan.reduction_dtype)
        if wire == tf.float32 or self.placement.devices == 1:
            summed: list[Any] = reduce(values)
            return summed
        *gradients, sums = values
        gradients = reduce([tf.cast(gradient, wire) for gradient in gradients])
        return [*(tf.cast(gradient, tf.float32) for gradient in gradients), reduce(sums)]

    def _apply(self, summed: list[Any], before: list[Any], rates: Rates) -> Any:
        """The update from the window's sums; returns what it adds to the totals. `before` is what a skip restores."""
        *gradients, sums = summed
        factor, has_elements = self.plan.objective.update(sums)
        applied, scaling = has_elements, self._scaling
        if scaling is not None:
            are_finite = finite(gradients)
            applied = tf.logical_and(has_elements, tf.reduce_all(are_finite))
            factor = factor / scaling.scale if scaling.is_scaled else factor
        gradients, norm = clip(gradients, factor, self.plan)

        def update() -> Any:
            last = tf.cast(tf.size(rates.table), tf.int64) - 1
            rate = rates.table[tf.clip_by_value(self._iterations - rates.start, 0, last)]
            self._optimizer.apply(gradients, rate, self._iterations)
            self._iterations.assign_add(1)
            if scaling is not None:
                scaling.succeed()
            if self._averages is not None:
                self._averages.follow()
            return tf.concat([sums, tf.stack([1.0, 0.0, norm, 0.0])], axis=0)

        def skip() -> Any:
            self._restore(before)
            if scaling is None:
                return tf.concat([tf.zeros_like(sums), [0.0, 1.0, 0.0, 0.0]], axis=0)
            scaling.fail(are_finite, has_elements)
            nonfinite = tf.cast(has_elements, tf.float32)
            return tf.concat([tf.zeros_like(sums), tf.stack([0.0, 1.0 - nonfinite, 0.0, nonfinite])], axis=0)

        return tf.cond(applied, update, skip)

    def _restore(self, before: list[Any]) -> None:
        """Gives buffers back what they had before the window."""
        for buffer, value in zip(self._buffers, before, strict=True):
            buffer.assign(value)


def own_share(values: Any) -> Any:
    """A reduction that leaves every device with its own."""
    return values


def is_out_of_memory(error: BaseException) -> bool:
    """unifit.contract.engine.IsOutOfMemory."""
    return isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError))
