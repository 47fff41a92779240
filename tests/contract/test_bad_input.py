"""Bad input is refused before training starts, in one form: what was passed, what was expected, how to mend it."""

import os
import subprocess
import sys

import numpy as np
import pytest

import unifit as uf
from unifit.errors import ArgumentError, ShapeError, UnifitError, UnknownNameError

X = np.ones((32, 6), np.float32)
CLASSES = np.zeros(32, np.int32)


class Untouched(uf.callbacks.Callback):
    """Fails when training begins."""

    def on_train_batch_begin(self, batch, logs=None):
        pytest.fail("training began")


def compiled(loss="sparse_categorical_crossentropy", units=10, **options):
    model = uf.Sequential([uf.layers.Dense(units)])
    model.compile("sgd", loss, **options)
    return model


def refused(error, model, x, y=None, **options):
    with pytest.raises(error) as caught:
        model.fit(x, y, verbose=0, callbacks=[Untouched()], **options)
    return str(caught.value)


def test_wrong_label_shape():
    message = refused(ShapeError, compiled(), X, np.zeros((32, 10), np.int32))
    assert message == (
        "Loss 'sparse_categorical_crossentropy' got labels of shape (32, 10) and predictions of shape (32, 10); it "
        "needs labels of shape (32,) (class indices). For one-hot labels use 'categorical_crossentropy'."
    )


def test_labels_that_are_no_class():
    message = refused(ArgumentError, compiled(), X, CLASSES + 10)
    assert "from 10 to 10" in message and "from 0 to 9" in message and "ignore_class" in message


def test_labels_that_are_no_class_may_be_left_out():
    labels = CLASSES.copy()
    labels[::2] = -100
    for loss, options in (
        (uf.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100), {}),
        (uf.losses.SparseCategoricalCrossentropy(from_logits=True), {"sample_weight": labels >= 0}),
    ):
        history = compiled(loss).fit(X, labels, verbose=0, **options).history
        assert np.isfinite(history["loss"]).all()


def test_labels_of_another_width():
    message = refused(ShapeError, compiled("mse", units=3), X, np.zeros((32, 4), np.float32))
    assert "(32, 4)" in message and "(32, 3)" in message


@pytest.mark.parametrize(
    ("options", "wrong", "right"),
    [
        (
            {"loss": "sparse_categorical_crossentrpy"},
            "sparse_categorical_crossentrpy",
            "sparse_categorical_crossentropy",
        ),
        ({"loss": "mse", "metrics": ["acuracy"]}, "acuracy", "accuracy"),
        ({"loss": "mse", "optimizer": "adamm"}, "adamm", "adam"),
    ],
)
def test_unknown_name_suggests_the_nearest(options, wrong, right):
    model = uf.Sequential([uf.layers.Dense(3)])
    with pytest.raises(UnknownNameError) as caught:
        model.compile(**{"optimizer": "sgd"} | options)
    assert repr(wrong) in str(caught.value) and right in str(caught.value)


def test_unknown_activation_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="relu"):
        uf.layers.Dense(3, activation="rellu")


def test_empty_data():
    message = refused(ArgumentError, compiled(), X[:0], CLASSES[:0])
    assert "no rows" in message


def test_batch_size_zero():
    message = refused(ArgumentError, compiled(), X, CLASSES, batch_size=0)
    assert "batch_size" in message and "0" in message and "at least 1" in message


def test_missing_loss():
    message = refused(ArgumentError, compiled(None), X, CLASSES)
    assert "loss" in message and "compile(" in message


def test_missing_labels():
    assert "labels" in refused(UnifitError, compiled(), X)


def test_lengths_that_differ():
    message = refused(ShapeError, compiled(), X, CLASSES[:-1])
    assert "32" in message and "31" in message


def test_fit_before_compile():
    message = refused(UnifitError, uf.Sequential([uf.layers.Dense(2)]), X, CLASSES)
    assert "compile" in message


def test_integers_outside_int32():
    message = refused(ArgumentError, compiled(), X, CLASSES.astype(np.int64) + 2**40)
    assert "int32" in message


def test_unbuilt_model_saved(tmp_path):
    with pytest.raises(UnifitError) as caught:
        compiled().save(tmp_path / "model.unifit")
    assert "build" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 0},
        {"clip_norm": 0.0},
        {"clip_value": -1.0},
        {"precision": "float8"},
    ],
)
def test_compile_refuses(options):
    with pytest.raises(UnifitError, match=next(iter(options))):
        compiled(**options)


@pytest.mark.parametrize("devices", [0, -1, 1.5, True])
def test_data_parallel_refuses(devices):
    with pytest.raises(ArgumentError, match="devices"):
        uf.DataParallel(devices=devices)


def python(code, **environment):
    """Runs code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=100
    )


def test_backend_that_does_not_exist():
    done = python("import unifit", UNIFIT_BACKEND="jxa")
    assert done.returncode and "'jxa'" in done.stderr and "jax" in done.stderr


@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_backend_that_is_not_installed(framework):
    code = f"""
import importlib.util as util, sys
find = util.find_spec
util.find_spec = lambda name, *rest: None if name == {framework!r} else find(name, *rest)
import unifit
"""
    done = python(code, UNIFIT_BACKEND=framework)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and f'pip install "unifit[{framework}]"' in last and framework in last


def test_more_devices_than_the_machine_shows(backend_name):
    """A machine that shows 2: two virtual devices, or a job of two processes. It refuses 3 before data is read."""
    code = """
import numpy as np, unifit as uf
class Data:
    def __len__(self): raise SystemExit("data was read")
    def __getitem__(self, i): raise SystemExit("data was read")
model = uf.Sequential([uf.layers.Dense(2)])
model.compile("sgd", "mse")
uf.ops.ones((2,))
try:
    model.fit(Data(), distribution=uf.DataParallel(devices=3))
except uf.errors.UnsupportedError as error:
    print(error)
"""
    environment = {"UNIFIT_CPU_DEVICES": "2"}
    if backend_name == "torch":
        environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # never reached
    done = python(code, **environment)
    assert done.returncode == 0, done.stderr
    assert "3" in done.stdout and "2" in done.stdout and backend_name in done.stdout
