"""Public failures of peers in checkpoints and resuming (cases S-CK), in one process."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import checkpoint_scenarios as scenarios
import unifit as uf
from unifit.checkpoint import Checkpoint, newest
from unifit.checkpoint.files import facts_of
from unifit.errors import CheckpointError

FLOAT32 = 1e-6
START_LIMIT_S = 100


def steps_in(folder):
    return sorted(entry.name for entry in Path(folder).glob("step-*"))


# S-CK-01


@pytest.mark.parametrize(
    "accumulation, every, stop_after, saved",
    [
        (1, 14, 14, 14),
        (2, 3, 7, 6),  # an epoch has 5 windows; the 8th has begun when the run ends
    ],
    ids=["plain", "accumulated"],
)
def test_s_ck_01_mid_epoch_resume_goes_on_in_the_same_order(run_on, tmp_path, accumulation, every, stop_after, saved):
    """A run with a checkpoint after 14 batches (12 in the second case), gone on with in another process."""
    straight = scenarios.rows_seen(1, accumulation=accumulation)
    options = {"folder": str(tmp_path), "every": every, "accumulation": accumulation}
    stopped = run_on(1, "rows_seen", stop_after=stop_after, **options)[0]
    assert newest(tmp_path).state["step"] == saved
    resumed = scenarios.rows_seen(1, **options)

    np.testing.assert_array_equal(np.concatenate([stopped["rows"][:saved], resumed["rows"]]), straight["rows"])
    an_epoch = 10 // accumulation
    for epoch in np.reshape(straight["rows"], (3, 20)):
        assert sorted(epoch) == list(range(20))
    first, second, third = np.reshape(straight["rows"], (3, 20)).tolist()
    assert first != second != third  # else the right epoch could not be told from another
    assert resumed["epochs"].tolist() == [1, 2]
    assert resumed["numbers"].tolist() == [*range(saved - an_epoch, an_epoch), *range(an_epoch)]
    for step in steps_in(tmp_path):  # a window is saved whole
        assert Checkpoint.open(tmp_path / step).state["batches_done"] % accumulation == 0


# S-CK-02

KILLED = """
import os, sys
import unifit.checkpoint.saver as saver
import checkpoint_scenarios as scenarios

write_arrays = saver.write_arrays

def killed(path, arrays):
    facts = write_arrays(path, arrays)
    if "step-00000004" in str(path):
        os._exit(9)
    return facts

saver.write_arrays = killed
scenarios.small_run(1, sys.argv[1], every=2)
"""


def test_s_ck_02_killed_save_never_becomes_the_newest_checkpoint(tmp_path):
    """Killed in the save of step 4; the script starts again. The dropout, the schedule and the data are of one step."""
    folder, straight = tmp_path / "run", tmp_path / "straight"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
    assert killed.returncode == 9, killed.stderr[-3000:]
    assert any(".tmp-" in name for name in os.listdir(folder))
    assert newest(folder).state["step"] == 2
    assert (folder / "latest").read_text() == "step-00000002\n"

    with pytest.warns(UserWarning, match="step-00000004' was not written to its end") as warned:
        resumed = scenarios.small_run(1, folder, every=2)
    assert len(warned) == 1
    assert resumed["numbers"].tolist() == [2, 3, 4, *range(5), *range(5)]
    assert not any(name.startswith(".") for name in os.listdir(folder))
    same_end(folder, straight, resumed)


def test_s_ck_02_truncated_checkpoint_is_refused_and_fallen_back_from(tmp_path):
    folder, straight = tmp_path / "run", tmp_path / "straight"
    scenarios.small_run(1, folder, every=2, stop_after=8)
    damaged = folder / "step-00000008" / "optimizer.safetensors"
    os.truncate(damaged, damaged.stat().st_size - 1)

    with pytest.raises(CheckpointError, match=re.escape(str(damaged))):
        scenarios.small_run(1, None, every=2).resume  # noqa: B018
