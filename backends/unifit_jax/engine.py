"""The JAX engine: one jitted program a window. `lax.scan` over micro-batches inside `shard_map`, one psum after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unifit.contract import optimizers as rules
from unifit.contract.engine import ScalingState
from unifit.contract.objective import Scope
from unifit.contract.values import MicroBatch, Plan, Window
from unifit_jax import averages, optimizers, random, rounding, scaling
from unifit_jax.clipping import clip
from unifit_jax.distribution import DATA_AXIS, Devices
from unifit_jax.module import Module, adopt

# On CPUs XLA's collectives can starve when many steps wait in the queue: the queue is bounded there.
STEPS_IN_FLIGHT = 8


class State(NamedTuple):
    """What an update changes; donated to the program that makes the next one.

    `windows` counts them, skipped ones too: what the host counts as `Window.step` is here without a transfer a step.
    The last two are empty where the plan does not ask for them: nothing is traced or passed for them then.
    """

    params: list[Any]
    buffers: list[Any]
    slots: Any
    iterations: Any
    windows: Any
    scaling: Any = ()
    averages: Any = ()


class Placed(NamedTuple):
    """A window's arguments of the compiled program; `step` is on the host until the program takes its own count."""

    batch: MicroBatch
    live: Any
    step: Any


class Engine:
    """unifit.contract.engine.Engine on JAX: each process drives its local devices; arrays span those of all."""

    ENGINE_SUMS = ("updates", "empty", "grad_norm", "nonfinite")

    def __init__(self, model: Module, plan: Plan, devices: Devices):
        self.model, self.plan, self.devices = model, plan, devices
        self.placement = devices.placement
        self.store, self.paths = adopt(model)
        self._train_indices = [i for i, path in enumerate(self.paths) if path in plan.trainable]
        self._rest_indices = [i for i, path in enumerate(self.paths) if path not in plan.trainable]
        self._replicated = devices.sharding()
        self.store.hold(devices.replicated(self.store.values), spans_processes=self.placement.processes > 1)
        self._scaling: Any = ()
        self._averages: Any = ()
        if plan.optimizer is not None:
            decayed = [self.paths[i] in plan.decays for i in self._train_indices]
            self._optimizer = optimizers.make(plan.optimizer, decayed)
            # From this process' copies: an eager computation on arrays that span processes would need them all.
            # As float32, which slots are whatever the parameters are.
            params = [self.store.read(i).astype(jnp.float32) for i in self._train_indices]
            self._slots = devices.replicated(self._optimizer.init(params))
            if plan.skip_nonfinite:
                self._scaling = devices.replicated(scaling.start(plan.loss_scale, len(params)))
            if plan.ema is not None:
                self._averages = devices.replicated(averages.start(params))
        self._iterations = devices.replicated(np.zeros((), np.int32))
        self._windows, self._next_step = devices.replicated(np.zeros((), np.int32)), 0
        self._constants: dict[Any, Any] = {}
        self._steps = 0
        self.traces = 0
        self._compile()

    def _compile(self) -> None:
        window, rows = self.devices.sharding(None, DATA_AXIS), self.devices.sharding(DATA_AXIS)
        whole = self._replicated
        self._train = jax.jit(
            self._precisely(self._update),
            in_shardings=(whole, whole, Placed(window, whole, whole), whole),
            out_shardings=(whole, whole),
            donate_argnums=(0, 1),
            # XLA would drop casts to a half type and back, and with them the overflow that the loss scale has to see.
            compiler_options=None if self.plan.loss_scale is None else {"xla_allow_excess_precision": False},
        )
        self._probe = jax.jit(
            self._precisely(self._reduced), in_shardings=(whole, whole, Placed(window, whole, whole), whole)
        )
        self._evaluate = jax.jit(
            self._precisely(self._evaluation), in_shardings=(whole, rows, rows), out_shardings=rows, donate_argnums=(1,)
        )
        several = self.placement.processes > 1
        self._predict = jax.jit(
            self._precisely(self._prediction), in_shardings=(whole, rows), out_shardings=whole if several else rows
        )
        self._gather = jax.jit(lambda totals: totals, out_shardings=whole)

    def _precisely(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function to trace, with the plan's precision of float32 matrix products."""
        precision = self.plan.matmul_precision
        if precision is None:
            return function

        @wraps(function)
        def traced(*arguments: Any) -> Any:
            with jax.default_matmul_precision(precision):
                return function(*arguments)

        return traced

    # The border

    def zeros(self, evaluation: bool) -> Any:
        objective = self.plan.objective
        if not evaluation:
            return self.devices.replicated(np.zeros(objective.num_sums + len(self.ENGINE_SUMS), np.float32))
        # A row a device: they are summed when they are read, so that evaluating needs no collective.
        own = self.placement.devices // self.placement.processes
        return self.devices.rows(np.zeros((own, objective.num_evaluation_sums), np.float32))

    def totals_of(self, sums: np.ndarray) -> Any:
        return self.devices.replicated(np.asarray(sums, np.float32))

    def place(self, window: Window) -> Placed:
        batch = window.batch
        if not window.full:
            batch = self.devices.rows(batch, row_axis=1)
        else:
            # What is the same in each full window stays on the devices: every array that is passed has its cost.
            shape = batch.valid.shape
            valid = self._constant(shape, lambda: self.devices.spread(np.ones(shape, np.bool_), row_axis=1))
            batch = self.devices.rows(batch._replace(valid=None), row_axis=1)._replace(valid=valid)
        live = self._constant(window.live, lambda: self.devices.replicated(np.int32(window.live)))
        return Placed(batch, live, window.step)

    def _constant(self, key: Any, make: Callable[[], Any]) -> Any:
        """An array that is made once and stays on the devices."""
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = make()
        return found

    def train(self, totals: Any, placed: Placed) -> Any:
        if placed.step != self._next_step:
            self._windows = self.devices.replicated(np.int32(placed.step))
        self._next_step = placed.step + 1
        state, totals = self._train(*self.arguments(totals, placed))
        self.store.values = self._joined(state.params, state.buffers)
        self._slots, self._iterations, self._windows = state.slots, state.iterations, state.windows
        self._scaling, self._averages = state.scaling, state.averages
        return self._bounded(totals)

    def arguments(self, totals: Any, placed: Placed) -> tuple[State, Any, Placed, Any]:
        """What the program of an update is called with."""
        params, buffers = self._variables()
        state = State(params, buffers, self._slots, self._iterations, self._windows, self._scaling, self._averages)
        return state, totals, placed._replace(step=None), self._rates

    def probe(self, placed: Placed) -> None:
        placed = placed._replace(step=np.int32(placed.step))
        jax.block_until_ready(self._probe(*self._variables(), placed, self._scale(self._scaling)))

    def evaluate(self, totals: Any, batch: MicroBatch) -> Any:
        return self._bounded(self._evaluate(self.store.values, totals, self.devices.rows(batch)))

    def predict(self, batch: MicroBatch) -> Any:
        return jax.tree.map(np.asarray, self._predict(self.store.values, self.devices.rows(batch)))

    def read(self, totals: Any, evaluation: bool) -> np.ndarray:
        if not evaluation:
            return np.asarray(totals).astype(np.float64)
        if self.placement.processes > 1:
            totals = self._gather(totals)
        return np.asarray(totals).astype(np.float64).sum(axis=0)

    def iterations(self) -> int:
        return int(np.asarray(self._iterations))

    def set_rates(self, start: int, rates: np.ndarray) -> None:
        self._rates = self.devices.replicated((np.asarray(start, np.int32), np.asarray(rates, np.float32)))

    def read_slots(self) -> dict[str, np.ndarray]:
        named = {name: np.array(leaf) for name, leaf in self._named_slots()}  # copies: updates reuse the memory
        if self.plan.skip_nonfinite:
            named |= scaling.to_slots(self._scaling)
        if self.plan.ema is not None:
            named |= averages.to_slots(self._averages, self._trained_paths())
        return named | {"iterations": np.asarray(self.iterations(), np.int64)}

    def write_slots(self, slots: dict[str, np.ndarray]) -> None:
        named = {id(leaf): slots[name] for name, leaf in self._named_slots()}
        count = np.asarray(slots["iterations"], np.int32)
        paths = self._trained_paths()
        scaled = scaling.from_slots(slots, len(paths)) if self.plan.skip_nonfinite else ()
        averaged = averages.from_slots(slots, paths) if self.plan.ema is not None else ()
        leaves, structure = jax.tree.flatten(self._slots)
        leaves = [np.asarray(named.get(id(leaf), count), leaf.dtype) for leaf in leaves]
        self._slots = self.devices.replicated(jax.tree.unflatten(structure, leaves))
        self._iterations = self.devices.replicated(count)
        self._scaling, self._averages = self.devices.replicated(scaled), self.devices.replicated(averaged)

    def scaling(self) -> ScalingState:
        return scaling.read(self._scaling)

    def nonfinite(self) -> list[str]:
        flags = np.asarray(self._scaling.nonfinite)
        return [path for path, flag in zip(self._trained_paths(), flags, strict=True) if flag]

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        values = self.store.values
        kept = [values[i] for i in self._train_indices]
        for i, average in zip(self._train_indices, self._averages.values, strict=True):
            if values[i].dtype != average.dtype:  # from this process' copy: it computes alone
                average = self.devices.replicated(np.asarray(average).astype(values[i].dtype))
            values[i] = average
        try:
            yield
        finally:
            for i, value in zip(self._train_indices, kept, strict=True):
                self.store.values[i] = value

    def _variables(self) -> tuple[list[Any], list[Any]]:
        """The trained parameters, and all other variables."""
        values = self.store.values
        return [values[i] for i in self._train_indices], [values[i] for i in self._rest_indices]

    def _trained_paths(self) -> list[str]:
        return [self.paths[i] for i in self._train_indices]

    def _scale(self, state: Any) -> Any:
        """The loss scale, None without one."""
        return state.scale if self.plan.skip_nonfinite and self.plan.loss_scale is not None else None

    def _bounded(self, totals: Any) -> Any:
        """A step's totals; now and then it waits for them where the queue is to be bounded."""
        self._steps += 1
        if not self.devices.asynchronous and self._steps % STEPS_IN_FLIGHT == 0:
            jax.block_until_ready(totals)
        return totals

    # The programs

    def _joined(self, params: list[Any], buffers: list[Any]) -> list[Any]:
        values: list[Any] = [None] * len(self.paths)
        for indices, arrays in ((self._train_indices, params), (self._rest_indices, buffers)):
            for i, array in zip(indices, arrays, strict=True):
                values[i] = array
        return values

    def _sharded(self, function: Any, in_specs: Any, out_specs: Any) -> Any:
        mesh = self.devices.mesh
        if mesh is None:
            return function
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def _sum_over_devices(self, x: Any) -> Any:
        return x if self.devices.mesh is None else lax.psum(x, DATA_AXIS)

    def _scope(self, step: Any, micro: Any, totals: Any = None, training: bool = True) -> Scope:
        device = 0 if self.devices.mesh is None else lax.axis_index(DATA_AXIS)
        return Scope(
            stream=partial(random.stream, self.plan.seed, step, micro, device),
            sum_over_devices=self._sum_over_devices if training and self.devices.mesh is not None else None,
            pieces=self.plan.accumulation * self.placement.devices,
            totals=totals,
        )

    def _update(self, state: State, totals: Any, placed: Placed, rates: tuple[Any, Any]) -> tuple[State, Any]:
        self.traces += 1
        plan, scale = self.plan, self._scale(state.scaling)
        placed = placed._replace(step=state.windows)
        summed, sums, buffers = self._reduced(state.params, state.buffers, placed, scale)
        verdict = plan.objective.update(sums)
        factor = verdict.factor if scale is None else verdict.factor / scale
        summed = [g * factor for g in summed]
        applied, scaled = verdict.applied, state.scaling
        if plan.skip_nonfinite:
            are_finite = scaling.are_finite(summed)
            applied = applied & jnp.all(are_finite)
            scaled = scaling.advance(state.scaling, are_finite, verdict.applied, plan.loss_scale)
        summed, norm = clip(summed, plan)
        start, table = rates
        rate = table[jnp.clip(state.iterations - start, 0, table.shape[0] - 1)]
        params = [p.astype(jnp.float32) for p in state.params]
        params, slots = self._optimizer.update(summed, state.slots, params, rate)
        params = rounding.stored(params, state.params, plan.seed, state.iterations)
        average = averages.advance(state.averages, params, plan.ema) if plan.ema is not None else ()
        new = State(params, buffers, slots, state.iterations + 1, state.windows, state.scaling, average)
        # Selects, not products: what is skipped may be NaN.
        state = jax.tree.map(lambda a, b: jnp.where(applied, a, b), new, state)._replace(
            scaling=scaled, windows=state.windows + 1
        )
        sums = jnp.where(applied, sums, 0.0)
        own = [applied, ~verdict.applied, jnp.where(applied, norm, 0.0), verdict.applied & ~applied]
        return state, totals + jnp.concatenate([sums, jnp.stack([value.astype(jnp.float32) for value in own])])

    def _reduced(
        self, params: list[Any], buffers: list[Any], placed: Placed, scale: Any
    ) -> tuple[list[Any], Any, list[Any]]:
        """Gradients, times the loss scale, and sums of the window, summed over all devices; the buffers after it."""
        spec = jax.sharding.PartitionSpec
        batch = Placed(spec(None, DATA_AXIS), spec(), spec())
        in_specs = (spec(), spec(), batch, spec())
        return self._sharded(self._gradients, in_specs, spec())(params, buffers, placed, scale)

    def _gradients(
        self, params: list[Any], buffers: list[Any], placed: Placed, scale: Any
    ) -> tuple[list[Any], Any, list[Any]]:
        """Sums over the window, one device's share; summed over devices in the one reduction at the end."""
        counts = self._counts(params, buffers, placed) if self.plan.objective.counts_first else None
        numbers = jnp.arange(self.plan.accumulation, dtype=jnp.int32)

        def micro_batch(carry: Any, given: Any) -> tuple[Any, None]:
            gradients, sums, buffers = carry
            batch, number = given

            def loss(params: list[Any]) -> tuple[Any, Any]:
                values = self._joined(params, buffers)
                with self.store.bound(values):
                    scope = self._scope(placed.step, number, counts)
                    value, seed, sums = self.plan.objective.train(self.model, batch, scope)
                value = value.astype(jnp.float32) * (seed if scale is None else seed * scale)
                return value, (sums, [values[i] for i in self._rest_indices])

            (_, (more, after)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            gradient = [g.astype(jnp.float32) for g in gradient]
            if self.plan.accumulation == 1:
                return (gradient, more, after), None
            # An empty micro-batch at the end of a short window adds nothing, whatever layers made of no valid row.
            is_live = number < placed.live
            gradients = [a + jnp.where(is_live, g, 0.0) for a, g in zip(gradients, gradient, strict=True)]
            after = [jnp.where(is_live, new, old) for new, old in zip(after, buffers, strict=True)]
            return (gradients, sums + jnp.where(is_live, more, 0.0), after), None

        # float32 whatever the parameters are: many small gradients would vanish in a half-precision sum.
        start = ([jnp.zeros(p.shape, jnp.float32) for p in params], jnp.zeros(self.plan.objective.num_sums), buffers)
        (gradients, sums, buffers), _ = scan(micro_batch, start, (placed.batch, numbers))
        if self.devices.mesh is not None:
            gradients = [g.astype(self.plan.reduction_dtype) for g in gradients]
        gradients, sums = self._sum_over_devices((gradients, sums))
        return [g.astype(jnp.float32) for g in gradients], sums, buffers

    def _counts(self, params: list[Any], buffers: list[Any], placed: Placed) -> Any:
        def micro_batch(counts: Any, given: Any) -> tuple[Any, None]:
            batch, number = given
            with self.store.bound(self._joined(params, buffers)):
                scope = self._scope(placed.step, 0, training=False)
                more = self.plan.objective.count(self.model, batch, scope)
                return counts + jnp.where(number < placed.live, more, 0.0), None

        with self.store.bound(self._joined(params, buffers)):
            first = jax.tree.map(lambda leaf: leaf[0], placed.batch)
            scope = self._scope(placed.step, 0, training=False)
            shape = jax.eval_shape(lambda: self.plan.objective.count(self.model, first, scope)).shape
        counts, _ = scan(
            micro_batch, jnp.zeros(shape), (placed.batch, jnp.arange(self.plan.accumulation, dtype=jnp.int32))
        )
        return self._sum_over_devices(counts)

    def _evaluation(self, values: list[Any], totals: Any, batch: MicroBatch) -> Any:
        def added(values: list[Any], totals: Any, batch: MicroBatch) -> Any:
            with self.store.bound(list(values)):
                return totals + self.plan.objective.evaluate(self.model, batch, self._scope(0, 0, training=False))

        spec = jax.sharding.PartitionSpec
        rows = spec(DATA_AXIS)
        return self._sharded(added, (spec(), rows, rows), rows)(values, totals, batch)

    def _prediction(self, values: list[Any], batch: MicroBatch) -> Any:
        def outputs(values: list[Any], batch: MicroBatch) -> Any:
            with self.store.bound(list(values)):
                return self.plan.objective.predict(self.model, batch, self._scope(0, 0, training=False))

        spec = jax.sharding.PartitionSpec
        return self._sharded(outputs, (spec(), spec(DATA_AXIS)), spec(DATA_AXIS))(values, batch)

    def _named_slots(self) -> list[tuple[str, Any]]:
        """(canonical name, array): a rule's slots are lists over parameters, in the order of its `slot_names`."""
        rule, leaves = self.plan.optimizer, jax.tree.leaves(self._slots)
        if isinstance(rule, rules.Native):
            return [(f"native.{number}", leaf) for number, leaf in enumerate(leaves)]
        assert rule is not None, "an engine that only evaluates and predicts has no slots"
        arrays = [leaf for leaf in leaves if not (leaf.ndim == 0 and leaf.dtype == jnp.int32)]
        names = [f"{slot}.{path}" for slot in rule.slot_names for path in self._trained_paths()]
        return list(zip(names, arrays, strict=True))


def scan(body: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
    """`lax.scan`, without the loop for a single step."""
    if jax.tree.leaves(xs)[0].shape[0] > 1:
        return lax.scan(body, carry, xs)
    carry, _ = body(carry, jax.tree.map(lambda leaf: leaf[0], xs))
    return carry, None


def is_out_of_memory(error: BaseException) -> bool:
    """unifit.contract.engine.IsOutOfMemory: XLA says it in its message, whatever class it raises."""
    if isinstance(error, (RuntimeError, ValueError)):
        return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()
    return isinstance(error, MemoryError)
