"""The JAX engine: one jitted program a window. `lax.scan` over micro-batches inside `shard_map`, one psum after it."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unifit.contract import optimizers as rules
from unifit.contract.objective import Scope
from unifit.contract.values import MicroBatch, Plan, Window
from unifit_jax import optimizers, random
from unifit_jax.distribution import DATA_AXIS, Devices
from unifit_jax.module import Module, adopt

# On CPUs XLA's collectives can starve when many steps wait in the queue: the queue is bounded there.
STEPS_IN_FLIGHT = 8


class State(NamedTuple):
    """What an update changes; donated to the program that makes the next one."""

    params: list[Any]
    buffers: list[Any]
    slots: Any
    iterations: Any


class Placed(NamedTuple):
    """A window's arguments of the compiled program."""

    batch: MicroBatch
    live: Any
    step: Any


class Engine:
    """unifit.contract.engine.Engine on JAX: each process drives its local devices; arrays span those of all."""

    ENGINE_SUMS = ("updates", "empty", "grad_norm")

    def __init__(self, model: Module, plan: Plan, devices: Devices):
        self.model, self.plan, self.devices = model, plan, devices
        self.placement = devices.placement
        self.store, self.paths = adopt(model)
        self._train_indices = [i for i, path in enumerate(self.paths) if path in plan.trainable]
        self._rest_indices = [i for i, path in enumerate(self.paths) if path not in plan.trainable]
        self._replicated = devices.sharding()
        self.store.hold(devices.replicated(self.store.values), spans_processes=self.placement.processes > 1)
        if plan.optimizer is not None:
            decayed = [self.paths[i] in plan.decays for i in self._train_indices]
            self._optimizer = optimizers.make(plan.optimizer, decayed)
            # From this process' copies: an eager computation on arrays that span processes would need them all.
            params = [self.store.read(i) for i in self._train_indices]
            self._slots = devices.replicated(self._optimizer.init(params))
        self._iterations = devices.replicated(np.zeros((), np.int32))
        self._steps = 0
        self.traces = 0
        self._compile()

    def _compile(self) -> None:
        window, rows = self.devices.sharding(None, DATA_AXIS), self.devices.sharding(DATA_AXIS)
        whole = self._replicated
        self._train = jax.jit(
            self._update,
            in_shardings=(whole, whole, Placed(window, whole, whole), whole),
            out_shardings=(whole, whole),
            donate_argnums=(0, 1),
        )
        self._probe = jax.jit(self._reduced, in_shardings=(whole, whole, Placed(window, whole, whole)))
        self._evaluate = jax.jit(
            self._evaluation, in_shardings=(whole, rows, rows), out_shardings=rows, donate_argnums=(1,)
        )
        several = self.placement.processes > 1
        self._predict = jax.jit(self._prediction, in_shardings=(whole, rows), out_shardings=whole if several else rows)
        self._gather = jax.jit(lambda totals: totals, out_shardings=whole)

    # The border

    def zeros(self, evaluation: bool) -> Any:
        objective = self.plan.objective
        if not evaluation:
            return self.devices.replicated(np.zeros(objective.num_sums + len(self.ENGINE_SUMS), np.float32))
        # A row a device: they are summed when they are read, so that evaluating needs no collective.
        own = self.placement.devices // self.placement.processes
        return self.devices.rows(np.zeros((own, objective.num_evaluation_sums), np.float32))

    def place(self, window: Window) -> Placed:
        return Placed(self.devices.rows(window.batch, row_axis=1), np.int32(window.live), np.int32(window.step))

    def train(self, totals: Any, placed: Placed) -> Any:
        params, buffers = self._variables()
        state = State(params, buffers, self._slots, self._iterations)
        state, totals = self._train(state, totals, placed, self._rates)
        self.store.values = self._joined(state.params, state.buffers)
        self._slots, self._iterations = state.slots, state.iterations
        return self._bounded(totals)

    def probe(self, placed: Placed) -> None:
        jax.block_until_ready(self._probe(*self._variables(), placed))

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
        named = {name: np.asarray(leaf) for name, leaf in self._named_slots()}
        return named | {"iterations": np.asarray(self.iterations(), np.int64)}

    def write_slots(self, slots: dict[str, np.ndarray]) -> None:
        named = {id(leaf): slots[name] for name, leaf in self._named_slots()}
        count = np.asarray(slots["iterations"], np.int32)
        leaves, structure = jax.tree.flatten(self._slots)
        leaves = [np.asarray(named.get(id(leaf), count), leaf.dtype) for leaf in leaves]
        self._slots = self.devices.replicated(jax.tree.unflatten(structure, leaves))
        self._iterations = self.devices.replicated(count)

    def _variables(self) -> tuple[list[Any], list[Any]]:
        """The trained parameters, and all other variables."""
        values = self.store.values
        return [values[i] for i in self._train_indices], [values[i] for i in self._rest_indices]

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
        summed, sums, buffers = self._reduced(state.params, state.buffers, placed)
        verdict = self.plan.objective.update(sums)
        summed = [g * verdict.factor for g in summed]
        summed, norm = clip(summed, self.plan)
        start, table = rates
        rate = table[jnp.clip(state.iterations - start, 0, table.shape[0] - 1)]
        params, slots = self._optimizer.update(summed, state.slots, state.params, rate)
        new = State(params, buffers, slots, state.iterations + 1)
        state = jax.tree.map(lambda a, b: jnp.where(verdict.applied, a, b), new, state)
        applied = verdict.applied.astype(jnp.float32)
        sums = jnp.where(verdict.applied, sums, 0.0)
        own = jnp.stack([applied, 1.0 - applied, norm * applied])
        return state, totals + jnp.concatenate([sums, own])

    def _reduced(self, params: list[Any], buffers: list[Any], placed: Placed) -> tuple[list[Any], Any, list[Any]]:
        """Gradients and sums of the window, summed over all devices; the buffers after it."""
        spec = jax.sharding.PartitionSpec
        batch = Placed(spec(None, DATA_AXIS), spec(), spec())
        return self._sharded(self._gradients, (spec(), spec(), batch), spec())(params, buffers, placed)

    def _gradients(self, params: list[Any], buffers: list[Any], placed: Placed) -> tuple[list[Any], Any, list[Any]]:
        """Sums over the window, one device's share; summed over devices in the one reduction at the end."""
        counts = self._counts(params, buffers, placed) if self.plan.objective.counts_first else None
        numbers = jnp.arange(self.plan.accumulation, dtype=jnp.int32)

        def micro_batch(carry: Any, given: Any) -> tuple[Any, None]:
            gradients, sums, buffers = carry
            batch, number = given

            def loss(params: list[Any]) -> tuple[Any, Any]:
                values = self._joined(params, buffers)
                with self.store.bound(values):
                    value, sums = self.plan.objective.train(self.model, batch, self._scope(placed.step, number, counts))
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
        gradients, sums = self._sum_over_devices((gradients, sums))
        return gradients, sums, buffers

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
        paths = [self.paths[i] for i in self._train_indices]
        names = [f"{slot}.{path}" for slot in rule.slot_names for path in paths]
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


def clip(gradients: list[Any], plan: Plan) -> tuple[list[Any], Any]:
    """By value, or by global norm with factor min(1, c / norm); returns the norm before clipping, 0 if not needed."""
    norm = jnp.zeros(())
    if plan.clip_norm is not None:
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in gradients))
        gradients = [g * jnp.minimum(1.0, plan.clip_norm / norm) for g in gradients]
    if plan.clip_value is not None:
        gradients = [jnp.clip(g, -plan.clip_value, plan.clip_value) for g in gradients]
    return gradients, norm
