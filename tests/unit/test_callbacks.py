"""Callbacks driven by hand with a model that is no model: right values follow from the scripted figures."""

import csv
import io
import json
import math
import sys

import numpy as np
import pytest

import unifit.callbacks.progress_bar as progress_bar
from unifit.callbacks import (
    Callback,
    CallbackList,
    CSVLogger,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    NonFiniteLossError,
    ProgressBar,
    ReduceLROnPlateau,
    TensorBoard,
    TerminateOnNaN,
)
from unifit.callbacks.base import HOOKS
from unifit.callbacks.callback_list import fit_callbacks, run_callbacks
from unifit.errors import ArgumentError, UnknownNameError
from unifit.optimizers import SGD


class FakeModel:
    """What callbacks ask of a model; its one weight is the number of the epoch."""

    def __init__(self, learning_rate=0.1):
        self.optimizer = SGD(learning_rate)
        self.stop_training = False
        self.weight = -1.0
        self.saved = []

    def get_weights(self):
        return [np.array(self.weight)]

    def set_weights(self, weights):
        self.weight = float(weights[0])

    def weights_by_path(self):
        return {"dense.kernel": np.array([self.weight, 2.0])}

    def save(self, path, *, weights="own"):
        self.saved.append(path)

    save_weights = save


class Reads(dict):
    """Logs of a batch hook that count how often they were looked at."""

    looks = 0

    def get(self, *args):
        self.looks += 1
        return super().get(*args)

    def items(self):
        self.looks += 1
        return super().items()


def run(callbacks, epochs, model=None, steps=0, first=0, params=None, error=None):
    """A fit's hooks in fit's order, with scripted epoch logs; returns the model."""
    model = model or FakeModel()
    facts = {"epochs": first + len(epochs), "steps": steps, "verbose": 0, "validation": True, "process": 0}
    observers = CallbackList(callbacks, model, facts | (params or {}))
    try:
        observers.on_train_begin({})
        for epoch, logs in enumerate(epochs, first):
            observers.on_epoch_begin(epoch, {})
            model.weight = float(epoch)
            for step in range(steps):
                observers.on_train_batch_begin(step, {})
                observers.on_train_batch_end(step, logs)
            observers.on_epoch_end(epoch, dict(logs))
            model.trained = epoch + 1
            if model.stop_training:
                break
        if error is not None:
            raise error
    finally:
        observers.on_train_end({})
    return model


def losses(*values, name="val_loss"):
    return [{"loss": 1.0, name: value} for value in values]


# The list


class Recorder(Callback):
    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append((self.name, "begin", epoch))

    def on_train_end(self, logs=None):
        self.calls.append((self.name, "end"))


def test_list_hooks_run_in_the_order_given():
    calls = []
    run([Recorder("a", calls), Recorder("b", calls)], [{}])
    assert calls == [("a", "begin", 0), ("b", "begin", 0), ("a", "end"), ("b", "end")]


def test_list_on_train_end_reaches_all_when_one_raises():
    def fail(logs):
        raise KeyError("mine")

    calls = []
    with pytest.raises(KeyError, match="mine"):
        run([LambdaCallback(on_train_end=fail), Recorder("b", calls)], [{}])
    assert calls[-1] == ("b", "end")


def test_list_hook_nobody_overrides_is_told():
    observers = CallbackList([Recorder("a", [])], None, {})
    assert [hook for hook in HOOKS if getattr(observers, f"has_{hook}")] == ["on_train_end", "on_epoch_begin"]


def test_list_old_hook_names_of_keras_are_called():
    class Old(Callback):
        seen = ()

        def on_batch_end(self, batch, logs=None):
            self.seen += (batch,)

    old = Old()
    run([old], [{}], steps=3)
    assert old.seen == (0, 1, 2)


def test_list_states_are_named_by_class_and_come_back():
    first, second = EarlyStopping("loss"), EarlyStopping("val_loss")
    second.best = 0.5
    states = json.loads(json.dumps(CallbackList([first, History(), second], None, {}).states()))
    assert list(states) == ["EarlyStopping", "EarlyStopping_2"]
    fresh = [EarlyStopping("loss"), EarlyStopping("val_loss")]
    CallbackList(fresh, None, {}).load_states(states)
    assert [callback.best for callback in fresh] == [None, 0.5]


def test_fit_callbacks_one_callback_stands_for_a_list():
    mine = EarlyStopping()
    callbacks, history = fit_callbacks(mine, 0)
    assert callbacks == [mine, history]


def test_fit_callbacks_own_history_and_bar_are_taken():
    history, bar = History(), ProgressBar(0)
    assert fit_callbacks([history, bar], 2) == ([history, bar], history)
    assert [type(callback) for callback in run_callbacks(None, 2)] == [ProgressBar]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("early_stopping", "callbacks='early_stopping' is of type str"),
        (["early_stopping"], "There are no names for callbacks"),
        ([EarlyStopping], r"It is a class: write EarlyStopping\(...\)"),
        ([print], "LambdaCallback"),
        ([3], "Subclass uf.callbacks.Callback"),
        ({"a": EarlyStopping()}, "is of type dict"),
    ],
)
def test_fit_callbacks_anything_else_is_refused(given, told):
    with pytest.raises(ArgumentError, match=told):
        fit_callbacks(given, 0)


# History


def test_history_collects_what_earlier_callbacks_put_into_the_logs():
    history = History()

    def add(epoch, logs):
        logs["mine"] = 2.0 * epoch

    run([LambdaCallback(on_epoch_end=add), history], [{"loss": 3.0}, {"loss": 2.0}])
    assert history.epoch == [0, 1]
    assert history.history == {"loss": [3.0, 2.0], "mine": [0.0, 2.0]}


def test_history_skipped_updates_are_zero_where_none_were():
    history = History()
    run([history], [{"loss": 1.0}, {"loss": 1.0, "skipped_updates": 2.0}, {"loss": 1.0}])
    assert history.history["skipped_updates"] == [0.0, 2.0, 0.0]


# Early stopping


@pytest.mark.parametrize(
    ("arguments", "values", "trained"),
    [
        ({}, [3.0, 2.0, 2.0, 1.0], 3),
        ({"patience": 2}, [3.0, 2.0, 2.5, 2.1, 1.0], 4),
        ({"patience": 2}, [3.0, 2.0, 2.5, 1.9, 2.0, 2.0, 0.0], 6),
        ({"min_delta": 0.5, "patience": 1}, [3.0, 2.6, 2.4], 2),
        ({"min_delta": -0.5, "patience": 2}, [3.0, 2.6, 2.4, 2.0], 4),
        ({"mode": "max"}, [1.0, 2.0, 1.5, 3.0], 3),
        ({"monitor": "val_accuracy"}, [0.1, 0.2, 0.2], 3),
        ({"start_from_epoch": 2}, [1.0, 2.0, 3.0, 2.5, 2.6, 0.0], 5),
        ({"baseline": 0.5, "patience": 5}, [0.9, 0.8, 0.7, 0.71, 0.72, 0.73], 5),
        ({"patience": 1}, [math.nan, 3.0, 2.0], 1),
        ({"patience": 2}, [math.nan, 3.0, 2.0, 1.0], 4),
        ({"patience": 2}, [2.0, math.nan, math.nan, 1.0], 3),
    ],
)
def test_early_stopping_stops_after_the_right_epoch(arguments, values, trained):
    stopping = EarlyStopping(**arguments)
    assert run([stopping], losses(*values, name=stopping.monitor)).trained == trained


def stop_after(epoch_number):
    def stop(epoch, logs):
        if epoch == epoch_number:
            callback.model.stop_training = True

    callback = LambdaCallback(on_epoch_end=stop)
    return callback


@pytest.mark.parametrize("ending", ["natural", "itself", "another callback", "exception", "interrupt"])
def test_early_stopping_restores_the_best_weights_however_training_ends(ending):
    stopping = EarlyStopping(patience=1 if ending == "itself" else 5, restore_best_weights=True)
    callbacks, model = [stopping], FakeModel()
    if ending == "another callback":
        callbacks.append(stop_after(2))
    error = {"exception": ValueError(), "interrupt": KeyboardInterrupt()}.get(ending)
    try:
        run(callbacks, losses(3.0, 1.0, 2.0), model, error=error)
    except (ValueError, KeyboardInterrupt) as raised:
        assert raised is error
    assert model.weight == 1.0
    assert (stopping.best, stopping.best_epoch) == (1.0, 1)


def test_early_stopping_nan_is_never_best():
    stopping = EarlyStopping(patience=9, restore_best_weights=True)
    assert run([stopping], losses(math.nan, 2.0, math.nan)).weight == 1.0
    assert stopping.best == 2.0


def test_early_stopping_all_nan_leaves_the_weights_alone():
    assert run([EarlyStopping(patience=9, restore_best_weights=True)], losses(math.nan, math.nan)).weight == 1.0


def test_early_stopping_baseline_not_beaten_restores_the_best_of_them():
    stopping = EarlyStopping(patience=5, baseline=0.5, restore_best_weights=True)
    assert run([stopping], losses(0.9, 0.8, 0.7, 0.71, 0.72, 0.73)).weight == 2.0


def test_early_stopping_second_fit_starts_afresh():
    stopping = EarlyStopping(patience=2)
    run([stopping], losses(1.0, 2.0))
    assert run([stopping], losses(5.0, 6.0, 4.0)).trained == 3


def test_early_stopping_says_what_it_does(capsys):
    run([EarlyStopping(verbose=1, restore_best_weights=True)], losses(1.0, 2.0))
    out = capsys.readouterr().out
    assert out == "Epoch 2: early stopping, val_loss was best in epoch 1.\nRestoring the weights of epoch 1.\n"


def test_messages_come_from_the_main_process_only(capsys):
    run([EarlyStopping(verbose=1)], losses(1.0, 2.0), params={"process": 1})
    assert capsys.readouterr().out == ""


# The monitored figure


def test_monitor_unknown_figure_warns_once_and_names_the_others():
    with pytest.warns(UserWarning) as warned:
        run([EarlyStopping("val_lss", mode="min")], losses(1.0, 2.0, 3.0))
    assert len(warned) == 1
    assert "'val_lss'" in str(warned[0].message) and "loss, val_loss" in str(warned[0].message)


def test_monitor_without_validation_data_warns():
    with pytest.warns(UserWarning, match="needs validation_data"):
        run([EarlyStopping()], [{"loss": 1.0}], params={"validation": False})


def test_monitor_validation_due_later_does_not_warn():
    stopping = EarlyStopping(patience=1)
    run([stopping], [{"loss": 1.0}, {"loss": 1.0, "val_loss": 2.0}, {"loss": 1.0}])
    assert stopping.best == 2.0 and stopping.wait == 0


@pytest.mark.parametrize(
    ("monitor", "sign"),
    [("loss", -1), ("val_loss", -1), ("head_loss", -1), ("val_mean_squared_error", -1), ("accuracy", 1), ("val_acc", 1)]
    + [("auc", 1), ("val_head_precision", 1), ("f1_score", 1), ("mean_io_u", 1), ("categorical_crossentropy", -1)],
)
def test_monitor_auto_knows_the_direction(monitor, sign):
    assert EarlyStopping(monitor)._sign == sign


def test_monitor_unknown_direction_and_mode_are_refused():
    with pytest.raises(ArgumentError, match="mode='max' or mode='min'"):
        EarlyStopping("reward")
    with pytest.raises(ArgumentError, match="got mode='best'"):
        EarlyStopping(mode="best")


# Checkpoints


def test_checkpoint_formats_the_path_with_epoch_and_figures(tmp_path):
    model = run([ModelCheckpoint(tmp_path / "new" / "{epoch:02d}-{val_loss:.2f}.unifit")], losses(0.5, 0.25))
    assert model.saved == [str(tmp_path / "new" / name) for name in ("01-0.50.unifit", "02-0.25.unifit")]
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("arguments", "saved"),
    [
        ({}, [1, 2, 4]),
        ({"initial_value_threshold": 0.4}, [2, 4]),
        ({"mode": "max"}, [1, 3]),
        ({"save_best_only": False}, [1, 2, 3, 4, 5]),
    ],
)
def test_checkpoint_saves_the_best_only(tmp_path, arguments, saved):
    checkpoint = ModelCheckpoint(str(tmp_path / "{epoch}.unifit"), **({"save_best_only": True} | arguments))
    model = run([checkpoint], losses(0.5, 0.3, 0.6, 0.2, math.nan))
    assert [int(path[len(str(tmp_path)) + 1 : -7]) for path in model.saved] == saved


def test_checkpoint_every_number_of_steps_across_epochs(tmp_path):
    path = str(tmp_path / "{epoch}-{batch}.safetensors")
    model = run([ModelCheckpoint(path, save_weights_only=True, save_freq=3)], losses(1.0, 1.0), steps=4)
    assert [saved[len(str(tmp_path)) + 1 :] for saved in model.saved] == ["1-3.safetensors", "2-2.safetensors"]


def test_checkpoint_other_processes_call_save_too_for_it_is_collective(tmp_path):
    model = run([ModelCheckpoint(tmp_path / "a" / "x.unifit")], losses(1.0), params={"process": 1})
    assert len(model.saved) == 1 and (tmp_path / "a").is_dir()


def test_checkpoint_unknown_figure_is_not_best(tmp_path):
    with pytest.warns(UserWarning, match="ModelCheckpoint monitors 'val_loss'"):
        checkpoint = ModelCheckpoint(tmp_path / "x.unifit", save_best_only=True)
        assert run([checkpoint], [{"loss": 1.0}], params={"validation": False}).saved == []


@pytest.mark.parametrize(
    ("path", "arguments", "told"),
    [
        ("x.keras", {}, "'.unifit'"),
        ("x.weights.h5", {"save_weights_only": True}, "'.safetensors'"),
        ("x.unifit", {"save_freq": "batch"}, "save_freq='batch'"),
        ("x.unifit", {"save_freq": 0}, "save_freq=0"),
        ("x.unifit", {"save_best_only": True, "monitor": "reward"}, "mode='max'"),
    ],
)
def test_checkpoint_bad_argument_is_refused_at_once(path, arguments, told):
    with pytest.raises(ArgumentError, match=told):
        ModelCheckpoint(path, **arguments)


def test_checkpoint_unknown_field_names_the_known_ones(tmp_path):
    with pytest.raises(ArgumentError, match="available: loss, val_loss, epoch"):
        run([ModelCheckpoint(tmp_path / "{accuracy}.unifit")], losses(1.0))


# S-CK-05: best score and patience outlive a restart


def test_restart_keeps_best_and_patience(tmp_path):
    def callbacks():
        return [EarlyStopping(patience=2), ModelCheckpoint(tmp_path / "best.unifit", save_best_only=True)]

    before = callbacks()
    assert len(run(before, losses(0.5, 0.3)).saved) == 2
    states = json.loads(json.dumps([callback.state() for callback in before]))

    after = callbacks()
    for callback, state in zip(after, states, strict=True):
        callback.load_state(state)
    model = run(after, losses(0.4, 0.6, 0.45), first=2)
    assert model.saved == []
    assert model.trained == 4
    assert after[0].best == after[1].best == 0.3


def test_restart_without_state_would_overwrite_and_go_on(tmp_path):
    model = run(
        [EarlyStopping(patience=2), ModelCheckpoint(tmp_path / "b.unifit", save_best_only=True)], losses(0.4, 0.6, 0.45)
    )
    assert model.trained == 3 and len(model.saved) == 1


def test_restart_only_the_next_fit_goes_on_from_the_state():
    stopping = EarlyStopping(patience=2)
    stopping.load_state({"best": 0.3, "best_epoch": 1, "wait": 1})
    assert run([stopping], losses(0.4)).trained == 1 and stopping.wait == 2
    run([stopping], losses(0.4))
    assert (stopping.best, stopping.wait) == (0.4, 0)


def test_restart_restores_the_best_weights_of_before():
    before, after = (EarlyStopping(patience=9, restore_best_weights=True) for _ in range(2))
    best = run([before], losses(0.5, 0.3, 0.6)).weight
    after.load_state(before.state())
    assert run([after], losses(0.4, 0.5), first=3).weight == best == 1.0


def test_restart_plateau_goes_on_with_its_rate_and_counts():
    def rates(plateau, values, first=0):
        history = History()
        run([plateau, history], losses(*values), first=first)
        return history.history["learning_rate"]

    arguments = {"factor": 0.5, "patience": 2, "cooldown": 2, "min_delta": 0.0}
    values = [3.0] * 9
    whole = rates(ReduceLROnPlateau(**arguments), values)
    assert whole == [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025]  # reduced after the epochs 2, 5 and 8
    for cut in range(1, len(values)):
        before, after = ReduceLROnPlateau(**arguments), ReduceLROnPlateau(**arguments)
        rates(before, values[:cut])
        after.load_state(json.loads(json.dumps(before.state())))
        assert rates(after, values[cut:], cut) == whole[cut:], cut


# Learning rates


def test_scheduler_sets_the_rate_and_logs_the_one_used():
    history = History()
    model = run([LearningRateScheduler(lambda epoch, rate: rate * 0.5), history], losses(1.0, 1.0))
    assert history.history["learning_rate"] == [0.05, 0.025]
    assert model.optimizer.learning_rate == 0.025 and model.optimizer.learning_rate_version == 2


def test_scheduler_function_of_the_epoch_alone():
    assert (
        run([LearningRateScheduler(lambda epoch: 1.0 / (epoch + 1))], losses(1.0, 1.0)).optimizer.learning_rate == 0.5
    )


def test_scheduler_type_error_inside_the_function_is_not_hidden():
    with pytest.raises(TypeError, match="unsupported operand"):
        run([LearningRateScheduler(lambda epoch, rate: rate + "1")], losses(1.0))


@pytest.mark.parametrize("rate", [None, -0.1, math.nan, "fast"])
def test_scheduler_no_rate_is_refused(rate):
    with pytest.raises(ArgumentError, match=f"returned {rate!r} for epoch 0"):
        run([LearningRateScheduler(lambda epoch: rate)], losses(1.0))


def test_scheduler_resumed_goes_on_with_its_rate():
    before = LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    run([before], losses(1.0, 1.0))
    after = LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    after.load_state(before.state())
    assert run([after], losses(1.0), first=2).optimizer.learning_rate == 0.0125


@pytest.mark.parametrize("callback", [LearningRateScheduler(lambda epoch: 0.1), ReduceLROnPlateau()])
def test_rate_setters_refuse_a_schedule_before_the_first_step(callback):
    with pytest.raises(ArgumentError, match="sets the learning rate, but the optimizer has the schedule"):
        run([callback], losses(1.0), FakeModel(lambda step: 0.1 * (step + 1)))


@pytest.mark.parametrize(
    ("arguments", "values", "rates"),
    [
        ({"patience": 2}, [3, 3, 3, 3, 3, 3], [0.1, 0.1, 0.1, 0.05, 0.05, 0.025]),
        ({"patience": 1, "cooldown": 1}, [3, 3, 3, 3, 3, 3], [0.1, 0.1, 0.05, 0.025, 0.0125, 0.00625]),
        ({"patience": 1, "cooldown": 2}, [3, 3, 3, 3, 3, 3], [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]),
        ({"patience": 1, "min_lr": 0.04}, [3, 3, 3, 3], [0.1, 0.1, 0.05, 0.04]),
        ({"patience": 1}, [3, 2, 1, 0.5], [0.1, 0.1, 0.1, 0.1]),
        ({"patience": 1, "min_delta": 0.5}, [3, 2.8, 2], [0.1, 0.1, 0.05]),
        ({"patience": 1, "mode": "max"}, [1, 2, 2], [0.1, 0.1, 0.1]),
    ],
)
def test_plateau_reduces_as_keras_does(arguments, values, rates):
    history = History()
    arguments = {"min_delta": 0.0} | arguments
    run([ReduceLROnPlateau(factor=0.5, **arguments), history], losses(*values))
    assert history.history["learning_rate"] == pytest.approx(rates)


def test_plateau_factor_of_one_is_refused():
    with pytest.raises(ArgumentError, match="factor=1.0"):
        ReduceLROnPlateau(factor=1.0)


# CSV


def rows(path, separator=","):
    with open(path, newline="") as file:
        return list(csv.reader(file, delimiter=separator))


def test_csv_one_row_an_epoch_columns_by_name(tmp_path):
    path = tmp_path / "runs" / "log.csv"
    run(
        [CSVLogger(path, separator=";")],
        [{"loss": 0.1, "accuracy": 0.5}, {"loss": 1 / 3}],
        params={"validation": False},
    )
    assert rows(path, ";") == [["epoch", "accuracy", "loss"], ["0", "0.5", "0.1"], ["1", "NA", repr(1 / 3)]]


def test_csv_has_room_for_later_validation(tmp_path):
    run([CSVLogger(tmp_path / "log.csv")], [{"loss": 1.0}, {"loss": 2.0, "val_loss": 3.0}])
    assert rows(tmp_path / "log.csv") == [["epoch", "loss", "val_loss"], ["0", "1.0", "NA"], ["1", "2.0", "3.0"]]


def test_csv_append_goes_on_under_the_old_header(tmp_path):
    path = tmp_path / "log.csv"
    for first, name in ((0, "loss"), (1, "loss")):
        run([CSVLogger(path, append=True)], [{name: 1.0}], first=first, params={"validation": False})
    assert rows(path) == [["epoch", "loss"], ["0", "1.0"], ["1", "1.0"]]
    with pytest.warns(UserWarning, match="no column for accuracy"):
        run([CSVLogger(path, append=True)], [{"loss": 1.0, "accuracy": 1.0}], first=2)
    assert rows(path)[-1] == ["2", "1.0"]


def test_csv_without_append_begins_anew_and_other_processes_write_nothing(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("old")
    run([CSVLogger(path)], [{"loss": 1.0}], params={"process": 1})
    assert path.read_text() == "old"
    run([CSVLogger(path)], [{"loss": 1.0}], params={"validation": False})
    assert rows(path) == [["epoch", "loss"], ["0", "1.0"]]


# NaN


def test_terminate_looks_at_fixed_steps_only(capsys):
    logs = Reads(loss=math.nan)
    callback = TerminateOnNaN(check_every=5)
    model = FakeModel()
    observers = CallbackList([callback], model, {})
    observers.on_epoch_begin(1, {})
    for step in range(9):
        observers.on_train_batch_end(step, logs)
        assert model.stop_training == (step >= 4)
    assert logs.looks == 1
    assert capsys.readouterr().out == "The loss is nan at step 5 of epoch 2: training stops.\n"


def test_terminate_at_the_end_of_a_short_epoch_and_raising():
    assert run([TerminateOnNaN()], [{"loss": math.inf}, {"loss": 1.0}], steps=3).trained == 1
    with pytest.raises(NonFiniteLossError, match="at the end of epoch 1"):
        run([TerminateOnNaN(raise_error=True)], [{"loss": math.nan}])
    assert run([TerminateOnNaN()], [{"loss": 1.0}] * 3, steps=100).trained == 3


# Lambdas


def test_lambda_hooks_are_called_with_their_arguments():
    calls = []
    callback = LambdaCallback(
        on_epoch_begin=lambda epoch, logs: calls.append(("epoch", epoch)),
        on_train_batch_end=lambda batch, logs: calls.append(("step", batch, logs["loss"])),
        on_test_end=lambda logs: calls.append("test"),
    )
    run([callback], [{"loss": 2.0}], steps=2)
    CallbackList([callback], None, {}).on_test_end({})
    assert calls == [("epoch", 0), ("step", 0, 2.0), ("step", 1, 2.0), "test"]


def test_lambda_unknown_hook_is_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'on_epoch_end'"):
        LambdaCallback(on_epoch_ends=print)
    with pytest.raises(ArgumentError, match="on_train_end=3"):
        LambdaCallback(on_train_end=3)


# Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(progress_bar, "perf_counter", lambda: now[0])
    return now


def test_progress_plain_line_an_epoch(capsys, clock):
    def tick(batch, logs):
        clock[0] += 0.5

    ticking = LambdaCallback(on_train_batch_end=tick)
    run([ticking, ProgressBar(2)], [{"loss": 0.5, "tiny": 3e-5, "skipped_updates": 2.0, "val_loss": 0.25}] * 2, steps=4)
    figures = "loss: 0.5000 - tiny: 3.0000e-05 - skipped_updates: 2 - val_loss: 0.2500"
    assert capsys.readouterr().out == (
        f"Epoch 1/2: 4 steps in 2.0 s (2.0 steps/s) - {figures}\n"
        f"Epoch 2/2: 4 steps in 2.0 s (2.0 steps/s) - {figures}\n"
    )


def test_progress_time_of_validation_is_not_the_steps(capsys, clock):
    observers = CallbackList([ProgressBar(2)], None, {"epochs": 1, "steps": 2})
    observers.on_train_begin({})
    observers.on_epoch_begin(0, {})
    clock[0] += 1.0
    observers.on_train_batch_end(0, {})
    observers.on_test_begin({})
    observers.on_test_batch_end(0, {})
    clock[0] += 9.0
    observers.on_test_end({"loss": 1.0})
    observers.on_epoch_end(0, {"loss": 1.0})
    assert capsys.readouterr().out == "Epoch 1/1: 1 step in 1.0 s (1.0 steps/s) - loss: 1.0000\n"


def test_progress_live_bar_shows_steps_rate_rest_and_figures(capsys, clock, monkeypatch):
    from tqdm import std

    monkeypatch.setattr(std, "time", lambda: clock[0])
    logs = Reads(loss=0.5)
    observers = CallbackList([ProgressBar(1)], None, {"epochs": 3, "steps": 40})
    observers.on_train_begin({})
    observers.on_epoch_begin(0, {})
    for step in range(20):
        clock[0] += 0.25
        observers.on_train_batch_end(step, logs)
    assert logs.looks == 10  # every half second, not every step
    last = capsys.readouterr().out.split("\r")[-1]
    assert "Epoch 1/3:  50%|" in last and "20/40 [00:05<00:05,  4.00 steps/s, loss: 0.5000]" in last
    observers.on_epoch_end(0, {"loss": 0.5, "val_loss": 0.75})
    last = capsys.readouterr().out.split("\r")[-1]
    assert "100%" in last and "loss: 0.5000 - val_loss: 0.7500]" in last and last.endswith("\n")


def test_progress_live_bar_without_a_known_number_of_steps(capsys):
    observers = CallbackList([ProgressBar(1)], None, {"epochs": 1, "steps": None})
    observers.on_train_begin({})
    observers.on_epoch_begin(0, {})
    observers.on_train_batch_end(0, {})
    observers.on_epoch_end(0, {"loss": 1.0})
    assert "1/1 [" in capsys.readouterr().out.split("\r")[-1]


def test_progress_interrupted_bar_ends_its_line(capsys):
    with pytest.raises(KeyboardInterrupt):
        run(
            [ProgressBar(1), LambdaCallback(on_epoch_end=lambda e, l: (_ for _ in ()).throw(KeyboardInterrupt()))], [{}]
        )
    assert capsys.readouterr().out.endswith("\n")


def test_progress_message_of_another_callback_stands_above_the_bar(capsys):
    run([EarlyStopping("loss", verbose=1), ProgressBar(1)], [{"loss": 1.0}, {"loss": 2.0}], steps=1)
    lines = [line.split("\r")[-1] for line in capsys.readouterr().out.split("\n")]
    assert "Epoch 2: early stopping, loss was best in epoch 1." in lines


@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_other_processes_and_silence_print_nothing(capsys, verbose):
    run([ProgressBar(verbose)], [{"loss": 1.0}], steps=3, params={"process": 1})
    run([ProgressBar(0)], [{"loss": 1.0}], steps=3)
    assert capsys.readouterr().out == ""


def test_progress_evaluation_shows_its_figures_at_the_end_only(capsys):
    for verbose in (1, 2):
        logs = Reads(loss=1.0)
        observers = CallbackList([ProgressBar(verbose)], None, {"steps": 3})
        observers.on_test_begin({})
        for step in range(3):
            observers.on_test_batch_end(step, logs)
        assert logs.looks == 0
        observers.on_test_end({"loss": 1.5})
        last = capsys.readouterr().out.split("\r")[-1]
        assert last.startswith("Evaluate: ") and "loss: 1.5000" in last


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_progress_step_costs_a_look_at_the_clock(verbose, capsys):
    observers = CallbackList([ProgressBar(verbose)], None, {"epochs": 1, "steps": None})
    observers.on_train_begin({})
    observers.on_epoch_begin(0, {})
    logs, calls, steps = Reads(loss=1.0), [0], 1000

    def count(frame, event, argument):
        calls[0] += event == "call"

    sys.setprofile(count)
    try:
        for step in range(steps):
            observers.on_train_batch_end(step, logs)
    finally:
        sys.setprofile(None)
    observers.on_train_end({})
    assert calls[0] / steps <= 1.2  # a redraw may fall into a slow loop


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_verbosity_auto_asks_standard_output(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert progress_bar.verbosity("auto") == 1
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert progress_bar.verbosity("auto") == 2
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    assert progress_bar.verbosity("auto") == 1
    with pytest.raises(ArgumentError, match="verbose=3"):
        progress_bar.verbosity(3)


# TensorBoard


def scalars(folder):
    """{tag: [(step, value)]} of the event files in a folder: their records are length, checksum, event, checksum."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                kind = value.simple_value if value.HasField("simple_value") else "histogram"
                found.setdefault(value.tag, []).append((event.step, kind))
    return found


def test_tensorboard_epochs_and_steps_are_read_back(tmp_path):
    run(
        [TensorBoard(tmp_path, update_freq=2)],
        [{"loss": 0.5, "val_loss": 0.25}, {"loss": 0.75, "val_loss": 1.0}],
        steps=3,
    )
    train, validation = scalars(tmp_path / "train"), scalars(tmp_path / "validation")
    assert train["epoch_loss"] == [(0, 0.5), (1, 0.75)]
    assert train["batch_loss"] == [(2, 0.5), (4, 0.75), (6, 0.75)]
    assert [step for step, _ in train["epoch_learning_rate"]] == [0, 1]
    assert validation == {"epoch_loss": [(0, 0.25), (1, 1.0)]}


def test_tensorboard_histograms_rates_and_evaluation(tmp_path):
    board = TensorBoard(tmp_path, histogram_freq=2, write_steps_per_second=True)
    run([board], [{"loss": 1.0}] * 3, steps=2)
    train = scalars(tmp_path / "train")
    assert train["dense.kernel/histogram"] == [(0, "histogram"), (2, "histogram")]
    assert len(train["epoch_steps_per_second"]) == 3 and "batch_loss" not in train
    CallbackList([board], FakeModel(), {}).on_test_end({"loss": 4.0})
    assert scalars(tmp_path / "validation") == {"evaluation_loss_vs_iterations": [(6, 4.0)]}


def test_tensorboard_other_processes_write_nothing(tmp_path):
    run([TensorBoard(tmp_path, update_freq="batch", histogram_freq=1)], [{"loss": 1.0}], steps=2, params={"process": 1})
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_missing_package_is_one_line_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError) as raised:
        TensorBoard("logs")
    assert 'pip install "unifit[tensorboard]"' in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_tensorboard_arguments_without_a_place_here_are_refused():
    TensorBoard("logs", write_graph=False, profile_batch=0)
    with pytest.raises(ArgumentError, match="profiler"):
        TensorBoard("logs", profile_batch=(10, 20))
    with pytest.raises(TypeError, match="no argument 'freq'"):
        TensorBoard("logs", freq=1)
    with pytest.raises(ArgumentError, match="update_freq='step'"):
        TensorBoard("logs", update_freq="step")
