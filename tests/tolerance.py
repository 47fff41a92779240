"""What "the same" means: DESIGN's tolerance for weights after a few steps in float32."""

import numpy as np

RELATIVE = 1e-6
PER_RATE = 1e-5


def assert_same_weights(got, want, rate_sum, skip=()):
    """max|a - b| <= 1e-6 max|b| + 1e-5 sum(lr) for every tensor.

    Args:
        got, want: Arrays by name.
        rate_sum: Sum of the learning rates of all updates: Adam moves an entry by up to the rate whatever the gradient.
        skip: Names of parameters whose exact gradient is zero, under rules that divide by the gradient's size.
    """
    assert got.keys() == want.keys()
    for name in got:
        if name in skip:
            continue
        error = np.max(np.abs(np.asarray(got[name], np.float64) - want[name]), initial=0.0)
        limit = RELATIVE * np.max(np.abs(want[name]), initial=0.0) + PER_RATE * rate_sum
        assert error <= limit, f"{name}: error {error:.2e} > {limit:.2e}"
