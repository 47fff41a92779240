"""A training script that is interrupted from outside: `stopping_script.py FOLDER STEP ...`, in one or more processes.

100 steps, in each of which the weight w falls by 0.1. The run goes on from its checkpoints in FOLDER/run. After each
STEP a process leaves FOLDER/<process>-<step>.pid and waits until there is a FOLDER/go-<step>. At the end of its fit it
adds w to FOLDER/<process>.ends. With LIMITED in the environment there is a fit before, in which the last process has a
time limit that is over at once; FOLDER/<process>.limited tells of it.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import unifit as uf

EPOCHS, EPOCH_STEPS, BATCH = 5, 20, 4
STEPS = EPOCHS * EPOCH_STEPS
LOWERED = 0.1
SAVED_EVERY = 14
WAITS_S = 0.01


class Falling(uf.Model):
    """A row's loss is w plus its input times v times the number of steps so far.

    So v tells which rows came in which step. Whole inputs make gradients that are exact on any number of devices.
    """

    def build(self, input_shape):
        self.w = self.add_weight((), "zeros", name="w")
        self.v = self.add_weight((input_shape[-1],), "zeros", name="v")

    def call(self, x):
        steps = uf.ops.round(self.w / -LOWERED)  # its gradient is zero
        return self.w + steps * uf.ops.sum(x * self.v, axis=-1, keepdims=True)

    def compute_loss(self, x, y, y_pred, sample_weight, training):
        return y_pred


class Watched(uf.callbacks.Callback):
    """Leaves traces, and waits after some steps for the one who watches."""

    def __init__(self, folder, stops):
        self.folder, self.stops = folder, stops

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        step = self.epoch * EPOCH_STEPS + batch + 1
        if step in self.stops:
            leave(self.folder / f"{uf.process_index()}-{step}.pid", str(os.getpid()))
            while not (self.folder / f"go-{step}").exists():
                time.sleep(WAITS_S)

    def on_train_end(self, logs=None):
        with open(self.folder / f"{uf.process_index()}.ends", "a") as file:
            file.write(f"{float(self.model.get_weights()[0])}\n")


def leave(path, text):
    """Writes a file that is whole when it is there."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def made():
    """The model, compiled, and its data."""
    model = Falling()
    model.compile(uf.optimizers.SGD(LOWERED))
    rows = np.random.default_rng(3).integers(-8, 9, size=(EPOCH_STEPS * BATCH, 3))
    return model, rows.astype("float32")


def fit(model, x, folder, **options):
    """Trains, or goes on."""
    options = {"epochs": EPOCHS, "checkpoint_every": SAVED_EVERY, "verbose": 0} | options
    return model.fit(x, batch_size=BATCH, checkpoint_dir=folder, **options)


def main():
    """Trains to the end."""
    folder, stops = Path(sys.argv[1]), [int(step) for step in sys.argv[2:]]
    uf.set_seed(5)
    model, x = made()
    distribution = uf.DataParallel()
    if "LIMITED" in os.environ:
        last = uf.process_index() == uf.process_count() - 1
        limit = uf.callbacks.TimeLimit(1e-3)
        fit(model, x, folder / "run", callbacks=[limit] if last else [], distribution=distribution)
        leave(folder / f"{uf.process_index()}.limited", f"{float(model.get_weights()[0])} {limit.paused}")
    fit(model, x, folder / "run", callbacks=[Watched(folder, stops)], distribution=distribution)


if __name__ == "__main__":
    main()
