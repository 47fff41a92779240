"""Speed of checkpoints, and what they cost the loop, on the active backend, beside plain safetensors files.

Usage: UNIFIT_BACKEND=torch|jax|tensorflow python benchmarks/checkpoint.py [--megabytes N] [--rounds N] [--json FILE]

Dense layers whose weights and two AdamW slots make up `--megabytes` are trained. A round is

1. a fit that saves once on its way, in the background, and once at its end, when the loop waits;
2. a fit that saves after every step, so that each save waits for the one in flight;
3. the same arrays written by `safetensors.numpy.save_file`, and then fsynced;
4. the checkpoint loaded with every file compared with its hash; the plain file by `safetensors.numpy.load_file`.

Rounds follow each other in one process, so each pair of figures is of the same minute; the table has the median, least
and most of all rounds. Loads come from the page cache. The devices are waited for after each step, so that a copy to
the host is not charged with the step before it.
"""

import argparse
import collections
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import safetensors.numpy

import unifit as uf
import unifit.checkpoint.files as files
import unifit.training.checkpointing as checkpointing
from unifit.checkpoint import Checkpoint, newest
from unifit.checkpoint.saver import Saver

LAYERS, BATCH_SIZE = 4, 16
SLOTS = 2  # of AdamW, each as large as the weights
STEPS, SAVED_AFTER = 8, 6  # of a round's first fit: the last steps run while a checkpoint is written
WAITING_STEPS = 3  # of its second one

TIMED = (
    (checkpointing, "arrays_of_run"),
    (checkpointing.Checkpointing, "after_step"),
    (Saver, "wait"),
    (Saver, "_write"),
    (files, "facts_of"),
    (files, "sync"),
)


class Stopwatch:
    """Seconds of each call of the functions in TIMED, by name, while it is on."""

    def __init__(self):
        self.seconds = collections.defaultdict(list)
        self._functions = [(owner, name, getattr(owner, name)) for owner, name in TIMED]

    def __enter__(self):
        self.seconds.clear()
        for owner, name, function in self._functions:
            setattr(owner, name, self._timed(name, function))
        return self.seconds

    def __exit__(self, *_):
        for owner, name, function in self._functions:
            setattr(owner, name, function)

    def _timed(self, name, function):
        def timed(*arguments, **options):
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name].append(time.perf_counter() - start)

        return timed


class Steps(uf.callbacks.Callback):
    """Seconds of each step alone, to the moment at which its loss is on the host."""

    def __init__(self):
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        logs["loss"]
        self.seconds.append(time.perf_counter() - self._start)


class Training:
    """A model of `megabytes` with its slots, and fits that write checkpoints of it into `folder`."""

    def __init__(self, megabytes, folder):
        units = int((megabytes * 1e6 / (4 * (1 + SLOTS) * LAYERS)) ** 0.5)
        self.model = uf.Sequential([uf.layers.Dense(units, "tanh") for _ in range(LAYERS)])
        self.model.compile(uf.optimizers.AdamW(1e-4), "mse")
        self.x = np.random.default_rng(0).normal(size=(STEPS * BATCH_SIZE, units)).astype("float32")
        self.folder, self.watch = folder, Stopwatch()

    def fit(self, steps, every):
        """Trains for an epoch of so many steps; returns the times of calls and of steps."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        place, seen = tempfile.mkdtemp(dir=self.folder), Steps()
        x = self.x[: steps * BATCH_SIZE]
        with self.watch as seconds:
            self.model.fit(
                x, x, batch_size=BATCH_SIZE, verbose=0, callbacks=[seen], checkpoint_dir=place, checkpoint_every=every,
                distribution=uf.DataParallel(devices=1),
            )  # fmt: skip
        return dict(seconds), seen.seconds, newest(place)


def seconds_of(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def measured_round(training):
    """One round's figures by name: seconds, but for "bytes"."""
    # Steps count on from fit to fit, and only one number of this fit's is a multiple of this one.
    seconds, steps, checkpoint = training.fit(STEPS, training.model.trainer.step + SAVED_AFTER)
    assert len(seconds["arrays_of_run"]) == 2, "a save on its way, and one at the end"
    count = len(checkpoint.state["files"])
    found = {
        "bytes": sum(facts["bytes"] for facts in checkpoint.state["files"].values()),
        "step": statistics.median(steps[1:SAVED_AFTER]),
        "step while writing": statistics.median(steps[SAVED_AFTER:]),
        "held": seconds["after_step"][SAVED_AFTER - 1],
        "copy": seconds["arrays_of_run"][-1],
        "hash": sum(seconds["facts_of"][-count:]),
        "write and fsync": seconds["_write"][-1] - sum(seconds["facts_of"][-count:]),
        "save": seconds["arrays_of_run"][-1] + seconds["_write"][-1],
    }
    arrays = {name: array for group in checkpoint.groups for name, array in checkpoint.arrays(group).items()}
    found |= plain_files(training.folder / "plain.safetensors", arrays, checkpoint)
    seconds, _, _ = training.fit(WAITING_STEPS, 1)
    found["held in flight"] = statistics.median(seconds["after_step"][1:])
    return found


def plain_files(path, arrays, checkpoint):
    """The same arrays through safetensors alone, and both ways of loading, the one right after the other."""
    found = {}
    found["plain save"], _ = seconds_of(lambda: safetensors.numpy.save_file(arrays, path))
    fsync, _ = seconds_of(lambda: files.sync(path))
    found["plain save and fsync"] = found["plain save"] + fsync

    def verified():
        again = Checkpoint.open(checkpoint.path)
        again.verify()
        return [again.arrays(group) for group in again.groups]

    found["load"], loaded = seconds_of(verified)
    del loaded
    found["plain load"], _ = seconds_of(lambda: safetensors.numpy.load_file(path))
    return found


SPEEDS = (
    ("save, all of it", "save"),
    ("  copy to the host", "copy"),
    ("  write, fsync, rename", "write and fsync"),
    ("  SHA-256", "hash"),
    ("safetensors save_file", "plain save"),
    ("safetensors save_file, fsync", "plain save and fsync"),
    ("load, verified", "load"),
    ("safetensors load_file", "plain load"),
)
HOLDS = (
    ("step", "step"),
    ("step while a checkpoint is written", "step while writing"),
    ("loop held by a save", "held"),
    ("loop held by a save with one in flight", "held in flight"),
)
RATIOS = (("save", "plain save"), ("save", "plain save and fsync"), ("load", "plain load"))


def spread(values, digits):
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:>10.{digits}f}  [{least:.{digits}f} - {most:.{digits}f}]"


def report(rounds):
    """Prints the tables."""
    total = rounds[0]["bytes"]
    print(f"\n{'':<40}{'GB/s':>10}")
    for title, name in SPEEDS:
        print(f"{title:<40}{spread([total / 1e9 / figures[name] for figures in rounds], 3)}")
    print(f"\n{'':<40}{'ratio':>10}")
    for ours, plain in RATIOS:
        print(f"{f'{ours} / {plain}, in time':<40}{spread([f[ours] / f[plain] for f in rounds], 2)}")
    print(f"\n{'':<40}{'ms':>10}")
    step = statistics.median(figures["step"] for figures in rounds)
    for title, name in HOLDS:
        values = [1e3 * figures[name] for figures in rounds]
        share = f"   {statistics.median(values) / (1e3 * step):.2f} steps"
        print(f"{title:<40}{spread(values, 1)}{share}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=500, help="of weights and slots together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=None, help="where files are written; a temporary folder unless given")
    parser.add_argument("--json", default=None, help="a file for all figures of all rounds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        training = Training(arguments.megabytes, Path(folder, "run"))
        training.fit(1, 1)  # compiles
        rounds = [measured_round(training) for _ in range(arguments.rounds)]
    print(
        f"Backend {uf.backend.name}, {rounds[0]['bytes'] / 1e6:.0f} MB, {len(rounds)} rounds, {os.cpu_count()} cores."
    )
    report(rounds)
    if arguments.json is not None:
        facts = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "backend": uf.backend.name,
            "versions": {name: importlib.metadata.version(name) for name in (uf.backend.name, "numpy", "safetensors")},
            "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
            "layers": LAYERS,
            "batch_size": BATCH_SIZE,
            "rounds": rounds,
        }
        Path(arguments.json).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
