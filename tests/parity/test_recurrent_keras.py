"""LSTM, GRU and Bidirectional against Keras 3's: equal weights and masks in, equal outputs and states out."""

import os

import numpy as np
import pytest

import unifit as uf
from layer_cases import numpy_tree

pytestmark = pytest.mark.backends("tensorflow", reason="Keras is installed with tensorflow")

TOLERANCE = 1e-5
ROWS, STEPS, FEATURES, UNITS = 4, 6, 3, 4
X = np.random.default_rng(0).normal(size=(ROWS, STEPS, FEATURES)).astype("float32")
STATES = np.random.default_rng(1).normal(size=(4, ROWS, UNITS)).astype("float32")
NUM_STATES = {"LSTM": 2, "GRU": 1}

MASKS = {
    "none": None,
    "right": np.arange(STEPS) < np.array([[6], [4], [1], [3]]),
    "left": np.arange(STEPS) >= np.array([[0], [2], [5], [3]]),
    "holes": np.array([[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0], [1, 1, 0, 1, 0, 0]], bool),
    "empty rows": np.array([[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]], bool),
}


@pytest.fixture(scope="module")
def keras():
    os.environ["KERAS_BACKEND"] = "tensorflow"
    return pytest.importorskip("keras")


def compare(ours, theirs, mask, states=None):
    """Calls both, unifit's first for its weights, on X."""
    tensor = uf.ops.convert_to_tensor
    named, theirs_named = {}, {}
    if mask is not None:
        named["mask"], theirs_named["mask"] = tensor(mask), mask
    if states is not None:
        named["initial_state"], theirs_named["initial_state"] = [tensor(s) for s in states], [tensor(s) for s in states]
    ours(tensor(X)), theirs(X)
    r = np.random.default_rng(2)
    weights = [r.normal(size=value.shape).astype("float32") for value in ours.get_weights()]
    ours.set_weights(weights)
    theirs.set_weights(weights)
    found = numpy_tree(ours(tensor(X), **named))
    expected = theirs(X, **theirs_named)
    expected = [np.asarray(leaf) for leaf in (expected if isinstance(expected, (list, tuple)) else [expected])]
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequence"])
@pytest.mark.parametrize("state", [False, True], ids=["output", "output and states"])
@pytest.mark.parametrize("name", NUM_STATES)
def test_layer_equals_keras(name, state, sequences, backwards, mask, keras):
    arguments = {"return_sequences": sequences, "return_state": state, "go_backwards": backwards}
    compare(getattr(uf.layers, name)(UNITS, **arguments), getattr(keras.layers, name)(UNITS, **arguments), mask)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", NUM_STATES)
def test_initial_state_equals_keras(name, mask, keras):
    arguments = {"return_sequences": True, "return_state": True, "use_bias": False}
    ours, theirs = getattr(uf.layers, name)(UNITS, **arguments), getattr(keras.layers, name)(UNITS, **arguments)
    compare(ours, theirs, mask, STATES[: NUM_STATES[name]])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("mode", ["concat", "sum", "mul", "ave", None])
@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequence"])
@pytest.mark.parametrize("name", NUM_STATES)
def test_bidirectional_equals_keras(name, sequences, mode, mask, keras):
    arguments = {"return_sequences": sequences, "return_state": True}
    ours = uf.layers.Bidirectional(getattr(uf.layers, name)(UNITS, **arguments), merge_mode=mode)
    theirs = keras.layers.Bidirectional(getattr(keras.layers, name)(UNITS, **arguments), merge_mode=mode)
    compare(ours, theirs, mask)


@pytest.mark.parametrize("name", NUM_STATES)
def test_bidirectional_with_initial_state_equals_keras(name, keras):
    arguments = {"return_sequences": True, "return_state": True}
    ours = uf.layers.Bidirectional(getattr(uf.layers, name)(UNITS, **arguments))
    theirs = keras.layers.Bidirectional(getattr(keras.layers, name)(UNITS, **arguments))
    compare(ours, theirs, MASKS["holes"], STATES[: 2 * NUM_STATES[name]])


@pytest.mark.parametrize("name", NUM_STATES)
def test_bidirectional_of_layers_the_other_way_round_equals_keras(name, keras):
    def both(module):
        recurrent = getattr(module.layers, name)
        forward, backward = (recurrent(UNITS, return_sequences=True, go_backwards=way) for way in (True, False))
        return module.layers.Bidirectional(forward, backward_layer=backward)

    compare(both(uf), both(keras), None)


@pytest.mark.parametrize("name", NUM_STATES)
def test_masked_chain_equals_keras(name, keras):
    """Masks that come out of Embedding and go on to the next recurrent layer and the pooling."""
    indices = np.array([[3, 1, 4, 0, 0], [2, 0, 0, 0, 0], [1, 2, 3, 4, 5], [0, 2, 0, 1, 0]], "int32")

    def chain(module):
        recurrent = getattr(module.layers, name)
        return [
            module.layers.Embedding(6, 3, mask_zero=True),
            module.layers.Bidirectional(recurrent(UNITS, return_sequences=True)),
            recurrent(UNITS, return_sequences=True),
            module.layers.GlobalAveragePooling1D(),
        ]

    ours, theirs = uf.Sequential(chain(uf)), keras.Sequential(chain(keras))
    ours(uf.ops.convert_to_tensor(indices)), theirs(indices)
    theirs.set_weights(ours.get_weights())
    np.testing.assert_allclose(
        numpy_tree(ours(uf.ops.convert_to_tensor(indices)))[0], np.asarray(theirs(indices)), atol=TOLERANCE
    )
