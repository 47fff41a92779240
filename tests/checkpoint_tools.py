"""Small checkpoints that tests of the format write without a model, and what they do to them."""

import threading
from pathlib import Path

import numpy as np

from unifit.checkpoint.folder import Folder
from unifit.checkpoint.saver import Contents, Saver

GROUPS = ("weights", "optimizer", "ema", "metrics", "callbacks", "data")
TIME_LIMIT_S = 20.0


def contents(step, **options):
    """A checkpoint whose arrays tell which step they are of; weights are 1 kB."""
    groups = {group: {f"{group}.{part}": np.full(128, step, np.float32) for part in "ab"} for group in GROUPS[:-1]}
    own = {"data": {"loader.0": np.full(3, step, np.uint8)}}
    weights = {
        name: {"layer": "Dense", "name": "kernel", "shape": [128], "dtype": "float32", "trainable": True}
        for name in groups["weights"]
    }
    state = {
        "format": "unifit-checkpoint", "version": 1, "unifit": "0", "backend": "torch", "libraries": {}, "fit": 0,
        "step": step, "iterations": step, "epoch": 1, "epochs": 3, "finished": False, "batches_done": 1,
        "steps_done": 1, "position": {"epoch": 1, "batch": 1}, "data": {"kind": "ArraySource"}, "devices": 1,
        "processes": 1, "seed": 0, "optimizer": {"rule": "adam", "learning_rate": 0.1, "initial_learning_rate": 0.1},
        "loss_scale": None, "ema": {"updates": step}, "sums": {"steps": 1, "fold_every": 9}, "callbacks": {},
        "microbatch_sizes": [], "accumulation": 1, "padded": 0, "first_padded": 0, "frozen": [], "score": None,
        "weights": weights,
    }  # fmt: skip
    return Contents(**({"state": state, "groups": groups, "own": own} | options))


def write(folder, *steps, keep=None, **options):
    """Writes checkpoints after these steps, one after another; returns their Folder."""
    found = Folder(folder)
    saver = Saver(found, keep)
    for step in steps:
        saver.save(contents(step, **options))
    saver.wait()
    return found


def step_held(checkpoint):
    """The step that all arrays of a checkpoint are of; None where they differ."""
    values = {
        int(value) for group in checkpoint.groups for array in checkpoint.arrays(group).values() for value in array
    }
    return values.pop() if len(values) == 1 else None


def names(folder):
    """The names in a folder, sorted."""
    return sorted(entry.name for entry in Path(folder).iterdir())


class ThreadChannel:
    """The agreements of so many threads that stand for processes: see saver.Channel."""

    def __init__(self, processes):
        self.processes = processes
        self._given = [None] * processes
        self._barrier = threading.Barrier(processes)

    def of(self, process):
        channel = ThreadChannel.__new__(ThreadChannel)
        channel.__dict__ |= self.__dict__ | {"process": process}
        return channel

    def agree(self, mine, combine):
        self._given[self.process] = mine
        self._barrier.wait(TIME_LIMIT_S)
        given = list(self._given)
        self._barrier.wait(TIME_LIMIT_S)
        return combine(given)
