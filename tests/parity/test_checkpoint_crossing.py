"""A run that is interrupted on one backend and goes on on another one: all pairs."""

import importlib.util
import shutil

import numpy as np
import pytest

import worker
from tolerance import assert_same_weights
from unifit.checkpoint import Checkpoint, newest

BACKENDS = [name for name in ("jax", "torch", "tensorflow") if importlib.util.find_spec(name)]
LOSS_RELATIVE = 1e-5
SLOT_RELATIVE = 1e-4
STEPS, SAVED, AN_EPOCH = 36, 16, 12

pytestmark = [
    pytest.mark.backends("jax", reason="it starts workers of all backends itself"),
    pytest.mark.timeout(400),  # six starts of a worker, on a busy machine
]


def losses_of_updates(running):
    """From the running losses of a run's updates to their own: epochs are of AN_EPOCH full batches."""
    totals = np.reshape(running, (-1, AN_EPOCH)) * np.arange(1, AN_EPOCH + 1)
    return np.diff(totals, axis=1, prepend=0.0).ravel()


@pytest.fixture(scope="module")
def crossings(tmp_path_factory):
    """The straight run of each backend, and (starting backend, other backend) -> what went on from its checkpoint.

    Each is (losses of all updates, epochs begun, last checkpoint). What goes on does so in another process.
    """
    folder = tmp_path_factory.mktemp("crossings")
    straight, begun, resumed = {}, {}, {}
    for backend in BACKENDS:
        job = worker.Job(backend, 1)
        try:
            run = job.run("steady_run", devices=1, folder=str(folder / backend))[0]
            straight[backend] = losses_of_updates(run["running"]), newest(folder / backend)
            begun[backend] = job.run("steady_run", devices=1, folder=str(folder / "begun" / backend), stop_after=21)[0]
        finally:
            job.close()
    for backend in BACKENDS:
        job = worker.Job(backend, 1)
        try:
            for start in BACKENDS:
                path = shutil.copytree(folder / "begun" / start, folder / "resumed" / f"{start}-{backend}")
                run = job.run("steady_run", devices=1, folder=str(path))[0]
                running = np.concatenate([begun[start]["running"][:SAVED], run["running"]])
                resumed[start, backend] = losses_of_updates(running), run["epochs"], newest(path)
        finally:
            job.close()
    return straight, resumed


pairs = pytest.mark.parametrize("start, other", [(start, other) for start in BACKENDS for other in BACKENDS])


@pairs
def test_losses_go_on_on_another_backend(crossings, start, other):
    straight, resumed = crossings
    losses, epochs, last = resumed[start, other]
    assert epochs.tolist() == [1, 2]
    assert (last.state["backend"], last.state["step"], last.state["finished"]) == (other, STEPS, True)
    want = straight[start][0]
    assert len(want) == STEPS and want[-AN_EPOCH:].mean() < 0.95 * want[:AN_EPOCH].mean()  # it learns
    np.testing.assert_allclose(losses[SAVED:], want[SAVED:], rtol=LOSS_RELATIVE)


@pairs
def test_weights_slots_and_averages_end_alike_on_another_backend(crossings, start, other):
    straight, resumed = crossings
    got, want = resumed[start, other][2], straight[start][1]
    assert Checkpoint.open(got.path.parent / f"step-{SAVED:08d}").state["backend"] == start
    assert got.groups == want.groups == ("weights", "optimizer", "ema")
    for group in ("weights", "ema"):
        assert_same_weights(got.arrays(group), want.arrays(group), rate_sum=STEPS * 3e-3)
    slots, expected = got.arrays("optimizer"), want.arrays("optimizer")
    assert slots.keys() == expected.keys() and any(".m." in name for name in slots)
    for name, array in slots.items():
        np.testing.assert_allclose(
            array, expected[name], rtol=SLOT_RELATIVE, atol=SLOT_RELATIVE * np.abs(expected[name]).max(), err_msg=name
        )
    for key in ("iterations", "ema", "loss_scale"):
        assert got.state[key] == want.state[key]
