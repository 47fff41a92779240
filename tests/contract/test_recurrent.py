"""LSTM and GRU on every backend: the contract against the equations, gradients, masks, layers, devices."""

import inspect
import json

import numpy as np
import pytest

import unifit as uf
from contract.ops_native import compiled, gradients
from layer_cases import numpy_tree, with_random_weights
from tolerance import assert_same_weights
from unifit.backend import backend
from unifit.config import deserialize, serialize
from unifit.contract import recurrent as contract
from unifit.contract.values import ArraySpec
from unifit.errors import ArgumentError, ShapeError, UnsupportedError

TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
DIFFERENCE = 1e-5  # step of the central differences, whose error in float64 is about its square
ROWS, STEPS, FEATURES, UNITS = 5, 6, 3, 4
layers, tensor, host = uf.layers, uf.ops.convert_to_tensor, uf.ops.convert_to_numpy

# A row each: everything valid, padded behind, padded in front, holes, nothing valid.
MASK = np.array(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [0, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ],
    bool,
)
MASKS = {"no mask": None, "masked": MASK}


# The equations, one row and one step after the other


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lstm_step(x, states, kernel, recurrent_kernel, bias):
    h, c = states
    i, f, g, o = np.split(x @ kernel + h @ recurrent_kernel + (0.0 if bias is None else bias), 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(x, states, kernel, recurrent_kernel, bias):
    (h,) = states
    xz, xr, xn = np.split(x @ kernel + (0.0 if bias is None else bias[0]), 3)
    hz, hr, hn = np.split(h @ recurrent_kernel + (0.0 if bias is None else bias[1]), 3)
    z = sigmoid(xz + hz)
    return (z * h + (1.0 - z) * np.tanh(xn + sigmoid(xr + hr) * hn),)


STEP_OF = {"lstm": lstm_step, "gru": gru_step}
NUM_STATES = {"lstm": 2, "gru": 1}
GATES = {"lstm": 4, "gru": 3}


def reference(name, x, *rest, mask=None, reverse=False):
    """Outputs and last states in the dtype of `x`."""
    states, weights = rest[: NUM_STATES[name]], rest[NUM_STATES[name] :]
    rows, steps, units = x.shape[0], x.shape[1], weights[1].shape[0]
    outputs, last = np.zeros((rows, steps, units), x.dtype), [np.array(state) for state in states]
    for row in range(rows):
        own, output = tuple(state[row] for state in states), np.zeros(units)
        for place, step in enumerate(range(steps)[:: -1 if reverse else 1]):
            if mask is None or mask[row, step]:
                own = STEP_OF[name](x[row, step], own, *weights)
                output = own[0]
            outputs[row, place] = output
        for state, value in zip(last, own, strict=True):
            state[row] = value
    return outputs, *last


def arrays(name, rows=ROWS, bias=True, seed=0):
    """x, the initial states, kernel, recurrent kernel, bias."""
    r, columns = np.random.default_rng(seed), GATES[name] * UNITS
    shapes = [(rows, STEPS, FEATURES), *[(rows, UNITS)] * NUM_STATES[name], (FEATURES, columns), (UNITS, columns)]
    shapes += [(columns,) if name == "lstm" else (2, columns)] if bias else []
    return [r.normal(size=shape).astype("float32") for shape in shapes] + ([] if bias else [None])


def tensors(values):
    return [None if value is None else tensor(value) for value in values]


def run(name, values, mask=None, reverse=False):
    function = getattr(backend.recurrent, name)
    return numpy_tree(function(*tensors(values), mask=None if mask is None else tensor(mask), reverse=reverse))


def close(found, expected, tolerance=TOLERANCE):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# The contract


@pytest.mark.parametrize("name", contract.RECURRENT)
def test_function_has_the_contracts_parameters(name):
    found = inspect.signature(getattr(backend.recurrent, name)).parameters.values()
    wanted = inspect.signature(getattr(contract, name)).parameters.values()
    assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in wanted]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", contract.RECURRENT)
def test_equals_the_equations_step_by_step(name, bias, mask, reverse):
    values = arrays(name, bias=bias)
    expected = reference(
        name, *(None if v is None else v.astype("float64") for v in values), mask=mask, reverse=reverse
    )
    close(run(name, values, mask, reverse), expected)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", contract.RECURRENT)
def test_compiled_equals_the_equations(name, mask):
    values = arrays(name)
    function = compiled(lambda *given: getattr(backend.recurrent, name)(*given, None if mask is None else tensor(mask)))
    close(numpy_tree(function(*tensors(values))), reference(name, *values, mask=mask))


@pytest.mark.parametrize("name", contract.RECURRENT)
def test_without_initial_states_they_are_zero(name):
    x, *rest = arrays(name)
    states, weights = rest[: NUM_STATES[name]], rest[NUM_STATES[name] :]
    found = run(name, [x, *[None] * len(states), *weights], MASK)
    close(found, reference(name, x, *(state * 0 for state in states), *weights, mask=MASK))


@pytest.mark.parametrize("name", contract.RECURRENT)
def test_masked_steps_keep_the_states_to_the_bit(name):
    values = arrays(name)
    outputs, *last = run(name, values, MASK)
    np.testing.assert_array_equal(last[0][:4], outputs[:4, -1])
    for state, first in zip(last, values[1:], strict=False):
        np.testing.assert_array_equal(state[4], first[4])
    np.testing.assert_array_equal(outputs[4], 0.0)
    np.testing.assert_array_equal(outputs[2, :2], 0.0)
    np.testing.assert_array_equal(outputs[1, 3:], np.repeat(outputs[1, 2:3], 3, 0))
    wider = [np.concatenate([values[0], values[0] * 1e3], 1), *values[1:]]
    more = run(name, wider, np.concatenate([MASK, np.zeros_like(MASK)], 1))
    close([more[0][:, :STEPS], *more[1:]], [outputs, *last])


def seed_of_gradients(found):
    """A scalar in which every output and state has a weight of its own."""
    r = np.random.default_rng(9)
    weights = [r.normal(size=tuple(leaf.shape)).astype("float32") for leaf in found]
    if isinstance(found[0], np.ndarray):
        return sum((leaf * weight).sum() for leaf, weight in zip(found, weights, strict=True))
    parts = [uf.ops.sum(leaf * tensor(weight)) for leaf, weight in zip(found, weights, strict=True)]
    return sum(parts[1:], parts[0])


def central_differences(function, values):
    found = []
    for index, value in enumerate(values):
        gradient = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * DIFFERENCE
                ends.append(function(*values[:index], moved, *values[index + 1 :]))
            gradient[place] = (ends[0] - ends[1]) / (2 * DIFFERENCE)
        found.append(gradient)
    return found


@pytest.mark.parametrize(("mask", "reverse"), [(None, False), (MASK, False), (MASK, True)],
                         ids=["no mask", "masked", "masked, reverse"])  # fmt: skip
@pytest.mark.parametrize("name", contract.RECURRENT)
def test_gradients_equal_central_differences(name, mask, reverse):
    values = arrays(name)

    def ours(*given):
        found = getattr(backend.recurrent, name)(*given, None if mask is None else tensor(mask), reverse)
        return seed_of_gradients(found)

    def theirs(*given):
        return seed_of_gradients(reference(name, *given, mask=mask, reverse=reverse))

    expected = central_differences(theirs, [value.astype("float64") for value in values])
    close(gradients(ours, *values), expected, GRADIENT_TOLERANCE)


@pytest.mark.parametrize("name", contract.RECURRENT)
def test_what_stands_at_masked_steps_does_not_matter(name):
    x, *rest = arrays(name)
    spoilt = np.where(MASK[..., None], x, np.nan).astype("float32")

    def scalar(*given):
        return seed_of_gradients(getattr(backend.recurrent, name)(*given, tensor(MASK)))

    for a, b in zip(run(name, [spoilt, *rest], MASK), run(name, [x, *rest], MASK), strict=True):
        np.testing.assert_array_equal(a, b)
    found = gradients(scalar, spoilt, *rest)
    for a, b in zip(found, gradients(scalar, x, *rest), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found[0][~MASK], 0.0)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", contract.RECURRENT)
def test_no_rows_are_valid(name, mask):
    outputs, *last = run(name, arrays(name, rows=0), None if mask is None else mask[:0])
    assert outputs.shape == (0, STEPS, UNITS)
    assert [state.shape for state in last] == [(0, UNITS)] * NUM_STATES[name]


@pytest.mark.parametrize("rows", [0, ROWS])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", contract.RECURRENT)
def test_abstract_evaluation_gives_the_shapes(name, mask, rows):
    specs = [ArraySpec(value.shape, "float32") for value in arrays(name, rows=rows)]
    masks = None if mask is None else ArraySpec((rows, STEPS), "bool")
    found = backend.module.abstract_call(
        lambda given, mask: getattr(backend.recurrent, name)(*given, mask=mask, reverse=True), specs, masks
    )
    states = [ArraySpec((rows, UNITS), "float32")] * NUM_STATES[name]
    assert list(found) == [ArraySpec((rows, STEPS, UNITS), "float32"), *states]


@pytest.mark.parametrize("name", contract.RECURRENT)
def test_bfloat16_stays_bfloat16(name):
    values = [uf.ops.cast(value, "bfloat16") for value in tensors(arrays(name))]
    for leaf in getattr(backend.recurrent, name)(*values, mask=tensor(MASK)):
        assert uf.ops.dtype(leaf) == "bfloat16"


# The layers


X = np.random.default_rng(2).normal(size=(ROWS, STEPS, FEATURES)).astype("float32")
KINDS = {"lstm": layers.LSTM, "gru": layers.GRU}


def prepared(name, **arguments):
    """A layer with weights that are neither small nor alike."""
    layer = KINDS[name](UNITS, **arguments)
    layer(tensor(X))
    r = np.random.default_rng(4)
    layer.set_weights([r.normal(size=value.shape).astype("float32") for value in layer.get_weights()])
    return layer


def expected_of(name, layer, mask=None, reverse=False, states=None):
    weights = layer.get_weights() + ([] if layer.use_bias else [None])
    states = [np.zeros((ROWS, UNITS), "float32")] * NUM_STATES[name] if states is None else states
    return reference(name, X, *states, *weights, mask=mask, reverse=reverse)


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", KINDS)
def test_layer_returns_what_it_is_asked_for(name, mask, backwards):
    given = {} if mask is None else {"mask": tensor(mask)}
    for sequences in (False, True):
        for state in (False, True):
            layer = prepared(name, return_sequences=sequences, return_state=state, go_backwards=backwards)
            outputs, *last = expected_of(name, layer, mask, backwards)
            expected = [outputs if sequences else outputs[:, -1], *(last if state else [])]
            close(numpy_tree(layer(tensor(X), **given)), expected)


@pytest.mark.parametrize("name", KINDS)
def test_layer_starts_from_initial_state(name):
    layer = prepared(name, return_state=True, use_bias=False)
    states = arrays(name)[1 : 1 + NUM_STATES[name]]
    outputs, *last = expected_of(name, layer, MASK, states=states)
    found = layer(tensor(X), initial_state=[tensor(state) for state in states], mask=tensor(MASK))
    close(numpy_tree(found), [outputs[:, -1], *last])
    if name == "gru":
        close(numpy_tree(layer(tensor(X), initial_state=tensor(states[0]), mask=tensor(MASK))), numpy_tree(found))


def test_weights_have_keras_names_shapes_and_starts():
    lstm, gru, plain = layers.LSTM(UNITS), layers.GRU(UNITS), layers.LSTM(UNITS, unit_forget_bias=False)
    shapes = []
    for layer in (lstm, gru, plain):
        layer(tensor(X))
        shapes.append({path: value.shape for path, value in layer.weights_by_path().items()})
    assert list(shapes[0].items()) == [("kernel", (3, 16)), ("recurrent_kernel", (4, 16)), ("bias", (16,))]
    assert list(shapes[1].items()) == [("kernel", (3, 12)), ("recurrent_kernel", (4, 12)), ("bias", (2, 12))]
    np.testing.assert_array_equal(lstm.get_weights()[2], np.repeat([0.0, 1.0, 0.0, 0.0], 4))
    np.testing.assert_array_equal(plain.get_weights()[2], np.zeros(16))
    rows = lstm.get_weights()[1]
    np.testing.assert_allclose(rows @ rows.T, np.eye(4), atol=1e-6)
    assert (lstm.name, gru.name) == ("lstm", "gru")


@pytest.mark.parametrize("name", KINDS)
def test_config_round_trip_gives_the_same_layer(name):
    first = KINDS[name](UNITS, "tanh", return_sequences=True, dropout=0.25, kernel_regularizer=uf.regularizers.L2(0.1))
    second = deserialize(json.loads(json.dumps(serialize(first))))
    assert type(second) is type(first) and second.get_config() == first.get_config()
    np.testing.assert_array_equal(host(first(tensor(X))), host(second(tensor(X))))


@pytest.mark.parametrize("name", KINDS)
def test_dropout_drops_a_feature_for_all_steps(name):
    layer = prepared(name, dropout=0.5)
    quiet = host(layer(tensor(X)))
    close([quiet], [expected_of(name, layer)[0][:, -1]])
    found = host(layer(tensor(X), training=True))
    # Each row's output is the one of its input with some features gone, and the others doubled.
    for row in range(ROWS):
        choices = [np.array([(code >> bit) & 1 for bit in range(FEATURES)]) * 2.0 for code in range(2**FEATURES)]
        outputs = [host(layer(tensor((X * kept).astype("float32"))))[row] for kept in choices]
        assert min(np.abs(output - found[row]).max() for output in outputs) < TOLERANCE
    assert np.abs(found - quiet).max() > 0.01


# Masks that come with the arrays


IDS = np.array([[3, 1, 4, 0, 0], [2, 0, 0, 0, 0], [1, 2, 3, 4, 5], [0, 0, 5, 0, 1]], "int32")


class Seen(uf.Layer):
    """Keeps the mask that reaches it."""

    supports_masking = True

    def call(self, x, mask=None):
        if not uf.context().abstract:
            self.__dict__["seen"] = None if mask is None else host(mask)
        return x


@pytest.mark.parametrize("state", [False, True], ids=["output", "output and states"])
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("name", KINDS)
def test_returned_sequence_carries_the_mask_of_its_steps(name, backwards, state):
    embedding, seen = layers.Embedding(6, 3, mask_zero=True), Seen()
    layer = KINDS[name](UNITS, return_sequences=True, return_state=state, go_backwards=backwards)

    class Net(uf.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.layer, self.seen = embedding, layer, seen

        def call(self, ids):
            y = self.layer(self.embedding(ids))
            return self.seen(y[0] if state else y)

    model = Net()
    model(tensor(IDS))
    np.testing.assert_array_equal(seen.__dict__["seen"], (IDS != 0)[:, ::-1] if backwards else IDS != 0)


@pytest.mark.parametrize("name", KINDS)
def test_padding_changes_nothing_and_the_last_output_carries_no_mask(name):
    seen = Seen()
    model = uf.Sequential([layers.Embedding(6, 3, mask_zero=True), KINDS[name](UNITS), seen])
    found = host(model(tensor(IDS)))
    assert seen.__dict__["seen"] is None
    close([host(model(tensor(np.pad(IDS, [(0, 0), (2, 3)]))))], [found])


@pytest.mark.parametrize("name", KINDS)
def test_functional_model_with_states_runs_and_saves(name, tmp_path):
    ids = uf.Input((5,), dtype="int32")
    x = layers.Embedding(6, 3, mask_zero=True)(ids)
    _, *states = KINDS[name](UNITS, return_state=True)(x)
    y = KINDS[name](UNITS, return_sequences=True)(x, initial_state=states)
    model = uf.Model(ids, layers.TimeDistributed(layers.Dense(2))(y))
    found = host(model(tensor(IDS)))
    assert found.shape == (4, 5, 2)
    np.testing.assert_array_equal(found[3, :2], 0.0)  # before the first valid step
    assert np.abs(found[3, 2:]).min() > 0 and np.abs(found[:3]).min() > 0
    again = uf.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(host(again(tensor(IDS))), found)


@pytest.mark.parametrize("mode", ["concat", "sum", "mul", "ave", None])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", KINDS)
def test_bidirectional_merges_both_ways(name, mask, mode):
    inner = KINDS[name](UNITS, return_sequences=True, return_state=True)
    layer = layers.Bidirectional(inner, merge_mode=mode)
    layer(tensor(X))
    with_random_weights(layer)
    forward = expected_of(name, layer.forward_layer, mask)
    backward = expected_of(name, layer.backward_layer, mask, reverse=True)
    ways = [forward[0], backward[0][:, ::-1]]
    if mask is not None:
        ways = [way * mask[..., None] for way in ways]
    merged = {"concat": np.concatenate(ways, -1), "sum": ways[0] + ways[1], "mul": ways[0] * ways[1],
              "ave": (ways[0] + ways[1]) / 2}  # fmt: skip
    given = {} if mask is None else {"mask": tensor(mask)}
    found = numpy_tree(layer(tensor(X), **given))
    close(found, [*(ways if mode is None else [merged[mode]]), *forward[1:], *backward[1:]])


@pytest.mark.parametrize("name", KINDS)
def test_bidirectional_of_last_outputs(name):
    layer = layers.Bidirectional(KINDS[name](UNITS))
    layer(tensor(X))
    with_random_weights(layer)
    ways = [
        expected_of(name, layer.forward_layer, MASK)[0][:, -1],
        expected_of(name, layer.backward_layer, MASK, reverse=True)[0][:, -1],
    ]
    close([host(layer(tensor(X), mask=tensor(MASK)))], [np.concatenate(ways, -1)])
    assert [path.split(".")[0] for path in layer.weights_by_path()] == ["forward_layer"] * 3 + ["backward_layer"] * 3


# Refusals


REFUSED = {
    "units": (lambda: layers.LSTM(0), ArgumentError, "units=0"),
    "activation": (lambda: layers.LSTM(2, "relu"), UnsupportedError, "a layer of your own"),
    "no activation": (lambda: layers.GRU(2, activation=None), UnsupportedError, "activation=None"),
    "gates": (lambda: layers.GRU(2, recurrent_activation="hard_sigmoid"), UnsupportedError, "recurrent_activation"),
    "dropout": (lambda: layers.LSTM(2, dropout=1.0), ArgumentError, "dropout=1.0"),
    "recurrent dropout": (lambda: layers.LSTM(2, recurrent_dropout=0.1), UnsupportedError, "Use dropout"),
    "stateful": (lambda: layers.GRU(2, stateful=True), UnsupportedError, "initial_state"),
    "reset before": (lambda: layers.GRU(2, reset_after=False), UnsupportedError, "reset_after=False"),
    "seed": (lambda: layers.GRU(2, seed=3), ArgumentError, "uf.set_seed"),
    "rank": (lambda: layers.LSTM(2)(uf.ops.ones((2, 3))), ShapeError, "rows, steps"),
    "no steps": (lambda: layers.LSTM(2)(uf.ops.ones((2, 0, 3))), ShapeError, "no steps"),
    "one state": (lambda: layers.LSTM(2)(uf.ops.ones((2, 3, 4)), initial_state=[uf.ops.ones((2, 2))]), ShapeError,
                  "'h', 'c'"),
    "size of a state": (lambda: layers.GRU(2)(uf.ops.ones((2, 3, 4)), initial_state=uf.ops.ones((2, 3))), ShapeError,
                        r"of shape \(2, 2\)"),
    "mask": (lambda: layers.GRU(2)(uf.ops.ones((2, 3, 4)), mask=uf.ops.ones((2,), "bool")), ShapeError, "rows, steps"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_refusal_says_what_and_how(make, error, says):
    with pytest.raises(error, match=says):
        make()


# Training


def test_two_devices_equal_one(run_on):
    one = run_on(1, "recurrent")[0]
    two = run_on(2, "recurrent")
    for rank in two:
        assert rank.keys() == one.keys()
        weights = {key: value for key, value in rank.items() if key.startswith("weight ")}
        assert len(weights) == 12
        assert_same_weights(weights, {key: one[key] for key in weights}, rate_sum=0.1)
        for key in rank.keys() - weights.keys():
            np.testing.assert_allclose(rank[key], one[key], rtol=2e-5, atol=1e-6, err_msg=key)
    for key in one:
        if key.startswith("start "):
            path = key.removeprefix("start ")
            assert not np.array_equal(one[key], one[f"weight {path}"]), f"{path} has not moved"


def test_two_steps_of_fit_equal_gradient_descent_by_differences():
    """The whole way through fit, against float64 central differences of the loss."""
    ids, y = IDS, np.random.default_rng(1).normal(size=(4, UNITS)).astype("float32")
    model = uf.Sequential([layers.Embedding(6, 3, mask_zero=True), layers.LSTM(UNITS)])
    model.build(uf.Input((5,), dtype="int32"))
    weights = [value.astype("float64") for value in model.get_weights()]
    model.compile(uf.optimizers.SGD(0.5), "mse")
    history = model.fit(ids, y, batch_size=4, epochs=2, shuffle=False, verbose=0)

    def loss(table, *cell):
        zeros = np.zeros((4, UNITS))
        outputs, *_ = reference("lstm", table[ids], zeros, zeros, *cell, mask=ids != 0)
        return ((outputs[:, -1] - y) ** 2).mean()

    losses = []
    for _ in range(2):
        losses.append(loss(*weights))
        weights = [w - 0.5 * g for w, g in zip(weights, central_differences(loss, weights), strict=True)]
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-5)
    close(model.get_weights(), weights)
