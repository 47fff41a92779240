"""The example scripts reach float32's figures under the half policies, and the precision benchmark prints its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from script_runs import run_script

ROOT = Path(__file__).parents[2]
HALVES = ("mixed_bfloat16", "mixed_float16")


def example(name, folder, precision, **environment):
    """The last line of an example under a policy, on two devices."""
    output = run_script(ROOT / "examples" / name, folder, PRECISION=precision, DEVICES="2", **environment)
    row = json.loads(output.splitlines()[-1])
    print(name, row["backend"], precision, row)
    return row


def digits(folder, precision):
    return example("digits.py", folder, precision, EPOCHS="8")["val_accuracy"]


def text_loss(folder, precision):
    return example("text_gpt.py", folder, precision, EPOCHS="2")["losses"][-1]


@pytest.fixture(scope="module")
def digits_in_float32(tmp_path_factory):
    return digits(tmp_path_factory.mktemp("digits"), "float32")


@pytest.fixture(scope="module")
def text_loss_in_float32(tmp_path_factory):
    return text_loss(tmp_path_factory.mktemp("text"), "float32")


@pytest.mark.parametrize("precision", HALVES)
def test_digits_are_as_accurate_as_in_float32(precision, tmp_path, digits_in_float32):
    assert abs(digits(tmp_path, precision) - digits_in_float32) <= 0.005


@pytest.mark.parametrize("precision", HALVES)
def test_text_is_learned_as_well_as_in_float32(precision, tmp_path, text_loss_in_float32):
    assert text_loss(tmp_path, precision) == pytest.approx(text_loss_in_float32, rel=0.02)


def test_benchmark_prints_a_row_for_each_policy_of_both_models(tmp_path, backend_name):
    output = run_script(ROOT / "benchmarks" / "precision.py", tmp_path, "--steps", "2", "--rounds", "1")
    assert f"Backend {backend_name}." in output
    rows = [line.split() for line in output.splitlines() if line.startswith(("float32", *HALVES))]
    assert [row[0] for row in rows] == ["float32", *HALVES] * 2
    parameters, slots = (np.array([int(row[i].replace(",", "")) for row in rows]) for i in (1, 2))
    assert (parameters > 0).all() and (slots > 0).all()
    for figures in (parameters, slots):  # variables and slots are float32 whatever the policy
        assert len(set(figures[:3])) == len(set(figures[3:])) == 1
    assert all(float(row[4 if row[3] != "not" else 5]) > 0 for row in rows)
