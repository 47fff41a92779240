"""The law: fit against a float64 calculation by hand, and two devices against one."""

import numpy as np
import pytest

import reference
from tolerance import assert_same_weights
from unifit.contract import optimizers as rules
from unifit.data.arrays import permutation

RATE = 1e-2
RULES = {
    "sgd": rules.SGD(),
    "momentum": rules.SGD(momentum=0.9, nesterov=True),
    "adamw": rules.AdamW(weight_decay=0.1),
    "adam": rules.Adam(),
    "rmsprop": rules.RMSprop(),
    "adagrad": rules.Adagrad(),
    "lion": rules.Lion(),
}
# A bias straight before a normalisation has gradient zero; Adam would divide rounding by rounding there.
ZERO_GRADIENT = {"0.bias"}
LAW_CASES = [
    *((name, accumulation, None) for name in ("sgd", "adamw") for accumulation in (1, 2, 3)),
    ("sgd", 2, 0.5),
    ("adamw", 2, 0.5),
    *((name, 1, None) for name in ("momentum", "adam", "rmsprop", "adagrad")),
]


def scenarios_batches(batch_size, epochs, seed=0):
    """The rows of each epoch's batches in unifit's order."""
    import scenarios

    x, y, weight = scenarios._data()
    for epoch in range(epochs):
        order = permutation(len(x), seed, epoch)
        yield [
            tuple(a[order[i : i + batch_size]].astype(np.float64) for a in (x, y, weight))
            for i in range(0, len(x), batch_size)
        ]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("optimizer", "accumulation", "clip_norm"), LAW_CASES)
def test_fit_equals_float64_law(run_on, devices, optimizer, accumulation, clip_norm):
    got = run_on(devices, "law_network", accumulation=accumulation, optimizer=optimizer, clip_norm=clip_norm)[0]
    start = {key.removeprefix("start "): value for key, value in got.items() if key.startswith("start ")}
    rule = RULES[optimizer]
    # Windows do not straddle epochs, so the last batches of an epoch make a short window.
    windows = []
    for batches in scenarios_batches(8, 2):
        windows += batches + [_no_rows(batches[0])] * (-len(batches) % accumulation)
    want, losses, norms = reference.train(start, windows, accumulation, rule, RATE, l2=0.05, clip_norm=clip_norm)
    weights = {key.removeprefix("weight "): value for key, value in got.items() if key.startswith("weight ")}
    skip = set() if optimizer in ("sgd", "momentum") else ZERO_GRADIENT
    assert_same_weights(weights, want, rate_sum=RATE * len(losses), skip=skip)
    assert got["history loss"].shape == (2,)
    if clip_norm is not None:
        per_epoch = np.split(np.array(norms), 2)
        np.testing.assert_allclose(got["history grad_norm"], [np.mean(part) for part in per_epoch], rtol=1e-4)


def _no_rows(batch):
    return tuple(a[:0] for a in batch)


SCENARIOS = [
    ("class_weights", {}),
    ("token_masks", {"accumulation": 1}),
    ("token_masks", {"accumulation": 2}),
    ("two_losses", {"accumulation": 1}),
    ("two_losses", {"accumulation": 2}),
    ("convolution", {}),
    *(("law_network", {"optimizer": name, "accumulation": 2}) for name in RULES if name != "lion"),
]


# On torch each device has a process, so that "two devices" says it all there.
PROCESSES = pytest.mark.backends(
    "jax", "tensorflow", reason="on torch devices are processes: two and four of them above"
)


@pytest.mark.parametrize(("scenario", "arguments"), SCENARIOS)
def test_two_devices_equal_one(run_on, scenario, arguments):
    assert_equal_to_one_device(run_on(1, scenario, **arguments)[0], run_on(2, scenario, **arguments), arguments)


@pytest.mark.parametrize(("scenario", "arguments"), [SCENARIOS[2], SCENARIOS[4], SCENARIOS[5], SCENARIOS[-1]])
def test_four_devices_equal_one(run_on, scenario, arguments):
    assert_equal_to_one_device(run_on(1, scenario, **arguments)[0], run_on(4, scenario, **arguments), arguments)


@PROCESSES
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(("scenario", "arguments"), SCENARIOS)
def test_two_processes_equal_one_device(run_on, scenario, arguments, devices):
    """Two processes on this machine stand for two hosts, of one and of two devices each."""
    got = run_on(devices, scenario, processes=2, **arguments)
    assert len(got) == 2
    assert_equal_to_one_device(run_on(1, scenario, **arguments)[0], got, arguments)


def assert_equal_to_one_device(one, ranks, arguments):
    for rank in ranks:
        assert rank.keys() == one.keys()
        skip = {"weight 0.bias"} if arguments.get("optimizer", "sgd") not in ("sgd", "momentum") else set()
        weights = {key: value for key, value in rank.items() if key.startswith("weight ")}
        assert_same_weights(weights, {key: one[key] for key in weights}, rate_sum=0.1, skip=skip)
        for key in rank.keys() - weights.keys():
            np.testing.assert_allclose(rank[key], one[key], rtol=2e-5, atol=1e-6, err_msg=key)
    for rank in ranks[1:]:
        for key in rank:
            np.testing.assert_array_equal(rank[key], ranks[0][key], err_msg=f"ranks differ in {key}")


@pytest.mark.parametrize(("devices", "processes"), [(1, None), (2, None), (2, 2)])
def test_every_row_is_seen_once_an_epoch(run_on, devices, processes):
    for rank in run_on(devices, "rows_seen", processes=processes, epochs=2):
        np.testing.assert_array_equal(rank["seen"], np.where(np.arange(64) < 37, 2.0, 0.0))
