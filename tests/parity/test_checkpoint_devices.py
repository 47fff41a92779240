"""A run that is interrupted on one number of devices and goes on on another one."""

import numpy as np
import pytest

import checkpoint_scenarios as scenarios
from tolerance import assert_same_weights
from unifit.checkpoint import newest

LOSS_RELATIVE = 1e-5


@pytest.mark.parametrize(
    "normalization, microbatch_sizes",
    [("batch", (None, None, None)), ("layer", (None, 2, 1))],  # BatchNormalization's figures are a micro-batch's
    ids=["devices", "devices_and_microbatches"],
)
def test_run_goes_on_on_other_numbers_of_devices(run_on, tmp_path, normalization, microbatch_sizes):
    """1, 2, 4 devices and 1 again, each time in the middle of an epoch: 5 updates an epoch, the last one ragged."""
    folder = tmp_path / "run"
    straight = scenarios.small_run(1, tmp_path / "straight", epochs=4, normalization=normalization)
    done = 0
    for devices, updates, microbatch_size in zip((1, 2, 4), (7, 5, 5), microbatch_sizes, strict=True):
        done += updates
        run_on(
            devices, "small_run", folder=str(folder), epochs=4, checkpoint_every=done, stop_after=updates,
            microbatch_size=microbatch_size, normalization=normalization,
        )  # fmt: skip
        state = newest(folder).state
        assert (state["step"], state["devices"], state["batches_done"]) == (done, devices, done % 5)
    resumed = scenarios.small_run(1, folder, epochs=4, normalization=normalization)
    assert resumed["numbers"].tolist() == [2, 3, 4]
    np.testing.assert_allclose(resumed["running"], straight["running"][-3:], rtol=LOSS_RELATIVE)
    weights = {name: value for name, value in straight.items() if name.startswith("weight ")}
    assert_same_weights({name: resumed[name] for name in weights}, weights, rate_sum=20 * 1e-2)
    assert_same_weights(newest(folder).arrays("ema"), newest(tmp_path / "straight").arrays("ema"), rate_sum=20 * 1e-2)
