"""The three backends against each other: the same initial weights bit for bit, the same loss curves."""

import importlib.util

import numpy as np
import pytest

import worker

CURVE_RELATIVE = 1e-4
OTHERS = [name for name in ("torch", "tensorflow") if importlib.util.find_spec(name)]

pytestmark = [
    pytest.mark.backends("jax", reason="it starts workers of the other backends itself"),
    pytest.mark.timeout(500),  # six starts of a worker, on a busy machine
]


@pytest.fixture(scope="module")
def curves(jobs):
    """(backend, devices) -> arrays of `scenarios.digits_curve`."""
    found = {}
    for backend in ("jax", *OTHERS):
        for devices in (1, 2):
            job = worker.Job(backend, devices)
            try:
                found[backend, devices] = job.run("digits_curve", devices=devices)[0]
            finally:
                job.close()
    return found


def test_initial_weights_are_bit_equal(curves):
    first = curves["jax", 1]
    for key, arrays in curves.items():
        for name in first:
            if name.startswith("start "):
                np.testing.assert_array_equal(arrays[name], first[name], err_msg=f"{key} {name}")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("backend", ["jax", *OTHERS])
def test_loss_curves_of_digits_agree(curves, backend, devices):
    want, got = curves["jax", 1]["losses"], curves[backend, devices]["losses"]
    assert len(want) == 50 and want[-5:].mean() < 0.5 * want[:5].mean()
    np.testing.assert_allclose(got, want, rtol=CURVE_RELATIVE)
