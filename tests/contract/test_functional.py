"""The functional API: graphs of calls on Symbols, on every backend."""

import sys

import numpy as np
import pytest

import unifit as uf
from unifit.context import CallContext
from unifit.errors import ArgumentError, ShapeError, UnknownNameError
from unifit.symbol import Node, Symbol

Dense = uf.layers.Dense
TOLERANCE = 1e-5
CALLS_OVER_SEQUENTIAL = 1  # Graph.run, once a pass, however many layers


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def numpy(x):
    return uf.ops.convert_to_numpy(x)


def tensor(x):
    return uf.ops.convert_to_tensor(x)


def test_chain_equals_sequential_of_the_same_layers():
    layers = [Dense(4, "tanh"), Dense(3)]
    x = uf.Input((5,))
    model = uf.Model(x, layers[1](layers[0](x)))
    given = array(6, 5)
    expected = numpy(uf.Sequential(layers)(tensor(given)))
    np.testing.assert_allclose(model.predict(given, verbose=0), expected, atol=TOLERANCE)
    assert list(model.weights_by_path()) == ["dense.kernel", "dense.bias", "dense_1.kernel", "dense_1.bias"]
    assert model.input_shape == (None, 5) and model.output_shape == (None, 3)


def test_operators_follow_numpy():
    a, b = uf.Input((3,)), uf.Input((3,))
    outputs = {
        "add": a + b, "constant": 2.0 - a, "multiply": a * 3, "divide": 1.0 / b, "negative": -a, "power": b**2,
        "array": a * np.arange(3, dtype="float32"), "left": np.ones(3, "float32") + a,
        "column": a[:, 0], "slice": a[:, 1:],
        "new": a[..., None] @ b[:, None],
    }  # fmt: skip
    model = uf.Model([a, b], outputs)
    x, y = array(4, 3), np.abs(array(4, 3, seed=1)) + 0.5
    got = model.predict([x, y], verbose=0)
    expected = {
        "add": x + y, "constant": 2 - x, "multiply": x * 3, "divide": 1 / y, "negative": -x, "power": y**2,
        "array": x * np.arange(3), "left": 1 + x, "column": x[:, 0], "slice": x[:, 1:],
        "new": x[..., None] @ y[:, None],
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)


def test_several_inputs_by_position_by_name_and_as_a_dict():
    a, b = uf.Input((2,), name="left"), uf.Input((2,), name="right")
    listed, keyed = uf.Model([a, b], a - b), uf.Model({"l": a, "r": b}, {"out": a - b})
    x, y = array(3, 2), array(3, 2, seed=1)
    for given in ([x, y], {"left": x, "right": y}):
        np.testing.assert_allclose(listed.predict(given, verbose=0), x - y, atol=TOLERANCE)
    np.testing.assert_allclose(keyed.predict({"r": y, "l": x}, verbose=0)["out"], x - y, atol=TOLERANCE)


def test_shared_layer_and_shared_model_have_one_set_of_weights():
    shared = Dense(4)
    x = uf.Input((4,))
    first, second = uf.Model(x, shared(x), name="first"), uf.Model(x, shared(shared(x)), name="second")
    y = uf.Input((4,))
    model = uf.Model(y, first(y) + second(y))
    assert [weight.path for weight in model.weights] == ["first.dense.kernel", "first.dense.bias"]
    given = array(2, 4)
    kernel, bias = model.get_weights()
    once = given @ kernel + bias
    np.testing.assert_allclose(model.predict(given, verbose=0), once + once @ kernel + bias, atol=TOLERANCE)


def test_layer_called_with_keyword_symbols():
    class Blend(uf.Layer):
        def call(self, x, other, share=0.5):
            return share * x + (1 - share) * other

    a, b = uf.Input((2,)), uf.Input((2,))
    model = uf.Model([a, b], Blend()(a, other=b, share=0.25))
    x, y = array(3, 2), array(3, 2, seed=1)
    np.testing.assert_allclose(model.predict([x, y], verbose=0), 0.25 * x + 0.75 * y, atol=TOLERANCE)


def test_intermediate_symbols_can_be_inputs_and_outputs():
    x = uf.Input((3,))
    hidden = Dense(4, name="hidden")(x)
    y = Dense(2, name="last")(hidden)
    whole, head, tail = uf.Model(x, [hidden, y]), uf.Model(x, hidden), uf.Model(hidden, y)
    given = array(2, 3)
    features, result = whole.predict(given, verbose=0)
    np.testing.assert_allclose(head.predict(given, verbose=0), features, atol=TOLERANCE)
    np.testing.assert_allclose(tail.predict(features, verbose=0), result, atol=TOLERANCE)
    assert whole.output_names == ["hidden", "last"]


def test_unknown_axes_stay_unknown():
    x = uf.Input((None, 3))
    y = Dense(4)(x)
    assert y.shape == (None, None, 4) and y[:, 0].shape == (None, 4)
    model = uf.Model(x, y)
    assert model.predict(array(2, 7, 3), verbose=0).shape == (2, 7, 4)
    assert model.predict(array(3, 5, 3), verbose=0).shape == (3, 5, 4)


def test_fit_trains_every_branch():
    a, b = uf.Input((3,)), uf.Input((2,))
    model = uf.Model([a, b], [Dense(2, name="p")(a), Dense(1, name="q")(b)])
    before = model.get_weights()
    model.compile("sgd", ["mse", "mse"])
    history = model.fit([array(8, 3), array(8, 2)], [array(8, 2, seed=2), array(8, 1, seed=3)], batch_size=4, verbose=0)
    assert set(history.history) >= {"loss", "p_loss", "q_loss"}
    assert all(np.any(old != new) for old, new in zip(before, model.get_weights(), strict=True))


def test_names_are_unique_by_position_and_given_names_stay():
    x = uf.Input((3,))
    y = Dense(3)(Dense(3, name="dense_1")(Dense(3)(x)))
    model = uf.Model(x, y)
    assert [key for key, _ in model.named_layers()] == ["dense", "dense_1", "dense_2"]
    assert model.get_layer("dense_1") is model.layers[1] and model.get_layer(index=-1) is model.layers[2]
    with pytest.raises(UnknownNameError, match="dense_2"):
        model.get_layer("dense_3")
    twice = uf.Input((3,))
    with pytest.raises(ArgumentError, match="'same'"):
        uf.Model(twice, Dense(3, name="same")(Dense(3, name="same")(twice)))


@pytest.mark.parametrize("name", ["outputs", "train", "call", "built", "a.b"])
def test_layer_names_that_modules_use_are_fine(name):
    x = uf.Input((3,))
    model = uf.Model(x, Dense(2, name=name)(x))
    assert model.predict(array(2, 3), verbose=0).shape == (2, 2)
    assert model.get_layer(name).units == 2


def test_deep_chain_runs_and_recurses_nowhere():
    class Plus(uf.Layer):
        def call(self, x):
            return x + 1.0

    y = x = uf.Input((1,))
    layer = Plus()
    for _ in range(1500):
        y = _extend(layer, y)
    model = uf.Model(x, y)
    with CallContext(training=False, stream=lambda: None).open():
        assert float(numpy(model(tensor(np.zeros((1, 1), "float32"))))[0, 0]) == 1500.0


def _extend(layer, x):
    """The call that `layer(x)` records, without inference: for a graph of more calls than Python's stack is deep."""
    y = Symbol(x.shape, x.dtype)
    y.node = Node(layer, (x,), {}, y)
    return y


def python_calls(function, *args):
    count = 0

    def profile(frame, event, _):
        nonlocal count
        count += event == "call" and "/unifit" in frame.f_code.co_filename.replace("\\", "/")

    with CallContext(training=False, stream=lambda: None).open():
        function(*args)
        sys.setprofile(profile)
        try:
            function(*args)
        finally:
            sys.setprofile(None)
    return count


@pytest.mark.parametrize("length", [1, 3, 9])
def test_chain_costs_what_sequential_costs(length):
    layers = [Dense(4) for _ in range(length)]
    y = x = uf.Input((4,))
    for layer in layers:
        y = layer(y)
    graph, sequential, given = uf.Model(x, y), uf.Sequential(layers), tensor(array(2, 4))
    graph(given), sequential(given)
    assert python_calls(graph, given) <= python_calls(sequential, given) + CALLS_OVER_SEQUENTIAL


def test_values_are_dropped_after_their_last_use():
    y = x = uf.Input((4,))
    for _ in range(20):
        y = Dense(4)(y) + x
    assert len(uf.Model(x, y)._graph._empty) <= 3


def _inputs():
    return uf.Input((3,), name="a"), uf.Input((3,), name="b")


def _disconnected():
    a, b = _inputs()
    uf.Model(a, Dense(2)(a + b))


def _mixed():
    a, _ = _inputs()
    uf.layers.Dense(2)([a, array(2, 3)])


def _wrong_number():
    a, b = _inputs()
    uf.Model([a, b], a + b).predict([array(2, 3)], verbose=0)


def _missing_key():
    a, b = _inputs()
    uf.Model([a, b], a + b).predict({"a": array(2, 3)}, verbose=0)


def _twice():
    a, _ = _inputs()
    uf.Model([a, a], a + a)


def _arrays():
    uf.Model(array(2, 3), array(2, 3))


def _no_output():
    uf.Model(_inputs()[0], None)


def _condition():
    if _inputs()[0]:
        pass


def _iteration():
    list(_inputs()[0])


def _bad_index():
    a, b = _inputs()
    a[b]


@pytest.mark.parametrize(
    "function, words",
    [
        (_disconnected, "Input 'b' of shape (None, 3), which is not among"),
        (_mixed, "an array of shape (2, 3) in one call"),
        (_wrong_number, "has 2 inputs ['a', 'b'] and got 1"),
        (_missing_key, "without ['b']"),
        (_twice, "one Symbol twice"),
        (_arrays, "needs uf.Input symbols"),
        (_no_output, "needs uf.Input symbols"),
        (_condition, "cannot decide an `if`"),
        (_iteration, "cannot be iterated over"),
        (_bad_index, "was indexed with"),
        (lambda: uf.Input(5), "such as (5,)"),
        (lambda: uf.Input((-1,)), "whole numbers or None"),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_mistakes_are_named(function, words):
    with pytest.raises(ArgumentError) as caught:
        function()
    assert words in str(caught.value)


def test_array_of_another_shape_is_refused():
    x = uf.Input((3,), name="features")
    with pytest.raises(ShapeError, match="Input 'features' has shape"):
        uf.Model(x, Dense(2)(x)).predict(array(2, 4), verbose=0)


# Those that ask an unknown object for its array; the few others fail in the framework's own words.
@pytest.mark.parametrize("name", ["exp", "concatenate"])
def test_ops_refuse_symbols_and_point_to_lambda(name):
    x = uf.Input((3,))
    arguments = {"concatenate": ([x, x],)}.get(name, (x,))
    with pytest.raises(ArgumentError, match="Lambda"):
        getattr(uf.ops, name)(*arguments)


def test_failing_call_on_symbols_names_the_layer_and_leaves_it_unbuilt():
    class Picky(uf.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Dense(2)

        def call(self, x):
            y = self.inner(x)
            if x.shape[-1] == 3:
                raise ValueError("not three")
            return y

    layer = Picky()
    with pytest.raises(ValueError, match="not three") as caught:
        layer(uf.Input((3,)))
    assert any("'picky'" in note for note in caught.value.__notes__)
    assert layer(uf.Input((4,))).shape == (None, 2)
    assert layer.inner.weights[0].shape == (4, 2)
