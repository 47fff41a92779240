"""How models are built: shapes, specs, lazily from data; their weights' paths and views; the summary."""

import numpy as np
import pytest

import unifit as uf
from unifit.contract.values import ArraySpec
from unifit.errors import ArgumentError, UnifitError

Dense = uf.layers.Dense


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


class Block(uf.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.dense = Dense(units)

    def call(self, x):
        return self.dense(x)


class Net(uf.Model):
    def __init__(self, num_blocks=2):
        super().__init__()
        self.blocks = []
        for _ in range(num_blocks):
            self.blocks.append(Block(3))
        self.heads = {"a": Dense(1), "b": [Dense(2)]}

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return {"a": self.heads["a"](x), "b": self.heads["b"][0](x)}


class Lookup(uf.Layer):
    """A table of rows that takes integers only."""

    def build(self, shape):
        self.table = self.add_weight((7, 2), "normal")

    def call(self, ids):
        if not uf.ops.dtype(ids).startswith("int"):
            raise TypeError(f"ids are {uf.ops.dtype(ids)}")
        return uf.ops.take(self.table, ids, axis=0)


class Counting(uf.Layer):
    """Counts the calls on real arrays."""

    calls = 0

    def call(self, x):
        if not uf.context().abstract:
            type(self).calls += 1
        return x


PATHS = [
    *(f"blocks.{i}.dense.{name}" for i in range(2) for name in ("kernel", "bias")),
    *(f"heads.{key}.{name}" for key in ("a", "b.0") for name in ("kernel", "bias")),
]


def test_layers_in_lists_and_dicts_are_tracked_by_position_and_key():
    model = Net()
    model.build((None, 5))
    assert sorted(model.weights_by_path()) == sorted(PATHS)
    assert [weight.path for weight in model.get_layer("blocks.1").weights] == ["dense.kernel", "dense.bias"]
    assert model.output_shape == {"a": (None, 1), "b": (None, 2)}


@pytest.mark.parametrize(
    "given, shape",
    [
        ((None, 5), (None, 5)),
        ([8, 5], (8, 5)),
        (uf.Input((5,)), (None, 5)),
        (ArraySpec((4, 5), "float32"), (4, 5)),
    ],
    ids=["tuple", "list", "Input", "ArraySpec"],
)
def test_build_takes_shapes_and_specs(given, shape):
    model = uf.Sequential([Dense(3)])
    assert not model.built
    model.build(given)
    assert model.built and model.input_shape == shape and model.output_shape == (shape[0], 3)
    assert model.count_params() == 18


def test_build_for_several_inputs():
    class Two(uf.Model):
        def __init__(self):
            super().__init__()
            self.p, self.q = Dense(2), Dense(2)

        def call(self, x):
            return self.p(x["l"]) + self.q(x["r"])

    model = Two()
    model.build({"l": (None, 3), "r": uf.Input((4,))})
    assert model.input_shape == {"l": (None, 3), "r": (None, 4)}
    assert [weight.shape for weight in model.weights] == [(3, 2), (2,), (4, 2), (2,)]


def test_build_for_integers_needs_their_dtype_and_can_be_tried_again():
    model = uf.Sequential([Lookup(), Dense(3)])
    with pytest.raises(ArgumentError, match="uf.Input"):
        model.build((None, 4))
    assert not model.built
    model.build(uf.Input((4,), dtype="int64"))
    assert model.output_shape == (None, 4, 3)


def test_building_again_for_another_shape_is_refused():
    model = uf.Sequential([Dense(3)])
    model.build((None, 5))
    model.build((16, 5))
    with pytest.raises(ArgumentError, match=r"built for inputs of shape \(None, 5\)"):
        model.build((None, 6))


def test_failed_build_leaves_no_weights():
    class Picky(uf.Model):
        def __init__(self):
            super().__init__()
            self.dense = Dense(2)

        def call(self, x):
            y = self.dense(x)
            if x.shape[-1] == 3:
                raise ArgumentError("not three")
            return y

    model = Picky()
    with pytest.raises(ArgumentError, match="not three"):
        model.build((None, 3))
    assert not model.built and not model.weights
    model.build((None, 4))
    assert model.weights[0].shape == (4, 2) and model.input_shape == (None, 4)


@pytest.mark.parametrize("leading", ["Input", "input_shape"])
def test_sequential_with_an_input_is_built_at_once(leading):
    first = [uf.Input((5,)), Dense(4)] if leading == "Input" else [Dense(4, input_shape=(5,))]
    model = uf.Sequential(first)
    assert model.built and model.output_shape == (None, 4)
    model.add(Dense(2))
    assert model.output_shape == (None, 2) and model.count_params() == 34
    assert uf.Model(model.inputs[0], model.outputs[0]).predict(array(3, 5), verbose=0).shape == (3, 2)
    with pytest.raises(ArgumentError, match="first"):
        model.add(uf.Input((5,)))


def test_sequential_pop_and_add_after_building():
    model = uf.Sequential([Dense(4), Dense(2)])
    model.build((None, 5))
    kernel = model.get_weights()[0]
    popped = model.pop()
    assert popped.units == 2 and len(model.layers) == 1 and model.predict(array(3, 5), verbose=0).shape == (3, 4)
    assert list(model.weights_by_path()) == ["0.kernel", "0.bias"]
    model.add(Dense(3))
    assert model.predict(array(3, 5), verbose=0).shape == (3, 3)
    assert list(model.weights_by_path()) == ["0.kernel", "0.bias", "1.kernel", "1.bias"]
    np.testing.assert_array_equal(model.get_weights()[0], kernel)
    known = uf.Sequential([uf.Input((5,)), Dense(4), Dense(2)])
    known.pop()
    assert known.output_shape == (None, 4)
    with pytest.raises(ArgumentError, match="without layers"):
        uf.Sequential().pop()


def test_nested_sequential():
    model = uf.Sequential([uf.Sequential([Dense(4), Dense(3)]), Dense(2)])
    model.build((None, 5))
    assert list(model.weights_by_path())[:2] == ["0.0.kernel", "0.0.bias"] and model.output_shape == (None, 2)


def test_build_summary_and_weights_take_no_forward_pass():
    Counting.calls = 0
    model = uf.Sequential([Counting(), Dense(1)])
    model.compile("sgd", "mse")
    model.build((None, 3))
    model.weights_by_path()
    model.summary(print_fn=str)
    assert Counting.calls == 0


@pytest.mark.backends("torch", reason="only an eager engine calls layers once a step")
def test_fit_calls_each_layer_once_a_step():
    Counting.calls = 0
    model = uf.Sequential([Counting(), Dense(1)])
    model.compile("sgd", "mse")
    model.fit(array(8, 3), array(8, 1), batch_size=4, epochs=3, verbose=0)
    assert Counting.calls == 6


def test_same_seed_same_start_another_seed_another():
    def weights(seed):
        uf.set_seed(seed)
        model = Net()
        model.build((None, 5))
        return model.get_weights()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_clone_starts_as_the_first_did():
    model = Net(3)
    model.build((None, 5))
    start = model.weights_by_path()
    model.set_weights([weight + 1 for weight in model.get_weights()])
    clone = uf.clone_model(model)
    assert len(clone.blocks) == 3 and clone.built
    assert all(np.array_equal(clone.weights_by_path()[path], value) for path, value in start.items())


def test_weight_views_read_and_set():
    model = Net()
    model.build((None, 5))
    view = {weight.path: weight for weight in model.weights}["blocks.0.dense.kernel"]
    assert (view.name, view.shape, view.dtype, view.trainable) == ("kernel", (5, 3), "float32", True)
    before = view.numpy()
    assert np.array_equal(np.asarray(view), before)
    view.assign(np.zeros((5, 3)))  # before the variable is made
    assert not model.weights_by_path()["blocks.0.dense.kernel"].any()
    view.assign(before)  # and after
    assert np.array_equal(model.weights_by_path()["blocks.0.dense.kernel"], before)
    with pytest.raises(ArgumentError, match=r"shape \(5, 3\)"):
        view.assign(np.zeros(3))
    model.blocks[0].trainable = False
    assert [weight.path for weight in model.non_trainable_weights] == ["blocks.0.dense.kernel", "blocks.0.dense.bias"]
    assert len(model.trainable_weights) == 6


class Forgetful(uf.Model):
    def __init__(self):
        self.dense = Dense(2)


class Trains(uf.Model):
    def __init__(self):
        super().__init__()
        self.train = Dense(2)


class Layered(uf.Model):
    def __init__(self):
        super().__init__()
        self.layers = [Dense(2)]


@pytest.mark.parametrize(
    "make, words",
    [
        (Forgetful, "must call super().__init__()"),
        (Trains, "'train' cannot be an attribute"),
        (Layered, "'layers' cannot be an attribute of Layered: it is a read-only property of every Network"),
        (lambda: uf.Sequential([uf.ops.tanh]), "needs a Layer"),
        (lambda: uf.Sequential([Dense(2)]).summary(), "is not built"),
        (lambda: uf.Sequential([Dense(2)]).count_params(), "model.build((None, ...))"),
        (lambda: uf.Sequential([Dense(2)]).build("5"), "needs a shape"),
        (lambda: uf.Sequential([Dense(2)]).get_layer(index=3), "has 1 layers"),
        (lambda: uf.Sequential([Dense(2)]).get_layer(), "needs one of them"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(UnifitError) as caught:
        make()
    assert words in str(caught.value)


def text_of(model, **kwargs):
    texts = []
    model.summary(print_fn=texts.append, **kwargs)
    return texts[0].splitlines()


def test_summary_of_a_subclass():
    model = Net()
    model.build((None, 5))
    model.heads["a"].trainable = False
    lines = text_of(model)
    row = next(line for line in lines if line.startswith("blocks.0 (Block)"))
    assert row.split("  ")[-1].strip() == "18" and "(None, 3)" in row
    assert "Total parameters: 42 (168 bytes)" in lines
    assert "Trainable parameters: 38 (152 bytes)" in lines and "Non-trainable parameters: 4 (16 bytes)" in lines
    nested = text_of(model, expand_nested=True)
    assert any(line.startswith("  dense (Dense)") for line in nested)
    assert all(len(line) <= 60 for line in text_of(model, line_length=60))


def test_summary_of_a_functional_model_shows_unknown_axes_and_shared_layers():
    shared = Dense(4)
    x = uf.Input((None, 4))
    model = uf.Model(x, uf.Model(x, shared(x), name="inner")(x) + shared(x))
    lines = text_of(model)
    assert any(line.startswith("inner (Model)") and "(None, None, 4)" in line for line in lines)
    assert "Total parameters: 20 (80 bytes)" in lines


def test_summary_after_fit_on_data():
    model = uf.Sequential([Dense(4), Dense(1)])
    model.compile("sgd", "mse")
    model.fit(array(8, 3), array(8, 1), batch_size=4, verbose=0)
    lines = text_of(model)
    assert any(line.startswith("0 (Dense)") and "(None, 4)" in line and line.endswith("16") for line in lines)
