"""A run that goes on from a checkpoint is the run that was not interrupted; what makes it another one is refused."""

import numpy as np
import pytest

import checkpoint_scenarios as scenarios
import unifit as uf
import unifit.training.trainer as trainer
from unifit.checkpoint import newest
from unifit.errors import ArgumentError, CheckpointError


def assert_equal(got, want, names):
    for name in names:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


# The numbers


@pytest.mark.parametrize("fold", [None, 40], ids=["on_device", "folded"])
def test_epochs_figures_and_weights_go_on_to_the_last_bit(tmp_path, monkeypatch, fold):
    """30 rows, 4 updates an epoch: stopped after 6 of 12, in the second epoch; `folded`: sums move every other step."""
    if fold is not None:
        monkeypatch.setattr(trainer, "EXACT_ELEMENTS", fold)  # a batch has 24 elements
    options = {"dropout": 0.5, "validation_split": 0.2}
    straight = scenarios.small_run(1, None, **options)
    scenarios.small_run(1, tmp_path, checkpoint_every=6, stop_after=6, **options)
    assert ("sums.folded" in newest(tmp_path).arrays("metrics")) == (fold is not None)
    resumed = scenarios.small_run(1, tmp_path, checkpoint_every=6, **options)
    assert resumed["epochs"].tolist() == [1, 2] and resumed["numbers"].tolist() == [2, 3, 0, 1, 2, 3]
    np.testing.assert_array_equal(resumed["running"], straight["running"][6:])
    figures = [name for name in straight if name.startswith("history ")]
    assert {"history loss", "history mae", "history val_loss", "history val_mae", "history grad_norm"} <= set(figures)
    for name in figures:
        np.testing.assert_array_equal(resumed[name], straight[name][1:], err_msg=name)
    assert_equal(resumed, straight, (name for name in straight if name.startswith("weight ")))


def test_run_that_goes_on_in_the_middle_of_an_epoch_says_so(tmp_path):
    class Params(uf.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.resumed_at = self.params.get("resumed_at")

    x = np.ones((6, 1), np.float32)
    seen = []
    for stop_after in (5, None):
        model = uf.Sequential([uf.layers.Dense(1)])
        model.compile("sgd", "mse")
        seen.append(Params())
        scenarios.interruptible(
            model, x, x, batch_size=2, epochs=3, checkpoint_dir=tmp_path, checkpoint_every=5, stop_after=stop_after,
            callbacks=[seen[-1]],
        )  # fmt: skip
    assert [params.resumed_at for params in seen] == [None, (1, 2)]


def test_notice_on_standard_error_names_the_checkpoint(tmp_path, capfd):
    x = np.ones((4, 1), np.float32)
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("sgd", "mse")
    stop = scenarios.InterruptAfter(3)
    with pytest.raises(scenarios.Interrupted):
        model.fit(x, x, batch_size=2, epochs=3, verbose=0, checkpoint_dir=tmp_path, callbacks=[stop])
    capfd.readouterr()
    model.fit(x, x, batch_size=2, epochs=3, verbose=2, checkpoint_dir=tmp_path)
    assert f"goes on from '{tmp_path / 'step-00000002'}'" in capfd.readouterr().err


# Callbacks


def test_plateau_and_its_learning_rate_go_on(tmp_path):
    """Patience 2 on a loss that stands still: rates 1, 1, 1, 0.5, 0.5, 0.25; each update moves w by its rate."""

    def run(folder, stop_after=None):
        plateau = uf.callbacks.ReduceLROnPlateau("score", 0.5, patience=2, mode="min", min_delta=0)
        script = scenarios.Script(score=[1.0] * 6)
        return scenarios.unit_run(folder, 6, [script, plateau], stop_after)[0]

    assert run(None) == -4.25
    assert run(tmp_path, stop_after=4) == -3.5
    state = newest(tmp_path).state
    assert (state["optimizer"]["learning_rate"], state["optimizer"]["initial_learning_rate"]) == (0.5, 1.0)
    assert state["callbacks"]["ReduceLROnPlateau"]["wait"] == 1
    assert run(tmp_path) == -4.25


def test_changed_learning_rate_holds_with_a_notice(tmp_path):
    scenarios.unit_run(tmp_path, 4, stop_after=2)
    with pytest.warns(UserWarning, match="learning rate was 1.0 .* 0.25 now.*at update 2"):
        assert scenarios.unit_run(tmp_path, 4, rate=0.25)[0] == -2.5


def test_best_weights_of_early_stopping_go_on(tmp_path):
    """Best after the second epoch; interrupted after the third; stopped after the fourth, with w of the second."""

    def run(stop_after=None):
        early = uf.callbacks.EarlyStopping("score", patience=2, mode="min", restore_best_weights=True)
        script = scenarios.Script(score=[2.0, 1.0, 3.0, 3.0, 3.0])
        return scenarios.unit_run(tmp_path, 5, [script, early], stop_after)

    run(stop_after=3)
    w, history = run()
    assert w == -2.0
    assert history.history["score"] == [3.0]  # the fourth


class Counts(uf.callbacks.Callback):
    """Has a state of every form that one may have."""

    state_names = ("number", "nested", "array", "odd")

    def __init__(self, start=0):
        self.number, self.nested, self.array, self.odd = start, {}, None, None

    def on_epoch_end(self, epoch, logs=None):
        self.number += 1
        self.nested = {"list": [epoch, "text", None, True], "tuple": (1.5,), "arrays": [np.arange(3), np.float64(2.5)]}
        self.array = np.array([[1.5, np.nan]], np.float64)
        self.odd = [float("inf"), -float("inf")]


def test_states_of_two_callbacks_of_a_class_go_on_apart(tmp_path):
    scenarios.unit_run(tmp_path, 4, [Counts(), Counts(10)], stop_after=2)
    resumed = [Counts(), Counts(10)]
    scenarios.unit_run(tmp_path, 2, resumed)
    assert [callback.number for callback in resumed] == [2, 12]
    for callback in resumed:
        assert callback.nested["list"] == [1, "text", None, True] and callback.nested["tuple"] == [1.5]
        np.testing.assert_array_equal(callback.nested["arrays"][0], [0, 1, 2])
        np.testing.assert_array_equal(callback.array, [[1.5, np.nan]])
        assert callback.array.dtype == np.float64 and callback.odd == [float("inf"), -float("inf")]


@pytest.mark.parametrize("state", [object(), {1: 2}, {1, 2}, np.array([object()]), b"bytes", lambda: 0])
def test_state_that_cannot_be_written_is_refused_before_training(tmp_path, state):
    class Odd(scenarios.Seen):
        def state(self):
            return {"value": state}

    odd = Odd()
    with pytest.raises(ArgumentError, match="state of the callback Odd cannot be written"):
        scenarios.unit_run(tmp_path, 2, [odd])
    assert odd.epochs == []


class FreezeFirst(uf.callbacks.Callback):
    """Freezes the first layer after the second step of the run, once."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (0, 1):
            self.model.layers[0].trainable = False


def freezing(folder, stop_after=None):
    r = np.random.default_rng(0)
    x, y = (r.normal(size=(16, size)).astype("float32") for size in (4, 2))
    model = uf.Sequential([uf.layers.Dense(3, "tanh"), uf.layers.Dense(2)])
    model.compile(uf.optimizers.Adam(0.1), "mse")
    scenarios.interruptible(
        model, x, y, batch_size=4, epochs=2, callbacks=[FreezeFirst()], stop_after=stop_after, checkpoint_dir=folder,
        checkpoint_every=3,
    )  # fmt: skip
    return model.weights_by_path()


def test_layer_that_was_frozen_in_mid_run_stays_so_and_keeps_its_slots(tmp_path):
    straight = freezing(tmp_path / "straight")
    freezing(tmp_path / "run", stop_after=3)
    state = newest(tmp_path / "run").state
    assert state["frozen"] and not state["weights"]["0.kernel"]["trainable"]
    slots = newest(tmp_path / "run").arrays("optimizer")
    assert np.any(slots["optimizer.adam.m.0.kernel"])
    resumed = freezing(tmp_path / "run")
    assert_equal(resumed, straight, straight)
    last = newest(tmp_path / "run").arrays("optimizer")
    assert_equal(last, newest(tmp_path / "straight").arrays("optimizer"), last)
    assert_equal(last, slots, ["optimizer.adam.m.0.kernel", "optimizer.adam.v.0.kernel"])


# What is refused


def linear(folder, *, seed=0, rows=24, optimizer="adam", units=2, stop_after=None, compiled=(), **options):
    """A run of 6 batches an epoch; returns the CheckpointError or None, what its callback saw, and the model."""
    uf.set_seed(seed)
    r = np.random.default_rng(0)
    x, y = (r.normal(size=(24, size)).astype("float32") for size in (4, 2))
    model = uf.Sequential([uf.Input((4,)), uf.layers.Dense(units, "tanh"), uf.layers.Dense(2)])
    model.compile(optimizer, "mse", **dict(compiled))
    seen = scenarios.Seen()
    settings = {"batch_size": 4, "epochs": 2, "checkpoint_every": 2, "checkpoint_dir": folder} | options
    try:
        scenarios.interruptible(model, x[:rows], y[:rows], callbacks=[seen], stop_after=stop_after, **settings)
    except CheckpointError as error:
        return error, seen, model
    return None, seen, model


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Checkpoints in the middle of the second epoch, after 8 of 12 steps, and at the end of the first."""
    folder = tmp_path_factory.mktemp("runs")
    linear(folder / "middle", stop_after=8)
    linear(folder / "end", stop_after=6, checkpoint_every="epoch")
    return {"middle": folder / "middle" / "step-00000008", "end": folder / "end" / "step-00000006"}


CHANGES = {
    "batch_size": ({"batch_size": 6}, ("batch_size", "4", "6")),
    "rows": ({"rows": 20}, ("rows", "24", "20")),
    "shuffle": ({"shuffle": False}, ("shuffle", "True", "False")),
    "steps_per_epoch": ({"steps_per_epoch": 5}, ("steps_per_epoch", "None", "5")),
    "accumulation": ({"compiled": {"gradient_accumulation_steps": 2}}, ("gradient_accumulation_steps", "1", "2")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_order_of_rows_is_refused_in_the_middle_of_an_epoch(runs, change):
    options, words = CHANGES[change]
    error, seen, _ = linear(None, resume=runs["middle"], **options)
    assert error is not None and seen.calls == []
    assert all(word in str(error) for word in words) and "step-00000008" in str(error)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("default::UserWarning")  # some are told of
def test_another_order_of_rows_is_taken_at_an_epochs_end(runs, change):
    options, _ = CHANGES[change]
    error, seen, _ = linear(None, resume=runs["end"], **options)
    assert error is None and seen.epochs == [1]


@pytest.mark.parametrize("where", ["middle", "end"])
def test_another_seed_is_refused(runs, where):
    error, seen, _ = linear(None, resume=runs[where], seed=5)
    assert error is not None and seen.calls == []
    assert "seed 0" in str(error) and "uf.set_seed(0)" in str(error) and "5" in str(error)


@pytest.mark.parametrize(
    "where, options, words",
    [
        ("end", {"optimizer": "sgd"}, ("rule 'adam'", "with 'sgd'")),
        ("end", {"units": 3}, ("(2,)", "(3,)")),
        ("middle", {"compiled": {"metrics": ["mae"]}}, ("sums of losses and metrics",)),
    ],
    ids=["rule", "shape", "metrics"],
)
def test_another_model_is_refused_and_stays_as_it_was(runs, where, options, words):
    error, seen, model = linear(None, resume=runs[where], **options)
    assert error is not None and seen.calls == []
    assert all(word in str(error) for word in words) and runs[where].name in str(error)
    untrained = uf.Sequential(
        [uf.Input((4,)), uf.layers.Dense(options.get("units", 2), "tanh"), uf.layers.Dense(2)]
    ).weights_by_path()
    assert_equal(model.weights_by_path(), untrained, untrained)
    x = np.ones((4, 4), np.float32)
    model.fit(x, x[:, :2], verbose=0)
