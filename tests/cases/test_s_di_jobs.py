"""Public failures of peers in jobs of several processes (cases S-DI), and what else happens between processes."""

import numpy as np
import pytest

FLOAT32 = 1e-6


@pytest.mark.parametrize("accumulation", [1, 2])
def test_s_di_01_unequal_numbers_of_batches_do_not_hang(run_on, accumulation):
    """Documented: the third batch is trained, and process 1 adds nothing to it."""
    # Accumulation 2: rows 1, 1 (both processes) and 2, 2 make a gradient of 1.5; then 3.
    expected = {1: -0.1 * 2 * (1 + 2 + 3), 2: -0.1 * 2 * (1.5 + 3)}[accumulation]
    for rank in run_on(2, "batches_of_unequal_number", processes=2, accumulation=accumulation):
        assert rank["weight 0.kernel"][0, 0] == pytest.approx(expected, rel=FLOAT32)


def test_s_di_02_rows_of_each_process_are_scored_once(run_on):
    for rank in run_on(2, "rows_of_each_process", processes=2):
        assert rank["loss"] == pytest.approx((1 + 2 + 3 + 4 + 5 + 11) / 6, rel=FLOAT32)
        # Batch by batch, process by process.
        np.testing.assert_array_equal(rank["predicted"].ravel(), [1, 2, 3, 11, 4, 5])


def test_s_di_06_rows_are_drawn_apart_by_loader_workers_of_all_processes(run_on):
    first, again = (run_on(2, "worker_randomness", processes=2)[0]["seen"] for _ in range(2))
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(again, first)


def test_s_di_07_clipping_uses_the_norm_over_all_devices(run_on):
    """Unsharded: ShardedDataParallel is not there yet. Device gradients [6, 0] and [0, 8] have the mean [3, 4]."""
    for rank in run_on(2, "clip_by_global_norm"):
        assert rank["grad_norm"] == pytest.approx(5.0, rel=FLOAT32)
        np.testing.assert_allclose(rank["w"], [-0.6, -0.8], rtol=FLOAT32)


@pytest.mark.parametrize("processes", [None, 2])
def test_s_di_10_branches_that_differ_by_device(run_on, processes):
    for rank in run_on(2, "branches_by_device", processes=processes):
        assert rank["weight a.kernel"][0, 0] == pytest.approx(-1.0, rel=FLOAT32)
        assert rank["weight b.kernel"][0, 0] == pytest.approx(-2.0, rel=FLOAT32)


@pytest.mark.parametrize(("devices", "processes"), [(1, None), (2, None), (2, 2)])
def test_s_di_10_layer_frozen_by_a_callback_in_mid_run(run_on, devices, processes):
    for rank in run_on(devices, "frozen_midway", processes=processes, changes={"0": False}):
        a, b = rank["seen"].T
        np.testing.assert_allclose(a, [-1, -2, -3, -4, -5, -6], rtol=FLOAT32)
        np.testing.assert_allclose(b, [-1] * 6, rtol=FLOAT32)


@pytest.mark.parametrize(("devices", "processes"), [(1, None), (2, None), (2, 2)])
def test_layer_frozen_and_unfrozen_keeps_its_momentum_and_the_epochs_loss(run_on, devices, processes):
    for rank in run_on(
        devices, "frozen_midway", processes=processes, changes={"1": False, "3": True}, momentum=0.5
    ):  # fmt: skip
        a, b = rank["seen"].T
        # Velocities 1, 1.5, 1.75, ...; b stands still in steps 3 and 4, and goes on with velocity 1.75 after them.
        steps = np.array([1, 1.5, 1.75, 1.875, 1.9375, 1.96875])
        np.testing.assert_allclose(a, -np.cumsum(steps), rtol=FLOAT32)
        np.testing.assert_allclose(b, -np.cumsum([1, 1.5, 0, 0, 1.75, 1.875]), rtol=FLOAT32)
        before = np.concatenate([[0.0], (a + b)[:-1]])
        assert rank["loss"][0] == pytest.approx(before.mean(), rel=FLOAT32)


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("at_epoch_end", [False, True])
def test_wish_of_one_process_stops_all_after_the_same_step(run_on, process, at_epoch_end):
    first, second = run_on(2, "stopped_by_one", processes=2, process=process, at_epoch_end=at_epoch_end)
    assert first["steps"] == second["steps"] >= 5
    assert first["steps"] == 100 if at_epoch_end else first["steps"] < 300
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_batch_end", "on_test_batch_begin", "on_epoch_end"])
@pytest.mark.parametrize("process", [0, 1])
def test_error_in_one_process_callback_is_raised_on_all(run_on, hook, process):
    ranks = run_on(2, "failing_callback", processes=2, hook=hook, process=process)
    assert str(ranks[process]["kind"]) == "OSError"
    other = ranks[1 - process]
    assert str(other["kind"]) == "PeerError"
    assert "no space left" in str(other["text"]) and f"process {process}" in str(other["text"]).lower()
    for name in (name for name in ranks[0] if name.startswith("weight")):
        np.testing.assert_array_equal(ranks[0][name], ranks[1][name])


def test_error_in_saving_on_the_main_process_is_raised_on_all(run_on, tmp_path):
    first, second = run_on(2, "failing_save", processes=2, path=str(tmp_path))
    assert str(first["kind"]) == "ArgumentError" and str(second["kind"]) == "PeerError"
    assert "does not exist" in str(first["text"]) and "does not exist" in str(second["text"])
    assert (tmp_path / "model.unifit").exists()


def test_different_initial_weights_are_refused_on_all(run_on):
    for rank in run_on(2, "different_start", processes=2):
        assert str(rank["kind"]) == "PeerError" and "weight '0.kernel' differs" in str(rank["text"])


@pytest.mark.parametrize("kind", ["rows", "length", "stream", "unequal stream"])
def test_different_data_is_refused_on_all(run_on, kind):
    for rank in run_on(2, "different_data", processes=2, kind=kind):
        assert str(rank["kind"]) in ("PeerError", "ArgumentError"), str(rank["text"])
        assert "process 1" in str(rank["text"]).lower() and "PerProcess" in str(rank["text"])


def test_different_calls_are_refused_on_all(run_on):
    for rank in run_on(2, "different_calls", processes=2):
        assert str(rank["kind"]) == "PeerError"
        assert "evaluate" in str(rank["text"]) and "predict" in str(rank["text"])


def test_s_ga_03_schedule_of_a_function(run_on):
    for rank in run_on(2, "scheduled_by_a_function", processes=2):
        assert rank["weight 0.kernel"][0, 0] == pytest.approx(-0.3, rel=FLOAT32)


def test_prediction_on_the_main_process_only(run_on):
    first, second = run_on(2, "predicted_on_main", processes=2)
    np.testing.assert_array_equal(first["rows"], np.arange(10))
    assert not first["none"] and second["none"]


@pytest.mark.backends(
    "torch", reason="counted by torch's profiler; the other engines' programs are counted in contract/"
)
def test_collectives_do_not_depend_on_accumulation(run_on):
    one, eight = (run_on(2, "gradient_collectives", accumulation=k)[0]["all_reduces"] for k in (1, 8))
    # Six updates of one bucket each are in three; what making an engine and reading figures adds is the same for both.
    assert one == eight > 0
