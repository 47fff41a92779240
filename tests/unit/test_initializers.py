"""Initial values: formulas, distributions, determinism."""

import json
import math

import numpy as np
import pytest

from unifit import initializers
from unifit.config import deserialize, serialize
from unifit.errors import ArgumentError, ShapeError, UnknownNameError
from unifit.initializers import compute_fans

SHAPE = (200, 300)
STDDEV_TOLERANCE = 0.02
"""Relative; the standard error of a standard deviation from 60,000 values is 0.3 %."""

NAMED = ["glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_uniform", "lecun_normal"]
RANDOM = [*NAMED, "random_normal", "random_uniform", "truncated_normal", "variance_scaling", "orthogonal"]


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("shape", "fans"),
    [((), (1, 1)), ((5,), (5, 5)), ((3, 7), (3, 7)), ((4, 3, 7), (12, 28)), ((3, 5, 2, 8), (30, 120))],
)
def test_fans_of_dense_and_convolution_kernels(shape, fans):
    assert compute_fans(shape) == fans


def test_fans_by_axes():
    assert compute_fans((2, 3, 5), input_axes=(0, 1), output_axes=(2,)) == (6, 5)


# fan_in 200, fan_out 300; (variance, largest absolute value)
@pytest.mark.parametrize(
    ("name", "variance", "limit"),
    [
        ("glorot_uniform", 2 / 500, math.sqrt(6 / 500)),
        ("glorot_normal", 2 / 500, 2 * math.sqrt(2 / 500) / 0.8796),
        ("he_uniform", 2 / 200, math.sqrt(6 / 200)),
        ("he_normal", 2 / 200, 2 * math.sqrt(2 / 200) / 0.8796),
        ("lecun_uniform", 1 / 200, math.sqrt(3 / 200)),
        ("lecun_normal", 1 / 200, 2 * math.sqrt(1 / 200) / 0.8796),
    ],
)
def test_scaled_initializer_has_its_variance_and_stays_in_its_limit(name, variance, limit):
    values = initializers.get(name)(SHAPE, "float64", rng())
    assert values.std() == pytest.approx(math.sqrt(variance), rel=STDDEV_TOLERANCE)
    assert abs(values.mean()) < 5 * math.sqrt(variance / values.size)
    assert 0.99 * limit < np.abs(values).max() <= limit * 1.0001


def test_variance_scaling_untruncated_reaches_beyond_two_deviations():
    values = initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")(SHAPE, "float64", rng())
    assert values.std() == pytest.approx(math.sqrt(2 / 300), rel=STDDEV_TOLERANCE)
    assert np.abs(values).max() > 3 * math.sqrt(2 / 300)


def test_plain_distributions_have_their_parameters():
    normal = initializers.RandomNormal(1.0, 0.5)(SHAPE, "float64", rng())
    assert (normal.mean(), normal.std()) == (pytest.approx(1.0, abs=0.01), pytest.approx(0.5, rel=STDDEV_TOLERANCE))
    uniform = initializers.RandomUniform(2.0, 3.0)(SHAPE, "float64", rng())
    assert uniform.min() >= 2.0 and uniform.max() < 3.0 and uniform.mean() == pytest.approx(2.5, abs=0.01)
    truncated = initializers.TruncatedNormal(1.0, 0.5)(SHAPE, "float64", rng())
    assert np.abs(truncated - 1.0).max() <= 1.0
    # The variance of a normal cut off at 2: 1 - 2 * 2 * density(2) / (2 * cdf(2) - 1).
    inside = math.erf(2 / math.sqrt(2))
    variance = 1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / inside
    assert truncated.std() == pytest.approx(0.5 * math.sqrt(variance), rel=STDDEV_TOLERANCE)


def test_truncated_normal_has_the_shape_of_a_cut_normal():
    values = np.sort(initializers.TruncatedNormal(0.0, 1.0)((40_000,), "float64", rng()))
    inside = math.erf(2 / math.sqrt(2))
    cdf = np.array([(math.erf(v / math.sqrt(2)) / inside + 1) / 2 for v in values])
    # Kolmogorov-Smirnov at a level of 1e-6: sqrt(ln(2 / 1e-6) / 2) = 2.7
    assert np.abs(cdf - np.arange(values.size) / values.size).max() < 2.7 / math.sqrt(values.size)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 2, 4), (5, 5)])
def test_orthogonal_has_orthonormal_rows_or_columns(shape):
    matrix = initializers.Orthogonal(2.0)(shape, "float64", rng()).reshape(-1, shape[-1]) / 2.0
    product = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-12)


def test_fixed_values():
    np.testing.assert_array_equal(initializers.get("zeros")((2,)), [0, 0])
    np.testing.assert_array_equal(initializers.get("ones")((2,)), [1, 1])
    np.testing.assert_array_equal(initializers.Constant(3)((2,)), [3, 3])
    np.testing.assert_array_equal(initializers.Constant([[1, 2], [3, 4]])((2, 2)), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(initializers.Identity(2.0)((2, 3)), [[2, 0, 0], [0, 2, 0]])


@pytest.mark.parametrize("name", [*RANDOM, "zeros", "ones", "constant", "identity"])
@pytest.mark.parametrize("dtype", ["float32", "float16", np.dtype("float64")])
def test_values_have_the_shape_and_the_dtype_asked_for(name, dtype):
    values = initializers.get(name)((4, 3), dtype, rng())
    assert values.shape == (4, 3) and values.dtype == dtype


def test_bfloat16_is_left_for_the_backend_to_round():
    values = initializers.GlorotUniform()((4, 3), "bfloat16", rng())
    np.testing.assert_array_equal(values, initializers.GlorotUniform()((4, 3), "float32", rng()))


@pytest.mark.parametrize("name", RANDOM)
def test_same_generator_gives_same_values_and_another_gives_others(name):
    first, again, other = (initializers.get(name)((4, 3), "float32", rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", RANDOM)
def test_float32_values_are_the_rounded_float64_values(name):
    single = initializers.get(name)((4, 3), "float32", rng())
    np.testing.assert_array_equal(single, initializers.get(name)((4, 3), "float64", rng()).astype("float32"))


def test_seed_of_its_own_overrides_the_generator():
    make = initializers.HeNormal(seed=7)
    np.testing.assert_array_equal(make((4, 3), "float32", rng(1)), make((4, 3), "float32", rng(2)))
    assert not np.array_equal(make((4, 3)), initializers.HeNormal(seed=8)((4, 3)))


def test_global_generator_is_neither_read_nor_moved():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    initializers.GlorotUniform()((4, 3))
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_large_weight_is_drawn_in_chunks_without_repeats():
    values = initializers.RandomUniform(0.0, 1.0)(((1 << 20) + 5,), "float64", rng())
    np.testing.assert_array_equal(values, rng().random((1 << 20) + 5))


def test_function_of_shape_and_dtype_is_accepted():
    make = initializers.get(lambda shape, dtype: np.full(shape, 2, dtype))
    np.testing.assert_array_equal(make((2, 2), "float32", rng()), np.full((2, 2), 2, "float32"))


def test_function_with_rng_gets_the_generator():
    make = initializers.get(lambda shape, dtype, rng: rng.random(shape))
    np.testing.assert_array_equal(make((3,), "float64", rng(5)), rng(5).random(3))


def test_function_that_returns_another_shape_is_named():
    def wrong_shape(shape, dtype):
        return np.zeros(3)

    with pytest.raises(ShapeError, match=r"'wrong_shape' returned the shape \(3,\) for a weight of shape \(2, 2\)"):
        initializers.get(wrong_shape)((2, 2))


@pytest.mark.parametrize("name", [*RANDOM, "zeros", "ones", "constant", "identity"])
def test_initializers_round_trip_through_json(name):
    make = initializers.get(name)
    back = deserialize(json.loads(json.dumps(serialize(make))))
    np.testing.assert_array_equal(back((4, 4), "float32", rng()), make((4, 4), "float32", rng()))


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("zero", initializers.Zeros),
        ("GlorotUniform", initializers.GlorotUniform),
        ("uniform", initializers.RandomUniform),
        ("normal", initializers.RandomNormal),
        ("OrthogonalInitializer", initializers.Orthogonal),
    ],
)
def test_names_that_keras_accepts(name, cls):
    assert type(initializers.get(name)) is cls


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: initializers.get("glorot"), UnknownNameError, "did you mean 'glorot_"),
        (lambda: initializers.VarianceScaling(0.0), ArgumentError, "scale=0.0 .* must be above 0"),
        (lambda: initializers.VarianceScaling(mode="fan"), ArgumentError, "mode='fan' must be 'fan_in'"),
        (lambda: initializers.VarianceScaling(distribution="cauchy"), ArgumentError, "distribution='cauchy'"),
        (lambda: initializers.VarianceScaling(input_axes=(0,)), ArgumentError, "give both or neither"),
        (lambda: initializers.HeNormal(seed="a"), ArgumentError, "seed='a' of HeNormal must be an integer"),
        (lambda: initializers.Identity()((2, 2, 2)), ShapeError, r"\(2, 2, 2\); it needs two axes"),
        (lambda: initializers.Orthogonal()((2,)), ShapeError, "at least two axes"),
        (
            lambda: initializers.Constant([1, 2])((3,)),
            ShapeError,
            r"value of shape \(2,\) and the weight has shape \(3,\)",
        ),
    ],
)
def test_wrong_use_says_what_was_expected(make, error, message):
    with pytest.raises(error, match=message):
        make()
