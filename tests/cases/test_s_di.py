"""Public failures of peers in data-parallel training, with the right numbers (cases S-DI), on two devices."""

import numpy as np
import pytest

FLOAT32 = 1e-6


@pytest.mark.parametrize("batch_size", [2, 3])
def test_s_di_02_padding_stays_out_of_evaluation_and_prediction(run_on, batch_size):
    for rank in run_on(2, "five_losses", batch_size=batch_size):
        assert rank["loss"] == pytest.approx(4.0, rel=FLOAT32)
        assert rank["rows"] == 5.0
        np.testing.assert_array_equal(rank["predicted"].ravel(), [1, 2, 3, 4, 10])


def test_s_di_03_shuffle_changes_each_epoch_and_covers_everything(run_on):
    first, again, other = (run_on(2, "shuffled_ids", seed=seed)[0]["ids"] for seed in (1, 1, 2))
    for epoch in first:
        assert sorted(epoch) == list(range(8))
    assert len({tuple(epoch) for epoch in first}) > 1
    np.testing.assert_array_equal(again, first)
    assert not np.array_equal(other, first)


def test_s_di_05_batch_norm_statistics_are_equal_and_are_saved(run_on, tmp_path):
    ranks = run_on(2, "two_level_batch_norm", path=str(tmp_path / "model.unifit"))
    for rank in ranks:
        assert rank["mean"] == pytest.approx(2.0, rel=FLOAT32)
        assert rank["variance"] == pytest.approx(4.0, rel=FLOAT32)
    again = run_on(1, "reloaded_loss", path=str(tmp_path / "model.unifit"))[0]
    assert again["loss"] == pytest.approx(float(ranks[0]["loss"]), rel=FLOAT32)


@pytest.mark.parametrize("devices", [1, 2])
def test_s_di_08_loss_and_gradient_do_not_shrink(run_on, devices):
    for rank in run_on(devices, "mean_squared_step"):
        assert rank["loss"] == pytest.approx(4.0, rel=FLOAT32)
        assert rank["w"] == pytest.approx(0.4, rel=FLOAT32)


@pytest.mark.parametrize("devices", [1, 2])
def test_s_di_10_unused_and_frozen_parameters(run_on, devices):
    for rank in run_on(devices, "unused_branch"):
        assert rank["a"] == pytest.approx(-1.0, rel=FLOAT32)
        assert rank["b"] == 0.0
        assert rank["frozen"] == 0.0


def test_s_di_06_dropout_differs_between_devices_and_reruns_are_equal(run_on):
    first, again = (run_on(2, "dropout_masks")[0]["kept"] for _ in range(2))
    np.testing.assert_array_equal(again, first)
    assert not np.array_equal(first[0], first[1])
    assert 10 < first[0].sum() < 54 and 10 < first[1].sum() < 54
