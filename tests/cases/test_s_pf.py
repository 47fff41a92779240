"""Public failures of peers in speed and memory (cases S-PF); S-PF-02 is in test_s_da.py, with the data."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend

STEPS = 100


def small_model(**options):
    model = uf.Sequential([uf.layers.Dense(8, "relu"), uf.layers.Dense(2)])
    loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(uf.optimizers.AdamW(1e-3), loss, metrics=["accuracy"], **options)
    return model


def rows(number):
    r = np.random.default_rng(0)
    return r.normal(size=(number, 4)).astype("float32"), r.integers(0, 2, number)


def live_arrays():
    """Arrays of the framework that are alive, after a garbage collection."""
    gc.collect()
    if backend.name == "torch":
        import torch

        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    if backend.name == "jax":
        import jax

        return len(jax.live_arrays())
    import tensorflow as tf

    return sum(issubclass(type(thing), (tf.Tensor, tf.Variable)) for thing in gc.get_objects())


class CountAt(uf.callbacks.Callback):
    """Counts live arrays after given steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps, self.counts = steps, []

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 in self.steps:
            self.counts.append(live_arrays())


def test_s_pf_03_nothing_accumulates_over_steps():
    x, y = rows(16_000)
    model, count = small_model(gradient_accumulation_steps=2), CountAt([200, 2000])
    history = model.fit(x, y, batch_size=4, verbose=0, callbacks=[count])
    early, late = count.counts
    assert abs(late - early) <= 20
    assert all(type(value) is float for values in history.history.values() for value in values)


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_s_pf_03_repeated_fits_give_their_memory_back():
    x, y = rows(200)
    model, sizes = small_model(), []
    for _ in range(20):
        model.fit(x, y, batch_size=20, verbose=0)
        gc.collect()
        sizes.append(resident_bytes())
    assert sizes[19] - sizes[4] < 30 * 2**20
