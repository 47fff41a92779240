"""Memory and time of a training step under each precision policy, on the active backend.

Usage: UNIFIT_BACKEND=torch|jax|tensorflow python benchmarks/precision.py [--steps N] [--rounds N]

Two models, an MLP and the CNN of examples/digits.py, each under float32, mixed_bfloat16 and mixed_float16. A row has
the bytes of the parameters, of the optimizer's slots, and of what a step needs beside them (activations and gradients;
the output names the measure, which differs from framework to framework), the milliseconds a step, and their ratio to
float32's. The policies take turns, and the time is the median of all turns.

On a CPU the times say little about accelerators: few CPUs multiply halves faster than float32, and most convert them
first, in memory of their own.
"""

import argparse
import statistics
import time

import numpy as np

import unifit as uf

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
CLASSES = 10


class Clock(uf.callbacks.Callback):
    """Seconds of each epoch's steps. The epoch's figures are read before its end: the devices are done then."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


def mlp():
    """A model, the shape of a row, and the batch size."""
    layers = [uf.layers.Dense(256, activation="relu") for _ in range(2)] + [uf.layers.Dense(CLASSES)]
    return uf.Sequential(layers), (64,), 128


def digits_cnn():
    """The same for the network of examples/digits.py."""
    layers = [
        uf.layers.Conv2D(32, 3, padding="same", use_bias=False),
        uf.layers.BatchNormalization(momentum=0.9),
        uf.layers.Activation("silu"),
        uf.layers.AveragePooling2D(),
        uf.layers.Conv2D(64, 3, padding="same", activation="silu"),
        uf.layers.Flatten(),
        uf.layers.Dense(CLASSES),
    ]
    return uf.Sequential(layers), (8, 8, 1), 64


class Run:
    """A model under a policy, trained for some steps at a time on random rows.

    Args:
        make: `mlp` or `digits_cnn`.
        policy: A precision policy's name.
        steps: Steps of a turn.
    """

    def __init__(self, make, policy, steps):
        self.policy, self.steps, self.clock = policy, steps, Clock()
        self.model, shape, self.batch_size = make()
        r = np.random.default_rng(0)
        rows = self.batch_size * steps
        self.x, self.y = r.normal(size=(rows, *shape)).astype("float32"), r.integers(0, CLASSES, rows).astype("int32")
        loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(uf.optimizers.AdamW(1e-3), loss, precision=policy)

    def turn(self, steps=None, callbacks=()):
        """Trains for one epoch, of all steps unless told."""
        rows = self.batch_size * (steps or self.steps)
        self.model.fit(
            self.x[:rows],
            self.y[:rows],
            batch_size=self.batch_size,
            shuffle=False,
            verbose=0,
            callbacks=list(callbacks),
            distribution=uf.DataParallel(devices=1),
        )

    @property
    def engine(self):
        return self.model.trainer.engine

    def parameter_bytes(self):
        return sum(np.asarray(weight).nbytes for weight in self.model.get_weights())

    def slot_bytes(self):
        """Of the optimizer's own: without its counter, and the state of the loss scale."""
        slots = self.engine.read_slots()
        return sum(v.nbytes for k, v in slots.items() if k != "iterations" and not k.startswith("loss_scale."))

    def milliseconds(self):
        return 1e3 * statistics.median(self.clock.seconds) / self.steps


# Bytes of a step beside variables and slots


def one_step(run, around):
    """Trains for one step, whose `engine.train` is called by `around`; returns what `around` returned besides."""
    engine, found = run.engine, []

    def train(totals, placed):
        totals, value = around(lambda: type(engine).train(engine, totals, placed))
        found.append(value)
        return totals

    engine.train = train
    try:
        run.turn(steps=1)
    finally:
        del engine.train
    return found[0]


def jax_bytes(run):
    """XLA's own figure for the compiled training program."""
    import jax

    engine, given = run.engine, []
    program = engine._train

    def recorded(*arguments):
        given.append(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), arguments))
        return program(*arguments)

    engine._train = recorded
    try:
        run.turn(steps=1)
    finally:
        engine._train = program
    return program.lower(*given[0]).compile().memory_analysis().temp_size_in_bytes


def torch_bytes(run):
    """The peak of what the allocator gave out and took back during the step."""
    import torch

    def around_on_cpu(train):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            totals = train()
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        return totals, int(max(np.cumsum(changes), default=0))

    def around_on_gpu(train):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        totals = train()
        torch.cuda.synchronize()
        return totals, torch.cuda.max_memory_allocated() - before

    return one_step(run, around_on_cpu if run.engine.device.type == "cpu" else around_on_gpu)


def tensorflow_bytes(run):
    """The allocator's peak on the GPU. None on CPUs, where TensorFlow keeps freed memory and /proc tells little."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return None

    def around(train):
        tf.config.experimental.reset_memory_stats("GPU:0")
        before = tf.config.experimental.get_memory_info("GPU:0")["current"]
        totals = train()
        run.engine.read(totals, evaluation=False)
        return totals, tf.config.experimental.get_memory_info("GPU:0")["peak"] - before

    return one_step(run, around)


MEASURES = {
    "jax": (jax_bytes, "temp bytes of the compiled training program (memory_analysis)"),
    "torch": (torch_bytes, "peak of the allocator's balance during one step (profiler on CPUs, else CUDA's counters)"),
    "tensorflow": (tensorflow_bytes, "peak of the GPU allocator during one step; on CPUs the framework does not tell"),
}


def table(make, steps, rounds):
    """Rows of one model: policy, parameters, slots and step in bytes, and milliseconds a step."""
    step_bytes, _ = MEASURES[uf.backend.name]
    runs = [Run(make, policy, steps) for policy in POLICIES]
    for run in runs:
        run.turn()  # compiles
    for _ in range(rounds):
        for run in runs:
            run.turn(callbacks=[run.clock])
    return [(r.policy, r.parameter_bytes(), r.slot_bytes(), step_bytes(r), r.milliseconds()) for r in runs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each policy")
    arguments = parser.parse_args()
    print(f"Backend {uf.backend.name}. Times on a CPU say little about accelerators.")
    print(f"step bytes: {MEASURES[uf.backend.name][1]}")
    for make in (mlp, digits_cnn):
        titles = f"{'parameters':>12}{'slots':>12}{'step bytes':>12}{'ms/step':>10}{'to float32':>12}"
        print(f"\n{make.__name__:<16}{titles}")
        rows = table(make, arguments.steps, arguments.rounds)
        for policy, parameters, slots, step, milliseconds in rows:
            told = "not told" if step is None else f"{step:,}"
            ratio = milliseconds / rows[0][-1]
            print(f"{policy:<16}{parameters:>12,}{slots:>12,}{told:>12}{milliseconds:>10.2f}{ratio:>12.2f}")


if __name__ == "__main__":
    main()
