"""What only the jax column can show: which collectives its compiled program holds, and where."""

import pytest

pytestmark = pytest.mark.backends("jax", reason="it reads XLA's program text")


@pytest.mark.parametrize("accumulation", [1, 4])
def test_one_reduction_after_the_loop(run_on, accumulation):
    found = run_on(2, "jax_collectives", accumulation=accumulation)[0]
    assert found["in_loops"] == 0
    assert found["outside"] == 1


def test_synchronised_statistics_add_their_own(run_on):
    found = run_on(2, "jax_collectives", accumulation=4, normalised=True)[0]
    assert found["in_loops"] > 0  # the statistics of each micro-batch, in its forward and backward pass
    assert found["outside"] == 1


def test_one_device_has_no_collective(run_on):
    found = run_on(1, "jax_collectives", accumulation=4)[0]
    assert found["in_loops"] == found["outside"] == 0
