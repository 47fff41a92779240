"""Every layer against Keras 3's layer of the same name: equal weights in, equal numbers out; equal argument names."""

import inspect
import os

import numpy as np
import pytest

import unifit as uf
from layer_cases import CASES, numpy_tree, steps_mask, with_random_weights

pytestmark = pytest.mark.backends("tensorflow", reason="Keras is installed with tensorflow")

TOLERANCE = 1e-5

# Keras' arguments that unifit does not have, by what they are for.
LEFT_OUT = {
    *"kernel_constraint bias_constraint beta_constraint gamma_constraint depthwise_constraint".split(),
    *"embeddings_constraint activity_regularizer lora_rank lora_alpha gptq_unpacked_column_size".split(),
    *"quantization_config renorm renorm_clipping renorm_momentum synchronized flash_attention use_gate".split(),
    *"attention_axes weights seed output_shape".split(),
}
RECURRENT = {"recurrent_constraint", "unroll", "use_cudnn", "zero_output_for_mask"}
OF_EVERY_LAYER = set(inspect.signature(uf.Layer.__init__).parameters)
EXTRA = {
    "MultiHeadAttention": {"num_key_value_heads", "rotary", "rotary_base"},
    "GroupQueryAttention": {"rotary", "rotary_base"},
}


@pytest.fixture(scope="module")
def keras():
    os.environ["KERAS_BACKEND"] = "tensorflow"
    return pytest.importorskip("keras")


def close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(a, np.asarray(b), rtol=TOLERANCE, atol=TOLERANCE * max(1.0, np.abs(b).max()))


def host(value):
    return [np.asarray(leaf) for leaf in (value if isinstance(value, (list, tuple)) else [value])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_layer_equals_keras(case, keras):
    ours, theirs = case.make(), getattr(keras.layers, case.name)(**case.arguments)
    arrays = case.arrays()
    case.call_with(ours, arrays, uf.ops.convert_to_tensor)
    case.call_with(theirs, arrays)
    weights = with_random_weights(ours) if ours.get_weights() else []
    theirs.set_weights(weights)
    found = numpy_tree(case.call_with(ours, arrays, uf.ops.convert_to_tensor))
    expected = host(case.call_with(theirs, arrays))
    close(found, expected)
    close(ours.get_weights(), theirs.get_weights())  # moving statistics have moved alike


MASKED = {
    "global average": [("GlobalAveragePooling1D", {})],
    "layer norm, average": [("LayerNormalization", {}), ("Dense", {"units": 3}), ("GlobalAveragePooling1D", {})],
    "time distributed": [("TimeDistributed", {"layer": ("Dense", {"units": 3})}), ("GlobalAveragePooling1D", {})],
    "both ways": [("Bidirectional", {"layer": ("LSTM", {"units": 3})})],
    "both ways, sequences": [("Bidirectional", {"layer": ("LSTM", {"units": 3, "return_sequences": True})}),
                             ("Dense", {"units": 2}), ("GlobalAveragePooling1D", {})],
    "both ways, sums": [("Bidirectional", {"layer": ("GRU", {"units": 3, "return_sequences": True}),
                                           "merge_mode": "sum"})],
    "lambda": [("Lambda", {"function": abs, "mask": lambda inputs, mask: mask}), ("GlobalAveragePooling1D", {})],
    "dropout, activation": [("Dropout", {"rate": 0.3}), ("Activation", {"activation": "tanh"}),
                            ("GlobalAveragePooling1D", {})],
}  # fmt: skip


def make(layers, name, arguments):
    inner = {
        key: make(layers, *value) if isinstance(value, tuple) and isinstance(value[0], str) else value
        for key, value in arguments.items()
    }
    return getattr(layers, name)(**inner)


@pytest.mark.parametrize("chain", MASKED.values(), ids=MASKED)
def test_masked_sequence_equals_keras(chain, keras):
    indices = np.array([[3, 1, 4, 0, 0], [2, 0, 0, 0, 0], [1, 2, 3, 4, 5]], "int32")
    chain = [("Embedding", {"input_dim": 6, "output_dim": 4, "mask_zero": True}), *chain]
    ours = uf.Sequential([make(uf.layers, *entry) for entry in chain])
    theirs = keras.Sequential([make(keras.layers, *entry) for entry in chain])
    ours(uf.ops.convert_to_tensor(indices)), theirs(indices)
    theirs.set_weights(with_random_weights(ours))
    close(numpy_tree(ours(uf.ops.convert_to_tensor(indices))), host(theirs(indices)))


@pytest.mark.parametrize("shared", [True, False], ids=["self", "cross"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
def test_attention_with_carried_masks_equals_keras_where_valid(shared, causal, keras):
    rng = np.random.default_rng(0)
    query, value = (rng.integers(1, 6, (3, 5)) * steps_mask(3, 5)).astype("int32"), rng.integers(0, 6, (3, 7))
    value[:, 0] = 1
    value = query if shared else value.astype("int32")

    class Net(uf.Model):
        def __init__(self):
            super().__init__()
            self.embedding = uf.layers.Embedding(6, 4, mask_zero=True)
            self.attention = uf.layers.MultiHeadAttention(2, 3)

        def call(self, query, value):
            return self.attention(self.embedding(query), self.embedding(value), use_causal_mask=causal)

    ours = Net()
    ours(uf.ops.convert_to_tensor(query), uf.ops.convert_to_tensor(value))
    weights = with_random_weights(ours)
    embedding, attention = keras.layers.Embedding(6, 4, mask_zero=True), keras.layers.MultiHeadAttention(2, 3)
    embedded = [embedding(query), embedding(value)]
    attention(*embedded)
    embedding.set_weights(weights[:1])
    attention.set_weights(weights[1:])
    expected = np.asarray(attention(embedding(query), embedding(value), use_causal_mask=causal))
    found = uf.ops.convert_to_numpy(ours(uf.ops.convert_to_tensor(query), uf.ops.convert_to_tensor(value)))
    valid = query != 0  # what Keras computes for masked queries depends on its kernel
    close([found[valid]], [expected[valid]])


def test_bidirectional_and_recurrent_equal_keras(keras):
    x = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")
    for merge_mode in ("concat", "sum", "mul", "ave"):
        for sequences in (True, False):
            ours = uf.layers.Bidirectional(uf.layers.LSTM(3, return_sequences=sequences), merge_mode=merge_mode)
            theirs = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=sequences), merge_mode=merge_mode)
            ours(uf.ops.convert_to_tensor(x)), theirs(x)
            theirs.set_weights(with_random_weights(ours))
            close(numpy_tree(ours(uf.ops.convert_to_tensor(x))), host(theirs(x)))


def parameters(cls):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name not in OF_EVERY_LAYER
    }


def plain(default):
    """One size for all axes and one for each are the same default."""
    return default[0] if isinstance(default, tuple) and len(set(default)) == 1 else default


@pytest.mark.parametrize("name", sorted(uf.layers.__all__))
def test_arguments_have_keras_names_order_and_defaults(name, keras):
    if not hasattr(keras.layers, name):
        pytest.fail(f"Keras has no layer {name}")
    ours, theirs = parameters(getattr(uf.layers, name)), parameters(getattr(keras.layers, name))
    common = [key for key in ours if key in theirs]
    assert set(ours) - set(theirs) <= EXTRA.get(name, set())
    assert set(theirs) - set(ours) <= LEFT_OUT | (RECURRENT if name in ("LSTM", "GRU") else set())
    assert common == [key for key in theirs if key in ours]
    for key in common:
        if theirs[key] is not inspect.Parameter.empty and ours[key] is not inspect.Parameter.empty:
            assert plain(ours[key]) == plain(theirs[key]), key
