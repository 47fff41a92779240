"""`unifit checkpoint`: inspect, verify, diff and convert."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

import checkpoint_tools
import unifit as uf
from unifit.checkpoint import Checkpoint
from unifit.checkpoint.folder import Folder
from unifit.launch import command_line, own_command

LIMIT_S = 60
FRAMEWORKS = ("torch", "jax", "jaxlib", "tensorflow", "keras")


def run(capsys, *arguments):
    """(status, output, errors) of `unifit checkpoint ...`."""
    try:
        status = command_line.main(["checkpoint", *map(str, arguments)])
    except SystemExit as ended:  # argparse's, for a wrong use
        status = ended.code
    return status, *capsys.readouterr()


@pytest.fixture
def folder(tmp_path):
    """A directory with checkpoints after steps 1 and 2."""
    return checkpoint_tools.write(tmp_path / "run", 1, 2).path


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# No framework


@pytest.mark.parametrize("program", ["script", "module"])
def test_command_imports_no_framework(folder, tmp_path, program):
    script = tmp_path / "unifit"  # as pip writes it
    script.write_text("import sys\nfrom unifit.launch.command_line import main\nsys.exit(main())\n")
    how = [script] if program == "script" else ["-m", "unifit"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *map(str, how), "checkpoint", "verify", str(folder)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step-00000002: whole" in done.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "unifit" in imported and not imported & {*FRAMEWORKS}


@pytest.mark.parametrize(
    ("argv", "orig_argv", "expected"),
    [
        (["/usr/bin/unifit", "run", "a.py"], ["python", "/usr/bin/unifit", "run", "a.py"], True),
        (["/usr/bin/unifit"], ["python", "/usr/bin/unifit"], True),
        (["-m", "checkpoint"], ["python", "-m", "unifit", "checkpoint"], True),
        (["-m", "-m", "unifit"], ["python", "-m", "pytest", "-m", "x"], False),
        (["/x/pytest/__main__.py", "-m", "unifit"], ["python", "-m", "pytest", "-m", "unifit"], False),
        (["unifit", "train"], ["python", "unifit", "train"], False),
        (["train.py", "run"], ["python", "train.py", "run"], False),
        ([""], ["python"], False),
    ],
)
def test_own_command_is_told_from_users_programs(monkeypatch, argv, orig_argv, expected):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert own_command.is_own_command() is expected


# inspect


def test_inspect_shows_state_groups_and_arrays(capsys, folder):
    status, output, errors = run(capsys, "inspect", folder)
    assert status == 0 and not errors
    lines = [line.split() for line in output.splitlines()]
    for row in (["step", "2"], ["epoch", "1"], ["fit", "0"], ["backend", "torch"], ["latest", "step-00000002"]):
        assert row in lines
    assert ["weights", "2", "256", "1.0", "kB"] in lines  # two arrays of 128 float32
    assert ["weights.a", "F32", "(128)", "weights"] in lines
    assert ["loader.0", "U8", "(3)", "data"] in lines
    assert "also there: step-00000001" in output


def test_inspect_json_is_what_the_checkpoint_holds(capsys, folder):
    status, output, _ = run(capsys, "inspect", folder / "step-00000001", "--json")
    found = json.loads(output)
    checkpoint = Checkpoint.open(folder / "step-00000001")
    assert status == 0 and found["step"] == 1 and found["path"] == str(checkpoint.path)
    assert found["score"] is None and found["best"] is None and found["others"] == ["step-00000002"]
    assert found["bytes"] == sum((checkpoint.path / name).stat().st_size for name in checkpoint.state["files"])
    expected = [
        {"group": group, "name": name, "dtype": "U8" if group == "data" else "F32", "shape": list(value.shape)}
        for group in checkpoint.groups
        for name, value in checkpoint.arrays(group).items()
    ]
    assert [{key: entry[key] for key in expected[0]} for entry in found["arrays"]] == expected
    assert found["groups"]["weights"] == {"arrays": 2, "elements": 256, "bytes": 1024}


def test_inspect_shows_the_best_score(capsys, tmp_path):
    state = checkpoint_tools.contents(1).state | {"score": {"monitor": "val_loss", "value": 0.25}}
    folder = checkpoint_tools.write(tmp_path / "run", 1, state=state, better=True).path
    status, output, _ = run(capsys, "inspect", folder)
    assert status == 0 and '"val_loss", "value": 0.25' in output
    assert ["best", "step-00000001"] in [line.split() for line in output.splitlines()]


# verify


def test_verify_names_every_damaged_file_and_ends_with_1(capsys, tmp_path):
    folder = checkpoint_tools.write(tmp_path / "run", 1, 2, 3, 4).path
    other = checkpoint_tools.write(tmp_path / "run" / "fit-1", 7).path
    assert run(capsys, "verify", folder)[0] == 0
    damage(folder / "step-00000001" / "optimizer.safetensors")
    (folder / "step-00000003" / "state.json").unlink()
    (other / "step-00000007" / "weights.safetensors").unlink()
    status, output, errors = run(capsys, "verify", folder)
    assert status == 1 and "3 of 5 checkpoints are damaged" in errors
    verdicts = dict(line.split(": ", 1) for line in output.splitlines())
    assert {os.path.relpath(path, folder) for path, what in verdicts.items() if what.startswith("whole")} == {
        "step-00000002", "step-00000004"
    }  # fmt: skip
    assert "optimizer.safetensors" in verdicts[str(folder / "step-00000001")]
    assert "state.json" in verdicts[str(folder / "step-00000003")]
    assert "weights.safetensors" in verdicts[str(other / "step-00000007")]


@pytest.mark.parametrize("kind", ["damaged", "empty", "file"])
def test_verify_of_one_folder(capsys, folder, kind):
    target = folder / "step-00000001"
    assert run(capsys, "verify", target)[0] == 0
    if kind == "damaged":
        damage(target / "ema.safetensors")
    elif kind == "empty":
        for entry in target.iterdir():
            entry.unlink()
    else:
        (target / "weights.safetensors").write_bytes(b"")
    named = {"damaged": "ema.safetensors", "empty": "state.json", "file": "weights.safetensors"}[kind]
    status, output, _ = run(capsys, "verify", target)
    assert status == 1 and named in output
    assert run(capsys, "verify", folder / "step-00000002")[0] == 0


# diff


def test_diff_of_a_checkpoint_with_itself_finds_nothing(capsys, folder):
    status, output, _ = run(capsys, "diff", folder / "step-00000001", folder / "step-00000001")
    assert status == 0 and "no differences" in output and "max |a - b| = 0" in output


def test_diff_shows_states_distances_and_names_of_one_only(capsys, tmp_path):
    checkpoint_tools.write(tmp_path / "a", 3)
    groups = checkpoint_tools.contents(3).groups
    groups["weights"]["weights.a"] = np.array([3.0, 3.25, np.nan, np.inf] * 32, "float32")
    groups["ema"] = {"ema.a": groups["ema"]["ema.a"], "ema.c": np.zeros(1, "float32")}
    groups["metrics"]["metrics.a"] = np.zeros((2, 3), "float32")
    state = checkpoint_tools.contents(3).state | {"seed": 5, "backend": "jax", "ema": {"updates": 4}}
    checkpoint_tools.write(tmp_path / "b", 3, groups=groups, state=state)
    status, output, _ = run(capsys, "diff", tmp_path / "a", tmp_path / "b")
    lines = output.splitlines()
    assert status == 1
    assert "state.json seed: 0 in A, 5 in B" in lines and "state.json ema.updates: 3 in A, 4 in B" in lines
    assert "ema ema.b: only in A" in lines and "ema ema.c: only in B" in lines
    assert "metrics metrics.a: float32 (128) in A, float32 (2, 3) in B" in lines
    assert "weights weights.a: max |a - b| = inf" in lines
    assert len(lines) == 7 and "7 arrays" not in output  # the backend that wrote it is no difference


@pytest.mark.parametrize(("tolerance", "status"), [("0.1", 1), ("0.25", 0)])
def test_diff_within_the_tolerance_is_equal(capsys, tmp_path, tolerance, status):
    checkpoint_tools.write(tmp_path / "a", 3)
    groups = checkpoint_tools.contents(3).groups
    groups["weights"]["weights.a"][7] = 3.25
    checkpoint_tools.write(tmp_path / "b", 3, groups=groups)
    found, output, _ = run(capsys, "diff", tmp_path / "a", tmp_path / "b", "--tolerance", tolerance)
    assert found == status and "max |a - b| = 0.25" in output


def test_diff_takes_nan_beside_nan_for_equal_and_nan_beside_a_number_for_a_difference(capsys, tmp_path):
    groups = checkpoint_tools.contents(3).groups
    groups["weights"]["weights.a"][7] = np.nan
    checkpoint_tools.write(tmp_path / "a", 3, groups=groups)
    assert run(capsys, "diff", tmp_path / "a", tmp_path / "a")[0] == 0
    checkpoint_tools.write(tmp_path / "b", 3)
    assert run(capsys, "diff", tmp_path / "a", tmp_path / "b", "--tolerance", "1e30")[0] == 1


# convert


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    uf.set_seed(0)
    folder = tmp_path_factory.mktemp("fitted") / "run"
    model = uf.Sequential([uf.layers.Dense(4), uf.layers.Dense(2)])
    model.compile("sgd", "mse", ema=uf.EMA(0.5))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    model.fit(x, x[:, :2], batch_size=4, epochs=1, verbose=0, checkpoint_dir=folder)
    return Folder(folder).newest()


def test_convert_writes_what_export_writes(capsys, fitted, tmp_path):
    directory = fitted.path.parent
    (tmp_path / "names.json").write_text('{"0": "body", "1.bias": null}')
    target = tmp_path / "t.safetensors"
    status, output, errors = run(
        capsys, "convert", directory, "--to", "torch", "--output", target, "--names", tmp_path / "names.json",
        "--weights", "ema",
    )  # fmt: skip
    assert status == 0 and output == f"{target}\n" and not errors
    averages = fitted.arrays("ema")
    expected = {
        "body.weight": averages["0.kernel"].T,
        "body.bias": averages["0.bias"],
        "1.weight": averages["1.kernel"].T,
    }
    np.testing.assert_equal(safetensors.numpy.load_file(target), expected)
    assert run(capsys, "convert", directory, "--to", "safetensors", "--output", target)[0] == 2  # it exists
    assert run(capsys, "convert", directory, "--to", "safetensors", "--output", target, "--overwrite")[0] == 0
    np.testing.assert_equal(safetensors.numpy.load_file(target), fitted.arrays("weights"))


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "RUN/none"], "no folder"),
        (["inspect", "RUN/empty"], "no complete checkpoint"),
        (["verify", "RUN/none"], "no folder"),
        (["verify", "RUN/empty"], "no checkpoint"),
        (["diff", "RUN", "RUN/none"], "no folder"),
        (["convert", "RUN/none", "--to", "torch", "--output", "x"], "no checkpoint"),
        (["convert", "RUN", "--to", "torch", "--output", "RUN/x"], "does not say which layers"),
        (["convert", "RUN", "--to", "safetensors", "--output", "RUN/x", "--names", "RUN/latest"], "read as JSON"),
        (["convert", "RUN", "--to", "safetensors", "--output", "RUN/x", "--names", "RUN/list.json"], "needs an object"),
        (["convert", "RUN", "--to", "safetensors", "--output", "RUN/x", "--weights", "best"], "invalid choice"),
        (["convert", "RUN", "--to", "pickle", "--output", "RUN/x"], "invalid choice"),
        (["convert", "RUN", "--to", "torch"], "--output"),
        (["diff", "RUN", "RUN", "--tolerance", "-1"], "no number of at least 0"),
        (["diff", "RUN"], "required"),
        ([], "required"),
    ],
)
def test_wrong_use_is_said_in_one_line_with_status_2(capsys, folder, arguments, message):
    (folder / "empty").mkdir()
    (folder / "list.json").write_text("[]")
    status, output, errors = run(capsys, *[argument.replace("RUN", str(folder)) for argument in arguments])
    assert status == 2 and not output
    assert message in errors.splitlines()[-1]
    assert len(errors.splitlines()) == 1 or errors.startswith("usage:")
    assert not (folder / "x").exists()


@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_damaged_checkpoint_is_named_in_one_line(capsys, folder, command):
    for step in (1, 2):
        damage(folder / f"step-0000000{step}" / "weights.safetensors")
    more = ["--to", "safetensors", "--output", folder / "x"] if command == "convert" else []
    status, output, errors = run(capsys, command, folder / "step-00000001", *more)
    assert status == 2 and not output and len(errors.splitlines()) == 1 and "weights.safetensors' is damaged" in errors
    assert not (folder / "x").exists()
