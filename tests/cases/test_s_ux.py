"""Public failures of peers in what users see of a run (cases S-UX-01 and S-UX-02), with the right numbers."""

import numpy as np
import pytest

import unifit as uf

FLOAT32 = 1e-6


class Epochs(uf.Model):
    """One weight w that one step of SGD(1) raises by 1: with one step an epoch w is the number of epochs done.

    The validation loss follows from w: 3, 1, 2 after the first three epochs.
    """

    def build(self, input_shape):
        self.w = self.add_weight((), "zeros")

    def call(self, x):
        return x * self.w

    def compute_loss(self, x, y, y_pred, sample_weight, training):
        return -y_pred if training else 1.5 * y_pred * y_pred - 6.5 * y_pred + 8.0


class StopAfter(uf.callbacks.Callback):
    """Ends training in the epoch with this index, by `ending`."""

    def __init__(self, epoch, ending):
        self.epoch, self.ending = epoch, ending

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch and self.ending == "callback":
            self.model.stop_training = True

    def on_train_batch_end(self, batch, logs=None):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == self.epoch + 1 and self.ending == "interrupt":
            raise KeyboardInterrupt


@pytest.mark.parametrize("ending", ["natural", "callback", "interrupt"])
def test_s_ux_01_restore_best_works_whatever_ended_the_training(ending):
    x = np.ones((4, 1), np.float32)
    model = Epochs()
    model.compile(uf.optimizers.SGD(1.0))
    stopping = uf.callbacks.EarlyStopping(patience=5, restore_best_weights=True)
    seen = []
    looks = uf.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["val_loss"]))

    def fit():
        callbacks = [looks, stopping, StopAfter(2, ending)]
        model.fit(
            x, batch_size=4, epochs=3 if ending == "natural" else 9, verbose=0, validation_data=x, callbacks=callbacks
        )

    if ending == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            fit()
    else:
        fit()
    np.testing.assert_allclose(seen, [3.0, 1.0] if ending == "interrupt" else [3.0, 1.0, 2.0], rtol=FLOAT32)
    assert model.get_weights()[0] == 2.0
    np.testing.assert_array_equal(model.predict(x, verbose=0), 2.0 * x)


class Mode(uf.Layer):
    """Its input in training; 100 times that otherwise."""

    def build(self, input_shape):
        self.w = self.add_weight((), "ones")

    def call(self, x, training):
        return x * self.w if training else 100.0 * x * self.w


class EvaluateAfter(uf.callbacks.Callback):
    """Evaluates after step number `step`, and keeps the running loss of every step."""

    def __init__(self, step, x):
        self.step, self.x = step, x
        self.running, self.scores = [], []

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.step:
            self.scores.append(self.model.evaluate(self.x, self.x, batch_size=1, verbose=0))
        self.running.append(logs["loss"])


@pytest.mark.parametrize("accuracy", [False, True])
def test_s_ux_02_evaluate_inside_a_callback_leaves_training_figures_alone(accuracy):
    x = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    model = uf.Sequential([Mode()])
    model.compile(uf.optimizers.SGD(0.0), lambda y_true, y_pred: y_pred, metrics=["mae"] if accuracy else None)
    callback = EvaluateAfter(1, np.ones((1, 1), np.float32))
    history = model.fit(x, x, batch_size=1, shuffle=False, verbose=0, callbacks=callback)
    assert np.ravel(callback.scores[0])[0] == pytest.approx(100.0, rel=FLOAT32)
    np.testing.assert_allclose(callback.running, [1.0, 1.5, 2.0, 2.5], rtol=FLOAT32)
    assert history.history["loss"] == pytest.approx([2.5], rel=FLOAT32)
    if accuracy:  # y_pred is y_true in training
        assert history.history["mean_absolute_error" if "mean_absolute_error" in history.history else "mae"] == [0.0]


def test_s_ux_02_dropout_is_active_after_an_evaluation():
    x = np.ones((4, 63), np.float32)
    model = uf.Sequential([uf.layers.Dropout(0.5), uf.layers.Dense(1, kernel_initializer="ones")])
    model.compile(uf.optimizers.SGD(0.0), lambda y_true, y_pred: y_pred)
    callback = EvaluateAfter(1, x[:1])
    model.fit(x, x[:, :1], batch_size=1, shuffle=False, verbose=0, callbacks=[callback])
    assert callback.scores == [63.0]
    # Without dropout a batch's loss is 63; with it, twice the number of units kept.
    losses = np.diff(np.array([0.0, *callback.running]) * np.arange(5))
    np.testing.assert_allclose(losses, 2 * np.round(losses / 2), atol=1e-3)
