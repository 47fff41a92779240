"""Leaving for Keras: real Keras models of the same layers take the file and give the same outputs."""

import os

import numpy as np
import pytest

import checkpoint_tools
import unifit as uf
from unifit.checkpoint import export
from unifit.checkpoint.structure import layer_facts
from unifit.errors import UnsupportedError
from unifit.weights import records_of

pytestmark = pytest.mark.backends("tensorflow", reason="Keras is installed with tensorflow")

L = uf.layers
TOLERANCE = 1e-5
ROWS = 4


@pytest.fixture(scope="module")
def keras():
    os.environ["KERAS_BACKEND"] = "tensorflow"
    return pytest.importorskip("keras")


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def exported(folder, model, x, trained=False):
    """The file of a model whose weights are all drawn anew, for layers of one kind to differ.

    A fit writes the checkpoint where `trained`; else it is put together, for that costs no compilation.
    """
    y = np.asarray(model(x))
    drawn = {path: array(*value.shape, seed=n) * 0.3 for n, (path, value) in enumerate(model.weights_by_path().items())}
    model.load_weights_by_path({p: np.abs(v) + 0.5 if p.endswith("variance") else v for p, v in drawn.items()})
    if trained:
        model.compile("sgd", "mse")
        model.fit(x, y, batch_size=ROWS, epochs=1, verbose=0, checkpoint_dir=folder / "run")
    else:
        parts = checkpoint_tools.contents(1)
        facts = {
            path: {"layer": "", "name": name, "shape": record.shape, "dtype": "float32", "trainable": record.trainable}
            for path, _, name, record in records_of(model)
        }
        state = parts.state | {"weights": facts, "layers": layer_facts(model)}
        checkpoint_tools.write(folder / "run", 1, state=state, groups={"weights": model.weights_by_path()}, own={})
    export(folder / "run", "keras", folder / "k.weights.h5")
    return folder / "k.weights.h5"


def assert_same_outputs(ours, theirs, x):
    expected = np.asarray(ours(x))
    assert np.abs(np.asarray(theirs(x)) - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max())


def images(L, Sequential, Input):
    return Sequential(
        [
            L.Conv2D(4, 3, activation="relu"), L.BatchNormalization(), L.Dropout(0.2), L.Conv2D(4, 3, padding="same"),
            L.DepthwiseConv2D(2), L.Conv2DTranspose(4, 2), L.GroupNormalization(2), L.Flatten(),
            Sequential([L.Dense(6, "tanh"), L.Dense(6)]), L.Dense(6), L.LayerNormalization(), L.Dense(2),
        ]
    )  # fmt: skip


def sequence(L, Sequential, Input):
    return Sequential(
        [
            L.Conv1D(6, 2), L.Bidirectional(L.LSTM(3, return_sequences=True, dropout=0.1)), L.RMSNormalization(),
            L.GRU(4, return_sequences=True), L.TimeDistributed(L.Dense(5)), L.LSTM(3),
        ]
    )  # fmt: skip


@pytest.mark.parametrize(("make", "shape"), [(images, (6, 7, 2)), (sequence, (6, 3))])
def test_sequential_model_takes_the_file(make, shape, keras, tmp_path):
    x = array(ROWS, *shape)
    ours, theirs = make(L, uf.Sequential, uf.Input), make(keras.layers, keras.Sequential, keras.Input)
    theirs(x)
    theirs.load_weights(exported(tmp_path, ours, x))
    assert_same_outputs(ours, theirs, x)


def towers(L, Model, Input):
    """Branches of unequal length whose layers all have one shape: Keras counts them by depth, not in turn."""
    x = Input((5,))
    a = L.Dense(5)(L.Dense(5, "tanh")(L.Dense(5, "tanh")(x)))
    b = L.Dense(5, "tanh", name="b")(x)
    shared = L.Dense(5)
    c = shared(L.Dense(5, "tanh")(shared(x)))
    inner_in = Input((5,))
    inner = Model(inner_in, L.Dense(5)(L.Dense(5, "tanh")(inner_in)))
    return Model(x, L.Dense(5)(a + b + inner(c)))


def test_functional_model_takes_the_file_whatever_its_branches(keras, tmp_path):
    x = array(ROWS, 5)
    ours, theirs = towers(L, uf.Model, uf.Input), towers(keras.layers, keras.Model, keras.Input)
    theirs.load_weights(exported(tmp_path, ours, x, trained=True))
    assert_same_outputs(ours, theirs, x)


def attending(L, Model, Input):
    x = Input((5, 8))
    y = L.MultiHeadAttention(2, 4)(x, x)
    return Model(x, L.GroupQueryAttention(4, 4, 2)(y, y))


def test_attention_takes_the_file(keras, tmp_path):
    x = array(ROWS, 5, 8)
    ours, theirs = attending(L, uf.Model, uf.Input), attending(keras.layers, keras.Model, keras.Input)
    theirs.load_weights(exported(tmp_path, ours, x))
    assert_same_outputs(ours, theirs, x)


def classes(L, Layer, Model):
    """A subclass with attributes before and after "layers" in the alphabet, a list, a dict, and weights of its own."""

    class Block(Layer):
        def __init__(self):
            super().__init__()
            self.norm, self.dense = L.LayerNormalization(), L.Dense(6, "tanh")

        def call(self, x):
            return x + self.dense(self.norm(x))

    class Scale(Layer):
        def build(self, input_shape):
            shape = (input_shape[-1],)
            self.running = self.add_weight(shape, "ones", trainable=False)
            self.factor = self.add_weight(shape, "ones")

        def call(self, x):
            return x * self.factor + self.running

    class Net(Model):
        def __init__(self):
            super().__init__()
            self.stem = L.Dense(6)
            self.blocks = [Block(), L.Dropout(0.1), Block(), L.Dense(6)]
            self.ways = {"a": L.Dense(6), "b": L.Dense(6)}
            self.tail, self.axis = Scale(), L.Dense(6)

        def call(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.axis(self.tail(self.ways["a"](x) - self.ways["b"](x)))

    return Net()


def test_subclassed_model_takes_the_file(keras, tmp_path):
    x = array(ROWS, 6)
    ours, theirs = classes(L, uf.Layer, uf.Model), classes(keras.layers, keras.Layer, keras.Model)
    theirs(x)
    theirs.load_weights(exported(tmp_path, ours, x))
    assert_same_outputs(ours, theirs, x)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"rotary": True}, "rotary=True"), ({"num_key_value_heads": 1}, "GroupQueryAttention")]
)
def test_attention_that_keras_has_not_is_named(arguments, message, tmp_path):
    x = uf.Input((5, 8))
    model = uf.Model(x, L.MultiHeadAttention(2, 4, name="att", **arguments)(x, x))
    with pytest.raises(UnsupportedError, match=f"'att'.*{message}"):
        exported(tmp_path, model, array(ROWS, 5, 8))
    assert not (tmp_path / "k.weights.h5").exists()
