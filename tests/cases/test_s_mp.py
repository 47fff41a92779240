"""Public failures of peers in mixed precision (cases S-MP) and in weight averages (S-AX-05), with the right numbers."""

import numpy as np
import pytest

import unifit as uf
from unifit.errors import NonFiniteError

FLOAT32, HALF = 1e-6, 1e-2
HALVES = ["mixed_float16", "mixed_bfloat16"]


def prediction(y_true, y_pred):
    return y_pred


class Vector(uf.Layer):
    """x * w, whose sum is the loss: the gradient of w is the sum of x over the rows."""

    def __init__(self, start):
        super().__init__()
        self.start = start

    def build(self, input_shape):
        self.w = self.add_weight((input_shape[-1],), lambda shape, dtype: np.asarray(self.start, dtype))

    def call(self, x):
        return x * self.w


def trained(rows, start, optimizer, precision, **options):
    """Fits Vector on one row an update; the gradient is the row. `epochs`, `callbacks` go to fit."""
    fit = {name: options.pop(name) for name in ("epochs", "callbacks") if name in options}
    x = np.asarray(rows, np.float32).reshape(len(rows), -1)
    model = uf.Sequential([Vector(start)])
    model.compile(optimizer, lambda y, p: uf.ops.sum(p, axis=-1), precision=precision, **options)
    history = model.fit(x, x, batch_size=1, shuffle=False, verbose=0, **fit)
    return model, history


def scaled(scale, **options):
    return uf.Precision("float16", loss_scale=uf.LossScale(scale, **options))


def ramp(step):
    """s(n) = 0.1 (n + 1)."""
    return 0.1 * (step + 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_s_mp_01_skipped_update_moves_nothing(optimizer):
    rate = uf.schedules.PiecewiseConstantDecay([0], [0.1, 0.2])
    rule = uf.optimizers.SGD(rate) if optimizer == "sgd" else uf.optimizers.Adam(rate)
    # 60000 * 65536 is beyond float16: the first update's gradient is inf.
    model, history = trained([[60000.0], [1.0]], [0.0], rule, scaled(65536.0), ema=uf.EMA(0.5))
    slots = model.trainer.slots()
    assert model.trainer.engine.iterations() == slots["iterations"] == 1
    assert slots["loss_scale.scale"] == 32768.0 and slots["loss_scale.skipped"] == 1
    assert history.history["skipped_updates"] == [1.0] and history.history["loss_scale"] == [32768.0]
    assert slots["ema.updates"] == 1
    assert model.get_weights()[0][0] == pytest.approx(-0.1, rel=HALF)
    if optimizer == "adam":  # one update: the moments are (1 - beta) g and (1 - beta) g^2
        assert slots["m.0.w"][0] == pytest.approx(0.1, rel=HALF) and slots["v.0.w"][0] == pytest.approx(1e-3, rel=HALF)


def test_s_mp_02_unscaled_before_clipping():
    model, history = trained([[3.0, 0.0]], [0.0, 0.0], uf.optimizers.SGD(1.0), scaled(1024.0), clip_norm=1.0)
    np.testing.assert_allclose(model.get_weights()[0], [-1.0, 0.0], rtol=HALF)
    assert history.history["grad_norm"][0] == pytest.approx(3.0, rel=HALF)
    model, _ = trained([[3.0, 0.0]], [0.0, 0.0], uf.optimizers.SGD(1.0), scaled(1024.0), clip_value=0.5)
    np.testing.assert_allclose(model.get_weights()[0], [-0.5, 0.0], rtol=HALF)
    model, _ = trained([[3.0, 0.0]], [0.0, 0.0], uf.optimizers.SGD(1.0), scaled(1024.0), clip_parameter_norm=1.0)
    np.testing.assert_allclose(model.get_weights()[0], [-1.0, 0.0], rtol=HALF)


def test_s_mp_03_scaler_state_is_saved_with_the_model(tmp_path):
    rows = [[1.0]] * 6
    precision = scaled(1024.0, growth_interval=3)
    straight, _ = trained(rows, [0.0], uf.optimizers.SGD(0.1), precision)

    model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(uf.optimizers.SGD(0.1), "mse", precision=precision)
    x = np.ones((4, 1), np.float32)
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    path = str(tmp_path / "model.unifit")
    model.save(path)
    state = model.trainer.engine.scaling()
    assert (state.scale, state.good) == (2048.0, 1)

    again = uf.load_model(path)
    assert again.training_spec.precision == precision
    again.fit(x[:2], x[:2], batch_size=1, shuffle=False, verbose=0)
    state = again.trainer.engine.scaling()
    assert (state.scale, state.good) == (4096.0, 0)
    model.fit(x[:2], x[:2], batch_size=1, shuffle=False, verbose=0)
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    state = straight.trainer.engine.scaling()
    assert (state.scale, state.good) == (4096.0, 0)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "lion", "rmsprop", "adagrad"])
def test_s_mp_04_zero_gradients_leave_weights_alone(optimizer):
    start = [1.0, -2.0, 0.5]
    rules = {
        "adam": uf.optimizers.Adam(1e-3, epsilon=1e-8),
        "adamw": uf.optimizers.AdamW(1e-3, epsilon=1e-8, weight_decay=0.0),
        "lion": uf.optimizers.Lion(1e-3),
        "rmsprop": uf.optimizers.RMSprop(1e-3, epsilon=1e-8),
        "adagrad": uf.optimizers.Adagrad(1e-3, initial_accumulator_value=0.0, epsilon=1e-8),
    }
    model, _ = trained([[0.0] * 3] * 3, start, rules[optimizer], "mixed_float16")
    np.testing.assert_array_equal(model.get_weights()[0], np.float32(start))
    x = np.array([[1.0, 0.0, 0.0]], np.float32)
    model.fit(x, x, verbose=0)
    after = model.get_weights()[0]
    assert np.isfinite(after).all() and after[0] < 1.0
    np.testing.assert_array_equal(after[1:], np.float32(start[1:]))


class Steep(uf.Layer):
    """400 * (250 * w), with 250 from the data, since compilers would fold two constants: the true gradient is 1e5."""

    def build(self, input_shape):
        self.w = self.add_weight((1,), "zeros")

    def call(self, x):
        return (self.w * x) * 400.0


def steep(scale, rows, **options):
    model = uf.Sequential([Steep()])
    precision = uf.Precision("float16", loss_scale=uf.LossScale(scale, growth_interval=None, **options))
    model.compile(uf.optimizers.SGD(1e-6), prediction, precision=precision)
    x = np.full((rows, 1), 250.0, np.float32)
    model.fit(x, x, batch_size=1, verbose=0)
    return model


def test_s_mp_05_scale_goes_below_one():
    model = steep(4.0, 6)
    state = model.trainer.engine.scaling()
    assert state.scale == 0.5 and state.skipped == 3 and model.trainer.engine.iterations() == 3
    assert model.get_weights()[0][0] == pytest.approx(-0.3, rel=HALF)


def test_s_mp_05_scale_that_cannot_go_low_enough_is_an_error():
    with pytest.raises(NonFiniteError, match="'0.w'"):
        steep(4.0, 120, minimum=1.0)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("label", [255, 257, 2049, 4099])
def test_s_mp_06_labels_index_what_they_name(precision, label):
    logits = np.zeros((1, 5000), np.float32)
    logits[0, label] = 20.0
    model = uf.Sequential([uf.layers.Activation("linear")])
    model.compile("sgd", uf.losses.SparseCategoricalCrossentropy(from_logits=True), precision=precision)
    for labels in (np.array([label]), np.array([[label]])):
        assert model.evaluate(logits, labels, verbose=0) < 1e-3


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_s_mp_06_ids_gather_their_rows(precision, dtype):
    table = (np.arange(2100) % 7).astype("float32")[:, None]
    model = uf.Sequential([uf.layers.Embedding(2100, 1)])
    model.build(uf.Input((2,), dtype=dtype))
    model.set_weights([table])
    model.compile("sgd", "mse", precision=precision)
    predicted = model.predict(np.array([[257, 2049]], dtype), verbose=0)
    assert predicted.dtype == np.float32
    np.testing.assert_array_equal(predicted.ravel(), [257 % 7, 2049 % 7])


def test_s_ax_05_average_ticks_once_an_update():
    model = uf.Sequential([Vector([0.0])])
    model.compile(
        uf.optimizers.SGD(1.0), lambda y, p: uf.ops.sum(p, axis=-1), gradient_accumulation_steps=2, ema=uf.EMA(0.5)
    )
    x = np.ones((2, 1), np.float32)
    seen = []
    for _ in range(2):
        model.fit(x, x, batch_size=1, verbose=0)
        slots = model.trainer.slots()
        seen.append((model.get_weights()[0][0], slots["ema.0.w"][0], int(slots["ema.updates"])))
    np.testing.assert_allclose(seen, [(-1.0, -0.5, 1), (-2.0, -1.25, 2)], rtol=FLOAT32)


def test_s_ax_05_evaluate_predict_and_save_take_the_average_on_demand(tmp_path):
    x = np.ones((2, 1), np.float32)
    model = uf.Sequential([Vector([0.0])])
    model.compile(uf.optimizers.SGD(1.0), lambda y, p: uf.ops.sum(p, axis=-1), ema=uf.EMA(0.5))
    history = model.fit(
        x, x, batch_size=1, verbose=0, validation_data=(x, x), callbacks=[uf.callbacks.SwapEMAWeights()]
    )
    # w: -1, -2; average: -0.5, -1.25.
    assert history.history["val_loss"][0] == pytest.approx(-1.25, rel=FLOAT32)
    assert model.evaluate(x, x, verbose=0) == pytest.approx(-2.0, rel=FLOAT32)
    assert model.evaluate(x, x, verbose=0, weights="ema") == pytest.approx(-1.25, rel=FLOAT32)
    assert model.predict(x, verbose=0, weights="ema")[0, 0] == pytest.approx(-1.25, rel=FLOAT32)
    model.save_weights(str(tmp_path / "average.safetensors"), weights="ema")
    assert model.get_weights()[0][0] == pytest.approx(-2.0, rel=FLOAT32)
    model.load_weights(str(tmp_path / "average.safetensors"))
    assert model.get_weights()[0][0] == pytest.approx(-1.25, rel=FLOAT32)


@pytest.mark.parametrize("devices", [1, 2])
def test_overflow_of_one_device_skips_the_update_on_all(run_on, devices):
    """In the second device's data only, during accumulation, with clipping, AdamW, EMA and BatchNormalization."""
    for rank in run_on(devices, "overflow_on_the_last_device"):
        names = {name.removeprefix("before ") for name in rank if name.startswith("before ")}
        assert {"slot m.0.kernel", "slot ema.0.kernel", "weight 1.moving_mean"} <= names
        for name in names:
            np.testing.assert_array_equal(rank[f"after {name}"], rank[f"before {name}"], err_msg=name)
        assert rank["scale"] == rank["scale before"] / 2 and rank["skipped"] == 1


def test_static_scale_never_changes():
    model, _ = trained([[60000.0], [1.0]], [0.0], uf.optimizers.SGD(0.1), uf.Precision("float16", loss_scale=32768.0))
    state = model.trainer.engine.scaling()
    assert state.scale == 32768.0 and state.skipped == 1
    assert model.get_weights()[0][0] == pytest.approx(-0.1, rel=HALF)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_skip_nonfinite_without_a_scale(precision):
    model, history = trained(
        [[np.float32(np.nan)], [1.0]], [0.5], uf.optimizers.SGD(0.1), precision, skip_nonfinite=True
    )
    assert model.get_weights()[0][0] == pytest.approx(0.4, rel=HALF)
    assert history.history["skipped_updates"] == [1.0] and np.isfinite(history.history["loss"][0])


@pytest.mark.parametrize("precision", HALVES)
def test_s_ga_06_small_contributions_are_kept(precision):
    """512 micro-batches of gradient 1: a half sum would stop at 256 or 2048."""
    model, _ = trained([[1.0]] * 512, [0.0], uf.optimizers.SGD(1.0), precision, gradient_accumulation_steps=512)
    assert model.get_weights()[0][0] == pytest.approx(-1.0, rel=FLOAT32)


@pytest.mark.filterwarnings("ignore:precision='bfloat16' keeps the variables")
def test_pure_bfloat16_does_not_lose_small_updates(tmp_path):
    """1000 updates of 1e-4 from 1, whose neighbours in bfloat16 are 0.996 and 1.008: rounding would lose each."""
    x = np.ones((1000, 1), np.float32)
    model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(uf.optimizers.SGD(1e-4), prediction, precision="bfloat16")
    model.fit(x, x, batch_size=1, verbose=0)
    w = model.get_weights()[0]
    assert w.dtype == np.float32
    assert w[0, 0] == pytest.approx(0.9, abs=0.03)
    path = str(tmp_path / "model.unifit")
    model.save(path, include_optimizer=False)
    np.testing.assert_array_equal(uf.load_model(path).get_weights()[0], w)
    # Compiled for float32 again, it goes on from there.
    model.compile(uf.optimizers.SGD(1e-4), prediction)
    model.fit(x[:1], x[:1], verbose=0)
    assert model.get_weights()[0][0, 0] == pytest.approx(w[0, 0] - 1e-4, abs=1e-6)


def test_pure_bfloat16_warns():
    with pytest.warns(UserWarning, match="mixed_bfloat16"):
        uf.Sequential([uf.layers.Dense(1)]).compile("sgd", "mse", precision="bfloat16")


def test_s_mp_01_on_two_devices(run_on):
    for rank in run_on(2, "scaled_updates", rows=[[60000, 0], [1, 0]], scale=65536.0, ramp=True):
        assert (rank["iterations"], rank["averages"], rank["scale"], rank["skipped"]) == (1, 1, 32768.0, 1)
        np.testing.assert_allclose(rank["w"], [-0.1, 0.0], rtol=HALF)


def test_s_mp_02_on_two_devices(run_on):
    for rank in run_on(2, "scaled_updates", rows=[[3, 0]], scale=1024.0, clip_norm=1.0):
        np.testing.assert_allclose(rank["w"], [-1.0, 0.0], rtol=HALF)
        assert rank["grad_norm"] == pytest.approx(3.0, rel=HALF)


def test_s_mp_03_growth_on_two_devices(run_on):
    for rank in run_on(2, "scaled_updates", rows=[[1, 1]] * 4, scale=1024.0, growth_interval=3):
        assert (rank["scale"], rank["good"]) == (2048.0, 1)


def test_s_mp_05_on_two_devices(run_on):
    """On each device the gradient is 400 * 250 / 2 of a mean over two rows; summed it is 1e5."""
    for rank in run_on(2, "scaled_updates", rows=[[250, 0]] * 6, scale=4.0, rate=1e-6, factor=400.0):
        skipped = int(rank["skipped"])
        assert skipped > 0 and rank["scale"] == 4.0 / 2**skipped and rank["iterations"] == 6 - skipped
        assert rank["w"][0] == pytest.approx(-0.1 * (6 - skipped), rel=HALF)
