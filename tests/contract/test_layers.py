"""Every layer on every backend: configs, weights' paths and starts, training, NumPy references, masks, refusals."""

import json
import math

import numpy as np
import pytest

import unifit as uf
from layer_cases import CASES, OWN_CASES, Case, numpy_tree, steps_mask, with_random_weights
from unifit.config import deserialize, serialize
from unifit.context import CallContext
from unifit.errors import ArgumentError, ShapeError, UnsupportedError
from unifit.layers.attention import rotate

TOLERANCE = 1e-5
layers, tensor, host = uf.layers, uf.ops.convert_to_tensor, uf.ops.convert_to_numpy
ALL = CASES + OWN_CASES
ONE_EACH = list({case.name: case for case in reversed(ALL)}.values())[::-1] + OWN_CASES


def close(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


# Every layer


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_config_round_trip_gives_the_same_layer(case):
    first = case.make()
    config = json.loads(json.dumps(serialize(first)))
    second = deserialize(config)
    assert type(second) is type(first) and second.get_config() == first.get_config()
    assert second.name == first.name
    expected = numpy_tree(case.call_with(first, case.arrays(), tensor))
    found = numpy_tree(case.call_with(second, case.arrays(), tensor))  # the same seed, so the same start
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


class Probe(uf.Model):
    """A layer between the data and a linear head."""

    def __init__(self, case):
        super().__init__()
        self.case, self.inner, self.head = case, case.make(), layers.Dense(1)

    def call(self, x):
        named = {key: value for key, value in self.case.call.items() if not isinstance(value, np.ndarray)}
        x = list(x) if isinstance(x, (list, tuple)) else [x]
        y = self.inner(x, **named) if self.case.as_list else self.inner(*x, **named)
        y = y[0] if isinstance(y, (list, tuple)) else y
        return self.head(uf.ops.reshape(y, (y.shape[0], math.prod(y.shape[1:]))))


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda case: case.id)
@pytest.mark.filterwarnings("ignore:.*got an input with a mask and drops it")
def test_training_step_on_ragged_rows_keeps_weights_finite(case):
    rows = 5
    case = Case(case.name, case.arguments, tuple((rows, *shape[1:]) for shape in case.inputs), case.call, case.indices,
                case.as_list)  # fmt: skip
    arrays = case.arrays()
    model = Probe(case)
    x = arrays[0] if len(arrays) == 1 else arrays
    model.compile(uf.optimizers.SGD(1e-2), "mse")
    model.build(tuple(arrays[0].shape) if len(arrays) == 1 else [array.shape for array in arrays])
    before = model.weights_by_path()
    history = model.fit(x, normal(rows, 1), batch_size=2, epochs=1, verbose=0)
    after = model.weights_by_path()
    assert np.isfinite(history.history["loss"]).all()
    assert all(np.isfinite(value).all() for value in after.values())
    assert all(not np.array_equal(after[path], before[path]) for path in after if path.endswith("kernel"))


PATHS = {
    "Dense": ["kernel", "bias"],
    "EinsumDense": ["kernel", "bias"],
    "Embedding": ["embeddings"],
    "Conv2D": ["kernel", "bias"],
    "Conv2DTranspose": ["kernel", "bias"],
    "DepthwiseConv2D": ["kernel", "bias"],
    "BatchNormalization": ["gamma", "beta", "moving_mean", "moving_variance"],
    "LayerNormalization": ["gamma", "beta"],
    "RMSNormalization": ["scale"],
    "GroupNormalization": ["gamma", "beta"],
    "MultiHeadAttention": [
        f"{part}.{name}" for part in ("query", "key", "value", "attention_output") for name in ("kernel", "bias")
    ],
}


@pytest.mark.parametrize("name", PATHS)
def test_weights_have_keras_names_and_the_seed_gives_their_start(name):
    case = next(case for case in CASES if case.name == name)
    found = []
    for seed in (3, 3, 4):
        uf.set_seed(seed)
        layer = case.make()
        case.call_with(layer, case.arrays(), tensor)
        found.append(layer.weights_by_path())
    uf.set_seed(0)
    assert list(found[0]) == PATHS[name]
    for path, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][path])
    if any("kernel" in path or "embeddings" in path for path in found[0]):
        assert any(not np.array_equal(value, found[2][path]) for path, value in found[0].items())


def test_build_without_data_records_the_same_weights_as_a_call():
    built, called = layers.MultiHeadAttention(2, 4), layers.MultiHeadAttention(2, 4)
    built.build((None, 5, 6), (None, 7, 3))
    called(query=tensor(normal(2, 5, 6)), value=tensor(normal(2, 7, 3)))
    for path, value in called.weights_by_path().items():
        np.testing.assert_array_equal(built.weights_by_path()[path], value)


def test_arguments_by_name_build_and_carry_masks_like_positional_ones():
    embedding, attend = layers.Embedding(6, 4, mask_zero=True), layers.MultiHeadAttention(2, 4)
    ids = np.array([[1, 2, 0], [3, 0, 0]], "int32")

    class Net(uf.Model):
        def __init__(self, by_name):
            super().__init__()
            self.embedding, self.attend, self.by_name = embedding, attend, by_name
            self.pool = layers.GlobalAveragePooling1D()

        def call(self, ids):
            x = self.embedding(ids)
            return self.pool(self.attend(value=x, query=x) if self.by_name else self.attend(x, x))

    close(host(Net(True)(tensor(ids))), host(Net(False)(tensor(ids))))


# BatchNormalization


def batch_norm(x, valid, gamma, beta, epsilon=1e-3):
    """Expected output, mean and variance over the valid elements of the last axis' channels, in float64."""
    x = x.astype("float64")
    chosen = x[np.broadcast_to(valid, x.shape[:-1])]
    mean, variance = chosen.mean(0), chosen.var(0)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta, mean, variance


def run_in_training(layer, x, valid=None, mask=None):
    """A call in training with padding rows, as an objective makes it; and the layer's statistics afterwards."""
    layer(tensor(x))
    with CallContext(training=True, stream=lambda: None, valid=None if valid is None else tensor(valid)).open():
        y = layer(tensor(x), **({} if mask is None else {"mask": tensor(mask)}))
    return host(y)


@pytest.mark.parametrize("masked", [False, True], ids=["rows", "rows and steps"])
def test_batch_normalization_leaves_padding_out(masked):
    layer, x = layers.BatchNormalization(), normal(4, 5, 3) + 100.0  # far from 0: one pass would lose the variance
    valid, mask = np.array([True, True, False, True]), steps_mask(4, 5)
    x[2] = 1e6
    layer(tensor(x))
    gamma, beta, mean0, variance0 = with_random_weights(layer)
    y = run_in_training(layer, x, valid, mask if masked else None)
    counted = valid[:, None] & (mask if masked else True)
    expected, mean, variance = batch_norm(x, counted, gamma, beta)
    shown = np.broadcast_to(counted, x.shape[:-1])
    np.testing.assert_allclose(y[shown], expected[shown], rtol=1e-3, atol=1e-3)  # x = 100 has a spacing of 8e-6
    moved = layer.weights_by_path()
    np.testing.assert_allclose(moved["moving_mean"], 0.99 * mean0 + 0.01 * mean, rtol=1e-5)
    np.testing.assert_allclose(moved["moving_variance"], 0.99 * variance0 + 0.01 * variance, rtol=1e-4)


def test_batch_normalization_without_a_valid_row_moves_nothing():
    layer, x = layers.BatchNormalization(), normal(3, 4)
    y = run_in_training(layer, x, np.zeros(3, bool))
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(layer.weights_by_path()["moving_mean"], np.zeros(4))
    np.testing.assert_array_equal(layer.weights_by_path()["moving_variance"], np.ones(4))


def test_batch_normalization_sums_over_devices_twice_and_only_in_training():
    layer, x = layers.BatchNormalization(), normal(4, 3)
    layer(tensor(x))
    sums = []

    def doubled(value):  # another device with the same rows: the statistics are those of one
        sums.append(value.shape)
        return value * 2

    def run(training):
        with CallContext(training=training, stream=lambda: None, sum_over_devices=doubled).open():
            return host(layer(tensor(x)))

    close(run(True), batch_norm(x, np.ones(4, bool), 1.0, 0.0)[0].astype("float32"))
    assert [tuple(shape) for shape in sums] == [(2, 3), (3,)]
    run(False)
    layer.trainable = False
    run(True)
    assert len(sums) == 2


# The other normalisations


def test_layer_normalization_equals_reference():
    layer, x = layers.LayerNormalization(axis=[1, 2], epsilon=1e-5), normal(3, 4, 5) * 3 + 2
    layer(tensor(x))
    gamma, beta = with_random_weights(layer)
    mean, variance = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    close(host(layer(tensor(x))), gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta)


def test_rms_normalization_equals_reference():
    layer, x = layers.RMSNormalization(), normal(3, 4, 5) * 3 + 2
    layer(tensor(x))
    (scale,) = with_random_weights(layer)
    close(host(layer(tensor(x))), scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6))


def test_group_normalization_equals_reference():
    layer, x = layers.GroupNormalization(2), normal(3, 4, 5, 6) * 3 + 2
    layer(tensor(x))
    gamma, beta = with_random_weights(layer)
    groups = x.reshape(3, 20, 2, 3)
    mean, variance = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    close(host(layer(tensor(x))), gamma * ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape) + beta)


@pytest.mark.parametrize("name", ["BatchNormalization", "LayerNormalization", "RMSNormalization", "GroupNormalization"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_normalization_of_half_floats_has_float32_statistics(name, dtype):
    layer = getattr(layers, name)(**({"groups": 2} if name.startswith("Group") else {}))
    y = layer(uf.ops.cast(tensor(normal(4, 6) * 1000), dtype), training=True)  # squares overflow float16
    assert uf.ops.dtype(y) == dtype and np.isfinite(host(uf.ops.cast(y, "float32"))).all()


# Attention


def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def rotated(x, base):
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * base ** (-2 * np.arange(half) / x.shape[-1])
    turns = np.exp(1j * angles)[:, None]
    pairs = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([pairs.real, pairs.imag], -1)


def reference_attention(layer, query, value, visible, base=None):
    """By the equations, in float64; `visible` is (batch, queries, keys)."""
    weight = {path: array.astype("float64") for path, array in layer.weights_by_path().items()}
    q, k, v = (
        np.einsum("bsm,mhd->bshd", x, weight[f"{part}.kernel"]) + weight[f"{part}.bias"]
        for part, x in (("query", query), ("key", value), ("value", value))
    )
    if base is not None:
        q, k = rotated(q, base), rotated(k, base)
    share = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, share, 2), np.repeat(v, share, 2)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    seen = np.broadcast_to(visible[:, None], scores.shape)
    weights = np.where(seen, softmax(np.where(seen, scores, -1e30)), 0.0)
    y = np.einsum("bhqk,bkhd->bqhd", weights, v)
    return np.einsum("bqhd,hdm->bqm", y, weight["attention_output.kernel"]) + weight["attention_output.bias"], weights


@pytest.mark.parametrize("rotary", [False, True], ids=["plain", "rotary"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_attention_equals_reference(key_heads, causal, rotary):
    base = 100.0 if rotary else None
    layer = layers.MultiHeadAttention(
        4, 6, num_key_value_heads=key_heads, rotary=rotary, **({"rotary_base": base} if rotary else {})
    )
    query, value, keys = normal(3, 5, 7), normal(3, 8, 7, seed=1), steps_mask(3, 8)
    layer(tensor(query), tensor(value))
    with_random_weights(layer)
    visible = np.broadcast_to(keys[:, None], (3, 5, 8)) & (np.tri(5, 8, dtype=bool) if causal else True)
    expected, weights = reference_attention(layer, query, value, visible, base)
    given = {"value_mask": tensor(keys), "use_causal_mask": causal}
    found = host(layer(tensor(query), tensor(value), **given))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    slow, scores = layer(tensor(query), tensor(value), return_attention_scores=True, **given)
    np.testing.assert_allclose(host(slow), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(host(scores), weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scores", [False, True], ids=["fused", "stepwise"])
def test_attention_query_without_any_key_gives_the_bias(scores):
    layer, x = layers.MultiHeadAttention(2, 4), normal(2, 3, 5)
    layer(tensor(x), tensor(x))
    with_random_weights(layer)
    nothing = np.zeros((2, 3, 3), bool)
    y = layer(tensor(x), tensor(x), attention_mask=tensor(nothing), return_attention_scores=scores)
    close(host(y[0] if scores else y), np.broadcast_to(layer.weights_by_path()["attention_output.bias"], (2, 3, 5)))


def test_rotary_scores_depend_on_distance_only():
    q, k = np.broadcast_to(normal(1, 1, 1, 8), (1, 9, 1, 8)), np.broadcast_to(normal(1, 1, 1, 8, seed=1), (1, 9, 1, 8))
    q, k = host(rotate(tensor(q), 100.0)), host(rotate(tensor(k), 100.0))
    scores = np.einsum("bqhd,bkhd->qk", q, k)
    for distance in range(-4, 5):
        np.testing.assert_allclose(np.diagonal(scores, distance), scores.diagonal(distance)[0], rtol=1e-4, atol=1e-4)
    assert np.ptp(scores[0]) > 0.1


def test_attention_dropout_disturbs_training_only():
    layer, x = layers.MultiHeadAttention(2, 4, dropout=0.5), tensor(normal(2, 6, 5))
    still = host(layer(x, x))
    np.testing.assert_array_equal(still, host(layer(x, x)))
    assert np.abs(host(layer(x, x, training=True)) - still).max() > 1e-3


# Masks


class Masks(uf.Model):
    """Embedding(mask_zero) and layers after it; records the mask after each."""

    def __init__(self, *inner):
        super().__init__()
        self.embedding = layers.Embedding(6, 4, mask_zero=True)
        self.inner = list(inner)
        self.seen = []

    def call(self, ids):
        x = self.embedding(ids)
        self.seen = [uf.context().mask_of(x)]
        for layer in self.inner:
            x = layer(x)
            self.seen.append(uf.context().mask_of(x))
        return x


IDS = np.array([[3, 1, 4, 0, 0], [2, 0, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")


def test_embedding_mask_reaches_through_layers_and_ends_at_the_mean():
    chain = [layers.Dense(3), layers.LayerNormalization(), layers.Dropout(0.5), layers.Activation("relu"),
             layers.TimeDistributed(layers.Dense(3)), layers.GlobalAveragePooling1D()]  # fmt: skip
    model = Masks(*chain)
    pooled = host(model(tensor(IDS)))
    for mask in model.seen[:-1]:
        np.testing.assert_array_equal(host(mask), IDS != 0)
    assert model.seen[-1] is None
    assert np.isfinite(pooled).all()
    np.testing.assert_array_equal(pooled[2], 0.0)


def test_embedding_without_mask_zero_makes_no_mask():
    model = Masks()
    model.embedding = layers.Embedding(6, 4)
    model(tensor(IDS))
    assert model.seen == [None]


def test_masked_mean_equals_reference():
    model = Masks(layers.GlobalAveragePooling1D())
    found = host(model(tensor(IDS)))
    table = model.weights_by_path()["embedding.embeddings"]
    close(found[:2], np.stack([table[[3, 1, 4]].mean(0), table[2]]))


def test_masking_masks_rows_of_the_value_and_zeroes_them():
    x = normal(2, 4, 3)
    x[0, 2], x[1, 1:] = 7.0, 7.0
    x[0, 0, 0] = 7.0  # one element alone is no padding
    model = uf.Sequential([layers.Masking(7.0), layers.GlobalAveragePooling1D()])
    close(host(model(tensor(x))), np.stack([x[0, [0, 1, 3]].mean(0), x[1, 0]]))
    assert not host(layers.Masking(7.0)(tensor(x)))[0, 2].any()


def test_layer_that_cannot_keep_a_mask_says_so():
    for layer in (layers.Conv1D(2, 2), layers.Lambda(lambda x: x * 2)):
        with pytest.warns(UserWarning, match="drops it"):
            Masks(layer)(tensor(IDS))


def test_merged_masks_follow_keras():
    class Net(uf.Model):
        def __init__(self, merge):
            super().__init__()
            self.one, self.two = layers.Embedding(6, 4, mask_zero=True), layers.Embedding(6, 4, mask_zero=True)
            self.merge, self.seen = merge, None

        def call(self, ids, other):
            y = self.merge([self.one(ids), self.two(other)])
            self.seen = uf.context().mask_of(y)
            return y

    other = IDS[::-1].copy()
    for merge, expected in (
        (layers.Add(), (IDS != 0) | (other != 0)),
        (layers.Concatenate(), (IDS != 0) | (other != 0)),
        (layers.Concatenate(axis=1), np.concatenate([IDS != 0, other != 0], 1)),
        (layers.Maximum(), (IDS != 0) | (other != 0)),
    ):
        net = Net(merge)
        net(tensor(IDS), tensor(other))
        np.testing.assert_array_equal(host(net.seen), expected)
    net = Net(layers.Add())
    net.two = layers.Embedding(6, 4)
    net(tensor(IDS), tensor(other))
    assert net.seen is None


def test_softmax_with_everything_masked_gives_zeros():
    x, mask = normal(2, 3), np.array([[True, False, True], [False, False, False]])
    y = host(layers.Softmax()(tensor(x), mask=tensor(mask)))
    np.testing.assert_array_equal(y[1], 0.0)
    close(y[0, [0, 2]], softmax(x[0, [0, 2]]))
    assert y[0, 1] == 0


# Dropout and wrappers


def test_dropout_keeps_the_mean_and_shares_along_noise_shape():
    x = tensor(np.ones((4, 50, 60), "float32"))
    layer = layers.Dropout(0.25, noise_shape=(None, 1, None))
    y = host(layer(x, training=True))
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert abs(y.mean() - 1.0) < 0.15
    np.testing.assert_array_equal(host(layer(x)), 1.0)


def test_time_distributed_batch_norm_leaves_padding_rows_out():
    layer, x = layers.TimeDistributed(layers.BatchNormalization()), normal(3, 4, 2)
    x[1] = 1e6
    valid = np.array([True, False, True])
    y = run_in_training(layer, x, valid)
    close(y[valid], batch_norm(x, valid[:, None], 1.0, 0.0)[0][valid].astype("float32"))


class Cumulative(uf.Layer):
    """A recurrent layer in three lines: running sums."""

    def __init__(self, return_sequences=False, go_backwards=False, **kwargs):
        super().__init__(**kwargs)
        self.return_sequences, self.go_backwards = return_sequences, go_backwards

    def call(self, x):
        y = uf.ops.cumsum(uf.ops.flip(x, 1) if self.go_backwards else x, 1)
        return y if self.return_sequences else y[:, -1]


@pytest.mark.parametrize("sequences", [True, False])
def test_bidirectional_runs_any_layer_both_ways(sequences):
    x = normal(2, 5, 3)
    forward, backward = np.cumsum(x, 1), np.cumsum(x[:, ::-1], 1)[:, ::-1]
    if not sequences:
        forward, backward = forward[:, -1], backward[:, 0]
    merges = {"concat": np.concatenate([forward, backward], -1), "sum": forward + backward,
              "mul": forward * backward, "ave": (forward + backward) / 2}  # fmt: skip
    for mode, expected in merges.items():
        close(host(layers.Bidirectional(Cumulative(sequences), merge_mode=mode)(tensor(x))), expected)
    found = layers.Bidirectional(Cumulative(sequences), merge_mode=None)(tensor(x))
    close(host(found[0]), forward)
    close(host(found[1]), backward)


def test_lambda_gets_training_and_arguments():
    layer = layers.Lambda(lambda x, training, by: x * by if training else x, arguments={"by": 3.0})
    x = tensor(normal(2, 3))
    close(host(layer(x, training=True)), host(x) * 3)
    close(host(layer(x)), host(x))


# Refusals


IMAGE, FLAT = (2, 8, 8, 4), (2, 8)
REFUSED = {
    "rank": (lambda: layers.Conv2D(3, 3)(uf.ops.ones((32, 28, 28))), ShapeError, "expand_dims"),
    "rank of pooling": (lambda: layers.MaxPooling2D()(uf.ops.ones(FLAT)), ShapeError, r"\(rows, height, width"),
    "rank of Dense": (lambda: layers.Dense(3)(uf.ops.ones((4,))), ShapeError, "expand_dims"),
    "units": (lambda: layers.Dense(0), ArgumentError, "units=0"),
    "units of a float": (lambda: layers.Dense(2.5), ArgumentError, "units=2.5"),
    "filters and groups": (lambda: layers.Conv2D(3, 3, groups=2), ArgumentError, "filters=3 and groups=2"),
    "channels and groups": (lambda: layers.Conv2D(6, 3, groups=3)(uf.ops.ones(IMAGE)), ShapeError, "4 channels"),
    "strides and dilation": (lambda: layers.Conv2D(3, 3, 2, dilation_rate=2), ArgumentError, "one of them must be 1"),
    "padding": (lambda: layers.Conv2D(3, 3, padding="causal"), ArgumentError, "'valid', 'same'"),
    "kernel size": (lambda: layers.Conv2D(3, (3, 3, 3)), ArgumentError, "kernel_size"),
    "channels first": (lambda: layers.Conv2D(3, 3, data_format="channels_first"), UnsupportedError, "channels last"),
    "key_dim": (lambda: layers.MultiHeadAttention(2, 0), ArgumentError, "key_dim=0"),
    "heads": (lambda: layers.MultiHeadAttention(3, 4, num_key_value_heads=2), ArgumentError, "multiple"),
    "odd rotary": (lambda: layers.MultiHeadAttention(3, 3, rotary=True), ArgumentError, "even key_dim"),
    "attention rank": (lambda: layers.MultiHeadAttention(2, 3)(uf.ops.ones(IMAGE), uf.ops.ones(IMAGE)), ShapeError,
                       "rows, steps, features"),
    "norm groups": (lambda: layers.GroupNormalization(3)(uf.ops.ones(IMAGE)), ShapeError, "multiple of the groups"),
    "axis": (lambda: layers.BatchNormalization(axis=4)(uf.ops.ones(IMAGE)), ArgumentError, "axis=4"),
    "axes twice": (lambda: layers.LayerNormalization([1, -3])(uf.ops.ones(IMAGE)), ArgumentError, "different axes"),
    "rate": (lambda: layers.Dropout(1.0), ArgumentError, "rate=1.0"),
    "seed": (lambda: layers.Dropout(0.5, seed=3), ArgumentError, "uf.set_seed"),
    "reshape": (lambda: layers.Reshape((3, -1))(uf.ops.ones(FLAT)), ShapeError, "a row has 8 elements"),
    "permute": (lambda: layers.Permute((0, 1)), ArgumentError, "1 to 2"),
    "merge of one": (lambda: layers.Add()(uf.ops.ones(FLAT)), ShapeError, "list of arrays"),
    "concatenate": (lambda: layers.Concatenate(1)([uf.ops.ones((2, 3, 4)), uf.ops.ones((2, 3, 5))]), ShapeError,
                    "equal sizes"),
    "equation": (lambda: layers.EinsumDense("ab->ba", 3), ArgumentError, "ab,bc->ac"),
    "einsum size": (lambda: layers.EinsumDense("abc,cd->abd", (5, 3))(uf.ops.ones((2, 4, 3))), ShapeError, "'b' is 4"),
    "time": (lambda: layers.TimeDistributed(layers.Dense(2))(uf.ops.ones(FLAT)), ShapeError, "rows, steps"),
    "bidirectional": (lambda: layers.Bidirectional(layers.Dense(2)), ArgumentError, "return_sequences"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_refusal_says_what_and_how(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_default_names_are_keras_names():
    names = ["Conv2D", "Conv1DTranspose", "MaxPooling2D", "BatchNormalization", "MultiHeadAttention"]
    expected = ["conv2d", "conv1d_transpose", "max_pooling2d", "batch_normalization", "multi_head_attention"]
    arguments = {"Conv2D": (1, 1), "Conv1DTranspose": (1, 1), "MultiHeadAttention": (1, 1)}
    assert [getattr(layers, name)(*arguments.get(name, ())).name for name in names] == expected


def test_every_layer_is_in_the_table():
    around_others, recurrent = {"Bidirectional", "Lambda", "TimeDistributed"}, {"LSTM", "GRU"}  # tested by themselves
    assert set(layers.__all__) - {case.name for case in ALL} == around_others | recurrent
