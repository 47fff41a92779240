"""Moments at which a run is killed, drawn along it."""

import random
from typing import NamedTuple

SAVE, WINDOW, REST = "save", "window", "rest"

SAVE_STAGES = (
    "copied",  # the loop goes on, and the thread that writes has just begun
    "folder made",
    "in a file",
    "in a file",
    "after a file",
    "after a file",
    "before state.json",
    "in state.json",
    "before the rename",
    "before latest",
    "in latest",
    "after latest",
    "deletion begun",
    "in a deletion",
)
WINDOW_STAGES = ("in the step", "between two reads")
REST_STAGES = (
    "validation",
    "step's end",
    "epoch's end, after the callbacks",
    "step's begin",
    "resuming",
    "epoch's end, before the callbacks",
    "epoch's begin",
    "step's end",
    "validation",
    "step's begin",
)
AT_EPOCHS_END = ("validation", "epoch's end, after the callbacks", "epoch's end, before the callbacks", "epoch's begin")
REPLACING = "replacing"  # the last save takes the place of the one after the same step: between its two renames

FILES = 4  # of a save in the middle of an epoch: weights, optimizer, ema, metrics


class Moment(NamedTuple):
    """When a job is killed.

    Attributes:
        kind: "save", "window" (a step, or the reads for it) or "rest".
        stage: What the process is at.
        step: It happens the first time that the stage comes after so many updates.
        rank: The process that is at it, and kills the others.
        part: Which file of a save, from 0; or which part of a step's time, below 1.
    """

    kind: str
    stage: str
    step: int
    rank: int = 0
    part: float = 0


def drawn(kills, steps, epoch_steps, ranks, seed):
    """`kills` moments in the order of their steps, at least a third of them in saves and as many in windows.

    The last one is in the last save; the others keep some steps away from the end, so that each has an opportunity.

    Args:
        kills: How many, at least 3.
        steps: Updates of the run.
        epoch_steps: Updates of an epoch.
        ranks: Processes of the job; the first one alone is at the stages of a save.
        seed: What they are drawn from.
    """
    r = random.Random(seed)
    third = -(-kills // 3)
    in_saves = [stage for _ in range(third) for stage in r.sample(SAVE_STAGES, len(SAVE_STAGES))][: third - 1]
    in_windows = [WINDOW_STAGES[number % 2] for number in range(third)]
    others = [REST_STAGES[number % len(REST_STAGES)] for number in range(kills - 2 * third)]
    stages = [(SAVE, stage) for stage in in_saves] + [(WINDOW, stage) for stage in in_windows]
    stages += [(REST, stage) for stage in others]
    r.shuffle(stages)
    least, most = 4, steps - epoch_steps  # the first checkpoints are there; a deletion may come some saves later
    moments = []
    for number, (kind, stage) in enumerate(stages):
        step = least + int((most - least) * (number + r.random()) / len(stages))
        if stage in AT_EPOCHS_END:
            step = -(-step // epoch_steps) * epoch_steps
        rank = 0 if kind == SAVE else r.randrange(ranks)
        part = r.randrange(FILES) if stage.endswith("a file") else r.random()
        moments.append(Moment(kind, stage, step, rank, part))
    moments.sort(key=lambda moment: moment.step)
    return [*moments, Moment(SAVE, REPLACING, steps)]
