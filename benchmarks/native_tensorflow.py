"""The loop that one writes by hand in TensorFlow: a tf.function a step; MirroredStrategy on several devices."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import workloads as sizes
from benchmarks.loaders import tensorflow_loader
from benchmarks.tensorflow_models import MODELS
from benchmarks.workloads import Setting, Trained

TRIAL_STEPS = 10


class NativeTensorflow:
    """An epoch of updates; see native_torch.NativeTorch for the first arguments.

    Batches reach the function as NumPy slices or through tf.data, whichever was faster in a trial of both.

    Args:
        compiled: Whether the function is compiled by XLA (`jit_compile=True`).
    """

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray, compiled: bool = False):
        self.name = "XLA" if compiled else "native"
        self.setting, self.x, self.y = setting, x, y
        several = setting.devices > 1
        self.strategy = strategy_over(setting.devices) if several else tf.distribute.get_strategy()
        with self.strategy.scope():
            self.buffers = {path: tf.Variable(v, trainable=False) for path, v in weights.items() if "moving_" in path}
            self.params = {path: tf.Variable(v) for path, v in weights.items() if path not in self.buffers}
            self.moments = {path: (_zeros_like(v), _zeros_like(v)) for path, v in self.params.items()}
            if setting.accumulation > 1:
                self.sums = [_zeros_like(v) for v in self.params.values()]
        self.iterations, self.totals = tf.Variable(0.0, trainable=False), tf.Variable([0.0, 0.0], trainable=False)
        rows = setting.work.batch_size
        signature = [
            tf.TensorSpec((setting.accumulation, rows, *array.shape[1:]), tf.as_dtype(array.dtype)) for array in (x, y)
        ]
        # The one trace itself: a tf.function works out at each call which trace fits, in the time of a small step.
        # Reference: https://www.tensorflow.org/guide/function (obtaining concrete functions)
        function = tf.function(self._step, signature, autograph=False, jit_compile=compiled or None)
        self.step = function.get_concrete_function()
        self.feeds = {"numpy": self._slices, "tf.data": self._pipeline}
        self.feed = "numpy"

    def train(self, first: int, steps: int) -> Trained:
        began = perf_counter()
        self.totals.assign([0.0, 0.0])
        if self.setting.data == "loader":
            rows = self.setting.rows_of(first, steps)
            windows: Any = self._of_k(tensorflow_loader(self.x[rows], self.y[rows], self.setting.work.batch_size))
        else:
            windows = self.feeds[self.feed](first, steps)
        for x, y in windows:
            self.step(x, y)
        loss, hits = self.totals.numpy().astype(np.float64).tolist()
        batches = steps * self.setting.accumulation
        labels = batches * self.setting.work.batch_size * int(np.prod(self.setting.work.labels, dtype=int))
        return Trained(loss / batches, hits / labels, perf_counter() - began)

    def choose_feed(self) -> None:
        """Takes the faster of the two ways of passing arrays; the state is what it was."""
        moments = [moment for pair in self.moments.values() for moment in pair]
        state = [*self.params.values(), *self.buffers.values(), *moments, self.iterations]
        before, took = [variable.numpy() for variable in state], {}
        for name in self.feeds:
            self.feed = name
            self.train(0, 1)
            took[name] = self.train(0, TRIAL_STEPS).seconds
        self.feed = min(took, key=lambda name: took[name])
        for variable, value in zip(state, before, strict=True):
            variable.assign(value)

    def _slices(self, first: int, steps: int) -> Iterator[Any]:
        for step in range(first, first + steps):
            rows = self.setting.rows_of(step, 1)
            yield tuple(tf.constant(self._window(array[rows])) for array in (self.x, self.y))

    def _window(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.setting.accumulation, self.setting.work.batch_size, *array.shape[1:])

    def _pipeline(self, first: int, steps: int) -> Any:
        rows = self.setting.rows_of(first, steps)
        return self._of_k(tensorflow_loader(self.x[rows], self.y[rows], self.setting.work.batch_size))

    def _of_k(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        return batches.batch(self.setting.accumulation, drop_remainder=True)

    # The traced part

    def _step(self, x: Any, y: Any) -> None:
        self.iterations.assign_add(1.0)
        number = self.setting.devices
        parts = list(zip(tf.split(x, number, axis=1), tf.split(y, number, axis=1), strict=True))
        sums = self.strategy.run(self._replica, args=(parts, self.iterations.read_value()))
        if number > 1:
            sums = self.strategy.reduce("SUM", sums, axis=None) / [number, 1]
        self.totals.assign_add(sums)

    def _replica(self, parts: Any, t: Any) -> Any:
        context = tf.distribute.get_replica_context()
        x, y = parts[int(tf.get_static_value(context.replica_id_in_sync_group))]
        if self.setting.accumulation == 1:
            gradients, sums = self._gradients(x[0], y[0])
        else:
            gradients, sums = self._accumulated(x, y)
        if self.setting.devices > 1:
            gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        self._apply(gradients, t)
        return sums

    def _accumulated(self, x: Any, y: Any) -> tuple[list[Any], Any]:
        """Means over micro-batches, gathered in variables, so that one micro-batch's gradients are alive at a time."""
        for total in self.sums:
            total.assign(tf.zeros(total.shape))
        sums = tf.zeros(2)
        for number in range(self.setting.accumulation):
            gradients, more = self._gradients(x[number], y[number])
            sums += more
            for total, gradient in zip(self.sums, gradients, strict=True):
                total.assign_add(gradient / self.setting.accumulation)
        return [total.read_value() for total in self.sums], sums

    def _gradients(self, x: Any, y: Any) -> tuple[list[Any], Any]:
        params = list(self.params.values())
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(params)
            read: dict[str, Any] = dict(self.params)
            if self.setting.half:
                read = {path: tf.cast(value, tf.bfloat16) for path, value in read.items()}
                x = tf.cast(x, tf.bfloat16) if x.dtype == tf.float32 else x
            logits, moved = MODELS[self.setting.workload](read, x, self.setting.devices)
            logits = tf.cast(logits, tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        for path, value in moved.items():
            buffer = self.buffers[path]
            buffer.assign_add((1 - sizes.BATCH_NORM_MOMENTUM) * (tf.cast(value, tf.float32) - buffer))
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, params)]
        hits = tf.reduce_sum(tf.cast(tf.argmax(logits, -1, tf.int32) == y, tf.float32))
        return gradients, tf.stack([loss, hits])

    def _apply(self, gradients: list[Any], t: Any) -> None:
        """TensorFlow's Adam kernel. It adds epsilon before the correction of the bias, so epsilon is corrected too."""
        powers = tf.pow(sizes.BETA_1, t), tf.pow(sizes.BETA_2, t)
        epsilon = sizes.EPSILON * tf.sqrt(1 - powers[1])
        for (path, param), gradient in zip(self.params.items(), gradients, strict=True):
            first, second = self.moments[path]
            decay = sizes.LEARNING_RATE * sizes.WEIGHT_DECAY
            tf.raw_ops.AssignSubVariableOp(resource=param.handle, value=decay * param)
            tf.raw_ops.ResourceApplyAdam(
                var=param.handle, m=first.handle, v=second.handle, beta1_power=powers[0], beta2_power=powers[1],
                lr=sizes.LEARNING_RATE, beta1=sizes.BETA_1, beta2=sizes.BETA_2, epsilon=epsilon, grad=gradient,
            )  # fmt: skip


def _zeros_like(variable: tf.Variable) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape), trainable=False)


def strategy_over(devices: int) -> tf.distribute.MirroredStrategy:
    """The first logical CPU devices, which are set up already or are now."""
    cpus = tf.config.list_physical_devices("CPU")
    if tf.config.get_logical_device_configuration(cpus[0]) is None:
        tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * devices)
    # Strategies share the keys of their collectives unless told otherwise, and another one may live in this process.
    tf.distribute.MirroredStrategy._collective_key_base += 100_000
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)])


LOOP = NativeTensorflow


def make(
    setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray, compiled: bool = False
) -> list[NativeTensorflow]:
    """The native loops of TensorFlow; XLA does not compile collectives between CPU devices."""
    kinds = [False, True] if compiled and setting.devices == 1 else [False]
    made = [NativeTensorflow(setting, weights, x, y, kind) for kind in kinds]
    for way in made:
        if setting.data == "arrays":
            way.choose_feed()
    return made
