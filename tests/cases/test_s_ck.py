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
from unifit.errors import UnifitError

FLOAT32 = 1e-6
START_LIMIT_S = 100


def assert_same_end(folder, straight):
    """The last checkpoints of two runs hold the same, to the last bit."""
    got, want = newest(folder), newest(straight)
    assert {key: got.state[key] for key in ("step", "iterations", "ema", "finished")} == {
        key: want.state[key] for key in ("step", "iterations", "ema", "finished")
    }
    assert got.groups == want.groups == ("weights", "optimizer", "ema")
    for group in got.groups:
        arrays, expected = got.arrays(group), want.arrays(group)
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


# S-CK-01: order


@pytest.mark.parametrize(
    "accumulation, every, stop_after, saved",
    [
        (1, 14, 14, 14),
        (2, 3, 7, 6),  # an epoch has 5 windows; the 8th has begun when the run ends
    ],
    ids=["plain", "accumulated"],
)
def test_s_ck_01_mid_epoch_resume_goes_on_in_the_same_order(run_on, tmp_path, accumulation, every, stop_after, saved):
    """Interrupted in one process, and gone on with in another."""
    straight = scenarios.trace_of_rows(1, accumulation=accumulation)
    options = {"folder": str(tmp_path), "every": every, "accumulation": accumulation}
    stopped = run_on(1, "trace_of_rows", stop_after=stop_after, **options)[0]
    assert newest(tmp_path).state["step"] == saved
    resumed = scenarios.trace_of_rows(1, **options)

    np.testing.assert_array_equal(np.concatenate([stopped["rows"][:saved], resumed["rows"]]), straight["rows"])
    first, second, third = np.reshape(straight["rows"], (3, 20)).tolist()
    assert sorted(first) == sorted(second) == sorted(third) == list(range(20))
    assert first != second != third  # else the right epoch could not be told from another
    an_epoch = 10 // accumulation
    assert resumed["epochs"].tolist() == [1, 2]
    assert resumed["numbers"].tolist() == [*range(saved - an_epoch, an_epoch), *range(an_epoch)]
    for path in tmp_path.glob("step-*"):  # windows are saved whole
        assert Checkpoint.open(path).state["batches_done"] % accumulation == 0


# S-CK-02: killed saves

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
scenarios.small_run(1, sys.argv[1], checkpoint_every=2, checkpoint_keep=None, dropout=0.5)
"""


def test_s_ck_02_killed_save_never_becomes_the_newest_checkpoint(tmp_path):
    """The end shows that weights, slots, averages, schedule, data and dropout went on from one step: the second."""
    folder = tmp_path / "run"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
    assert killed.returncode == 9, killed.stderr[-3000:]
    (partial,) = folder.glob(".step-00000004.tmp-*")
    assert os.listdir(partial)
    assert newest(folder).state["step"] == 2
    assert (folder / "latest").read_text() == "step-00000002\n"

    with pytest.warns(UserWarning, match="step-00000004' was not written to its end") as warned:
        resumed = scenarios.small_run(1, folder, checkpoint_every=2, dropout=0.5)
    assert len(warned) == 1
    assert resumed["numbers"].tolist() == [2, 3, 4, *range(5), *range(5)]
    assert not partial.exists()
    scenarios.small_run(1, tmp_path / "straight", dropout=0.5)
    assert_same_end(folder, tmp_path / "straight")


def test_s_ck_02_truncated_checkpoint_is_refused_and_fallen_back_from(tmp_path):
    folder = tmp_path / "run"
    scenarios.small_run(1, folder, checkpoint_every=2, stop_after=8, dropout=0.5)
    damaged = folder / "step-00000008" / "optimizer.safetensors"
    os.truncate(damaged, damaged.stat().st_size - 1)

    with pytest.raises(UnifitError, match=re.escape(f"'{damaged}' is cut short")):
        scenarios.small_run(1, None, resume=damaged.parent)
    with pytest.warns(UserWarning, match=f"passed over.*{re.escape(str(damaged))}") as warned:
        resumed = scenarios.small_run(1, folder, dropout=0.5)
    assert len(warned) == 1
    assert resumed["numbers"].tolist() == [1, 2, 3, 4, *range(5)]  # 6 steps are one epoch of 5 and one more
    scenarios.small_run(1, tmp_path / "straight", dropout=0.5)
    assert_same_end(folder, tmp_path / "straight")


# S-CK-04: schedules


def test_s_ck_04_schedule_goes_on_at_its_position(tmp_path):
    halving = uf.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    assert scenarios.unit_run(tmp_path, 4, rate=halving, stop_after=2)[0] == pytest.approx(-0.15, rel=FLOAT32)
    w, history = scenarios.unit_run(tmp_path, 4, rate=halving)
    assert history.history["learning_rate"] == pytest.approx([0.025, 0.0125], rel=FLOAT32)
    assert w == pytest.approx(-0.1875, rel=FLOAT32)


def test_s_ck_04_changed_horizon_is_the_new_schedule_with_a_notice(tmp_path):
    """Documented: the script's schedule holds, at the number of updates that were made."""

    def cosine(steps):
        return 0.1 * 0.5 * (1 + np.cos(np.pi * np.arange(8) / steps))

    scenarios.unit_run(tmp_path, 4, rate=uf.schedules.CosineDecay(0.1, 4), stop_after=2)
    with pytest.warns(UserWarning, match="learning rate was CosineDecay.*at update 2") as warned:
        w, history = scenarios.unit_run(tmp_path, 8, rate=uf.schedules.CosineDecay(0.1, 8))
    assert len(warned) == 1
    assert history.history["learning_rate"] == pytest.approx(cosine(8)[2:].tolist(), rel=1e-5)
    assert w == pytest.approx(-(cosine(4)[:2].sum() + cosine(8)[2:].sum()), rel=1e-5)


# S-CK-05: best scores


def scored(folder, stop_after=None):
    """Five epochs with scripted scores; returns the early stopping and the History."""
    early = uf.callbacks.EarlyStopping("val_loss", patience=2)
    best = uf.callbacks.ModelCheckpoint(folder / "best.safetensors", save_best_only=True, save_weights_only=True)
    script = scenarios.Script(val_loss=[0.5, 0.3, 0.4, 0.6, 0.45])
    _, history = scenarios.unit_run(
        folder / "run", 5, [script, early, best], stop_after=stop_after, checkpoint_monitor="val_loss"
    )
    return early, history


def best_file(folder):
    return float(safetensors.numpy.load_file(folder / "best.safetensors")["0.kernel"][0, 0])


def test_s_ck_05_best_score_and_patience_survive_a_restart(tmp_path):
    """w falls by 1 an epoch: the second epoch's file holds -2."""
    scored(tmp_path, stop_after=2)
    assert best_file(tmp_path) == -2.0
    early, history = scored(tmp_path)
    assert best_file(tmp_path) == -2.0
    assert history.history["val_loss"] == [0.4, 0.6]
    assert early.stopped_epoch == 3  # the fourth
    assert (tmp_path / "run" / "best").read_text() == "step-00000002\n"
    assert Checkpoint.open(tmp_path / "run" / "step-00000002").arrays("weights")["0.kernel"] == -2.0


# S-CK-06: no code


class Planted:
    """A pickle of it makes a file when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.fixture(scope="module")
def checkpoint_of_every_kind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("every_kind")
    uf.set_seed(0)
    scenarios.run_of_every_kind(folder, stop_after=6)
    return folder / "step-00000006"


FILES = [
    "state.json",
    *(f"{group}.safetensors" for group in ("weights", "optimizer", "ema", "metrics", "callbacks")),
]


def test_s_ck_06_normal_checkpoint_needs_no_trust(checkpoint_of_every_kind):
    assert sorted(os.listdir(checkpoint_of_every_kind)) == sorted(FILES)
    assert Checkpoint.open(checkpoint_of_every_kind).state["loss_scale"]["scale"] > 0
    model = scenarios.run_of_every_kind(None, resume=checkpoint_of_every_kind)
    model.load_weights(checkpoint_of_every_kind)


@pytest.mark.parametrize(
    "file, listed",
    [*((file, False) for file in FILES), *((file, True) for file in FILES[1:])],
    ids=[*(f"{file}-swapped" for file in FILES), *(f"{file}-hash_fits" for file in FILES[1:])],
)
def test_s_ck_06_planted_code_never_runs(checkpoint_of_every_kind, tmp_path, file, listed):
    """`hash_fits`: whoever plants the file has written its size and hash into state.json as well."""
    marker, planted = tmp_path / "marker", pickle.dumps(Planted(tmp_path / "marker"))
    pickle.loads(planted).close()
    marker.unlink()  # the pickle does what it should

    folder = tmp_path / "run"
    checkpoint = shutil.copytree(checkpoint_of_every_kind, folder / "step-00000006")
    (checkpoint / file).write_bytes(planted)
    (folder / "latest").write_bytes(planted)
    if listed:
        state = json.loads((checkpoint / "state.json").read_text())
        state["files"][file] = facts_of(checkpoint / file)
        (checkpoint / "state.json").write_text(json.dumps(state))

    named = re.escape(str(Path("step-00000006") / file))
    with pytest.raises(UnifitError, match=named):
        scenarios.run_of_every_kind(None, resume=checkpoint)
    model = uf.Sequential([uf.Input((4,)), uf.layers.Dense(3, "tanh"), uf.layers.Dropout(0.5), uf.layers.Dense(2)])
    if not listed or file == "weights.safetensors":
        with pytest.raises(UnifitError, match=named):
            model.load_weights(checkpoint)
        with pytest.raises(UnifitError):
            model.load_weights(folder)
    else:
        model.load_weights(checkpoint)  # reads no other file
    if not listed:
        with pytest.warns(UserWarning, match=named):
            scenarios.run_of_every_kind(folder, stop_after=0)
    assert not marker.exists()
