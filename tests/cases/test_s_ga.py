"""Public failures of peers in gradient accumulation, with the right numbers (cases S-GA).

Scalar model: one weight w with loss w * t, so the gradient is t whatever w is.
"""

import numpy as np
import pytest

import unifit as uf

FLOAT32 = 1e-6


class Weight(uf.Layer):
    """y = w * t, elementwise; a vector w multiplies along the last axis."""

    def __init__(self, start):
        super().__init__()
        self.start = start

    def build(self, input_shape):
        start = np.asarray(self.start, np.float32)
        self.w = self.add_weight(start.shape, lambda shape, dtype: start)

    def call(self, t):
        return t * self.w


def prediction(y_true, y_pred):
    """The loss whose value is the prediction."""
    return y_pred


def scalar_model(w0, *, loss=prediction, optimizer=None, rate=0.1, **options):
    model = uf.Sequential([Weight(w0)])
    model.compile(optimizer or uf.optimizers.SGD(rate), loss, **options)
    return model


def weight_of(model):
    return model.get_weights()[0]


def column(*values):
    return np.array(values, np.float32)[:, None]


class TokenLoss(uf.Model):
    """S-GA-01 with a loss of the user's own: compute_loss returns a sum and its count."""

    def __init__(self):
        super().__init__()
        self.inner = Weight(1.0)

    def call(self, t):
        return self.inner(t)

    def compute_loss(self, x, y, y_pred, sample_weight, training):
        mask = uf.ops.cast(sample_weight, "float32")
        return uf.losses.Total(uf.ops.sum(mask * y_pred), uf.ops.sum(mask))


TOKENS = np.array([[1, 9, 9, 9], [4, 4, 4, 9]], np.float32)
TOKEN_MASK = np.array([[1, 0, 0, 0], [1, 1, 1, 0]], np.bool_)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("own_loss", [False, True])
def test_s_ga_01_accumulation_weights_by_valid_tokens(batch_size, own_loss):
    accumulation = 2 // batch_size
    if own_loss:
        model = TokenLoss()
        model.compile(uf.optimizers.SGD(0.1), gradient_accumulation_steps=accumulation)
    else:
        model = scalar_model(1.0, gradient_accumulation_steps=accumulation)
    history = model.fit(TOKENS, TOKENS, batch_size=batch_size, sample_weight=TOKEN_MASK, shuffle=False, verbose=0)
    assert weight_of(model) == pytest.approx(0.675, rel=FLOAT32)
    assert history.history["loss"] == [pytest.approx(3.25, rel=FLOAT32)]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_s_ga_01_with_label_smoothing(batch_size):
    """Smoothed cross-entropy over masked tokens: the cut into micro-batches does not matter."""
    r = np.random.default_rng(0)
    x, y = r.normal(size=(2, 4, 5)).astype("float32"), np.eye(3, dtype=np.float32)[r.integers(0, 3, (2, 4))]
    model = uf.Sequential([uf.layers.Dense(3)])
    loss = uf.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(uf.optimizers.SGD(0.1), loss, gradient_accumulation_steps=2 // batch_size)
    model.build((None, 4, 5))
    kernel = model.get_weights()[0].astype(np.float64)
    model.fit(x, y, batch_size=batch_size, sample_weight=TOKEN_MASK, shuffle=False, verbose=0)
    logits = x @ kernel
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    error = np.where(TOKEN_MASK[..., None], p - (y * 0.9 + 0.1 / 3), 0.0)
    want = kernel - 0.1 * np.einsum("btf,btc->fc", x, error) / TOKEN_MASK.sum()
    np.testing.assert_allclose(weight_of(model), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("epochs", "w", "updates"), [(1, -1.0, 3), (2, -2.0, 6)])
def test_s_ga_02_last_window_of_an_epoch(epochs, w, updates):
    x = column(1, 2, 3, 4, 5)
    model = scalar_model(0.0, gradient_accumulation_steps=2)
    model.fit(x, x, batch_size=1, epochs=epochs, shuffle=False, verbose=0)
    assert weight_of(model) == pytest.approx(w, rel=FLOAT32)
    assert model.trainer.engine.iterations() == updates


class Rates(uf.callbacks.Callback):
    """Collects the rate of every step as a callback sees it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["learning_rate"])


class SetRate(uf.callbacks.Callback):
    """Sets the rate before every step."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 * (batch + 1)


class Rising(uf.schedules.LearningRateSchedule):
    """s(n) = 0.1 (n + 1)."""

    def __call__(self, step):
        return 0.1 * (step + 1)


@pytest.mark.parametrize("kind", ["callable", "schedule", "callback"])
def test_s_ga_03_schedule_counts_updates(kind):
    rate = {"callable": lambda step: 0.1 * (step + 1), "schedule": Rising(), "callback": 5.0}[kind]
    rates = Rates()
    callbacks = [rates] if kind != "callback" else [SetRate()]
    x = np.ones((8, 1), np.float32)
    model = scalar_model(0.0, rate=rate, gradient_accumulation_steps=4)
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0, callbacks=callbacks)
    assert weight_of(model) == pytest.approx(-0.3, rel=FLOAT32)
    if kind != "callback":
        assert rates.seen == pytest.approx([0.1, 0.2])


def clip_rows(y_true, y_pred):
    return uf.ops.sum(y_pred, axis=-1)


def test_s_ga_04_clip_once_on_the_windows_gradient():
    x = np.array([[2, 0], [0, 2]], np.float32)
    model = scalar_model([0.0, 0.0], loss=clip_rows, rate=1.0, gradient_accumulation_steps=2, clip_norm=1.0)
    history = model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    np.testing.assert_allclose(weight_of(model), [-0.70710678] * 2, rtol=FLOAT32)
    assert history.history["grad_norm"] == [pytest.approx(1.41421356, rel=FLOAT32)]


def test_s_ga_04_on_two_devices(run_on):
    for rank in run_on(2, "clip_over_devices"):
        np.testing.assert_allclose(rank["w"], [-0.70710678] * 2, rtol=FLOAT32)
        assert rank["grad_norm"] == pytest.approx(1.41421356, rel=FLOAT32)


class Penalised(Weight):
    """A weight whose squared size is penalised: 0.05 w^2."""

    def call(self, t):
        self.add_loss(0.05 * uf.ops.sum(uf.ops.square(self.w)))
        return super().call(t)


@pytest.mark.parametrize("accumulation", [1, 2, 4, 8])
@pytest.mark.parametrize("way", ["add_loss", "regularizer"])
def test_s_ga_05_penalties_count_once(accumulation, way):
    if way == "add_loss":
        model = uf.Sequential([Penalised(1.0)])
    else:
        l2 = uf.regularizers.L2(0.05)
        model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer=l2)])
    model.compile(uf.optimizers.SGD(1.0), prediction, gradient_accumulation_steps=accumulation)
    x = np.zeros((accumulation, 1), np.float32)
    history = model.fit(x, x, batch_size=1, verbose=0)
    assert weight_of(model).ravel() == pytest.approx([0.9], rel=FLOAT32)
    assert history.history["loss"] == [pytest.approx(0.05, rel=FLOAT32)]


def test_s_ga_06_accumulators_are_float32():
    """float32 is the only precision so far: 512 gradients of 1 sum exactly."""
    x = np.ones((512, 1), np.float32)
    model = scalar_model(0.0, rate=1.0, gradient_accumulation_steps=512)
    model.fit(x, x, batch_size=1, verbose=0)
    assert weight_of(model) == pytest.approx(-1.0, rel=FLOAT32)
