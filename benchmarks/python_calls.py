"""Python calls per training step of a 2-layer MLP in steady state: unifit's fit beside a hand-written loop.

Usage: python benchmarks/python_calls.py [BACKEND ...]

Prints one row a backend: calls inside unifit, all Python calls of a step under fit, and all of a step of the native
loop. Counts, unlike times, do not depend on the machine's load.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

WARM_UP, COUNTED, BATCH = 30, 100, 32
ROOTS = ("unifit", "unifit_torch", "unifit_jax", "unifit_tensorflow")


class Counter:
    """Counts Python calls while it is on, in all threads: all of them, and those into unifit's own files."""

    def __init__(self):
        self.all = self.own = 0
        self._files = {}

    def _on_event(self, frame, event, argument):
        if event == "call":
            file = frame.f_code.co_filename
            own = self._files.get(file)
            if own is None:
                own = self._files[file] = any(f"{os.sep}{root}{os.sep}" in file for root in ROOTS)
            self.all += 1
            self.own += own

    def start(self):
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def stop(self):
        sys.setprofile(None)
        threading.setprofile(None)


def data():
    r = np.random.default_rng(0)
    rows = BATCH * (WARM_UP + COUNTED + 10)
    return r.normal(size=(rows, 20)).astype("float32"), r.integers(0, 5, rows).astype("int32")


def count_fit():
    """(calls inside unifit, all calls) per step of fit, with a metric and History on."""
    import unifit as uf

    counter = Counter()

    class Window(uf.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == WARM_UP:
                counter.start()
            elif batch == WARM_UP + COUNTED:
                counter.stop()

    model = uf.Sequential([uf.layers.Dense(64, activation="relu"), uf.layers.Dense(5)])
    loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(uf.optimizers.AdamW(1e-3), loss, metrics=["accuracy"])
    model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0, callbacks=[Window()])
    # The observing callback itself is not a part of fit.
    own_callback = 1 * COUNTED
    return counter.own / COUNTED, (counter.all - own_callback) / COUNTED


def count_native(backend):
    """All Python calls per step of the loop that one would write by hand, with the same metric."""
    step = {"torch": native_torch, "jax": native_jax, "tensorflow": native_tensorflow}[backend]()
    x, y = data()
    counter = Counter()
    for number in range(WARM_UP + COUNTED):
        if number == WARM_UP:
            counter.start()
        step(x[number * BATCH : (number + 1) * BATCH], y[number * BATCH : (number + 1) * BATCH])
    counter.stop()
    return counter.all / COUNTED


def native_torch():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    totals = torch.zeros(3)

    def step(x, y):
        x, y = torch.from_numpy(x), torch.from_numpy(y).long()
        optimizer.zero_grad()
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            hits = (logits.argmax(-1) == y).sum()
            totals.add_(torch.stack((loss.detach() * len(x), hits.float(), torch.tensor(float(len(x))))))

    return step


def native_jax():
    import jax
    import jax.numpy as jnp
    import optax

    key = jax.random.key(0)
    params = [
        jax.random.normal(key, (20, 64)) * 0.1,
        jnp.zeros(64),
        jax.random.normal(key, (64, 5)) * 0.1,
        jnp.zeros(5),
    ]
    optimizer = optax.adamw(1e-3)
    state = [params, optimizer.init(params), jnp.zeros(3)]

    def update(state, x, y):
        params, slots, totals = state

        def loss_of(params):
            logits = jax.nn.relu(x @ params[0] + params[1]) @ params[2] + params[3]
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return loss.mean(), jnp.stack(
                [loss.sum(), (logits.argmax(-1) == y).sum().astype(jnp.float32), 1.0 * len(x)]
            )

        (_, sums), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, slots = optimizer.update(gradients, slots, params)
        return [optax.apply_updates(params, updates), slots, totals + sums]

    compiled = jax.jit(update, donate_argnums=0)

    def step(x, y):
        nonlocal state
        state = compiled(state, x, y)

    return step


def native_tensorflow():
    import tensorflow as tf

    w = [tf.Variable(tf.random.normal((20, 64)) * 0.1), tf.Variable(tf.zeros(64))]
    w += [tf.Variable(tf.random.normal((64, 5)) * 0.1), tf.Variable(tf.zeros(5))]
    slots = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in w]
    count, totals = tf.Variable(0.0), tf.Variable(tf.zeros(3))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        count.assign_add(1.0)
        for v, g, (m, s) in zip(w, tape.gradient(loss, w), slots, strict=True):
            v.assign_sub(1e-3 * 0.004 * v)
            tf.raw_ops.ResourceApplyAdam(
                var=v.handle, m=m.handle, v=s.handle, beta1_power=0.9**count, beta2_power=0.999**count,
                lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-7, grad=g,
            )  # fmt: skip
        hits = tf.reduce_sum(tf.cast(tf.argmax(logits, -1, tf.int32) == y, tf.float32))
        totals.assign_add(tf.stack([tf.reduce_sum(losses), hits, tf.cast(tf.shape(x)[0], tf.float32)]))

    return step


def measure(backend):
    """One backend's row; runs in a process of its own."""
    own, fit = count_fit()
    return {"backend": backend, "inside unifit": own, "fit": fit, "native loop": count_native(backend)}


def main():
    backends = sys.argv[1:] or ["torch", "jax", "tensorflow"]
    if len(backends) == 1 and os.environ.get("UNIFIT_BACKEND") == backends[0]:
        print(json.dumps(measure(backends[0])))
        return
    print(f"{'backend':<12}{'inside unifit':>16}{'all, fit':>12}{'all, native loop':>20}   (Python calls per step)")
    for backend in backends:
        environment = os.environ | {"UNIFIT_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, Path(__file__), backend], env=environment, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            sys.exit(done.stderr)
        row = json.loads(done.stdout.splitlines()[-1])
        print(f"{backend:<12}{row['inside unifit']:>16.1f}{row['fit']:>12.1f}{row['native loop']:>20.1f}")


if __name__ == "__main__":
    main()
