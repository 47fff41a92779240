"""Saving and loading: whole models in one file, weights alone, between backends."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors.numpy

import unifit as uf
from unifit.errors import ArgumentError

Dense = uf.layers.Dense
BACKENDS = ("torch", "jax", "tensorflow")
TOLERANCE = 1e-5
SUBPROCESS_LIMIT_S = 100


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@uf.register_serializable(package="tests")
class Block(uf.Layer):
    def __init__(self, units, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.dense = Dense(units, activation)

    def call(self, x):
        return self.dense(x)


@uf.register_serializable(package="tests")
class Net(uf.Model):
    def __init__(self, units=4, body=None, **kwargs):
        super().__init__(**kwargs)
        self.body = body
        self.blocks = [Block(units, "relu"), Block(units)]
        self.scale = self.add_weight((1,), "ones", trainable=False)

    def call(self, x):
        if self.body is not None:
            x = self.body(x)
        for block in self.blocks:
            x = block(x)
        return x * self.scale


@uf.register_serializable(package="tests")
class Pair(uf.Model):
    """Two towers, made with Keras' habit of a get_config."""

    def __init__(self, left, right, **kwargs):
        super().__init__(**kwargs)
        self.left, self.right = left, right

    def call(self, x):
        return self.left(x) + self.right(x)

    def get_config(self):
        config = super().get_config()
        config.update({"left": self.left, "right": self.right})
        return config


def sequential():
    model = uf.Sequential([Dense(4, "tanh"), Dense(2)], name="mlp")
    model.add(uf.Sequential([Dense(3)]))
    model.build((None, 5))
    return model


def sequential_with_input():
    return uf.Sequential([uf.Input((5,), name="features"), Dense(4), Dense(2, name="head")])


def functional():
    a, b = uf.Input((5,), name="a"), uf.Input((5,), name="b")
    shared = Dense(4, "relu", name="shared")
    x = shared(a) + shared(b) * 2.0 - np.ones(4, "float32")
    return uf.Model({"a": a, "b": b}, [Dense(2)(x), -x[:, 1:]])


def models_sharing_a_layer():
    shared = Dense(5)
    x = uf.Input((5,))
    first, second = uf.Model(x, shared(x), name="first"), uf.Sequential([shared, Dense(5)], name="second")
    y = uf.Input((5,))
    return uf.Model(y, first(y) + second(y))


def subclass():
    model = Net(3, body=uf.Sequential([Dense(5, kernel_initializer="he_normal")]))
    model.build((None, 5))
    return model


def subclass_sharing_arguments():
    shared = Dense(3)
    model = Pair(uf.Sequential([shared]), right=shared)
    model.build((None, 5))
    return model


def convolutional():
    layers = uf.layers
    y = x = uf.Input((8, 8, 1))
    for layer in (layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.MaxPooling2D()):
        y = layer(y)
    return uf.Model(x, layers.Dense(3)(layers.Dropout(0.1)(layers.Flatten()(y))))


def attending():
    layers = uf.layers
    ids = uf.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(20, 8, mask_zero=True)(ids)
    y = layers.MultiHeadAttention(2, 4)(query=x, value=x)
    return uf.Model(ids, layers.Dense(2)(layers.LayerNormalization()(layers.Add()([x, y]))[:, 0]))


def wrapping():
    model = uf.Sequential([uf.layers.Embedding(20, 6), uf.layers.TimeDistributed(Dense(4)), uf.layers.Flatten()])
    model.build(uf.Input((7,), dtype="int32"))
    return model


MODELS = [
    sequential, sequential_with_input, functional, models_sharing_a_layer, subclass, subclass_sharing_arguments,
    convolutional, attending, wrapping,
]  # fmt: skip


def inputs_of(model):
    if isinstance(model.input_shape, dict):
        return {name: array(6, 5, seed=number) for number, name in enumerate(sorted(model.input_shape))}
    shape = tuple(size or 7 for size in model.input_shape[1:])
    return np.random.default_rng(0).integers(1, 20, (6, 7)) if shape == (7,) else array(6, *shape)


def same(ours, theirs, tolerance=0.0):
    for one, other in zip(uf_leaves(ours), uf_leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=0)


def uf_leaves(value):
    if isinstance(value, (list, tuple)):
        return [leaf for entry in value for leaf in uf_leaves(entry)]
    return [value]


@pytest.mark.parametrize("make", MODELS)
def test_loaded_model_has_the_same_structure_weights_and_predictions(make, tmp_path):
    model, path = make(), tmp_path / "model.unifit"
    model.set_weights([weight + 0.25 for weight in model.get_weights()])
    model.save(path)
    loaded = uf.load_model(path)
    assert type(loaded) is type(model) and loaded.name == model.name and loaded.input_shape == model.input_shape
    assert list(loaded.weights_by_path()) == list(model.weights_by_path())
    given = inputs_of(model)
    same(loaded.predict(given, verbose=0), model.predict(given, verbose=0))
    loaded.save(tmp_path / "again.unifit")
    assert config_in(tmp_path / "again.unifit") == config_in(path)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")] == []


def config_in(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("config.json"))


def test_file_is_a_stored_zip_of_json_and_safetensors(tmp_path):
    model, path = sequential(), tmp_path / "model.unifit"
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["config.json", "weights.safetensors"]
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        weights = safetensors.numpy.load(archive.read("weights.safetensors"))
    assert {name: value.shape for name, value in weights.items()}["0.kernel"] == (5, 4)
    assert config_in(path)["backend"] == uf.backend.name and "shared" not in json.dumps(config_in(path))


def test_shared_layers_stay_shared(tmp_path):
    for make in (models_sharing_a_layer, subclass_sharing_arguments):
        model = make()
        model.save(tmp_path / "model.unifit")
        loaded = uf.load_model(tmp_path / "model.unifit")
        assert len(loaded.weights) == len(model.weights)
    assert loaded.left.layers[0] is loaded.right


def test_saving_an_unmade_model_makes_no_variable(tmp_path):
    model = sequential()
    model.save(tmp_path / "model.unifit")
    assert not any(layer.parameter_names() for layer in model.layers)
    uf.set_seed(5)  # what was saved stays what the model starts from
    same(list(uf.load_model(tmp_path / "model.unifit").get_weights()), list(model.get_weights()))


def trained(model, steps=3, given=None):
    given = inputs_of(model) if given is None else given
    model.compile(
        uf.optimizers.AdamW(uf.schedules.ExponentialDecay(1e-2, 2, 0.5), weight_decay=0.1),
        uf.losses.MeanSquaredError(reduction="sum"),
        gradient_accumulation_steps=2,
        clip_norm=1.0,
    )
    go_on(model, steps, given)
    return model


def go_on(model, epochs, given):
    model.fit(given, array(6, 3, seed=4), batch_size=2, epochs=epochs, shuffle=False, verbose=0)


def test_training_goes_on_where_it_stopped(tmp_path):
    straight = trained(sequential(), 3)
    go_on(straight, 2, array(6, 5))
    first = trained(sequential(), 3)
    first.layers[0].trainable = True
    first.save(tmp_path / "model.unifit")
    loaded = uf.load_model(tmp_path / "model.unifit")
    loaded.save(tmp_path / "again.unifit")  # the slots wait for an engine and are saved with it
    loaded = uf.load_model(tmp_path / "again.unifit")
    assert loaded.optimizer.get_config() == straight.optimizer.get_config()
    loaded.predict(array(6, 5), verbose=0)
    go_on(loaded, 2, array(6, 5))
    same(loaded.get_weights(), straight.get_weights(), TOLERANCE)
    assert loaded.trainer.step == straight.trainer.step


def test_without_optimizer_and_without_compile(tmp_path):
    model = trained(sequential())
    model.save(tmp_path / "bare.unifit", include_optimizer=False)
    model.save(tmp_path / "full.unifit")
    assert uf.load_model(tmp_path / "bare.unifit").optimizer is None
    loaded = uf.load_model(tmp_path / "full.unifit", compile=False)
    assert loaded.optimizer is None and loaded.restored_optimizer is None
    with zipfile.ZipFile(tmp_path / "bare.unifit") as archive:
        assert "optimizer.safetensors" not in archive.namelist()


def test_frozen_layers_stay_frozen(tmp_path):
    model = subclass()
    model.blocks[1].trainable = False
    model.save(tmp_path / "model.unifit")
    loaded = uf.load_model(tmp_path / "model.unifit")
    assert [w.path for w in loaded.trainable_weights] == [w.path for w in model.trainable_weights]


def test_dict_of_losses_and_metrics_comes_back(tmp_path):
    x = uf.Input((5,))
    model = uf.Model(x, {"p": Dense(2)(x), "q": Dense(3)(x)})
    model.compile("sgd", {"p": "mse", "q": uf.losses.Huber(0.5)}, loss_weights={"p": 1.0, "q": 0.5})
    model.save(tmp_path / "model.unifit")
    loaded = uf.load_model(tmp_path / "model.unifit")
    given, labels = array(4, 5), {"p": array(4, 2), "q": array(4, 3)}
    assert loaded.evaluate(given, labels, verbose=0, return_dict=True) == pytest.approx(
        model.evaluate(given, labels, verbose=0, return_dict=True)
    )


LOADER = """
import sys
import numpy as np
import unifit as uf
for name in sys.argv[2].split(","):
    model = uf.load_model(f"{sys.argv[1]}/{name}.unifit")
    given = dict(np.load(f"{sys.argv[1]}/{name}.npz"))
    given = given["x"] if set(given) == {"x"} else given
    if name == "trained":
        model.fit(given, np.load(f"{sys.argv[1]}/labels.npy"), batch_size=2, epochs=2, shuffle=False, verbose=0)
    outputs = model.predict(given, verbose=0)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    np.savez(f"{sys.argv[1]}/{name}.{uf.backend.name}.npz", *outputs)
"""


@pytest.mark.timeout(3 * SUBPROCESS_LIMIT_S)
def test_other_backends_load_predict_and_go_on_training(tmp_path):
    expected = {}
    for make in (functional, sequential, convolutional, attending):
        model, name = make(), make.__name__
        given = inputs_of(model)
        model.save(tmp_path / f"{name}.unifit")
        np.savez(tmp_path / f"{name}.npz", **(given if isinstance(given, dict) else {"x": given}))
        expected[name] = model.predict(given, verbose=0)
    model = trained(sequential())
    model.save(tmp_path / "trained.unifit")
    np.savez(tmp_path / "trained.npz", x=array(6, 5))
    np.save(tmp_path / "labels.npy", array(6, 3, seed=4))
    go_on(model, 2, array(6, 5))
    expected["trained"] = model.predict(array(6, 5), verbose=0)
    for backend in set(BACKENDS) - {uf.backend.name}:
        environment = {**os.environ, "UNIFIT_BACKEND": backend}
        command = [sys.executable, "-c", LOADER, str(tmp_path), ",".join(expected)]
        done = subprocess.run(
            command, env=environment, timeout=SUBPROCESS_LIMIT_S, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        for name, ours in expected.items():
            theirs = np.load(tmp_path / f"{name}.{backend}.npz")
            same([theirs[key] for key in theirs], ours if isinstance(ours, list) else [ours], TOLERANCE)


# Weights alone


@pytest.mark.parametrize("whole", [False, True], ids=["weights", "model"])
def test_weights_alone_by_path(whole, tmp_path):
    model, other, path = sequential(), sequential(), tmp_path / "file"
    model.set_weights([weight + 1 for weight in model.get_weights()])
    model.save(path) if whole else model.save_weights(path)
    other.load_weights(path)
    same(other.get_weights(), model.get_weights())


def test_weights_that_do_not_fit_are_listed_and_change_nothing(tmp_path):
    model = uf.Sequential([Dense(4), Dense(2), Dense(2)])
    model.build((None, 5))
    model.save_weights(tmp_path / "w.safetensors")
    other = uf.Sequential([Dense(4, use_bias=False), Dense(3)])
    other.build((None, 5))
    before = other.get_weights()
    with pytest.raises(ArgumentError) as caught:
        other.load_weights(tmp_path / "w.safetensors")
    for words in ("not in the model: 0.bias, 2.bias, 2.kernel", "'1.kernel' (model (4, 3), file (4, 2))"):
        assert words in str(caught.value)
    same(other.get_weights(), before)
    with pytest.warns(UserWarning, match="1.kernel"):
        other.load_weights(tmp_path / "w.safetensors", skip_mismatch=True)
    same(other.get_weights(), [model.get_weights()[0], *before[1:]])


# JSON


def test_json_gives_the_structure_with_fresh_weights():
    model = subclass()
    start = model.weights_by_path()
    model.set_weights([weight + 1 for weight in model.get_weights()])
    again = uf.model_from_json(model.to_json())
    assert all(np.array_equal(again.weights_by_path()[path], value) for path, value in start.items())
    assert type(model).from_config(model.get_config()).get_config() == model.get_config()
