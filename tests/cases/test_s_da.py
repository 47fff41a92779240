"""S-DA and S-PF-02: data inputs, from public failure reports. A scalar model gives every expected value exactly.

The loss is the prediction, so a row's loss is its x times the weight; at learning rate 0 and weight 1 it is x itself.
"""

import importlib.util

import numpy as np
import pytest

import unifit as uf
from unifit.errors import UnifitError

TOLERANCE = 1e-6

FRAMEWORK_SOURCES = [
    name
    for name, module in (("torch loader", "torch"), ("tf.data", "tensorflow"))
    if importlib.util.find_spec(module) is not None
]


def scalar_model(rate=0.0, accumulation=1, weight="ones", layers=()):
    model = uf.Sequential([*layers, uf.layers.Dense(1, use_bias=False, kernel_initializer=weight)])
    model.compile(uf.optimizers.SGD(rate), lambda y, p: p[..., 0], gradient_accumulation_steps=accumulation)
    return model


def close(value, expected):
    np.testing.assert_allclose(value, expected, rtol=TOLERANCE, atol=TOLERANCE)


def source_of(kind, batches):
    """The batches (tuples of arrays, equal in length but for the last) as a source of this kind."""
    if kind == "generator":
        return iter(batches)
    if kind == "function":
        return lambda: iter(batches)
    if kind == "indexed":
        return Indexed(batches)
    parts = [np.concatenate(part) for part in zip(*batches, strict=True)]
    if kind == "torch loader":
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        return DataLoader(TensorDataset(*map(torch.from_numpy, parts)), batch_size=len(batches[0][0]))
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(tuple(parts)).batch(len(batches[0][0]))


class Indexed:
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_s_da_01_reported_loss_weighs_samples(accumulation):
    x = np.array([[2.0], [4.0], [9.0]])
    model = scalar_model(accumulation=accumulation)
    history = model.fit(x, x, batch_size=2, verbose=0, shuffle=False, validation_data=(x, x))
    close([history.history["loss"], history.history["val_loss"]], [[5.0], [5.0]])
    close(model.evaluate(x, x, batch_size=2, verbose=0), 5.0)
    batches = [(x[:2], x[:2]), (x[2:], x[2:])]
    close(model.evaluate(source_of("function", batches), verbose=0), 5.0)


LOSSES = np.array([[1.0], [2.0], [3.0]])
LABELS = {"sparse": np.array([0, 0, 1]), "one-hot": np.eye(2, dtype=np.float32)[[0, 0, 1]]}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["arrays", "dict", "generator", "indexed", *FRAMEWORK_SOURCES])
def test_s_da_02_class_weight_works_with_every_source(kind, weighted, labels):
    y = LABELS[labels]
    weight = np.array([1.0, 1.0, 0.5])
    expected = (1 + 2 + 7.5) / 3 if weighted else (1 + 2 + 15) / 3
    options = {"class_weight": {0: 1, 1: 5}, "verbose": 0}
    model = scalar_model()
    if kind in ("arrays", "dict"):
        x = LOSSES
        if kind == "dict":
            x, model = {"a": LOSSES}, FromDict()
        history = model.fit(x, y, sample_weight=weight if weighted else None, validation_data=(x, y), **options)
    else:
        batch = (LOSSES, y, weight) if weighted else (LOSSES, y)
        history = model.fit(source_of(kind, [batch]), validation_data=(LOSSES, y), **options)
    close(history.history["loss"], [expected])
    close(history.history["val_loss"], [2.0])


class FromDict(uf.Model):
    """The scalar model of the input `a`."""

    def __init__(self):
        super().__init__()
        self.dense = uf.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.compile(uf.optimizers.SGD(0.0), lambda y, p: p[..., 0])

    def call(self, x):
        return self.dense(x["a"])


def test_s_da_02_class_that_is_not_named_has_weight_1():
    history = scalar_model().fit(LOSSES, LABELS["sparse"], class_weight={1: 5}, verbose=0)
    close(history.history["loss"], [6.0])


def test_s_da_02_class_weight_with_a_mask_is_refused():
    with pytest.raises(UnifitError, match="a mask"):
        scalar_model().fit(
            LOSSES, LABELS["sparse"], sample_weight=np.array([True, True, False]), class_weight={1: 5}, verbose=0
        )


class CountedBatches:
    """Batches of loss 1, 2, 3, 4; counts what is drawn."""

    def __init__(self):
        self.drawn = 0

    def __iter__(self):
        for value in (1.0, 2.0, 3.0, 4.0):
            self.drawn += 1
            yield np.full((2, 1), value), np.zeros(2)


class CountedIndexed(CountedBatches):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.drawn += 1
        return np.full((2, 1), index + 1.0), np.zeros(2)


@pytest.mark.parametrize("kind", ["iterable", "function", "indexed"])
def test_s_da_03_validation_with_a_limit_sees_the_same_batches_each_epoch(kind):
    counted = CountedIndexed() if kind == "indexed" else CountedBatches()
    data = (lambda: iter(counted)) if kind == "function" else counted
    drawn = []
    watch = uf.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: drawn.append(counted.drawn))
    history = scalar_model().fit(
        LOSSES, LOSSES, epochs=3, validation_data=data, validation_steps=2, callbacks=[watch], verbose=0
    )
    close(history.history["val_loss"], [1.5, 1.5, 1.5])
    assert drawn == [2, 4, 6]


def test_s_da_03_one_shot_validation_is_refused_before_training():
    counted = CountedBatches()
    model = scalar_model(rate=1.0)
    with pytest.raises(UnifitError, match="validation data would be read 3 times"):
        model.fit(LOSSES, LOSSES, epochs=3, validation_data=iter(counted), validation_steps=2, verbose=0)
    assert counted.drawn == 0
    history = model.fit(LOSSES, LOSSES, validation_data=iter(counted), validation_steps=2, verbose=0)
    assert len(history.history["val_loss"]) == 1 and counted.drawn == 2


@pytest.mark.parametrize(("steps", "epochs"), [(4, 1), (2, 2), (None, 1)])
def test_s_da_04_no_batch_is_eaten_by_building_the_model(steps, epochs):
    read = []

    def batches():
        for number in range(4):
            read.append(number)
            yield np.full((1, 1), float(number)), np.zeros(1)

    model = scalar_model(rate=1.0, weight="zeros")
    losses = []
    watch = uf.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    model.fit(batches(), steps_per_epoch=steps, epochs=epochs, callbacks=[watch], verbose=0)
    # Each update takes its batch's id from the weight: the sum of ids, each once.
    close(model.get_weights()[0], [[-6.0]])
    assert read == [0, 1, 2, 3] and len(losses) == 4


def test_s_da_04_generator_that_runs_dry_warns_and_ends_training():
    batches = ((np.ones((1, 1)), np.zeros(1)) for _ in range(3))
    model = scalar_model(rate=1.0, weight="zeros")
    with pytest.warns(UserWarning, match="ran out") as caught:
        history = model.fit(batches, steps_per_epoch=2, epochs=5, verbose=0)
    assert len(caught) == 1 and len(history.history["loss"]) == 2
    close(model.get_weights()[0], [[-3.0]])


EMPTY = {
    "empty list": lambda: ([], []),
    "empty array": lambda: (np.zeros((0, 1)), np.zeros(0)),
    "empty generator": lambda: (iter([]), None),
    "empty function": lambda: ((lambda: iter([])), None),
    "empty indexed": lambda: (Indexed([]), None),
}
if "torch loader" in FRAMEWORK_SOURCES:

    def short_loader():
        from torch.utils.data import DataLoader

        return DataLoader(np.zeros((3, 1), np.float32), batch_size=4, drop_last=True), None

    EMPTY["torch loader that drops its only batch"] = short_loader


@pytest.mark.parametrize("kind", EMPTY)
def test_s_da_05_data_without_a_batch_is_refused_before_training(kind):
    seen = []
    watch = uf.callbacks.LambdaCallback(on_train_begin=lambda logs: seen.append(1))
    x, y = EMPTY[kind]()
    with pytest.raises(ValueError, match="no batch|no rows"):
        scalar_model().fit(x, y, callbacks=[watch], verbose=0)
    x, y = EMPTY[kind]()
    data = (x, y) if y is not None else x
    with pytest.raises(ValueError, match="no batch|no rows"):
        scalar_model().fit(LOSSES, LOSSES, validation_data=data, callbacks=[watch], verbose=0)
    assert not seen


def test_generator_for_many_epochs_is_refused_before_training():
    counted = CountedBatches()
    with pytest.raises(UnifitError, match="training data would be read 2 times"):
        scalar_model().fit(iter(counted), epochs=2, verbose=0)
    assert counted.drawn == 0


def test_validation_split_takes_the_last_rows():
    x = np.arange(10.0)[:, None]
    history = scalar_model().fit(x, x, validation_split=0.2, verbose=0)
    close([history.history["loss"], history.history["val_loss"]], [[3.5], [8.5]])
    with pytest.raises(UnifitError, match="validation_data instead"):
        scalar_model().fit(lambda: iter([(x, x)]), validation_split=0.2, verbose=0)


def test_initial_epoch_starts_with_that_epochs_order():
    x = np.arange(6.0)[:, None]

    def losses(**options):
        return scalar_model().fit(x, x, batch_size=2, epochs=3, steps_per_epoch=2, verbose=0, **options).history["loss"]

    close(losses(initial_epoch=1), losses()[1:])


def test_large_batches_are_read_ahead_with_the_same_numbers():
    import threading

    x = np.random.default_rng(0).normal(size=(12, 2**17)).astype(np.float32)
    names = set()
    watch = uf.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: names.update(thread.name for thread in threading.enumerate())
    )

    def loss(data, y=None, **options):
        return scalar_model(rate=1e-6).fit(data, y, verbose=0, callbacks=[watch], **options).history["loss"]

    whole = loss(x, x[:, 0], batch_size=4, epochs=2, shuffle=False)
    assert "unifit-read-ahead" in names
    assert whole == loss(Indexed([(x[i : i + 4], x[i : i + 4, 0]) for i in (0, 4, 8)]), epochs=2, shuffle=False)
    assert not [thread for thread in threading.enumerate() if thread.name == "unifit-read-ahead"]


def test_error_in_a_generator_ends_training_with_its_own_message():
    def batches():
        yield np.ones((1, 1)), np.zeros(1)
        raise ValueError("bad sample 17")

    with pytest.raises(ValueError, match="bad sample 17"):
        scalar_model().fit(batches(), verbose=0)


@pytest.mark.backends("jax", reason="traces are counted by the jax engine so far")
def test_s_pf_02_ragged_last_batch_is_compiled_once():
    x = np.arange(10.0)[:, None]
    model = scalar_model()
    history = model.fit(x, x, batch_size=4, epochs=3, verbose=0)
    close(history.history["loss"], [4.5] * 3)
    assert model.trainer.engine.traces == 1


def test_s_pf_02_many_lengths_bring_a_warning():
    batches = [(np.ones((2, length, 1)), np.zeros((2, length))) for length in (5, 6, 7, 8)]
    with pytest.warns(UserWarning, match="many shapes"):
        scalar_model().fit(source_of("function", batches), verbose=0)
