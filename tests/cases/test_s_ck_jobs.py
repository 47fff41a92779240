"""Public failures of peers in checkpoints and resuming (cases S-CK), in jobs of several processes."""

import numpy as np
import pytest

import checkpoint_scenarios as scenarios
import worker
from unifit.checkpoint import newest

FLOAT32 = 1e-6
ADAM_STEP = 1e-5


@pytest.fixture(scope="module")
def new_job(backend_name):
    """`new_job(processes)`: a job whose processes have not run anything yet that was interrupted."""
    started = {}

    def job(processes):
        if processes not in started:
            started[processes] = worker.Job(backend_name, processes, processes)
        return started[processes]

    yield job
    for each in started.values():
        each.close()


@pytest.mark.parametrize(
    "accumulation, every, stop_after, saved", [(1, 14, 14, 14), (2, 3, 7, 6)], ids=["plain", "accumulated"]
)
def test_s_ck_01_mid_epoch_resume_of_two_processes(
    run_on, new_job, tmp_path, accumulation, every, stop_after, saved
):  # fmt: skip
    straight = scenarios.trace_of_rows(1, accumulation=accumulation)["rows"]
    options = {"folder": str(tmp_path), "every": every, "accumulation": accumulation}
    stopped = run_on(2, "trace_of_rows", processes=2, stop_after=stop_after, **options)
    state = newest(tmp_path).state
    assert (state["step"], state["processes"]) == (saved, 2)
    resumed = new_job(2).run("trace_of_rows", devices=2, **options)
    for before, after in zip(stopped, resumed, strict=True):
        np.testing.assert_array_equal(np.concatenate([before["rows"][:saved], after["rows"]]), straight)
        assert after["epochs"].tolist() == [1, 2]


def step_of_each_row(moments):
    """When each row was trained on: its element had the gradient 1/6 then, and its first moment has decayed since."""
    return np.rint(4 - np.log(moments / (0.1 / 6)) / np.log(0.9)).astype(int).ravel()


@pytest.mark.parametrize(
    "processes",
    [
        1,
        pytest.param(
            3, marks=pytest.mark.backends("torch", "jax", reason="the case names these, and a job has its cost")
        ),
    ],
)
def test_s_ck_03_resume_on_another_number_of_processes(run_on, new_job, tmp_path, processes):
    """Two steps on 2 processes, and two on 1 or 3. The optimizer's state is whole on each: there is no sharding yet."""
    folder, straight = tmp_path / "run", tmp_path / "straight"
    scenarios.five_elements(1, straight)
    run_on(2, "five_elements", processes=2, folder=str(folder), stop_after=2)
    assert (newest(folder).state["processes"], newest(folder).state["step"]) == (2, 2)
    if processes == 1:
        ranks = [scenarios.five_elements(1, folder)]
    else:
        ranks = new_job(processes).run("five_elements", devices=processes, folder=str(folder))
    for rank in ranks:
        np.testing.assert_allclose(rank["five"], [-0.4] * 5, atol=ADAM_STEP)
        assert rank["numbers"].tolist() == [2, 3]
    got, want = newest(folder), newest(straight)
    assert (got.state["processes"], got.state["step"], got.state["iterations"]) == (processes, 4, 4)
    slots, expected = got.arrays("optimizer"), want.arrays("optimizer")
    assert slots.keys() == expected.keys()
    for name in slots:
        np.testing.assert_allclose(slots[name], expected[name], rtol=FLOAT32, err_msg=name)
    order, expected_order = (step_of_each_row(each["optimizer.adam.m.many.kernel"]) for each in (slots, expected))
    np.testing.assert_array_equal(order, expected_order)
    assert np.bincount(order).tolist() == [0, 6, 6, 6, 6]
