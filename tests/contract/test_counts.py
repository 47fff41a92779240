"""Counts that noise cannot blur: host reads and Python calls per step, traces per run."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend

STEPS = 100
OWN_CALLS_LIMIT = 150


def model_and_data(rows, **options):
    r = np.random.default_rng(0)
    model = uf.Sequential([uf.layers.Dense(16, activation="relu"), uf.layers.Dense(4)])
    loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(uf.optimizers.AdamW(1e-3), loss, metrics=["accuracy"], **options)
    return model, r.normal(size=(rows, 8)).astype("float32"), r.integers(0, 4, rows).astype("int32")


class Between(uf.callbacks.Callback):
    """Calls `begin` after step `first` and `end` STEPS later."""

    def __init__(self, begin, end, first=20):
        super().__init__()
        self.begin, self.end, self.first = begin, end, first

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.first:
            self.begin()
        elif batch == self.first + STEPS:
            self.end()


def patch_reads(monkeypatch, reads):
    """Counts the framework's ways of bringing a value to the host."""

    def counted(owner, name):
        original = getattr(owner, name)

        def wrapper(self, *args, **kwargs):
            reads.append(name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    if backend.name == "torch":
        import torch

        for name in ("item", "tolist", "numpy", "nonzero", "__float__", "__int__", "__bool__", "__array__"):
            counted(torch.Tensor, name)
    elif backend.name == "jax":
        from jax._src.array import ArrayImpl

        for name in ("__array__", "__float__", "__int__", "__bool__", "item", "tolist", "block_until_ready"):
            counted(ArrayImpl, name)
        # NumPy reads a CPU array through its buffer, which no method of the array sees.
        for name in ("asarray", "array"):
            original = getattr(np, name)
            monkeypatch.setattr(np, name, partial(_watched, original, ArrayImpl, reads))
    else:
        from tensorflow.python.framework import ops

        eager = ops.EagerTensor
        for name in ("numpy", "__array__", "__float__", "__int__", "__bool__"):
            counted(eager, name)


def _watched(original, kind, reads, value, *args, **kwargs):
    if isinstance(value, kind):
        reads.append(original.__name__)
    return original(value, *args, **kwargs)


HALF = {"clip_norm": 1.0, "precision": "mixed_float16"}


@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0, "gradient_accumulation_steps": 2}, HALF])
def test_s_pf_01_no_host_read_per_step(monkeypatch, options):
    model, x, y = model_and_data(8 * 150 * options.get("gradient_accumulation_steps", 1), **options)
    reads, found = [], []
    patch_reads(monkeypatch, reads)
    between = Between(reads.clear, lambda: found.extend(reads) or found.append("end"))
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[between])
    # In float16 the number of skipped updates in a row is looked at twice in 100 steps, and is one of a few scalars.
    assert len(found) - 1 <= (10 if "precision" in options else 0) and found[-1] == "end"
    assert reads, "the epoch's end reads the totals: the patch must see it"


def test_python_calls_per_step():
    model, x, y = model_and_data(8 * 150)
    own = [0]
    roots = tuple(str(Path(sys.modules[name].__file__).parent) for name in ("unifit", backend.package))

    def on_event(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(roots):
            own[0] += 1

    between = Between(lambda: sys.setprofile(on_event), lambda: sys.setprofile(None))
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[between])
    assert 0 < own[0] / STEPS < OWN_CALLS_LIMIT


@pytest.mark.backends("jax", "tensorflow", reason="torch runs eagerly")
def test_ragged_ends_are_not_traced_again():
    model, x, y = model_and_data(8 * 5 + 3, gradient_accumulation_steps=2)
    model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    assert model.trainer.engine.traces == 1
