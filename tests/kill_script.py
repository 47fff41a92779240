"""A training script that kills its job at a moment: `kill_script.py FOLDER NAME MOMENT RANK PROCESSES`.

Everything that a run's state holds is at work: dropout, batch statistics, a schedule (with two processes a rate that a
callback sets), running averages, accumulation, shuffling, augmentation, ragged batches, early stopping with the best
weights. Called again it goes on from its checkpoints in FOLDER/run. It appends to FOLDER/epochs.jsonl what History gets
to know of each epoch.
"""

import json
import sys
from pathlib import Path

import numpy as np

import unifit as uf
from kill_moments import Moment
from killer import Killer, Watch

BATCHES, ROWS, ACCUMULATION = 17, 8, 2
EPOCH_STEPS = -(-BATCHES // ACCUMULATION)
STOPS_AFTER = 8  # epochs, for want of patience; fit is asked for more
STEPS = EPOCH_STEPS * STOPS_AFTER


class Batches:
    """Batches by number, with noise of its own in each epoch; the last one is short."""

    def __init__(self, killer):
        r = np.random.default_rng(5)
        self.x, self.y = (r.normal(size=(BATCHES * ROWS - 3, size)).astype("float32") for size in (6, 2))
        self.killer, self.reads = killer, 0

    def on_epoch_begin(self):
        self.reads = 0

    def __len__(self):
        return BATCHES

    def __getitem__(self, number):
        if self.reads % ACCUMULATION:  # an epoch is gone on with at the first batch of a window, too
            self.killer.at("between two reads")
        self.reads += 1
        rows = slice(ROWS * number, ROWS * (number + 1))
        x, y = self.x[rows], self.y[rows]
        return x + np.random.normal(scale=0.1, size=x.shape).astype("float32"), y


class Epochs(uf.callbacks.Callback):
    """Appends each epoch's figures to a file."""

    def __init__(self, path):
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        if self.on_main_process:
            with open(self.path, "a") as file:
                file.write(json.dumps({"epoch": epoch, "logs": logs}) + "\n")


def model_and_callbacks(follows_schedule):
    """The model, compiled; and the callbacks with a state."""
    model = uf.Sequential(
        [
            uf.layers.Dense(16, kernel_regularizer=uf.regularizers.L2(0.01)),
            uf.layers.BatchNormalization(momentum=0.9),
            uf.layers.Activation("relu"),
            uf.layers.Dropout(0.3),
            uf.layers.Dense(2),
        ]
    )
    # A baseline that no loss is below: patience ends after as many epochs, on all backends alike.
    callbacks = [uf.callbacks.EarlyStopping(patience=STOPS_AFTER, baseline=0.0, restore_best_weights=True)]
    rate = uf.schedules.CosineDecay(2e-2, 2 * STEPS, warmup_steps=5)
    if not follows_schedule:
        rate = 2e-2
        callbacks.append(uf.callbacks.ReduceLROnPlateau(factor=0.7, patience=2, min_delta=1.0))
    model.compile(
        uf.optimizers.AdamW(rate, weight_decay=0.05), "mse", metrics=["mae"], clip_norm=1.0, ema=uf.EMA(0.9),
        gradient_accumulation_steps=ACCUMULATION,
    )  # fmt: skip
    return model, callbacks


def train(devices, folder, name, killer):
    """Trains, to the end or to the moment; returns the weights in memory at the end."""
    uf.set_seed(11)
    folder = Path(folder)
    r = np.random.default_rng(6)
    validation = tuple(r.normal(size=(37, size)).astype("float32") for size in (6, 2))
    model, callbacks = model_and_callbacks(follows_schedule=devices != 2)
    history = model.fit(
        Batches(killer), epochs=2 * STOPS_AFTER, verbose=0, validation_data=validation, validation_batch_size=8,
        callbacks=[Watch(killer, last=False), *callbacks, Epochs(folder / "epochs.jsonl"), Watch(killer, last=True)],
        distribution=uf.DataParallel(devices=devices), checkpoint_dir=folder / "run", checkpoint_every=2,
        checkpoint_keep=2, resume="auto",
    )  # fmt: skip
    if uf.process_index() == 0:
        (folder / f"{name}.json").write_text(json.dumps({"epochs": history.epoch, "history": history.history}))
    return model.weights_by_path()


def train_to_the_end(devices, folder, name):
    """A scenario (see scenarios.py): the same without a kill."""
    return train(devices, folder, name, Killer(None, 0, Path(folder, f"{name}.killed")))


def main():
    """A leg of a run: from its newest checkpoint to a moment."""
    sys.setswitchinterval(1e-4)  # so that a thread is woken in the middle of a step
    folder, name, moment = Path(sys.argv[1]), sys.argv[2], Moment(**json.loads(sys.argv[3]))
    rank, processes = map(int, sys.argv[4:])
    killer = Killer(moment, rank, folder / f"{name}.killed")
    killer.arm()
    train(processes, folder, name, killer)


if __name__ == "__main__":
    main()
