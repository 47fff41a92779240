"""The loop that one writes by hand in JAX: one jitted update with donated state, optax, lax.scan over accumulation."""

from __future__ import annotations

import os
from functools import partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import workloads as sizes
from benchmarks.loaders import Batches
from benchmarks.workloads import Setting, Trained

AXIS = "data"

IN_FLIGHT = 8
"""Steps between two waits on several CPU devices, whose collectives starve where many steps queue."""


def mlp(w: Any, x: Any, statistics: Any) -> tuple[Any, dict]:
    return _dense(w, "1", jax.nn.relu(_dense(w, "0", x))), {}


def cnn(w: Any, x: Any, statistics: Any) -> tuple[Any, dict]:
    place, moved = 0, {}
    for _ in sizes.CNN_WIDTHS:
        kernel = w[f"{place}.kernel"]
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, variance = statistics(x)
        for name, value in (("moving_mean", mean), ("moving_variance", variance)):
            moved[f"{place + 1}.{name}"] = value
        scale = w[f"{place + 1}.gamma"].astype(jnp.float32) * lax.rsqrt(variance + sizes.NORM_EPSILON["cnn"])
        offset = w[f"{place + 1}.beta"] - mean * scale
        x = jax.nn.relu(x * scale.astype(x.dtype) + offset.astype(x.dtype))
        x = lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        place += sizes.CNN_LAYERS_OF_BLOCK
    return _dense(w, str(place + 1), x.mean((1, 2))), moved


def gpt(w: Any, x: Any, statistics: Any) -> tuple[Any, dict]:
    x = w["embed.embeddings"][x] + w["positions.embeddings"]
    for block in (f"blocks.{number}" for number in range(sizes.GPT_DEPTH)):
        h = _norm(w, f"{block}.norm_attention", x)
        kernels = [w[f"{block}.attention.{name}.kernel"] for name in ("query", "key", "value")]
        q, k, v = (jnp.einsum("btm,mhd->bthd", h, kernel) for kernel in kernels)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("bthd,hdm->btm", y, w[f"{block}.attention.attention_output.kernel"])
        h = jax.nn.gelu(_dense(w, f"{block}.up", _norm(w, f"{block}.norm_feed", x)), approximate=False)
        x = x + _dense(w, f"{block}.down", h)
    return _dense(w, "head", _norm(w, "norm", x)), {}


def lstm(w: Any, x: Any, statistics: Any) -> tuple[Any, dict]:
    recurrent = w["0.recurrent_kernel"]

    def cell(states: Any, projected: Any) -> tuple[Any, None]:
        h, c = states
        i, f, g, o = jnp.split(projected + h @ recurrent, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    start = jnp.zeros((x.shape[0], sizes.LSTM_UNITS), x.dtype)
    (h, _), _ = lax.scan(cell, (start, start), jnp.swapaxes(x @ w["0.kernel"] + w["0.bias"], 0, 1))
    return _dense(w, "1", h), {}


def _dense(w: Any, path: str, x: Any) -> Any:
    return x @ w[f"{path}.kernel"] + w[f"{path}.bias"]


def _norm(w: Any, path: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scale = lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + sizes.NORM_EPSILON["gpt"])
    return (centred * scale).astype(x.dtype) * w[f"{path}.gamma"] + w[f"{path}.beta"]


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "lstm": lstm}


class NativeJax:
    """An epoch of updates; see native_torch.NativeTorch for the arguments."""

    name = "native"

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray):
        self.setting, self.x, self.y = setting, x, y
        buffers = {path: value for path, value in weights.items() if "moving_" in path}
        params = {path: value for path, value in weights.items() if path not in buffers}
        self.optimizer = optax.adamw(
            sizes.LEARNING_RATE, sizes.BETA_1, sizes.BETA_2, sizes.EPSILON, weight_decay=sizes.WEIGHT_DECAY
        )
        # Copies: donated arrays must share their memory with nobody.
        params, buffers = jax.tree.map(lambda value: jnp.array(value, copy=True), (params, buffers))
        self.state = (params, buffers, self.optimizer.init(params), jnp.zeros(2))
        update, in_shardings = self._update, None
        if setting.devices > 1:
            mesh = Mesh(np.array(jax.devices()[: setting.devices]), (AXIS,))
            whole, rows = PartitionSpec(), PartitionSpec(None, AXIS)
            update = jax.shard_map(update, mesh=mesh, in_specs=(whole, rows, rows), out_specs=whole, check_vma=False)
            self.state = jax.device_put(self.state, NamedSharding(mesh, whole))
            in_shardings = (NamedSharding(mesh, whole), NamedSharding(mesh, rows), NamedSharding(mesh, rows))
        placed = {} if in_shardings is None else {"in_shardings": in_shardings}
        self.step = jax.jit(update, donate_argnums=0, **placed)

    def train(self, first: int, steps: int) -> Trained:
        began = perf_counter()
        params, buffers, slots, totals = self.state
        state = (params, buffers, slots, jnp.zeros_like(totals))
        for number, (x, y) in enumerate(self._windows(first, steps)):
            state = self.step(state, x, y)  # NumPy arrays: faster than jax.device_put before the call
            if self.setting.devices > 1 and number % IN_FLIGHT == IN_FLIGHT - 1:
                state[-1].block_until_ready()
        loss, hits = np.asarray(state[-1], np.float64).tolist()
        self.state = state
        batches = steps * self.setting.accumulation
        labels = batches * self.setting.work.batch_size * int(np.prod(self.setting.work.labels, dtype=int))
        return Trained(loss / batches, hits / labels, perf_counter() - began)

    def _windows(self, first: int, steps: int) -> Any:
        """(accumulation, batch, ...) arrays: views where the rows lie in memory."""
        k, batch = self.setting.accumulation, self.setting.work.batch_size
        if self.setting.data == "loader":
            rows, pending = self.setting.rows_of(first, steps), []
            for pair in Batches(self.x[rows], self.y[rows], batch):
                pending.append(pair)
                if len(pending) == k:
                    yield (np.stack(x) for x in zip(*pending, strict=True)) if k > 1 else (x[None] for x in pair)
                    pending = []
            return
        for step in range(first, first + steps):
            rows = self.setting.rows_of(step, 1)
            yield (array[rows].reshape(k, batch, *array.shape[1:]) for array in (self.x, self.y))

    def _update(self, state: Any, x: Any, y: Any) -> Any:
        params, buffers, slots, totals = state
        several = self.setting.devices > 1

        def micro_batch(buffers: Any, x: Any, y: Any) -> Any:
            (_, (moved, sums)), gradients = jax.value_and_grad(self._loss, has_aux=True)(params, x, y)
            buffers = {k: v + (1 - sizes.BATCH_NORM_MOMENTUM) * (moved[k] - v) for k, v in buffers.items()}
            return gradients, buffers, sums

        if self.setting.accumulation == 1:
            gradients, buffers, sums = micro_batch(buffers, x[0], y[0])
        else:

            def body(carry: Any, batch: Any) -> tuple[Any, None]:
                gradients, buffers, sums = carry
                more, buffers, more_sums = micro_batch(buffers, *batch)
                return (jax.tree.map(jnp.add, gradients, more), buffers, sums + more_sums), None

            start = (jax.tree.map(jnp.zeros_like, params), buffers, jnp.zeros_like(totals))
            (gradients, buffers, sums), _ = lax.scan(body, start, (x, y))
            gradients = jax.tree.map(lambda g: g / self.setting.accumulation, gradients)
        if several:
            gradients, sums = lax.pmean(gradients, AXIS), lax.psum(sums, AXIS)
            sums = sums * jnp.array([1 / self.setting.devices, 1.0])
        updates, slots = self.optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), buffers, slots, totals + sums

    def _loss(self, params: Any, x: Any, y: Any) -> Any:
        if self.setting.half:
            cast = partial(jnp.asarray, dtype=jnp.bfloat16)
            params = jax.tree.map(cast, params)
            x = cast(x) if x.dtype == jnp.float32 else x
        logits, moved = MODELS[self.setting.workload](params, x, self._statistics)
        logits = logits.astype(jnp.float32)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        hits = (logits.argmax(-1) == y).sum().astype(jnp.float32)
        return loss, (lax.stop_gradient(moved), jnp.stack([loss, hits]))

    def _statistics(self, x: Any) -> tuple[Any, Any]:
        """Mean and variance of each channel, over the rows of all devices."""
        x = x.astype(jnp.float32)
        mean, square = x.mean((0, 1, 2)), jnp.square(x).mean((0, 1, 2))
        if self.setting.devices > 1:
            mean, square = lax.pmean((mean, square), AXIS)
        return mean, square - jnp.square(mean)


def configure(devices: int) -> None:
    """Virtual CPU devices, before JAX's first use."""
    if devices > 1:
        jax.config.update("jax_num_cpu_devices", devices)
        os.environ.setdefault("NPROC", "32")


LOOP = NativeJax


def make(setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray, compiled: bool = False) -> list[NativeJax]:
    """The native loop of JAX: it is compiled already."""
    return [NativeJax(setting, weights, x, y)]
