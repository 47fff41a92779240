"""What users ran into, each once on every backend: numbers that were silently off, and errors that did not help."""

import numpy as np
import pytest

import unifit as uf
from unifit.errors import ArgumentError, ShapeError, UnifitError, UnknownNameError

rng = np.random.default_rng(3)
X = rng.normal(size=(13, 6)).astype("float32")
Y = rng.normal(size=(13, 2)).astype("float32")
TOLERANCE = 1e-5


def squares(y_true, y_pred):
    return uf.ops.mean(uf.ops.square(y_true - y_pred), axis=-1)


class Own(uf.Model):
    """Returns from compute_loss what `reduce` makes of the rows' losses."""

    def __init__(self, reduce):
        super().__init__()
        self.dense, self.reduce = uf.layers.Dense(2), reduce

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x, y, y_pred, sample_weight, training):
        return self.reduce(squares(y, y_pred))


def own(reduce):
    uf.set_seed(0)
    model = Own(reduce)
    model.compile(uf.optimizers.SGD(0.1))
    return model


def fitted(model, **options):
    """History and weights of an epoch of batches of 8 and 5 rows, validated on the same."""
    history = model.fit(X, Y, batch_size=8, validation_data=(X, Y), verbose=0, **options).history
    return [history["loss"], history["val_loss"], *model.get_weights()]


def close(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda losses: uf.losses.Total(uf.ops.sum(losses), float(losses.shape[0])),
        lambda losses: uf.losses.MeanOverRows(uf.ops.mean(losses)),
        lambda losses: uf.ops.mean(losses),
    ],
    ids=["Total", "MeanOverRows", "scalar"],
)
def test_compute_loss_that_reduces_does_not_see_the_padding_of_a_ragged_end(reduce):
    close(fitted(own(reduce)), fitted(own(lambda losses: losses)))


def test_compute_loss_total_of_valid_rows_is_exact_with_accumulation():
    def total(losses):
        valid = uf.context().valid
        kept = uf.ops.ones_like(losses) if valid is None else uf.ops.cast(valid, "float32")
        return uf.losses.Total(uf.ops.sum(losses * kept), uf.ops.sum(kept))

    def accumulated(reduce):
        model = own(reduce)
        model.compile(uf.optimizers.SGD(0.1), gradient_accumulation_steps=2)
        return fitted(model)

    close(accumulated(total), accumulated(lambda losses: losses))


def test_add_loss_does_not_see_the_padding_of_a_ragged_end():
    class Activity(uf.Layer):
        def call(self, x):
            self.add_loss(uf.ops.mean(uf.ops.square(x)))
            return x

    def run(model, loss):
        uf.set_seed(0)
        model = model()
        model.compile(uf.optimizers.SGD(0.1), loss)
        return fitted(model)

    plain = run(lambda: uf.Sequential([uf.layers.Dense(2)]), lambda y, p: squares(y, p) + squares(p, 0.0))
    close(run(lambda: uf.Sequential([uf.layers.Dense(2), Activity()]), squares), plain)


@pytest.mark.parametrize("result", [None, [1.0, 2.0]], ids=["None", "list"])
def test_compute_loss_that_returns_no_loss_is_refused(result):
    with pytest.raises(ShapeError, match=f"compute_loss returned a {type(result).__name__} for a batch of 8 rows"):
        fitted(own(lambda losses: result))


def test_compute_loss_that_loses_rows_is_refused():
    with pytest.raises(ShapeError, match=r"compute_loss returned an array of shape \(3,\) for a batch of 8 rows"):
        fitted(own(lambda losses: losses[:3]))


def test_super_compute_loss_says_how_to_add_a_term():
    class Adds(Own):
        def compute_loss(self, x, y, y_pred, sample_weight, training):
            return uf.Model.compute_loss(self, x, y, y_pred, sample_weight, training)

    model = Adds(None)
    model.compile("sgd", "mse")
    with pytest.raises(UnifitError, match="add_loss"):
        fitted(model)


def test_nan_labels_that_a_mask_leaves_out_train_like_any_other():
    def run(labels):
        uf.set_seed(0)
        model = uf.Sequential([uf.layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"])
        history = model.fit(X, labels, sample_weight=np.arange(13) != 4, batch_size=8, epochs=2, verbose=0).history
        return [history["loss"], history["mae"], *model.get_weights()]

    missing, zero = Y.copy(), Y.copy()
    missing[4], zero[4] = np.nan, 0.0
    close(run(missing), run(zero))


def test_one_sample_weight_for_two_outputs_is_refused_in_plain_words():
    x = uf.Input((6,))
    model = uf.Model(x, {"a": uf.layers.Dense(2)(x), "b": uf.layers.Dense(2)(x)})
    model.compile("sgd", {"a": "mse", "b": "mse"})
    with pytest.raises(ArgumentError, match=r"sample weights have nothing for output 'a' \(found one array of shape"):
        model.fit(X, {"a": Y, "b": Y}, sample_weight=np.ones(13), verbose=0)


def test_inputs_and_labels_in_one_tuple_are_named():
    model = uf.Sequential([uf.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match=r"fit\(x, y\)"):
        model.fit((X, Y), verbose=0)


def sequence(layer):
    return uf.Sequential([layer, uf.layers.GlobalAveragePooling1D(), uf.layers.Dense(1)])


def image(layer):
    return uf.Sequential([layer, uf.layers.GlobalAveragePooling2D(), uf.layers.Dense(1)])


LAYERS_WITH_A_KERNEL = {
    "EinsumDense": (lambda: uf.Sequential([uf.layers.EinsumDense("ab,bc->ac", 1)]), (4, 3)),
    "Conv1D": (lambda: sequence(uf.layers.Conv1D(2, 2)), (4, 5, 3)),
    "Conv1DTranspose": (lambda: sequence(uf.layers.Conv1DTranspose(2, 2)), (4, 5, 3)),
    "LSTM": (lambda: sequence(uf.layers.LSTM(2, return_sequences=True)), (4, 5, 3)),
    "GRU": (lambda: sequence(uf.layers.GRU(2, return_sequences=True)), (4, 5, 3)),
    "Conv2D": (lambda: image(uf.layers.Conv2D(2, 2)), (4, 5, 5, 3)),
    "DepthwiseConv2D": (lambda: image(uf.layers.DepthwiseConv2D(2)), (4, 5, 5, 3)),
    "Conv2DTranspose": (lambda: image(uf.layers.Conv2DTranspose(2, 2)), (4, 5, 5, 3)),
    "Dense": (lambda: uf.Sequential([uf.layers.Dense(1)]), (4, 3)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "uint8") for name in LAYERS_WITH_A_KERNEL] + [("Dense", dtype) for dtype in ("int32", "bool", "float16")],
)
def test_layers_with_a_kernel_take_numbers_of_any_dtype_as_floats(name, dtype):
    make, shape = LAYERS_WITH_A_KERNEL[name]
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)

    def trained(x):
        uf.set_seed(0)
        model = make()
        model.compile("sgd", "mse")
        loss = model.train_on_batch(x, np.ones((4, 1)))
        return [loss, model.predict(x, verbose=0)]

    close(trained(x), trained(x.astype("float32")))


def test_inputs_of_another_width_than_the_model_was_built_for_are_named():
    model = uf.Sequential([uf.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    with pytest.raises(ShapeError, match=r"built for inputs of shape \(None, 6\); inputs of shape \(13, 3\) do not"):
        model.predict(X[:, :3], verbose=0)


@pytest.mark.parametrize(
    "options",
    [{"epochs": 2.0}, {"initial_epoch": -1}, {"validation_freq": 0}, {"distribution": "dp"}, {"distribution": 2}],
)
def test_fit_arguments_of_no_meaning_are_named(options):
    model = uf.Sequential([uf.layers.Dense(2)])
    model.compile("sgd", "mse")
    (name,) = options
    with pytest.raises(ArgumentError, match=f"^{name} is "):
        model.fit(X, Y, validation_data=(X, Y), verbose=0, **options)


def test_misspelt_argument_of_an_optimizer_is_answered_with_its_own():
    with pytest.raises(UnknownNameError, match="did you mean 'beta_1'"):
        uf.optimizers.Adam(beta1=0.8)
