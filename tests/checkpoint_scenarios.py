"""Runs with checkpoints, in this process or in workers (worker.py); each returns named arrays (see scenarios.py)."""

import os
import resource
import time
from pathlib import Path

import numpy as np

import unifit as uf
from job_scenarios import _raised

WRITTEN_WITHIN_S = 30.0


class Interrupted(Exception):
    """Ends a run as a crash in the user's own code does."""


class InterruptAfter(uf.callbacks.Callback):
    """Raises in step `steps` + 1 of this run: its batches are read and placed, and its update is not made.

    In a job of several processes that one update is made nevertheless, as the others may be in it already.
    """

    def __init__(self, steps):
        self.left = steps

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left < 0:
            raise Interrupted


class Script(uf.callbacks.Callback):
    """Writes figures into the logs, by epoch, as if the run had come to them."""

    def __init__(self, **figures):
        self.figures = figures

    def on_epoch_end(self, epoch, logs=None):
        logs |= {name: values[epoch] for name, values in self.figures.items()}


class Seen(uf.callbacks.Callback):
    """Notes which hooks were called: epochs begun, numbers of steps, the running loss after each."""

    def __init__(self, losses=True):
        self.losses, self.epochs, self.numbers, self.running, self.calls = losses, [], [], [], []

    def on_train_begin(self, logs=None):
        self.calls.append("train_begin")

    def on_train_end(self, logs=None):
        self.calls.append("train_end")

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.numbers.append(batch)
        if self.losses:
            self.running.append(logs["loss"])

    def arrays(self):
        return {name: np.array(getattr(self, name)) for name in ("epochs", "numbers", "running", "calls")}


class Trace(uf.callbacks.Callback):
    """Which rows each update was made of, told from what it did to the weights.

    Row i is the i-th unit vector, the loss is the prediction and the rate 1: weight i falls by 1 / rows of the window.
    """

    def __init__(self):
        self.rows = []

    def _weights(self):
        return self.model.weights_by_path()["0.kernel"][:, 0].astype(np.float64)

    def on_train_begin(self, logs=None):
        self.before = self._weights()

    def on_train_batch_end(self, batch, logs=None):
        now = self._weights()
        moved, self.before = self.before - now, now
        times = np.rint(moved / moved[moved > 0].min()).astype(int)
        self.rows.append(np.repeat(np.arange(len(times)), times))


def prediction(y_true, y_pred):
    """A loss that is the prediction: its gradient is the mean of the rows."""
    return y_pred


def interruptible(model, *data, stop_after=None, callbacks=(), **options):
    """fit, which ends without an error after `stop_after` updates of this run; returns its History, or None then."""
    stop = [] if stop_after is None else [InterruptAfter(stop_after)]
    try:
        return model.fit(*data, verbose=0, callbacks=[*callbacks, *stop], **options)
    except Interrupted:
        return None


def trace_of_rows(devices, folder=None, every=1, stop_after=None, accumulation=1, epochs=3):
    """S-CK-01: the rows 0..19 in batches of 2, shuffled with the seed 3, and which of them each update has seen."""
    uf.set_seed(3)
    x = np.eye(20, dtype=np.float32)
    model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(uf.optimizers.SGD(1.0), prediction, gradient_accumulation_steps=accumulation)
    trace, seen = Trace(), Seen(losses=False)
    interruptible(
        model, x, x[:, :1], batch_size=2, epochs=epochs, callbacks=[trace, seen], stop_after=stop_after,
        checkpoint_dir=folder, checkpoint_every=every, checkpoint_keep=None,
        distribution=uf.DataParallel(devices=devices),
    )  # fmt: skip
    return {"rows": np.array(trace.rows), "epochs": np.array(seen.epochs), "numbers": np.array(seen.numbers)}


class FiveAndMany(uf.Model):
    """A parameter of five elements, whose gradient is [1, 2, 3, 4, 5] always, and one an element a row."""

    def __init__(self):
        super().__init__()
        self.five = uf.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        self.many = uf.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    def call(self, x):
        return self.five(x[:, :5]) + self.many(x[:, 5:])


def five_elements(devices, folder, stop_after=None):
    """S-CK-03: four steps of Adam(0.1), six rows each."""
    uf.set_seed(3)
    x = np.concatenate([np.tile(np.arange(1, 6), (24, 1)), np.eye(24)], axis=1).astype(np.float32)
    model = FiveAndMany()
    model.compile(uf.optimizers.Adam(0.1), prediction)
    seen = Seen(losses=False)
    interruptible(
        model, x, x[:, :1], batch_size=6, callbacks=[seen], stop_after=stop_after, checkpoint_dir=folder,
        checkpoint_every=2, distribution=uf.DataParallel(devices=devices),
    )  # fmt: skip
    return {"five": model.weights_by_path()["five.kernel"].ravel(), "numbers": np.array(seen.numbers)}


def small_run(
    devices, folder, stop_after=None, epochs=3, microbatch_size=None, dropout=0.0, normalization="batch", **options
):
    """37 rows in batches of 8 through dense layers, a normalization, AdamW, clipping and running averages."""
    r = np.random.default_rng(7)
    x, y = (r.normal(size=(37, size)).astype("float32") for size in (5, 3))
    model = uf.Sequential(
        [
            uf.layers.Dense(16, "tanh", kernel_regularizer=uf.regularizers.L2(0.05)),
            uf.layers.Dropout(dropout),
            uf.layers.BatchNormalization() if normalization == "batch" else uf.layers.LayerNormalization(),
            uf.layers.Dense(3),
        ]
    )
    model.compile(
        uf.optimizers.AdamW(uf.schedules.CosineDecay(1e-2, 40, warmup_steps=4), weight_decay=0.1), "mse",
        metrics=["mae"], clip_norm=1.0, ema=uf.EMA(0.9), microbatch_size=microbatch_size,
    )  # fmt: skip
    seen = Seen()
    history = interruptible(
        model, x, y, batch_size=8, epochs=epochs, callbacks=[seen], stop_after=stop_after, checkpoint_dir=folder,
        distribution=uf.DataParallel(devices=devices), **options,
    )  # fmt: skip
    weights = {f"weight {path}": value for path, value in model.weights_by_path().items()}
    figures = {} if history is None else {f"history {key}": np.array(value) for key, value in history.history.items()}
    return weights | figures | seen.arrays()


def steady_run(devices, folder, stop_after=None):
    """36 updates in 3 epochs of full batches, so that a running loss times its steps gives the loss of each update.

    The convolution's kernel and its slots lie otherwise in each backend's memory.
    """
    r = np.random.default_rng(5)
    x, y = (r.normal(size=(96, *shape)).astype("float32") for shape in ((5, 4, 2), (2,)))
    model = uf.Sequential(
        [
            uf.layers.Conv2D(4, (3, 2), activation="tanh"),
            uf.layers.BatchNormalization(),
            uf.layers.Flatten(),
            uf.layers.Dense(2),
        ]
    )
    model.compile(uf.optimizers.AdamW(3e-3, weight_decay=0.1), "mse", clip_norm=0.5, ema=uf.EMA(0.95))
    seen = Seen()
    interruptible(
        model, x, y, batch_size=8, epochs=3, callbacks=[seen], stop_after=stop_after, checkpoint_dir=folder,
        checkpoint_every=8, checkpoint_keep=None, distribution=uf.DataParallel(devices=devices),
    )  # fmt: skip
    return seen.arrays()


def unit_run(folder, epochs, callbacks=(), stop_after=None, rate=1.0, **options):
    """An update an epoch, each with gradient 1 from w = 0; returns w and the History, None where interrupted."""
    x = np.ones((2, 1), np.float32)
    model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(uf.optimizers.SGD(rate), prediction)
    history = interruptible(
        model, x, x, batch_size=2, epochs=epochs, callbacks=callbacks, stop_after=stop_after, checkpoint_dir=folder,
        **options,
    )  # fmt: skip
    return float(model.weights_by_path()["0.kernel"][0, 0]), history


def run_of_every_kind(folder, stop_after=None, **options):
    """A run with loss scale, running averages, dropout, and a callback whose state holds arrays; returns its model."""
    r = np.random.default_rng(0)
    x, y = (r.normal(size=(16, size)).astype("float32") for size in (4, 2))
    model = uf.Sequential([uf.layers.Dense(3, "tanh"), uf.layers.Dropout(0.5), uf.layers.Dense(2)])
    model.compile("adam", "mse", precision="mixed_float16", ema=uf.EMA(0.9))
    interruptible(
        model, x, y, batch_size=4, epochs=2, stop_after=stop_after, checkpoint_dir=folder, checkpoint_every=6,
        callbacks=[uf.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)], **options,
    )  # fmt: skip
    return model


def two_fits(devices, folder, stop_after=None):
    """A script that trains twice with one directory: before, and after its last layer is made anew."""
    r = np.random.default_rng(2)
    x, y = (r.normal(size=(24, size)).astype("float32") for size in (4, 2))
    model = uf.Sequential([uf.layers.Dense(6, "tanh"), uf.layers.Dense(2)])
    options = {"batch_size": 4, "epochs": 2, "checkpoint_dir": folder, "checkpoint_every": 3}
    first, second = Seen(), Seen()
    model.compile(uf.optimizers.Adam(1e-2), "mse")
    interruptible(model, x, y, callbacks=[first], **options)
    model.layers[0].trainable = False
    model.compile(uf.optimizers.Adam(1e-3), "mse")
    interruptible(model, x, y, callbacks=[second], stop_after=stop_after, **options)
    arrays = {f"weight {path}": value for path, value in model.weights_by_path().items()}
    calls = {"first calls": np.array(first.calls), "second calls": np.array(second.calls)}
    return arrays | calls | {"first": np.array(first.numbers), "second": np.array(second.numbers)}


def large_model(folder=None, **options):
    """A model of some 300 kB that learns to give its input back; returns it and a History."""
    x = np.random.default_rng(0).normal(size=(16, 256)).astype("float32")
    model = uf.Sequential([uf.layers.Dense(256)])
    model.compile("sgd", "mse")
    return model, lambda: model.fit(x, x, batch_size=4, verbose=0, checkpoint_dir=folder, **options), x


def disk_full(devices, folder, blocked_bytes=100_000):
    """Files cannot grow beyond so many bytes from epoch 2 on: what was raised, and that the model goes on."""
    model, fit, x = large_model(folder, epochs=3, callbacks=[_SmallFiles(blocked_bytes, folder)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        raised = _raised(fit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    before = model.weights_by_path()["0.kernel"]
    model.fit(x, x, batch_size=4, verbose=0)
    moved = np.abs(model.weights_by_path()["0.kernel"] - before).max()
    return raised | {"kernel": before, "moved": moved}


def wait_for(path):
    """Returns when a file is there."""
    until = time.monotonic() + WRITTEN_WITHIN_S
    while not path.exists():
        assert time.monotonic() < until, f"{path} does not come"
        time.sleep(0.01)


class _SmallFiles(uf.callbacks.Callback):
    def __init__(self, size, folder):
        self.size, self.folder = size, Path(folder)

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            wait_for(self.folder / "latest")  # written in the background
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class Vanishes(uf.callbacks.Callback):
    """The main process puts a file where the folder was, when the first epoch's checkpoint is written."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and uf.process_index() == 0:
            wait_for(self.folder / "latest")  # written in the background
            os.rename(self.folder, self.folder.with_name("elsewhere"))
            self.folder.write_text("")


def folder_gone(devices, folder):
    """The folder vanishes in mid-run: what each process raises, in which step, and that the model goes on."""
    seen = Seen()
    r = np.random.default_rng(0)
    x = r.normal(size=(16, 3)).astype("float32")
    model = uf.Sequential([uf.Input((3,)), uf.layers.Dense(3)])
    model.compile("sgd", "mse")
    options = {"batch_size": 4, "verbose": 0, "distribution": uf.DataParallel(devices=devices)}
    raised = _raised(
        lambda: model.fit(x, x, epochs=50, checkpoint_dir=folder, callbacks=[Vanishes(folder), seen], **options)
    )
    before = model.weights_by_path()["0.kernel"]
    model.fit(x, x, **options)
    return raised | {"kernel": before, "steps": len(seen.numbers), "calls": np.array(seen.calls)}
