"""Files that cannot be saved or loaded: each is refused by name, and no code of a file is ever run."""

import json
import os
import pickle
import zipfile

import pytest
import safetensors.numpy

import unifit as uf
from unifit.errors import ArgumentError, UnifitError, UnknownNameError

Dense = uf.layers.Dense


def sequential():
    model = uf.Sequential([Dense(4, "tanh"), Dense(2)], name="mlp")
    model.build((None, 5))
    return model


def test_classes_must_be_registered_or_handed_over(tmp_path):
    class Custom(uf.Layer):
        def call(self, x):
            return x * 2.0

    model = uf.Sequential([uf.Input((5,)), Custom()])
    model.save(tmp_path / "model.unifit")
    with pytest.raises(UnknownNameError, match="custom_objects={'Custom': Custom}"):
        uf.load_model(tmp_path / "model.unifit")
    loaded = uf.load_model(tmp_path / "model.unifit", custom_objects={"Custom": Custom})
    assert isinstance(loaded.layers[0], Custom) and isinstance(uf.clone_model(model).layers[0], Custom)


def _unbuilt(folder):
    uf.Sequential([Dense(2)]).save(folder / "x.unifit")


def _lambda(folder):
    uf.Sequential([uf.Input((5,)), Dense(2, activation=lambda x: x, name="odd")]).save(folder / "x.unifit")


def _missing_folder(folder):
    sequential().save(folder / "none" / "x.unifit")


def _no_overwrite(folder):
    sequential().save(folder / "x.unifit")
    sequential().save(folder / "x.unifit", overwrite=False)


def _other_format(folder):
    sequential().save(folder / "x.h5")


def _unbuilt_weights(folder):
    sequential().save_weights(folder / "x.unifit")
    uf.Sequential([Dense(2)]).load_weights(folder / "x.unifit")


@pytest.mark.parametrize(
    "function, words",
    [
        (_unbuilt, "is not built"),
        (_lambda, "Layer 'odd' cannot be saved"),
        (_missing_folder, "does not exist. Make it first"),
        (_no_overwrite, "overwrite=False"),
        (_other_format, "another library's format"),
        (_unbuilt_weights, "is not built"),
        (lambda folder: uf.load_model(folder / "x.unifit"), "There is no file"),
        (lambda folder: uf.load_model(folder), "it is a folder"),
    ],
)
def test_mistakes_are_named(function, words, tmp_path):
    with pytest.raises(UnifitError) as caught:
        function(tmp_path)
    assert words in str(caught.value)


class Marker:
    """A pickle of it would make a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def rewritten(path, change):
    """The file with its members {name: bytes} changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _changed_config(**changes):
    def change(members):
        config = json.loads(members["config.json"]) | changes
        members["config.json"] = json.dumps(config).encode()

    return change


def _drop_weight(members):
    weights = safetensors.numpy.load(members["weights.safetensors"])
    members["weights.safetensors"] = safetensors.numpy.save({k: v for k, v in weights.items() if k != "0.bias"})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda members: members.update({"config.json": b'{"format": 1, '}), "config.json in '{}' is no JSON"),
        (lambda members: members.update({"config.json": b"[]"}), "config is an object"),
        (lambda members: members.update({"weights.safetensors": b"short"}), "weights.safetensors in '{}' is no"),
        (lambda members: members.pop("weights.safetensors"), "has no member weights.safetensors"),
        (lambda members: members.update({"../evil": b""}), "member named '../evil'"),
        (lambda members: members.update({"/evil": b""}), "member named '/evil'"),
        (_changed_config(format=99), "Upgrade unifit"),
        (_changed_config(model={"class": "unifit>Sequential", "config": {"layers": 3}}), "does not hang together"),
        (_changed_config(model=7), "does not hang together"),
        (_changed_config(model={"shared": 5}), "shared object 5"),
        (_changed_config(model={"class": "os>system", "config": {}}), "'os>system', which is not registered"),
        (_drop_weight, "missing ['0.bias']"),
    ],
)
def test_changed_files_are_refused_by_name(change, words, tmp_path):
    path = tmp_path / "model.unifit"
    sequential().save(path)
    rewritten(path, change)
    with pytest.raises(ArgumentError) as caught:
        uf.load_model(path)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert words.replace("{}", str(path)) in text and str(path) in text


def test_unknown_members_are_not_looked_at(tmp_path):
    path, marker = tmp_path / "model.unifit", tmp_path / "marker"
    sequential().save(path)
    rewritten(path, lambda members: members.update({"extra.pkl": pickle.dumps(Marker(marker))}))
    uf.load_model(path)
    assert not marker.exists()


@pytest.mark.parametrize("member", [None, "config.json", "weights.safetensors"])
def test_pickles_are_never_run(member, tmp_path):
    path, marker = tmp_path / "model.unifit", tmp_path / "marker"
    sequential().save(path)
    data = pickle.dumps(Marker(marker))
    if member is None:
        path.write_bytes(data)
    else:
        rewritten(path, lambda members: members.update({member: data}))
    for load in (uf.load_model, sequential().load_weights):
        if member == "config.json" and load is not uf.load_model:
            continue
        with pytest.raises(ArgumentError, match="model.unifit"):
            load(path)
    assert not marker.exists()


def test_truncated_and_damaged_files_are_refused_by_name(tmp_path):
    path = tmp_path / "model.unifit"
    sequential().save(path)
    whole = path.read_bytes()
    last = whole.index(b"PK\x01\x02") - 1  # of the weights: the zip's directory follows
    flipped = whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :]
    for data in (b"", whole[:10], whole[:last], whole[:-10], flipped):
        path.write_bytes(data)
        with pytest.raises(ArgumentError, match=r"model\.unifit"):
            uf.load_model(path)


def test_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    model, path = sequential(), tmp_path / "model.unifit"
    model.save(path)
    before = path.read_bytes()

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        model.save(path)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["model.unifit"]
