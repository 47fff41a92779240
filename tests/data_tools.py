"""What the data tests share: reading a source as one process of several would."""

import random
import sys

import numpy as np

from unifit.contract.values import Placement
from unifit.data.windows import Slicer


def slicer_of(source, process=0, processes=1, devices=None):
    return Slicer(Placement(process, processes, devices or processes), source.batch_size)


def own_rows(source, epoch=0, seed=0, process=0, processes=1, first=0):
    """The x values that a process reads, one list a batch."""
    own = slicer_of(source, process, processes).own
    return [np.ravel(b.x[: b.own]).astype(int).tolist() for b in source.epoch(epoch, seed, own, first)]


def flat(batches):
    return [row for batch in batches for row in batch]


class DrawingRows:
    """Ten rows of one number from each global generator: map-style, and found by workers that are spawned."""

    def __len__(self):
        return 10

    def __getitem__(self, row):
        torch_random = sys.modules["torch"].randint(9999, ())
        return np.array([random.randrange(9999), np.random.randint(9999), int(torch_random)])
