"""For anything that cuts batches, the weights after two epochs are those of one device and one micro-batch."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import unifit as uf
from tolerance import assert_same_weights

EXAMPLES = {"jax": 200, "torch": 60, "tensorflow": 60}[uf.backend.name]
PARTS = 4
DEVICES = 4
RATE = 1e-2

RUNS = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 40),
        "batch_size": st.integers(1, 24),
        "accumulation": st.integers(1, 5),
        "microbatch_size": st.none() | st.integers(1, 6),
        "weights": st.sampled_from(["none", "rows", "tokens", "mask of rows", "mask of tokens"]),
        "reduction": st.sampled_from(["sum_over_batch_size", "mean_with_sample_weight", "sum"]),
        "ignored": st.booleans(),
        "masking": st.booleans(),
        "optimizer": st.sampled_from(["momentum", "adamw"]),
        "clip_norm": st.none() | st.just(0.5),
        "seed": st.integers(0, 2**16),
    }
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_cut_of_a_batch_gives_the_weights_of_one_device(run_on, part):
    """Row counts, batch sizes, accumulation, micro-batches, device counts, masks and weights drawn at random."""

    @hypothesis.seed(part)
    @hypothesis.settings(max_examples=EXAMPLES // PARTS, deadline=None, database=None)
    @hypothesis.given(run=RUNS, devices=st.integers(1, DEVICES))
    def check(run, devices):
        # On jax and tensorflow a job of four devices trains on fewer too.
        job = devices if uf.backend.name == "torch" else DEVICES
        plain = run | {"microbatch_size": None}
        expected = run_on(1 if uf.backend.name == "torch" else DEVICES, "drawn_run", on=1, **plain)[0]
        for rank in run_on(job, "drawn_run", on=devices, **run):
            steps = int(expected["updates"])
            assert int(rank["updates"]) == steps
            weights = [{name: run[name] for name in run if name.startswith("weight")} for run in (rank, expected)]
            assert_same_weights(*weights, rate_sum=RATE * steps)
            np.testing.assert_allclose(rank["loss"], expected["loss"], rtol=1e-5, atol=1e-6)

    check()
