"""Public failures of peers in ending a run early and going on (cases S-UX-03 and S-UX-04), with the right numbers."""

import contextlib
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

import unifit as uf
import unifit.training.signals as signals
from stopping_script import EPOCHS, LOWERED, STEPS, fit, made
from unifit.callbacks.time_limit import process_started
from unifit.checkpoint import newest

FLOAT32 = 1e-6
ENDS_WITHIN_S = 30.0
AT = 5
HEARD = [signal.SIGINT, signal.SIGTERM]


def earlier_handler(number, frame):
    raise AssertionError(f"signal {number} outside of fit")


@pytest.fixture(autouse=True)
def handlers():
    """Handlers that a fit finds and brings back; a signal that it does not hear fails the test, not the session."""
    before = [signal.signal(number, earlier_handler) for number in HEARD]
    yield
    after = [signal.getsignal(number) for number in HEARD]
    for number, handler in zip(HEARD, before, strict=True):
        signal.signal(number, handler)
    assert after == [earlier_handler] * len(HEARD)


class Interrupts(uf.callbacks.Callback):
    """Sends this process signals, once, at a step of a run or in a hook; and counts what happens."""

    def __init__(self, *numbers, step=None, hook=None):
        self.numbers, self.step, self.hook = numbers, step, hook
        self.steps, self.ends, self.handlers = 0, 0, set()

    def send(self, hook, step=None):
        if (hook, step) == (self.hook or "on_train_batch_end", self.step):
            for number in self.numbers:
                os.kill(os.getpid(), number)

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.handlers |= {signal.getsignal(number) for number in HEARD}
        self.send("on_train_batch_end", self.steps)

    def on_test_begin(self, logs=None):
        self.send("on_test_begin")

    def on_epoch_end(self, epoch, logs=None):
        self.send("on_epoch_end")

    def on_train_end(self, logs=None):
        self.ends += 1
        self.send("on_train_end")


def raised(call):
    """The KeyboardInterrupt or SystemExit that a call raises within the time."""
    started = time.monotonic()
    try:
        call()
    except (KeyboardInterrupt, SystemExit) as error:
        assert time.monotonic() - started < ENDS_WITHIN_S
        return error
    raise AssertionError("not interrupted")


def assert_ends_by(error, number):
    if number == signal.SIGINT:
        assert type(error) is KeyboardInterrupt
    else:
        assert type(error) is SystemExit and error.code == 128 + number


def lowered(steps):
    return pytest.approx(-LOWERED * steps, rel=STEPS * FLOAT32)


@pytest.mark.parametrize("number", HEARD, ids=lambda number: number.name)
def test_s_ux_03_signal_ends_the_fit_after_its_step_saved_and_usable(tmp_path, capfd, number):
    model, x = made()
    interrupts = Interrupts(number, step=AT)
    error = raised(lambda: fit(model, x, tmp_path, callbacks=[interrupts]))
    assert_ends_by(error, number)
    assert (interrupts.steps, interrupts.ends) == (AT, 1)
    assert earlier_handler not in interrupts.handlers  # restored: see the fixture
    assert f"unifit: {number.name}: saves a checkpoint and ends after this step" in capfd.readouterr().err

    checkpoint = newest(tmp_path)
    checkpoint.verify()
    assert (checkpoint.state["step"], checkpoint.state["finished"]) == (AT, False)
    held = model.weights_by_path()
    for name, array in checkpoint.arrays("weights").items():
        assert array.tobytes() == np.asarray(held[name]).tobytes(), name
    w, v = model.get_weights()
    assert w == lowered(AT)
    np.testing.assert_allclose(model.predict(x, verbose=0)[:, 0], w + AT * x @ v, rtol=FLOAT32, atol=1e-5)

    history = fit(model, x, tmp_path)  # the same call in the session goes on
    assert model.get_weights()[0] == lowered(STEPS)
    assert history.epoch == list(range(EPOCHS))
    straight, _ = made()
    fit(straight, x, tmp_path / "straight")
    for got, want in zip(model.get_weights(), straight.get_weights(), strict=True):
        assert got.tobytes() == want.tobytes()


def test_signal_at_the_last_step_of_an_epoch_and_at_the_last_one_of_all(tmp_path):
    for step in (STEPS // EPOCHS, STEPS):
        model, x = made()
        ran = []
        watches = uf.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs, ran=ran: ran.append(epoch))
        interrupts = Interrupts(signal.SIGTERM, step=step)
        folder = tmp_path / str(step)
        assert_ends_by(raised(lambda: fit(model, x, folder, callbacks=[interrupts, watches])), signal.SIGTERM)  # noqa: B023
        assert (newest(folder).state["step"], interrupts.ends) == (step, 1)
        fit(model, x, folder, callbacks=[watches])
        assert model.get_weights()[0] == lowered(STEPS)
        assert ran == list(range(EPOCHS))  # the end of an epoch comes once, be it after the interruption
        assert newest(folder).state["finished"]


def test_without_a_folder_the_model_holds_the_weights(capfd):
    model, x = made()
    assert_ends_by(raised(lambda: fit(model, x, None, callbacks=[Interrupts(signal.SIGINT, step=AT)])), signal.SIGINT)
    assert model.get_weights()[0] == lowered(AT)
    assert "unifit: SIGINT: ends after this step" in capfd.readouterr().err


@pytest.mark.parametrize("hook", ["on_test_begin", "on_epoch_end", "on_train_end"])
def test_signal_between_steps_is_not_lost(tmp_path, hook):
    model, x = made()
    interrupts = Interrupts(signal.SIGTERM, hook=hook)
    error = raised(lambda: fit(model, x, tmp_path, epochs=2, validation_data=x, callbacks=[interrupts]))
    assert_ends_by(error, signal.SIGTERM)
    assert interrupts.ends == 1
    state = newest(tmp_path).state
    steps = STEPS // EPOCHS * (2 if hook == "on_train_end" else 1)
    assert (state["step"], state["finished"]) == (steps, hook == "on_train_end")


def test_repeated_signal_is_the_first_one_and_a_second_one_ends_at_once(tmp_path, monkeypatch):
    model, x = made()
    twice = Interrupts(signal.SIGINT, signal.SIGINT, step=AT)
    assert_ends_by(raised(lambda: fit(model, x, tmp_path, callbacks=[twice])), signal.SIGINT)
    assert (newest(tmp_path).state["step"], twice.ends) == (AT, 1)

    monkeypatch.setattr(signals, "REPEATED_WITHIN_S", -1.0)
    model, x = made()
    again = Interrupts(signal.SIGINT, signal.SIGINT, step=AT)
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(model, x, tmp_path / "other", callbacks=[again])
    assert "_hear" in [entry.name for entry in caught.traceback]  # raised where the step was, not by fit at its end
    assert newest(tmp_path / "other") is None and again.ends == 1


def test_fit_in_a_callback_ends_with_the_outer_one(tmp_path):
    outer, x = made()
    inner, _ = made()
    interrupts = Interrupts(signal.SIGTERM, step=3)
    seen = []

    def fit_inner(batch, logs):
        if batch == AT - 1:
            with contextlib.suppress(SystemExit):
                fit(inner, x, tmp_path / "inner", callbacks=[interrupts])
            seen.append(batch)

    error = raised(
        lambda: fit(outer, x, tmp_path / "outer", callbacks=[uf.callbacks.LambdaCallback(on_train_batch_end=fit_inner)])
    )
    assert_ends_by(error, signal.SIGTERM)
    assert (newest(tmp_path / "inner").state["step"], newest(tmp_path / "outer").state["step"]) == (3, AT)
    assert seen == [AT - 1] and interrupts.ends == 1


def test_fit_in_another_thread_leaves_signals_alone(tmp_path):
    model, x = made()
    watches = Interrupts(step=AT)
    thread = threading.Thread(target=fit, args=(model, x, tmp_path), kwargs={"epochs": 1, "callbacks": [watches]})
    thread.start()
    thread.join()
    assert watches.handlers == {earlier_handler}
    assert newest(tmp_path).state["finished"]


class Fails(uf.callbacks.Callback):
    """Raises at the start of an epoch."""

    def __init__(self, epoch):
        self.epoch, self.begun = epoch, []

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise RuntimeError("the machine is on fire")
        self.begun.append(epoch)


def test_s_ux_04_fit_after_a_failed_one_does_what_is_left(tmp_path):
    def script(fails_at):
        uf.set_seed(1)
        model = uf.Sequential([uf.layers.Dense(1)])
        model.compile(uf.optimizers.SGD(0.01), "mse")
        x, fails = np.ones((5, 2), np.float32), Fails(fails_at)
        options = {"batch_size": 1, "epochs": 10, "verbose": 0, "callbacks": [fails]}
        try:
            history = model.fit(x, x[:, :1], checkpoint_dir=tmp_path, checkpoint_keep=None, **options)
        except RuntimeError:
            history = None
        return fails.begun, history

    def steps():
        return sorted(int(path.name.partition("-")[2]) for path in tmp_path.glob("step-*"))

    begun, history = script(fails_at=4)
    assert history is None and begun == [0, 1, 2, 3]
    assert steps() == [5, 10, 15, 20]
    begun, history = script(fails_at=None)
    assert begun == history.epoch == [4, 5, 6, 7, 8, 9]
    assert len(history.history["loss"]) == 6
    assert steps() == list(range(5, 51, 5))


# Time limits


def test_time_limit_pauses_and_the_next_fit_goes_on(tmp_path, capsys):
    model, x = made()
    limit = uf.callbacks.TimeLimit(1e-6, since="training")
    history = fit(model, x, tmp_path, callbacks=[limit])
    assert limit.paused and history.epoch == []
    assert "1e-06 s since the training's start are over" in capsys.readouterr().out
    assert (newest(tmp_path).state["step"], newest(tmp_path).state["finished"]) == (1, False)
    history = fit(model, x, tmp_path, callbacks=[uf.callbacks.TimeLimit(3600.0, since="training")])
    assert model.get_weights()[0] == lowered(STEPS)
    assert newest(tmp_path).state["finished"]


def test_time_limit_counts_from_the_start_of_the_process():
    age_s = time.monotonic() - process_started()
    told = subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    assert age_s == pytest.approx(float(told.stdout), abs=2.0)
    model, x = made()
    for max_time_s, over in ((age_s + 3600, False), (age_s, True)):
        limit = uf.callbacks.TimeLimit(max_time_s)
        fit(model, x, None, callbacks=[limit], epochs=1)
        assert limit.paused is over
