"""Weights for a Keras 3 model of the same layers: its `.weights.h5` file, without Keras.

Keras numbers a model's layers by class, `layers/dense`, `layers/dense_1`, whatever their names are, and finds those of
a subclass by attribute; each has its variables in `vars/0`, `vars/1`.

Reference:
    keras.src.saving.saving_lib, `_save_state` and `_save_container_state`, of Keras 3.15.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from unifit.checkpoint.structure import DICT, FUNCTIONAL, LIST, SEQUENTIAL, LayerFacts, Structure
from unifit.errors import UnsupportedError

SUFFIX = ".weights.h5"

_ATTENTION = {
    "query": "query_dense",
    "key": "key_dense",
    "value": "value_dense",
    "attention_output": "output_dense",
}


def keras_arrays(weights: dict[str, np.ndarray], structure: Structure) -> dict[str, np.ndarray]:
    """The arrays of a `.weights.h5` file by their place in it.

    Raises:
        UnsupportedError: When a layer does what Keras' of that name does not.
    """
    groups = _groups(structure)
    arrays = {}
    for layer in structure.layers.values():
        own = [weight for weight in structure.weights.values() if weight.layer == layer.path]
        _check_same(structure, layer)
        group = groups[layer.path] + ("/cell" if layer.is_own("LSTM", "GRU") else "")
        in_keras_order = sorted(own, key=lambda weight: not weight.trainable) if layer.options is None else own
        for number, weight in enumerate(in_keras_order):
            arrays[f"{group}/vars/{number}".removeprefix("/")] = weights[weight.path]
    return arrays


def write_keras(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the file.

    Raises:
        UnsupportedError: When h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        way = "pip install 'unifit[hdf5]'"
        raise UnsupportedError(f"format='keras' needs h5py, which is not installed: {way}.") from error
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.asarray(array, order="C"))


def _groups(structure: Structure) -> dict[str, str]:
    """From each layer's path to its group's name."""
    groups = {"": ""}
    for path, layer in structure.layers.items():  # each before what is below it
        numbered = layer.kind in (SEQUENTIAL, FUNCTIONAL, LIST, DICT)
        home = groups[path] + ("/layers" if layer.kind in (SEQUENTIAL, FUNCTIONAL) else "")
        used: dict[str, int] = {}
        for child in structure.children_of(path):
            name = _group_of(structure.layers[child]) if numbered else _attribute(layer, child.rpartition(".")[2])
            if numbered:
                used[name] = used.get(name, -1) + 1
                name = f"{name}_{used[name]}" if used[name] else name
            groups[child] = f"{home}/{name}"
    return groups


def _group_of(layer: LayerFacts) -> str:
    if layer.kind in (LIST, DICT):
        return "container"
    if layer.name == "Model" and layer.kind == FUNCTIONAL:
        return "functional"
    return "grouped_query_attention" if layer.is_own("GroupQueryAttention") else _snake_case(layer.name)


def _attribute(parent: LayerFacts, name: str) -> str:
    if parent.is_own("MultiHeadAttention"):
        return _ATTENTION.get(name, name)
    if parent.is_own("GroupQueryAttention"):
        return f"_{_ATTENTION[name]}" if name in _ATTENTION else name
    return name


def _snake_case(name: str) -> str:
    """As Keras writes a class' name."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _check_same(structure: Structure, layer: LayerFacts) -> None:
    if not layer.is_own("MultiHeadAttention", "GroupQueryAttention"):
        return
    grouped = layer.option("num_key_value_heads")
    wrong = None
    if layer.option("rotary"):
        wrong = "has rotary=True, which Keras' has not"
    elif layer.name == "MultiHeadAttention" and grouped not in (None, layer.option("num_heads")):
        wrong = f"has num_key_value_heads={grouped}; in Keras (and here) that is a GroupQueryAttention"
    if wrong:
        raise UnsupportedError(
            f"{layer.name} '{layer.path}' {wrong}. format='safetensors' writes the arrays as unifit has them."
        )
