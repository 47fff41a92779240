"""Every layer under mixed precision: its dtypes, values, large inputs, a training step; labels and ids (S-MP-06)."""

import functools

import numpy as np
import pytest

import unifit as uf
from layer_cases import CASES, OWN_CASES, numpy_tree, steps_mask, with_random_weights
from unifit.backend import backend
from unifit.context import CallContext
from unifit.layer import eager_stream
from unifit.precision import casts_of

layers, ops, tensor = uf.layers, uf.ops, uf.ops.convert_to_tensor
HALVES = {"bfloat16": 1e-2, "float16": 2e-3}
"""Compute dtypes, and how far from float32's result a layer's may be, relative to the largest element."""

KEEPING = {"Flatten", "Identity", "Permute", "Reshape"}
"""Layers that only move elements: they keep the input's dtype."""


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def host(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def run(layer, call, compute, training=False):
    """`call()` as a forward pass of a model that computes in `compute`."""
    ambient = CallContext(training=training, stream=eager_stream, compute=compute)
    with ambient.open(), backend.module.reading_as(casts_of(layer, compute)):
        return call()


def under(layer, compute, *arrays, **named):
    """A layer's result on these arrays under a policy; a list of arrays is one argument."""
    given = [list(map(tensor, array)) if isinstance(array, list) else tensor(array) for array in arrays]
    layer(*given, **named)  # builds it
    return run(layer, lambda: layer(*given, **named), compute)


def leaves(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


# Every layer


ALL = CASES + OWN_CASES
ONE_EACH = list({case.name: case for case in reversed(ALL)}.values())
NOT_JAX = pytest.mark.backends(
    "torch",
    "tensorflow",
    reason="a case per kernel with a half type of its own; jax compiles for each what it has for one",
)
TABLE = [pytest.param(case, id=case.id, marks=() if case in ONE_EACH else NOT_JAX) for case in ALL]


@pytest.mark.parametrize("case", TABLE)
def test_layer_computes_in_the_policys_dtype_and_is_close_to_float32(case):
    layer, arrays = case.make(), case.arrays()
    if "Attention" in case.name:  # a weight is known no better than its score, whose error grows with its size
        arrays = [0.1 * array for array in arrays]
    case.call_with(layer, arrays, tensor)
    with_random_weights(layer)
    expected = numpy_tree(case.call_with(layer, arrays, tensor))
    before = layer.get_weights()
    both = (
        case in ONE_EACH and uf.backend.name != "jax"
    )  # which compiles each op for each dtype: half of them have to do
    chosen = list(HALVES) if both else [list(HALVES)[ALL.index(case) % 2]]
    for compute in chosen:
        tolerance = HALVES[compute]
        found = leaves(run(layer, lambda: case.call_with(layer, arrays, tensor), compute))
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert ops.dtype(a) == ("float32" if case.name in KEEPING else compute)
            assert tuple(a.shape) == b.shape
            assert np.abs(host(a) - b).max() <= tolerance * np.abs(b).max()
    for a, b in zip(layer.get_weights(), before, strict=True):
        assert a.dtype == np.float32
        if not case.call.get("training"):
            np.testing.assert_array_equal(a, b)


RECURRENT = [layers.LSTM, layers.GRU]


@pytest.mark.parametrize("compute", HALVES)
@pytest.mark.parametrize("make", RECURRENT)
@pytest.mark.parametrize("both_ways", [False, True])
def test_recurrent_layer_carries_its_states_in_the_policys_dtype(make, both_ways, compute):
    layer = make(5, return_sequences=True, return_state=True)
    layer = layers.Bidirectional(layer) if both_ways else layer
    x, mask = normal(3, 7, 6), tensor(steps_mask(3, 7))
    expected = numpy_tree(layer(tensor(x), mask=mask))
    states = [tensor(state) for state in expected[1:]]
    expected = numpy_tree(layer(tensor(x), mask=mask, initial_state=states))
    found = run(layer, lambda: layer(tensor(x), mask=mask, initial_state=states), compute)
    for a, b in zip(found, expected, strict=True):
        assert ops.dtype(a) == compute
        assert np.abs(host(a) - b).max() <= 2 * HALVES[compute] * np.abs(b).max()


@pytest.mark.parametrize("compute", HALVES)
def test_time_distributed_layer_casts_inside(compute):
    layer, x = layers.TimeDistributed(layers.Embedding(3000, 4)), np.array([[[257.0], [2049.0]]], "float32")
    expected = host(layer(tensor(x)))
    found = under(layer, compute, x)
    assert ops.dtype(found) == compute
    np.testing.assert_array_equal(host(found), host(ops.cast(tensor(expected), compute)))


# Integers, and layers of a dtype of their own


@pytest.mark.parametrize("compute", HALVES)
def test_integers_stay_integers_until_a_layer_multiplies_them(compute):
    x = np.arange(12, dtype="int32").reshape(2, 6)
    for layer in (layers.Identity(), layers.Flatten(), layers.Reshape((3, 2)), layers.Masking(3)):
        assert ops.dtype(under(layer, compute, x)) == "int32"
    assert ops.dtype(under(layers.Add(), compute, [x, x])) == "int32"
    for layer in (layers.Dense(3), layers.EinsumDense("ab,bc->ac", 3)):
        expected = host(layer(tensor(x)))
        found = under(layer, compute, x)
        assert ops.dtype(found) == compute
        np.testing.assert_allclose(host(found), expected, atol=HALVES[compute] * np.abs(expected).max())


@pytest.mark.parametrize("compute", HALVES)
def test_float32_on_one_layer_keeps_it_float32(compute):
    x = normal(2, 4, 6)
    for make in (
        lambda: layers.Dense(3, dtype="float32"),
        lambda: layers.LayerNormalization(dtype="float32"),
        lambda: layers.MultiHeadAttention(2, 3, dtype="float32"),
        lambda: layers.Conv1D(2, 3, dtype="float32"),
        lambda: layers.GRU(3, dtype="float32"),
        lambda: layers.Softmax(dtype="float32"),
        lambda: layers.Rescaling(1 / 255, dtype="float32"),
    ):
        layer = make()
        given = (x, x) if isinstance(layer, layers.MultiHeadAttention) else (x,)
        expected = host(layer(*map(tensor, given)))
        found = under(layer, compute, *given)
        assert ops.dtype(found) == "float32" and casts_of(layer, compute) == []
        np.testing.assert_array_equal(host(found), expected)


def test_a_policy_on_one_layer_of_a_float32_model():
    layer = layers.Dense(3, dtype="mixed_bfloat16")
    x = normal(2, 6)
    expected = host(layer(tensor(x)))
    found = under(layer, "float32", x)
    assert ops.dtype(found) == "bfloat16"
    np.testing.assert_allclose(host(found), expected, atol=1e-2 * np.abs(expected).max())


def test_norms_and_tables_read_in_float32():
    x = np.ones((2, 4, 6), "float32")
    for layer in (
        layers.LayerNormalization(),
        layers.RMSNormalization(),
        layers.GroupNormalization(2),
        layers.BatchNormalization(),
        layers.Embedding(9, 3),
    ):
        layer(tensor(x))
        assert layer.weights and casts_of(layer, "float16") == []
    dense = layers.Dense(3)
    dense(tensor(x))
    assert [(name, dtype) for _, name, dtype in casts_of(dense, "float16")] == [
        ("kernel", "float16"),
        ("bias", "float16"),
    ]


# Large inputs, long rows


@pytest.mark.parametrize("compute", HALVES)
@pytest.mark.parametrize("scale", [300.0, 1e5])  # the squares of the first, and the second itself, are no float16
def test_norms_are_right_with_large_inputs(scale, compute):
    x = scale * (normal(8, 4, 6) + 1)
    for layer in (
        layers.LayerNormalization(),
        layers.RMSNormalization(),
        layers.GroupNormalization(2),
        layers.BatchNormalization(),
    ):
        expected = host(layer(tensor(x), training=True))
        found = run(layer, lambda layer=layer: layer(tensor(x), training=True), compute)
        assert ops.dtype(found) == compute
        np.testing.assert_allclose(host(found), expected, atol=HALVES[compute] * np.abs(expected).max())
        if scale == 300.0:  # a half comes in, as from another layer
            half = ops.cast(tensor(x), compute)
            found = run(layer, lambda layer=layer, half=half: layer(half, training=True), compute)
            np.testing.assert_allclose(host(found), expected, atol=2 * HALVES[compute] * np.abs(expected).max())


@pytest.mark.parametrize("compute", HALVES)
def test_batch_statistics_are_float32(compute):
    """The mean of what is near 1000 is known to more than a half's 8 or 11 bits, on padded rows as well."""
    x = (1000 + normal(64, 3)).astype("float32")
    layer = layers.BatchNormalization(momentum=0.0)
    layer(tensor(x))
    half = ops.cast(tensor(x), compute)
    rounded = host(half)
    for valid in (None, np.arange(64) < 40):
        rows = slice(None) if valid is None else valid
        ambient = CallContext(
            training=True, stream=eager_stream, compute=compute, valid=None if valid is None else tensor(valid)
        )
        with ambient.open(), backend.module.reading_as(casts_of(layer, compute)):
            layer(half)
        weights = layer.weights_by_path()
        np.testing.assert_allclose(weights["moving_mean"], rounded[rows].mean(0), rtol=1e-5)
        np.testing.assert_allclose(weights["moving_variance"], rounded[rows].var(0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("compute", HALVES)
def test_softmax_and_activations_are_finite_and_right_with_large_inputs(compute):
    x = np.array([[-300.0, -40.0, -5.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 5.0, 40.0, 300.0]], "float32")
    half = ops.cast(tensor(x), compute)
    names = (
        "relu relu6 leaky_relu elu selu gelu silu sigmoid hard_sigmoid hard_silu log_sigmoid softplus softsign mish "
        "softmax log_softmax tanh linear"
    ).split()
    for name in names:
        layer = layers.Activation(name)
        expected = host(layer(tensor(host(half))))
        found = under(layer, compute, half)
        assert ops.dtype(found) == compute, name
        np.testing.assert_allclose(host(found), expected, rtol=HALVES[compute], atol=HALVES[compute], err_msg=name)
    mask = np.array([[True] * 10 + [False], [False] * 11])
    both = np.concatenate([x, x])
    found = host(under(layers.Softmax(), compute, both, mask=tensor(mask)))
    np.testing.assert_allclose(found[0], host(layers.Softmax()(tensor(x), mask=tensor(mask[:1])))[0], atol=1e-2)
    np.testing.assert_array_equal(found[1], 0.0)


@pytest.mark.parametrize("compute", HALVES)
def test_pooling_over_many_elements_sums_in_float32(compute):
    x, mask = np.full((2, 4096, 1), 100.0, "float32"), tensor(np.arange(4096) < np.array([[4096], [3000]]))
    pooled = {
        "mean": under(layers.GlobalAveragePooling1D(), compute, x),
        "masked mean": under(layers.GlobalAveragePooling1D(), compute, x, mask=mask),
        "windows": under(layers.AveragePooling1D(2048), compute, x),
        "same": under(layers.AveragePooling1D(2048, padding="same"), compute, x),
        "images": under(layers.GlobalAveragePooling2D(), compute, x.reshape(2, 64, 64, 1)),
        "average": under(layers.Average(), compute, [400 * x] * 3) / 400.0,
    }
    for name, found in pooled.items():
        assert ops.dtype(found) == compute
        np.testing.assert_allclose(host(found), 100.0, rtol=4e-3, err_msg=name)


@pytest.mark.parametrize("compute", HALVES)
def test_rescaling_reads_what_no_half_can_hold(compute):
    for x in (np.array([[70000.0, 65537.0]], "float32"), np.array([[70000, 65537]], "int32")):
        found = under(layers.Rescaling(1.0, offset=-65536.0), compute, x)
        assert ops.dtype(found) == compute
        np.testing.assert_allclose(host(found), [[4464.0, 1.0]], rtol=HALVES[compute])


@pytest.mark.parametrize("compute", HALVES)
def test_masking_compares_in_float32(compute):
    x = np.array([[[300.1], [300.0], [0.1]]], "float32")
    model = uf.Sequential([layers.Masking(300.0), layers.GlobalAveragePooling1D()])
    expected = host(model(tensor(x)))
    np.testing.assert_allclose(host(under(model, compute, x)), expected, rtol=HALVES[compute])
    half = ops.cast(tensor(np.array([[[0.1], [0.2]]], "float32")), compute)
    assert host(under(layers.Masking(0.1), compute, half))[0, 0] == 0  # 0.1 as a half holds it


@pytest.mark.parametrize("compute", HALVES)
def test_attention_that_sees_nothing_or_much_is_finite(compute):
    x, mask = 30 * normal(2, 5, 6), np.ones((2, 5, 5), bool)
    mask[0, 1] = False
    for scores in (False, True):
        layer = layers.MultiHeadAttention(2, 4, rotary=True)
        layer(tensor(x), tensor(x))
        found = under(layer, compute, x, x, attention_mask=tensor(mask), return_attention_scores=scores)
        y = found[0] if scores else found
        assert np.isfinite(host(y)).all()
        np.testing.assert_array_equal(host(y)[0, 1], 0.0)  # the bias is 0


@pytest.mark.parametrize("compute", HALVES)
def test_dropout_keeps_dtype_and_scale(compute):
    x = np.ones((50, 60), "float32")
    layer = layers.Dropout(0.25)
    found = run(layer, lambda: layer(tensor(x)), compute, training=True)
    assert ops.dtype(found) == compute
    kept = float(host(ops.cast(tensor(np.float32(1 / 0.75)), compute)))
    assert set(np.unique(host(found))) == {0.0, np.float32(kept)}


# Training


class Images(uf.Model):
    """Most layers for images, one after the other."""

    def __init__(self):
        super().__init__()
        self.chain = [
            layers.Rescaling(1 / 255), layers.Conv2D(6, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(),
            layers.DepthwiseConv2D(3), layers.GroupNormalization(2), layers.MaxPooling2D(),
            layers.Conv2DTranspose(4, 3, strides=2), layers.AveragePooling2D(), layers.UpSampling2D(),
            layers.ZeroPadding2D(), layers.Conv2D(4, 3, groups=2, strides=2), layers.LeakyReLU(), layers.Flatten(),
            layers.Dense(5, activation="gelu", kernel_regularizer="l2"), layers.Dense(3),
        ]  # fmt: skip

    def call(self, x):
        for layer in self.chain:
            x = layer(x)
        return x


class Steps(uf.Model):
    """Most layers for sequences, with a mask through them and dropout."""

    def __init__(self):
        super().__init__()
        # Rows of size 1: an update turns small ones around, and a norm makes what a half rounds then as large as they.
        self.embedding = layers.Embedding(3000, 8, uf.initializers.RandomNormal(stddev=1.0), mask_zero=True)
        self.norm, self.attention = layers.LayerNormalization(), layers.MultiHeadAttention(2, 4, rotary=True)
        self.add, self.rms, self.dropout = layers.Add(), layers.RMSNormalization(), layers.Dropout(0.1)
        self.lstm = layers.LSTM(6, return_sequences=True)
        self.gru = layers.GRU(4, return_sequences=True)
        self.mean, self.head = layers.GlobalAveragePooling1D(), layers.Dense(3)

    def call(self, ids):
        x = self.embedding(ids)
        x = self.add([x, self.attention(self.norm(x), x, use_causal_mask=True)])
        return self.head(self.mean(self.gru(self.lstm(self.dropout(self.rms(x))))))


class Convolutions(uf.Model):
    """Convolutions of sequences, and merging of two branches."""

    def __init__(self):
        super().__init__()
        self.one, self.two = layers.Conv1D(4, 3, padding="causal"), layers.Conv1D(4, 3, padding="same", dilation_rate=2)
        self.join, self.up = layers.Concatenate(), layers.Conv1DTranspose(3, 3, strides=2, padding="same")
        self.pool, self.flat = layers.MaxPooling1D(), layers.Flatten()
        self.head = layers.EinsumDense("ab,bc->ac", 3, bias_axes="c")

    def call(self, x):
        x = self.join([self.one(x), self.two(x)])
        return self.head(self.flat(self.pool(self.up(x))))


def images():
    return np.random.default_rng(0).integers(0, 256, (10, 9, 8, 3)).astype("uint8")


def ids():
    rng = np.random.default_rng(0)
    return np.where(steps_mask(10, 12), rng.integers(1, 3000, (10, 12)), 0).astype("int32")


TRAINED = {"images": (Images, images), "steps": (Steps, ids), "convolutions": (Convolutions, lambda: normal(10, 7, 5))}


@functools.cache
def trained(name, precision):
    """Losses of three epochs, and by how much each weight moved."""
    make, data = TRAINED[name]
    x, y = data(), np.arange(10, dtype="int32") % 3
    uf.set_seed(3)
    model = make()
    loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(uf.optimizers.SGD(0.05), loss, metrics=["accuracy"], precision=precision)
    model.build(x.shape)
    before = model.weights_by_path()
    losses = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
    after = model.weights_by_path()
    for path, value in after.items():
        assert value.dtype == np.float32 and np.isfinite(value).all(), path
        assert not path.endswith("kernel") or not np.array_equal(value, before[path]), path
    predicted = model.predict(x, batch_size=4)
    assert predicted.dtype == np.float32 and np.isfinite(predicted).all()
    return losses, np.concatenate([(after[path] - before[path]).ravel() for path in after])


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_training_follows_float32_and_keeps_float32_variables(name, policy):
    expected_losses, expected = trained(name, "float32")
    losses, moved = trained(name, policy)
    np.testing.assert_allclose(losses, expected_losses, rtol=0.05)
    assert expected @ moved > 0.95 * np.linalg.norm(expected) * np.linalg.norm(moved)


# S-MP-06: class labels and ids never pass through a half

CLASSES = (255, 257, 2049, 4099)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("labels_dtype", ["int32", "float32"])
def test_s_mp_06_labels_index_classes_whatever_the_policy(policy, labels_dtype):
    labels = np.array(CLASSES, labels_dtype)
    logits = 20 * np.eye(5000, dtype="float32")[list(CLASSES)]
    model = uf.Sequential([layers.Activation("linear")])
    loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], precision=policy)
    for row in range(len(CLASSES)):
        logs = model.evaluate(logits[row : row + 1], labels[row : row + 1], verbose=0, return_dict=True)
        assert 0 <= logs["loss"] < 1e-3
        assert logs["accuracy"] == 1
    assert model.evaluate(logits, labels, verbose=0, return_dict=True)["loss"] < 1e-3


class ModuloSeven(uf.initializers.Initializer):
    """Row i holds i mod 7."""

    def __call__(self, shape, dtype="float32", rng=None):
        return np.broadcast_to(np.arange(shape[0], dtype=dtype)[:, None] % 7, shape)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("ids_dtype", ["int32", "float32"])
def test_s_mp_06_ids_look_up_their_rows_whatever_the_policy(policy, ids_dtype):
    numbers = np.array([[257, 2049, 255, 4099]], ids_dtype)
    for moved in ([], [layers.Identity(), layers.Reshape((2, 2)), layers.Permute((2, 1)), layers.Flatten()]):
        model = uf.Sequential([*moved, layers.Embedding(5000, 1, embeddings_initializer=ModuloSeven())])
        model.compile("sgd", "mse", precision=policy)
        expected = [257 % 7, 2049 % 7, 255 % 7, 4099 % 7]
        found = model.predict(numbers)[0, :, 0]
        np.testing.assert_array_equal(found, np.array(expected)[[0, 2, 1, 3]] if moved else expected)
        assert expected[:2] == [5, 5]


@pytest.mark.parametrize("dtype", HALVES)
def test_s_mp_06_losses_and_metrics_by_hand_index_by_the_labels(dtype):
    logits, labels = 20 * np.eye(5000, dtype="float32")[list(CLASSES)], np.array(CLASSES, "int32")
    half = ops.cast(tensor(logits), dtype)
    assert float(uf.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, half)) < 1e-3
    for name in ("sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy"):
        metric = uf.metrics.get(name)
        metric.update_state(labels, half)
        assert metric.result() == 1


# Losses, metrics and penalties by hand


def seen_dtypes(y_true, y_pred):
    seen_dtypes.seen = ops.dtype(y_true), ops.dtype(y_pred)
    return ops.mean(ops.abs(ops.cast(y_true, "float32") - y_pred), axis=-1)


class Seeing(uf.losses.Loss):
    """A user's loss that remembers the dtypes."""

    def call(self, y_true, y_pred):
        return seen_dtypes(y_true, y_pred)


@pytest.mark.parametrize("dtype", HALVES)
def test_losses_and_metrics_see_float32_predictions_and_the_labels_own_integers(dtype):
    y_pred = ops.cast(tensor(normal(4, 3)), dtype)
    for labels, seen in ((np.ones((4, 3), "int32"), "int32"), (ops.cast(tensor(normal(4, 3)), dtype), "float32")):
        for loss in (Seeing(), uf.losses.FunctionLoss(seen_dtypes)):
            value = loss(labels, y_pred)
            assert ops.dtype(value) == "float32" and seen_dtypes.seen == (seen, "float32")
        uf.metrics.FunctionMetric(seen_dtypes).update_state(labels, y_pred)
        assert seen_dtypes.seen == (seen, "float32")


@pytest.mark.parametrize("dtype", HALVES)
def test_losses_and_metrics_of_halves_are_those_of_their_float32_values(dtype):
    probabilities = ops.cast(ops.softmax(tensor(normal(64, 4))), dtype)
    labels = np.eye(4, dtype="float32")[np.arange(64) % 4]
    for name in "mse mae huber log_cosh poisson kl_divergence categorical_crossentropy binary_crossentropy".split():
        loss, metric = uf.losses.get(name), uf.metrics.get(name)
        expected = float(loss(labels, host(probabilities)))
        assert float(loss(labels, probabilities)) == expected
        assert metric(labels, probabilities) == pytest.approx(expected, rel=1e-6)
    many = ops.cast(tensor(np.full((100000,), 3.0, "float32")), dtype)
    assert uf.metrics.Mean()(many) == 3


@pytest.mark.parametrize("dtype", HALVES)
def test_penalties_of_halves_are_float32(dtype):
    weight = ops.cast(tensor(np.full((300, 300), 2.0, "float32")), dtype)
    for regularizer, expected in ((uf.regularizers.L2(1.0), 360000.0), (uf.regularizers.L1(1.0), 180000.0)):
        penalty = regularizer(weight)
        assert ops.dtype(penalty) == "float32" and float(penalty) == expected
