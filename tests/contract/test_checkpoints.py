"""What fit writes into checkpoint_dir, which checkpoints stay, and which one a fit goes on from."""

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import checkpoint_scenarios as scenarios
import unifit as uf
import unifit.training.checkpointing as checkpointing
from checkpoint_tools import names
from unifit.checkpoint import Checkpoint, newest
from unifit.checkpoint.files import facts_of
from unifit.errors import ArgumentError, CheckpointError, UnsupportedError

FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checkpoint-format.md"


@pytest.fixture(autouse=True)
def script_starts_again(monkeypatch):
    """Call it where the script is started again: no fit of this process has been completed."""
    monkeypatch.setattr(checkpointing, "_completed", {})
    return checkpointing._completed.clear


def steps(folder):
    return [int(name.removeprefix("step-")) for name in names(folder) if name.startswith("step-")]


# What is written


def documented_keys():
    table = FORMAT_PAGE.read_text().partition("## state.json")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


@pytest.fixture(scope="module")
def mid_epoch(tmp_path_factory):
    """The folder of a run of every kind, interrupted after 6 steps of 8, two in its second epoch."""
    folder = tmp_path_factory.mktemp("mid_epoch")
    uf.set_seed(0)
    scenarios.run_of_every_kind(folder, stop_after=6)
    return folder


def test_folder_is_that_of_the_format_page(mid_epoch):
    assert names(mid_epoch) == ["latest", "step-00000006"]
    assert (mid_epoch / "latest").read_text() == "step-00000006\n"
    found = Checkpoint.open(mid_epoch / "step-00000006")
    groups = ("weights", "optimizer", "ema", "metrics", "callbacks")
    assert found.groups == groups
    assert names(found.path) == sorted(["state.json", *(f"{group}.safetensors" for group in groups)])
    for name, facts in found.state["files"].items():
        assert facts_of(found.path / name) == facts


def test_state_has_the_keys_of_the_format_page_and_no_others(mid_epoch, backend_name):
    state = Checkpoint.open(mid_epoch / "step-00000006").state
    assert set(state) == documented_keys()
    expected = {
        "format": "unifit-checkpoint", "version": 1, "unifit": uf.__version__, "backend": backend_name, "fit": 0,
        "step": 6, "epoch": 1, "epochs": 2, "finished": False, "batches_done": 2, "steps_done": 2,
        "position": {"epoch": 1, "batch": 2, "begun": 0}, "devices": 1, "processes": 1, "seed": 0, "frozen": [],
        "score": None, "microbatch_sizes": [], "accumulation": 1,
    }  # fmt: skip
    assert {key: state[key] for key in expected} == expected
    assert state["libraries"]["numpy"] == np.__version__
    assert state["optimizer"] == {"rule": "adam", "learning_rate": 0.001, "initial_learning_rate": 0.001}
    assert state["iterations"] == state["ema"]["updates"] == 6 - state["loss_scale"]["skipped"]
    assert state["sums"]["steps"] == 2
    assert state["callbacks"]["EarlyStopping"]["wait"] == 0
    assert state["weights"]["0.kernel"] == {
        "layer": "Dense", "name": "kernel", "shape": [4, 3], "dtype": "float32", "trainable": True
    }  # fmt: skip


def test_arrays_have_the_names_and_dtypes_of_the_format_page(mid_epoch):
    found = Checkpoint.open(mid_epoch / "step-00000006")
    shapes = {"0.kernel": (4, 3), "0.bias": (3,), "2.kernel": (3, 2), "2.bias": (2,)}
    slots = {f"optimizer.adam.{slot}.{path}": shape for slot in "mv" for path, shape in shapes.items()}
    for group, expected in (("weights", shapes), ("ema", shapes), ("optimizer", slots)):
        arrays = found.arrays(group)
        assert {name: array.shape for name, array in arrays.items()} == expected
        assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    metrics = found.arrays("metrics")
    assert set(metrics) == {"sums.totals"} and metrics["sums.totals"].dtype == np.float32
    stored = found.state["callbacks"]["EarlyStopping"]["best_weights"]
    callbacks = found.arrays("callbacks")
    assert [callbacks[entry["__array__"]].shape for entry in stored] == [*shapes.values()]


def test_layouts_are_keras_and_narrow_weights_are_held_exactly(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 5, 4, 2)).astype("float32")
    model = uf.Sequential([uf.layers.Conv2D(3, (3, 2)), uf.layers.Flatten(), uf.layers.Dense(1)])
    with pytest.warns(UserWarning, match="keeps the variables themselves in bfloat16"):
        model.compile(uf.optimizers.Adam(0.1), "mse", precision="bfloat16")
    model.fit(x, x[:, 0, 0, :1], batch_size=4, verbose=0, checkpoint_dir=tmp_path)
    found = newest(tmp_path)
    weights = found.arrays("weights")
    assert weights["0.kernel"].shape == found.arrays("optimizer")["optimizer.adam.m.0.kernel"].shape == (3, 2, 2, 3)
    assert found.state["weights"]["0.kernel"]["dtype"] == "bfloat16"
    for path, value in model.weights_by_path().items():
        assert weights[path].dtype == np.float32
        np.testing.assert_array_equal(weights[path], np.asarray(value, np.float32))
    assert not np.any(weights["0.kernel"].view(np.uint32) & 0xFFFF)  # bfloat16 is a float32's upper half


def test_end_of_an_epoch_has_no_sums(tmp_path):
    scenarios.small_run(1, tmp_path, epochs=1)
    found = newest(tmp_path)
    assert found.groups == ("weights", "optimizer", "ema")
    expected = {"finished": True, "epoch": 1, "batches_done": 0, "steps_done": 0, "sums": None}
    expected["position"] = {"epoch": 0, "batch": 5, "begun": 0}
    assert {key: found.state[key] for key in expected} == expected


# Which are kept

NAN = math.nan


@pytest.mark.parametrize(
    "mode, best, expected",
    [("auto", 3, [3, 5, 6]), ("max", 4, [4, 5, 6])],
)
def test_newest_and_the_best_are_kept_and_nan_is_never_best(tmp_path, mode, best, expected):
    script = scenarios.Script(val_loss=[NAN, 0.5, 0.2, 0.9, NAN, 0.4])
    scenarios.unit_run(
        tmp_path, 6, [script], checkpoint_keep=2, checkpoint_monitor="val_loss", checkpoint_mode=mode
    )  # fmt: skip
    assert steps(tmp_path) == expected
    assert (tmp_path / "best").read_text() == f"step-{best:08d}\n"
    score = Checkpoint.open(tmp_path / f"step-{best:08d}").state["score"]
    assert score == {"monitor": "val_loss", "value": {3: 0.2, 4: 0.9}[best]}


def test_only_nan_has_no_best(tmp_path):
    scenarios.unit_run(tmp_path, 2, [scenarios.Script(val_loss=[NAN, NAN])], checkpoint_monitor="val_loss")
    assert names(tmp_path) == ["latest", "step-00000001", "step-00000002"]


def test_checkpoint_that_was_resumed_from_is_kept(tmp_path):
    scenarios.unit_run(tmp_path, 8, stop_after=3, checkpoint_keep=1)
    assert steps(tmp_path) == [3]
    scenarios.unit_run(tmp_path, 8, checkpoint_keep=1)
    assert steps(tmp_path) == [3, 8]


def test_all_are_kept(tmp_path):
    scenarios.unit_run(tmp_path, 6, checkpoint_keep=None)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_monitor_that_is_not_in_the_logs_is_told(tmp_path):
    with pytest.warns(UserWarning, match="checkpoint_monitor is 'los', which is not in the logs"):
        scenarios.unit_run(tmp_path, 1, checkpoint_monitor="los", checkpoint_mode="min")


# Which one a fit goes on from


def test_must_needs_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="resume='must'.*no complete checkpoint"):
        scenarios.unit_run(tmp_path, 1, resume="must")
    scenarios.unit_run(tmp_path, 4, stop_after=2)
    assert scenarios.unit_run(tmp_path, 4, resume="must")[0] == -4.0


def test_starting_afresh_in_a_used_folder_is_refused(tmp_path):
    seen = scenarios.Seen()
    scenarios.unit_run(tmp_path, 4, stop_after=2)
    before = names(tmp_path)
    with pytest.raises(ArgumentError, match=r"holds checkpoints \(steps \[1, 2\]\)"):
        scenarios.unit_run(tmp_path, 4, [seen], resume=None)
    assert seen.calls == [] and names(tmp_path) == before
    assert scenarios.unit_run(tmp_path / "other", 2, resume=None)[0] == -2.0


@pytest.mark.parametrize("where", ["run", "run/step-00000002"])
def test_path_goes_on_from_there(tmp_path, where):
    scenarios.unit_run(tmp_path / "run", 4, stop_after=2)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    w, history = scenarios.unit_run(tmp_path / "new", 4, resume=tmp_path / where)
    assert w == -4.0 and len(history.history["loss"]) == 2
    assert steps(tmp_path / "new") == [3, 4]
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_path_without_a_directory_writes_nothing(tmp_path):
    scenarios.unit_run(tmp_path, 4, stop_after=2)
    assert scenarios.unit_run(None, 4, resume=str(tmp_path / "step-00000001"))[0] == -4.0
    assert steps(tmp_path) == [1, 2]


def test_path_to_nothing_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        scenarios.unit_run(None, 4, resume=tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path))):
        scenarios.unit_run(None, 4, resume=tmp_path)


def test_path_before_later_ones_of_the_same_folder_is_refused(tmp_path):
    """They would stay the newest."""
    scenarios.unit_run(tmp_path, 4, stop_after=3)
    with pytest.raises(ArgumentError, match=r"later checkpoints \(steps \[2, 3\]\)"):
        scenarios.unit_run(tmp_path, 4, resume=tmp_path / "step-00000001")


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"checkpoint_every": 0}, ArgumentError, "checkpoint_every is 0"),
        ({"checkpoint_every": True}, ArgumentError, "checkpoint_every is True"),
        ({"checkpoint_every": "step"}, ArgumentError, "checkpoint_every is 'step'"),
        ({"checkpoint_keep": 0}, ArgumentError, "checkpoint_keep is 0"),
        ({"checkpoint_monitor": 3}, ArgumentError, "checkpoint_monitor is 3"),
        ({"checkpoint_monitor": "odd"}, ArgumentError, "monitor='odd'"),
        ({"checkpoint_dir": 3}, ArgumentError, "checkpoint_dir is 3"),
        ({"checkpoint_dir": "gs://bucket/run"}, UnsupportedError, "gs://bucket/run"),
        ({"checkpoint_dir": None, "resume": "must"}, ArgumentError, "needs a checkpoint_dir"),
        ({"resume": 1}, ArgumentError, "resume is 1"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, options, error, words):
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2, 1), np.float32)
    with pytest.raises(error, match=re.escape(words)):
        model.fit(x, x, verbose=0, **({"checkpoint_dir": tmp_path / "run"} | options))
    assert names(tmp_path) == []


# Finished fits, and several in a script


def test_finished_run_is_loaded_and_not_trained(tmp_path, script_starts_again):
    done = scenarios.small_run(1, tmp_path, epochs=2)
    before = names(tmp_path)
    for epochs in (2, 1):
        script_starts_again()
        again = scenarios.small_run(1, tmp_path, epochs=epochs)
        assert again["calls"].tolist() == ["train_begin", "train_end"]
        assert again["epochs"].size == again["numbers"].size == 0
        assert not any(name.startswith("history") for name in again)
        for name in done:
            if name.startswith("weight "):
                np.testing.assert_array_equal(again[name], done[name], err_msg=name)
    assert names(tmp_path) == before


def test_finished_run_goes_on_with_more_epochs(tmp_path, script_starts_again):
    straight = scenarios.small_run(1, None, epochs=3, dropout=0.5)
    scenarios.small_run(1, tmp_path, epochs=2, dropout=0.5)
    script_starts_again()
    more = scenarios.small_run(1, tmp_path, epochs=3, dropout=0.5)
    assert more["epochs"].tolist() == [2]
    for name in straight:
        if name.startswith("weight "):
            np.testing.assert_array_equal(more[name], straight[name], err_msg=name)


def test_two_fits_of_a_script_go_on_where_the_second_was_interrupted(run_on, tmp_path):
    straight = scenarios.two_fits(1, None)
    run_on(1, "two_fits", folder=str(tmp_path), stop_after=8)  # of 12; with a checkpoint every 3
    assert steps(tmp_path)[-1] == 12
    again = scenarios.two_fits(1, str(tmp_path))
    assert again["first"].size == 0 and again["first calls"].tolist() == ["train_begin", "train_end"]
    assert again["second"].tolist() == [0, 1, 2, 3, 4, 5]  # its second epoch
    for name in straight:
        if name.startswith("weight "):
            np.testing.assert_array_equal(again[name], straight[name], err_msg=name)


def test_interrupted_fit_is_gone_on_with_in_the_same_process(tmp_path):
    scenarios.unit_run(tmp_path, 4, stop_after=2)
    assert scenarios.unit_run(tmp_path, 4)[0] == -4.0
    assert names(tmp_path)[0] == "latest"  # no fit-1


# BackupAndRestore


def backed_up(folder, stop_after=None, **options):
    backup = uf.callbacks.BackupAndRestore(folder, save_freq=1, **options)
    return scenarios.unit_run(None, 4, [backup], stop_after)


def test_backup_is_gone_on_from_and_deleted_at_the_end(tmp_path):
    backed_up(tmp_path, stop_after=2)
    assert steps(tmp_path) == [2]
    w, history = backed_up(tmp_path)
    # The second epoch's last step is saved, its end is not.
    assert w == -4.0 and history.epoch == [1, 2, 3]
    assert steps(tmp_path) == []


def test_backup_stays_where_asked(tmp_path, script_starts_again):
    backed_up(tmp_path, delete_checkpoint=False)
    assert steps(tmp_path)[-1] == 4
    script_starts_again()
    assert backed_up(tmp_path, delete_checkpoint=False)[0] == -4.0


def test_backup_beside_a_checkpoint_dir_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="BackupAndRestore"):
        scenarios.unit_run(tmp_path / "a", 1, [uf.callbacks.BackupAndRestore(tmp_path / "b")])


def test_damaged_one_is_passed_over_by_auto_and_named(mid_epoch, tmp_path):
    """A small one of all kinds of damage; tests/unit has the others."""
    folder = Path(shutil.copytree(mid_epoch, tmp_path / "run"))
    state = folder / "step-00000006" / "state.json"
    state.write_text(state.read_text().replace('"version": 1', '"version": 2'))
    with pytest.warns(UserWarning, match="passed over.*version 2"):
        scenarios.run_of_every_kind(folder, stop_after=0)
    with pytest.raises(CheckpointError, match="resume='must'"), pytest.warns(UserWarning, match="version 2"):
        scenarios.run_of_every_kind(folder, resume="must")
    with pytest.raises(CheckpointError, match=r"version 2 .*Upgrade unifit"):
        scenarios.run_of_every_kind(None, resume=folder / "step-00000006")
