"""Callbacks through a real fit on the active backend."""

import io
import sys

import numpy as np
import pytest
import safetensors.numpy

import unifit as uf

X = np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [8.0]], np.float32)
STEPS = 4
FLOAT32 = 1e-6


class Weight(uf.Layer):
    """y = w * x: with a loss that is the prediction and an update a batch, the gradient is the batch's mean."""

    def build(self, input_shape):
        self.w = self.add_weight((), "zeros")

    def call(self, x):
        return x * self.w


def prediction(y_true, y_pred):
    return y_pred


def compiled(optimizer=None, **options):
    model = uf.Sequential([Weight()])
    model.compile(optimizer or uf.optimizers.SGD(0.0), prediction, **options)
    return model


def fit(model, callbacks=None, x=X, y=X, **options):
    options = {"batch_size": 2, "shuffle": False, "verbose": 0} | options
    return model.fit(x, y, callbacks=callbacks, **options)


class Recorder(uf.callbacks.Callback):
    """Every hook with its number, in order."""

    def __init__(self):
        self.calls = []


def _record(hook):
    def record(self, *arguments):
        self.calls.append(hook.removeprefix("on_") + (f" {arguments[0]}" if len(arguments) == 2 else ""))

    return record


for _hook in uf.callbacks.base.HOOKS:
    setattr(Recorder, _hook, _record(_hook))


def test_hooks_come_in_keras_order():
    recorder = Recorder()
    model = compiled()
    fit(model, recorder, x=X[:4], y=X[:4], epochs=2, validation_data=(X[:2], X[:2]), validation_batch_size=2)
    validation = ["test_begin", "test_batch_begin 0", "test_batch_end 0", "test_end"]
    steps = [f"train_batch_{moment} {batch}" for batch in (0, 1) for moment in ("begin", "end")]
    epochs = [[f"epoch_begin {epoch}", *steps, *validation, f"epoch_end {epoch}"] for epoch in (0, 1)]
    assert recorder.calls == ["train_begin", *epochs[0], *epochs[1], "train_end"]

    recorder.calls.clear()
    model.predict(X[:2], batch_size=2, verbose=0, callbacks=recorder)
    assert recorder.calls == ["predict_begin", "predict_batch_begin 0", "predict_batch_end 0", "predict_end"]
    recorder.calls.clear()
    model.evaluate(X[:2], X[:2], batch_size=2, verbose=0, callbacks=[recorder])
    assert recorder.calls == validation


def test_steps_are_updates_in_hooks_and_params():
    recorder = Recorder()
    fit(compiled(gradient_accumulation_steps=2), recorder)
    assert recorder.params == {"epochs": 1, "steps": 2, "verbose": 0, "validation": False, "process": 0}
    assert [call for call in recorder.calls if "batch_end" in call] == ["train_batch_end 0", "train_batch_end 1"]


def test_batch_logs_are_read_only_when_looked_at(monkeypatch):
    model = compiled()
    fit(model)
    engine = model.trainer.engine
    reads, read = [], engine.read
    monkeypatch.setattr(engine, "read", lambda *arguments: reads.append(1) or read(*arguments))

    class Idle(uf.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    fit(model, [Idle(), uf.callbacks.TerminateOnNaN(check_every=STEPS)], verbose=1)
    assert len(reads) == 2  # the check after step 4, and the end of the epoch


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"])
def test_stop_training_ends_after_the_current_step(hook):
    recorder = Recorder()

    def stop(*arguments):
        model.stop_training = True

    model = compiled()
    fit(model, [recorder, uf.callbacks.LambdaCallback(**{hook: stop})], epochs=3)
    assert [call for call in recorder.calls if "batch_end" in call] == ["train_batch_end 0"]
    assert recorder.calls[-2:] == ["epoch_end 0", "train_end"]


@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_batch_end", "on_epoch_end"])
def test_on_train_end_runs_whatever_raises(hook):
    def fail(*arguments):
        raise ZeroDivisionError

    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        fit(compiled(), [recorder, uf.callbacks.LambdaCallback(**{hook: fail})])
    assert recorder.calls[-1] == "train_end" and recorder.calls.count("train_end") == 1


def test_schedule_rates_are_logged_as_used():
    # S-GA-03: 8 micro-batches of gradient 1, four an update: the rates are s(0) and s(1).
    rates = []
    watch = uf.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: rates.append(logs["learning_rate"]))
    ones = np.ones((8, 1), np.float32)
    model = compiled(uf.optimizers.SGD(lambda step: 0.1 * (step + 1)), gradient_accumulation_steps=4)
    history = fit(model, watch, ones, ones, batch_size=1)
    assert rates == pytest.approx([0.1, 0.2], rel=FLOAT32)
    assert history.history["learning_rate"] == pytest.approx([0.2], rel=FLOAT32)
    assert model.get_weights()[0] == pytest.approx(-0.3, rel=FLOAT32)


def test_scheduler_rate_is_the_one_that_is_applied():
    ones = np.ones((4, 1), np.float32)
    model = compiled(uf.optimizers.SGD(0.4))
    history = fit(
        model, uf.callbacks.LearningRateScheduler(lambda e, rate: rate / 2), ones, ones, batch_size=4, epochs=3
    )
    assert history.history["learning_rate"] == pytest.approx([0.2, 0.1, 0.05])
    assert model.get_weights()[0] == pytest.approx(-0.35, rel=FLOAT32)


def test_plateau_rate_is_the_one_that_is_applied():
    ones = np.ones((4, 1), np.float32)
    model = compiled(uf.optimizers.SGD(0.4))
    plateau = uf.callbacks.ReduceLROnPlateau("rising", factor=0.5, patience=1, mode="min")
    rising = uf.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(rising=float(epoch)))
    history = fit(model, [rising, plateau], ones, ones, batch_size=4, epochs=3)
    assert history.history["learning_rate"] == pytest.approx([0.4, 0.4, 0.2])
    assert model.get_weights()[0] == pytest.approx(-1.0, rel=FLOAT32)


def test_rate_set_in_mid_epoch_holds_from_the_next_step():
    def lower(batch, logs):
        model.optimizer.learning_rate = 0.1

    ones = np.ones((2, 1), np.float32)
    model = compiled(uf.optimizers.SGD(1.0))
    fit(model, uf.callbacks.LambdaCallback(on_train_batch_end=lower), ones, ones, batch_size=1)
    assert model.get_weights()[0] == pytest.approx(-1.1, rel=FLOAT32)


def test_windows_without_a_valid_target_warn_once_a_fit():
    model = compiled(uf.optimizers.SGD(0.1))
    mask = np.ones(8, bool)
    mask[2:6] = False
    with pytest.warns(UserWarning, match="2 updates of epoch 1 had no valid target") as warned:
        history = fit(model, sample_weight=mask, epochs=3)
    assert len([one for one in warned if "no valid target" in str(one.message)]) == 1
    assert history.history["skipped_updates"] == [2.0, 2.0, 2.0]


def test_no_skipped_update_no_figure_and_no_warning():
    assert list(fit(compiled()).history) == ["loss"]


def test_terminate_on_nan_ends_training(capsys):
    x = X.copy()
    x[3] = np.nan
    recorder = Recorder()
    fit(compiled(), [uf.callbacks.TerminateOnNaN(check_every=1), recorder], x=x, epochs=5)
    assert [call for call in recorder.calls if "batch_end" in call] == ["train_batch_end 0", "train_batch_end 1"]
    assert capsys.readouterr().out == "The loss is nan at step 2 of epoch 1: training stops.\n"


def test_verbose_auto_without_a_terminal_is_a_line_an_epoch(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    model = compiled()
    fit(model, epochs=2, verbose="auto", validation_data=(X, X))
    model.evaluate(X, X, batch_size=2)
    model.predict(X, batch_size=2)
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["Epoch 1/2", "Epoch 2/2", "Evaluate", "Predict"]
    assert all(" 4 steps in " in line for line in lines)
    assert lines[1].endswith("steps/s) - loss: 0.0000 - val_loss: 0.0000")
    out.truncate(0)
    fit(model)
    model.evaluate(X, X, verbose=0)
    model.predict(X, verbose=0)
    assert out.getvalue().strip("\0") == ""


def test_bar_costs_at_most_three_python_calls_a_step(capsys):
    model = compiled()
    few, many = np.ones((20, 1), np.float32), np.ones((220, 1), np.float32)

    def calls_a_step(verbose):
        counts = []
        for x in (few, many):
            calls = [0]

            def count(frame, event, argument, calls=calls):
                calls[0] += event == "call"

            sys.setprofile(count)
            try:
                fit(model, x=x, y=x, batch_size=1, verbose=verbose)
            finally:
                sys.setprofile(None)
            counts.append(calls[0])
        return (counts[1] - counts[0]) / 200

    calls_a_step(0)
    assert calls_a_step(2) - calls_a_step(0) <= 3


def test_fit_refuses_what_is_no_callback_before_any_data_is_read():
    class Unread:
        def __len__(self):
            raise AssertionError("read")

    with pytest.raises(uf.errors.ArgumentError, match="no uf.callbacks.Callback"):
        compiled().fit(Unread(), callbacks=[3])


def test_checkpoints_of_a_running_fit_load_again(tmp_path):
    ones = np.ones((4, 1), np.float32)
    model = uf.Sequential([uf.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])
    model.compile(uf.optimizers.SGD(0.25), "mse")  # gradient 2 (w - 1): w is 0, 0.5, 0.75
    callbacks = [
        uf.callbacks.ModelCheckpoint(tmp_path / "models" / "{epoch}.unifit", "loss", save_best_only=True),
        uf.callbacks.ModelCheckpoint(tmp_path / "{epoch}-{batch}.safetensors", save_weights_only=True, save_freq=1),
    ]
    fit(model, callbacks, ones, ones, batch_size=4, epochs=2)
    assert sorted(path.name for path in tmp_path.glob("**/*.*")) == [
        "1-1.safetensors", "1.unifit", "2-1.safetensors", "2.unifit"
    ]  # fmt: skip
    first = uf.load_model(tmp_path / "models" / "1.unifit")
    assert first.get_weights()[0].item() == pytest.approx(0.5, rel=FLOAT32)
    first.load_weights(tmp_path / "2-1.safetensors")
    assert first.get_weights()[0].item() == pytest.approx(0.75, rel=FLOAT32)


def test_error_of_a_callback_comes_out_of_fit_as_it_is():
    error = ValueError("stop here")

    class Raises(uf.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise error

    x = np.ones((4, 2), np.float32)
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError) as caught:
        model.fit(x, x[:, :1], verbose=0, callbacks=[Raises()])
    assert caught.value is error and error.__cause__ is None


def test_model_checkpoint_of_averaged_weights(tmp_path):
    saving = uf.callbacks.ModelCheckpoint(tmp_path / "ema.safetensors", save_weights_only=True, weights="ema")
    model = compiled(uf.optimizers.SGD(0.1), ema=uf.EMA(0.9))
    fit(model, saving)
    own, slots = model.weights_by_path(), model.trainer.slots()
    for path, value in safetensors.numpy.load_file(tmp_path / "ema.safetensors").items():
        np.testing.assert_array_equal(value, slots[f"ema.{path}"])
        assert np.any(value != own[path])
