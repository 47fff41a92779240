"""unifit.random: streams are named by keys, draws follow their distributions, no global generator is touched."""

import math
import random as python_random

import numpy as np
import pytest
import scipy.stats

import unifit.contract.random as contract
from contract.ops_native import compiled, gradients
from unifit import ops, random
from unifit.backend import backend
from unifit.context import CallContext

NUM_DRAWS = 40_000
# Kolmogorov-Smirnov: the distance that a right sampler of that many draws exceeds once in a million keys.
KS_DISTANCE = math.sqrt(-math.log(1e-6 / 2) / 2 / NUM_DRAWS)


def numpy(x):
    return ops.convert_to_numpy(x)


def stddevs(p):
    """Five standard deviations of a share of NUM_DRAWS draws with probability p."""
    return 5 * math.sqrt(p * (1 - p) / NUM_DRAWS)


DRAWS = {
    "uniform": lambda seed: random.uniform((3, 4), seed=seed),
    "normal": lambda seed: random.normal((3, 4), seed=seed),
    "truncated_normal": lambda seed: random.truncated_normal((3, 4), seed=seed),
    "bernoulli": lambda seed: random.bernoulli((8, 8), 0.5, seed=seed),
    "randint": lambda seed: random.randint((3, 4), 0, 1000, seed=seed),
    "categorical": lambda seed: random.categorical(ops.zeros((2, 50)), 12, seed=seed),
    "shuffle": lambda seed: random.shuffle(ops.arange(50), seed=seed),
    "dropout": lambda seed: random.dropout(ops.ones((8, 8)), 0.5, seed=seed),
}


def test_backend_has_every_function_of_the_contract():
    for name in contract.RANDOM:
        assert callable(getattr(backend.random, name))
    assert set(random.__all__) == set(contract.RANDOM) == {*DRAWS, "stream"}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_of_one_stream_differ_and_those_of_equal_streams_agree(draw):
    first, second = random.stream(5), random.stream(5)
    drawn = [numpy(draw(first)) for _ in range(3)]
    again = [numpy(draw(second)) for _ in range(3)]
    np.testing.assert_array_equal(drawn, again)
    assert all((drawn[i] != drawn[j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_int_seed_gives_the_same_numbers_again_and_those_of_its_stream(draw):
    np.testing.assert_array_equal(numpy(draw(3)), numpy(draw(3)))
    np.testing.assert_array_equal(numpy(draw(3)), numpy(draw(random.stream(3))))
    assert (numpy(draw(3)) != numpy(draw(4))).any()


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draw_leaves_the_global_generators_alone(draw):
    def states():
        found = [repr(python_random.getstate()), repr(np.random.get_state())]
        if backend.name == "torch":
            import torch

            found.append(torch.get_rng_state().tolist())
        return found

    before = states()
    draw(3)
    assert states() == before


def test_streams_of_different_keys_differ():
    keys = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**31 - 1,), (2**31,), (2**32,), (2**32 + 1,), (2**63, 1), (-1,)]
    draws = [tuple(numpy(random.uniform((4,), seed=random.stream(*key))).tolist()) for key in keys]
    draws += [tuple(numpy(random.uniform((4,), seed=s)).tolist()) for s in [random.stream(0)] for _ in (1, 2)][1:]
    assert len(set(draws)) == len(draws)


@pytest.mark.backends("jax", "tensorflow", reason="torch does not trace")
def test_traced_keys_give_the_streams_of_their_values():
    def draw(device, step):
        return random.uniform((5,), seed=random.stream(7, step, device))

    traced = compiled(draw)
    for device, step in ((0, 0), (1, 0), (3, 2**30)):
        arrays = [ops.convert_to_tensor(np.array(key, np.int32)) for key in (device, step)]
        np.testing.assert_allclose(numpy(traced(*arrays)), numpy(draw(device, step)), rtol=1e-6)


@pytest.mark.backends("jax", "tensorflow", reason="torch does not trace")
def test_draws_in_a_compiled_function_differ_from_each_other():
    def draw(step):
        stream = random.stream(7, step)
        return random.uniform((5,), seed=stream), random.uniform((5,), seed=stream)

    first, second = compiled(draw)(ops.convert_to_tensor(3))
    assert (numpy(first) != numpy(second)).all()


def test_uniform_is_uniform():
    x = numpy(random.uniform((NUM_DRAWS,), -2.0, 3.0, seed=1))
    assert x.dtype == np.float32 and x.min() >= -2 and x.max() < 3
    assert scipy.stats.kstest(x, scipy.stats.uniform(-2, 5).cdf).statistic < KS_DISTANCE


def test_normal_is_normal():
    x = numpy(random.normal((NUM_DRAWS,), 1.0, 2.0, seed=1))
    assert scipy.stats.kstest(x, scipy.stats.norm(1, 2).cdf).statistic < KS_DISTANCE


def test_truncated_normal_is_cut_at_two_deviations():
    x = numpy(random.truncated_normal((NUM_DRAWS,), 1.0, 2.0, seed=1))
    assert x.min() >= -3 and x.max() <= 5
    assert scipy.stats.kstest(x, scipy.stats.truncnorm(-2, 2, 1, 2).cdf).statistic < KS_DISTANCE


def test_bernoulli_is_true_with_probability_p():
    for p in (0.0, 0.2, 1.0):
        x = numpy(random.bernoulli((NUM_DRAWS,), p, seed=1))
        assert x.dtype == bool and abs(x.mean() - p) <= stddevs(p)


def test_randint_is_even_over_its_range():
    x = numpy(random.randint((NUM_DRAWS,), -2, 3, seed=1))
    assert x.dtype == np.int32
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2]
    assert np.abs(counts / NUM_DRAWS - 0.2).max() < stddevs(0.2)


def test_categorical_follows_the_softmax_of_its_logits():
    p = np.array([[0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])
    with np.errstate(divide="ignore"):
        logits = ops.convert_to_tensor(np.log(p) + 3)
    x = numpy(random.categorical(logits, NUM_DRAWS, seed=1))
    assert x.dtype == np.int32 and x.shape == (2, NUM_DRAWS)
    for row, expected in zip(x, p, strict=True):
        shares = np.bincount(row, minlength=3) / NUM_DRAWS
        assert all(abs(share - q) <= stddevs(q) for share, q in zip(shares, expected, strict=True))


def test_shuffle_keeps_slices_whole():
    x = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    for axis in (0, 1, -1):
        y = numpy(random.shuffle(ops.convert_to_tensor(x), axis, seed=3))
        order = [np.moveaxis(y, axis, 0)[i].tolist() for i in range(x.shape[axis])]
        assert sorted(order) == np.moveaxis(x, axis, 0).tolist()


def test_shuffle_reaches_every_order_equally_often():
    stream = random.stream(1)
    orders = [tuple(numpy(random.shuffle(ops.arange(3), seed=stream)).tolist()) for _ in range(600)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6 and np.abs(counts - 100).max() < 5 * math.sqrt(600 * 1 / 6 * 5 / 6)


def test_dropout_zeroes_a_share_and_scales_the_rest():
    x = numpy(random.dropout(ops.full((NUM_DRAWS,), 3.0), 0.2, seed=1))
    assert np.unique(x).tolist() == [0.0, np.float32(3 / 0.8)]
    assert abs((x == 0).mean() - 0.2) <= stddevs(0.2)


def test_dropout_noise_shape_is_broadcast():
    x = numpy(random.dropout(ops.ones((4, 50, 3)), 0.5, noise_shape=(None, 1, None), seed=1))
    assert (x == x[:, :1]).all() and 0 < (x[:, 0] == 0).sum() < 12
    x = numpy(random.dropout(ops.ones((4, 50)), 0.5, noise_shape=(4, 1), seed=1))
    assert (x == x[:, :1]).all()


def test_dropout_of_bfloat16_keeps_dtype_and_scale():
    x = random.dropout(ops.ones((64,), "bfloat16"), 0.1, seed=1)
    assert ops.dtype(x) == "bfloat16"
    nearest = numpy(ops.cast(ops.convert_to_tensor(1 / 0.9), "bfloat16"))
    assert set(numpy(x).tolist()) == {0.0, float(nearest)}


def test_dropout_hides_what_it_drops_even_if_it_is_not_finite():
    x = numpy(random.dropout(ops.full((64,), np.inf), 0.5, seed=1))
    assert set(x.tolist()) == {0.0, np.inf}


def test_dropout_gradient_is_the_mask():
    x = np.ones(64, np.float32)
    (gradient,) = gradients(lambda x: ops.sum(random.dropout(x, 0.5, seed=1)), x)
    np.testing.assert_array_equal(gradient, numpy(random.dropout(ops.convert_to_tensor(x), 0.5, seed=1)))


def test_dropout_of_rate_0_is_the_input_itself():
    x = ops.ones((3,))
    assert random.dropout(x, 0.0) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_dropout_rate_outside_the_range_is_refused(rate):
    with pytest.raises(ValueError, match=str(rate)):
        random.dropout(ops.ones((3,)), rate, seed=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
def test_float_dtype_is_as_asked_for(name, dtype):
    x = getattr(random, name)((1000,), dtype=dtype, seed=1)
    assert ops.dtype(x) == dtype
    spread = {"uniform": 12**-0.5, "normal": 1.0, "truncated_normal": 0.88}[name]
    assert abs(numpy(x).astype(np.float64).std() - spread) < 0.1


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8"])
def test_integer_dtype_is_as_asked_for(dtype):
    assert ops.dtype(random.randint((5,), 0, 9, dtype, seed=1)) == dtype
    assert ops.dtype(random.categorical(ops.zeros((1, 3)), 2, dtype, seed=1)) == dtype


def test_empty_and_scalar_shapes_are_drawn():
    assert numpy(random.uniform((0, 3), seed=1)).shape == (0, 3)
    assert numpy(random.normal((), seed=1)).shape == ()


def test_seed_none_takes_the_stream_of_the_call():
    context = CallContext(training=True, stream=lambda: random.stream(11))
    with context.open():
        inside = [numpy(random.uniform((3,))) for _ in range(2)]
    stream = random.stream(11)
    np.testing.assert_array_equal(inside, [numpy(random.uniform((3,), seed=stream)) for _ in range(2)])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seed_none_outside_a_call_says_what_to_do(draw):
    with pytest.raises(RuntimeError, match="pass seed="):
        draw(None)


@pytest.mark.backends("torch", reason="only torch has a meta device")
def test_draw_on_the_meta_device_has_a_shape_and_no_values():
    import torch

    with torch.device("meta"):
        for draw in DRAWS.values():
            assert draw(random.stream(1)).device.type == "meta"
