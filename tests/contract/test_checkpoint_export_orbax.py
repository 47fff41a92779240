"""Leaving for JAX: Orbax restores what was written, as a nested dict."""

import os

import numpy as np
import pytest

import unifit as uf
from unifit.checkpoint import export
from unifit.errors import ArgumentError

pytestmark = pytest.mark.backends("jax", reason="Orbax is JAX's")


@pytest.fixture(scope="module")
def orbax():
    return pytest.importorskip("orbax.checkpoint")


def trained(folder):
    model = uf.Sequential([uf.layers.Dense(4), uf.layers.BatchNormalization(), uf.layers.Dense(2)])
    model.compile("sgd", "mse", ema=uf.EMA(0.5))
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    model.fit(x, x[:, :2], batch_size=4, epochs=1, verbose=0, checkpoint_dir=folder)
    return model


def flat(tree, prefix=""):
    found = {}
    for name, entry in tree.items():
        found |= flat(entry, f"{prefix}{name}.") if isinstance(entry, dict) else {prefix + name: np.asarray(entry)}
    return found


def test_orbax_restores_the_weights_as_a_nested_dict(orbax, tmp_path):
    model = trained(tmp_path / "run")
    export(tmp_path / "run", "orbax", tmp_path / "weights")
    for checkpointer in (orbax.StandardCheckpointer(), orbax.PyTreeCheckpointer()):
        found = checkpointer.restore(tmp_path / "weights")
        assert set(found) == {"0", "1", "2"} and set(found["1"]) == {"gamma", "beta", "moving_mean", "moving_variance"}
        np.testing.assert_equal(flat(found), model.weights_by_path())
    assert sorted(os.listdir(tmp_path)) == ["run", "weights"]


def test_folder_is_replaced_only_when_asked(orbax, tmp_path):
    trained(tmp_path / "run")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "mine").write_text("mine")
    with pytest.raises(ArgumentError, match="overwrite=True"):
        export(tmp_path / "run", "orbax", tmp_path / "weights")
    assert os.listdir(tmp_path / "weights") == ["mine"]
    names = {"0": "body.0", "1": "body.1", "2": "head"}
    export(tmp_path / "run", "orbax", tmp_path / "weights", names=names, weights="ema", overwrite=True)
    found = orbax.StandardCheckpointer().restore(tmp_path / "weights")
    assert set(found) == {"body", "head"} and set(found["body"]) == {"0", "1"}
    averages = uf.checkpoint.newest(tmp_path / "run").arrays("ema")
    np.testing.assert_array_equal(np.asarray(found["head"]["kernel"]), averages["2.kernel"])
    assert sorted(os.listdir(tmp_path)) == ["run", "weights"]


def test_names_that_make_no_nested_dict_are_refused(tmp_path):
    trained(tmp_path / "run")
    with pytest.raises(ArgumentError, match="no nested dict"):
        export(tmp_path / "run", "orbax", tmp_path / "weights", names={"0.kernel": "a", "0.bias": "a.b"})
    assert os.listdir(tmp_path) == ["run"]
