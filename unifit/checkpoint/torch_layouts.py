"""unifit's weights as the modules of torch.nn hold them: names and layouts, in both directions, without torch.

Axes: h, w the window; i, o channels (features) in and out; u units; m model features; a heads, d the size of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from unifit.checkpoint.structure import LayerFacts, Structure
from unifit.errors import ArgumentError, UnsupportedError

Arrays = Sequence[np.ndarray]

OTHER_WAY = "Without another library's layout: format='safetensors' writes the arrays as unifit has them."


class Conversion(NamedTuple):
    """Some weights of a model, and what torch has in their place.

    Attributes:
        ours: Paths of the weights.
        theirs: Names in the module's state_dict.
        leave: Their arrays, of ours.
        enter: Ours, of theirs.
        optional: Those of `theirs` that a file may lack; `enter` gets None for them.
        alike: From those of `theirs` that are one weight in another layout to its path.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    leave: Callable[[Arrays], Arrays]
    enter: Callable[[Arrays], Arrays]
    optional: frozenset[str] = frozenset()
    alike: Mapping[str, str] = MappingProxyType({})

    def spellings(self, name: str) -> tuple[str, ...]:
        """By which names a user may mean one of `theirs`: by the path of the weight that it is, and by itself."""
        return (self.alike[name], name) if name in self.alike else (name,)


class Unknown(NamedTuple):
    """A weight of a user's layer, whose place in torch is not known: it keeps its name and layout."""

    path: str
    layer: str


def conversions(structure: Structure) -> tuple[list[Conversion], list[Unknown]]:
    """How all weights of a model become those of torch's modules, and which of them nobody knows.

    Raises:
        UnsupportedError: When torch.nn has no module that does what a layer of unifit does.
    """
    found: list[Conversion] = []
    unknown: list[Unknown] = []
    done: set[str] = set()
    for weight in structure.weights.values():
        if weight.path in done:
            continue
        layer = structure.layer_of(weight)
        parent = structure.layers.get(structure.parent_of(layer.path))
        if layer.is_own("_Projection") and parent is not None:
            new = _attention(structure, parent)
        elif layer.options is None:
            unknown.append(Unknown(weight.path, layer.name))
            new = [_renamed(weight.path, weight.path)]
        elif layer.name in _OF_LAYER:
            new = _OF_LAYER[layer.name](structure, layer)
        else:
            raise UnsupportedError(
                f"torch.nn has no module like {layer.name} '{layer.path}', so none has '{weight.path}' among its "
                f"parameters. {OTHER_WAY}"
            )
        done.update(path for conversion in new for path in conversion.ours)
        found += new
    return found, unknown


def aliases(structure: Structure) -> list[tuple[str, str]]:
    """(path, first path) of layers that the model has in several places: torch's state_dict names each of them."""
    return [(layer.path, layer.same_as) for layer in structure.layers.values() if layer.same_as is not None]


def _named(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name


def _one(ours: str, theirs: str, leave: Callable, enter: Callable) -> Conversion:
    return Conversion(
        (ours,),
        (theirs,),
        lambda arrays: [leave(arrays[0])],
        lambda arrays: [enter(arrays[0])],
        alike={theirs: ours},
    )


def _renamed(ours: str, theirs: str) -> Conversion:
    return _one(ours, theirs, lambda array: array, lambda array: array)


def _transposed(ours: str, theirs: str, *axes: int) -> Conversion:
    """`axes` are those of ours, in torch's order."""
    back = tuple(int(axis) for axis in np.argsort(axes))
    return _one(ours, theirs, lambda array: array.transpose(axes), lambda array: array.transpose(back))


def _kernel_and_bias(structure: Structure, layer: LayerFacts, *axes: int) -> list[Conversion]:
    weights = structure.weights_in(layer.path)
    found = [_transposed(weights["kernel"], _named(layer.path, "weight"), *axes)]
    if "bias" in weights:
        found.append(_renamed(weights["bias"], _named(layer.path, "bias")))
    return found


def _dense(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """(i, o) -> Linear (o, i)."""
    return _kernel_and_bias(structure, layer, 1, 0)


def _convolution_1d(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """(w, i, o) -> Conv1d (o, i, w)."""
    return _kernel_and_bias(structure, layer, 2, 1, 0)


def _convolution_2d(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """(h, w, i, o) -> Conv2d (o, i, h, w)."""
    return _kernel_and_bias(structure, layer, 3, 2, 0, 1)


def _transposed_1d(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """(w, o, i) -> ConvTranspose1d (i, o, w)."""
    return _kernel_and_bias(structure, layer, 2, 1, 0)


def _transposed_2d(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """(h, w, o, i) -> ConvTranspose2d (i, o, h, w)."""
    return _kernel_and_bias(structure, layer, 3, 2, 0, 1)


def _depthwise(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """(h, w, i, k) -> Conv2d with i groups (i * k, 1, h, w): channel n has kernels n k to n k + k - 1."""
    weights = structure.weights_in(layer.path)
    h, w, i, k = structure.weights[weights["kernel"]].shape
    kernel = _one(
        weights["kernel"],
        _named(layer.path, "weight"),
        lambda array: array.transpose(2, 3, 0, 1).reshape(i * k, 1, h, w),
        lambda array: array.reshape(i, k, h, w).transpose(2, 3, 0, 1),
    )
    bias = [_renamed(weights["bias"], _named(layer.path, "bias"))] if "bias" in weights else []
    return [kernel, *bias]


def _embedding(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    return [_renamed(structure.weights_in(layer.path)["embeddings"], _named(layer.path, "weight"))]


def _rms_normalization(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    return [_renamed(structure.weights_in(layer.path)["scale"], _named(layer.path, "weight"))]


def _affine(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """gamma and beta. torch's modules have both or none: where one is missing its neutral value stands for it."""
    weights = structure.weights_in(layer.path)
    ours = [weights.get("gamma"), weights.get("beta")]
    theirs = [_named(layer.path, "weight"), _named(layer.path, "bias")]
    if None not in ours:
        return [_renamed(str(our), their) for our, their in zip(ours, theirs, strict=True)]
    which = ours.index(None)
    (present,) = (path for path in ours if path is not None)
    neutral = float(which == 0)

    def leave(arrays: Arrays) -> Arrays:
        pair = [arrays[0], arrays[0]]
        pair[which] = np.full_like(arrays[0], neutral)
        return pair

    def enter(arrays: Arrays) -> Arrays:
        if arrays[which] is not None and not np.all(arrays[which] == neutral):
            raise ArgumentError(
                f"'{theirs[which]}' is not {neutral:g} everywhere, and {layer.name} '{layer.path}' has no "
                f"{'gamma (scale' if which == 0 else 'beta (center'}=False)."
            )
        return [arrays[1 - which]]

    return [
        Conversion((present,), tuple(theirs), leave, enter, frozenset([theirs[which]]), {theirs[1 - which]: present})
    ]


def _batch_normalization(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """Also num_batches_tracked, which unifit does not count: torch reads it only with momentum=None."""
    weights = structure.weights_in(layer.path)
    found = _affine(structure, layer) if "gamma" in weights or "beta" in weights else []
    counted = _named(layer.path, "num_batches_tracked")
    ours = (weights["moving_mean"], weights["moving_variance"])
    theirs = (_named(layer.path, "running_mean"), _named(layer.path, "running_var"))
    statistics = Conversion(
        ours,
        (*theirs, counted),
        lambda arrays: [*arrays, np.zeros((), np.int64)],
        lambda arrays: arrays[:2],
        frozenset([counted]),
        dict(zip(theirs, ours, strict=True)),
    )
    return [*found, statistics]


def _lstm(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """torch's gates have unifit's order i, f, g, o; it adds two biases."""
    weights = structure.weights_in(layer.path)
    place, suffix = _direction(structure, layer)
    found = [
        _transposed(weights["kernel"], _named(place, f"weight_ih_l0{suffix}"), 1, 0),
        _transposed(weights["recurrent_kernel"], _named(place, f"weight_hh_l0{suffix}"), 1, 0),
    ]
    if "bias" in weights:
        theirs = (_named(place, f"bias_ih_l0{suffix}"), _named(place, f"bias_hh_l0{suffix}"))
        found.append(
            Conversion(
                (weights["bias"],),
                theirs,
                lambda arrays: [arrays[0], np.zeros_like(arrays[0])],
                lambda arrays: [arrays[0] + arrays[1]],
            )
        )
    return found


def _gru(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """torch's gates have the order r, z, n, unifit's z, r, n; both reset after the product, with a bias for each."""
    weights = structure.weights_in(layer.path)
    place, suffix = _direction(structure, layer)

    def kernel(name: str, their: str) -> Conversion:
        return _one(
            weights[name],
            _named(place, their + suffix),
            lambda array: _first_two_swapped(array.T),
            lambda array: _first_two_swapped(array).T,
        )

    found = [kernel("kernel", "weight_ih_l0"), kernel("recurrent_kernel", "weight_hh_l0")]
    if "bias" in weights:
        theirs = (_named(place, f"bias_ih_l0{suffix}"), _named(place, f"bias_hh_l0{suffix}"))
        found.append(
            Conversion(
                (weights["bias"],),
                theirs,
                lambda arrays: [_first_two_swapped(row) for row in arrays[0]],
                lambda arrays: [np.stack([_first_two_swapped(array) for array in arrays])],
            )
        )
    return found


def _first_two_swapped(array: np.ndarray) -> np.ndarray:
    """Of three gates along the first axis."""
    first, second, third = np.split(array, 3)
    return np.concatenate([second, first, third])


def _direction(structure: Structure, layer: LayerFacts) -> tuple[str, str]:
    """Where torch has a recurrent layer's weights, and the end of their names: a Bidirectional is one module there.

    Raises:
        UnsupportedError: When a Bidirectional does what torch's do not.
    """
    parent = structure.layers.get(structure.parent_of(layer.path)) if layer.path else None
    if parent is None or not parent.is_own("Bidirectional"):
        return layer.path, ""
    forward, backward = (structure.layers[_named(parent.path, f"{way}_layer")] for way in ("forward", "backward"))
    shapes = [
        {name: structure.weights[path].shape for name, path in structure.weights_in(child.path).items()}
        for child in (forward, backward)
    ]
    if forward.name != backward.name or shapes[0] != shapes[1] or forward.option("go_backwards", False):
        raise UnsupportedError(
            f"torch.nn.{forward.name}(bidirectional=True) has two layers of one kind, size and bias, the first of "
            f"which goes forward; Bidirectional '{parent.path}' has others. {OTHER_WAY}"
        )
    merge = parent.option("merge_mode", "concat")
    if merge != "concat":
        raise UnsupportedError(
            f"torch.nn.{forward.name}(bidirectional=True) puts the results of both directions side by side; "
            f"Bidirectional '{parent.path}' has merge_mode={merge!r}. {OTHER_WAY}"
        )
    return parent.path, "" if layer.path == forward.path else "_reverse"


def _attention(structure: Structure, layer: LayerFacts) -> list[Conversion]:
    """(m, a, d) and (a, d, m) -> MultiheadAttention's in_proj (3 m, m), or q_, k_, v_proj, and out_proj (m, m).

    Raises:
        UnsupportedError: When it does what torch's does not.
    """
    paths = {
        part: structure.weights_in(_named(layer.path, part)) for part in ("query", "key", "value", "attention_output")
    }
    shapes = {part: structure.weights[found["kernel"]].shape for part, found in paths.items()}
    m, a, d = shapes["query"]
    wrong = None
    if layer.option("rotary"):
        wrong = "has rotary=True"
    elif layer.option("sliding_window") is not None:
        wrong = f"has sliding_window={layer.option('sliding_window')}"
    elif shapes["key"][1:] != (a, d) or shapes["value"][1:] != (a, d):
        wrong = f"has key heads of shape {shapes['key'][1:]} and value heads of shape {shapes['value'][1:]}"
    elif a * d != m or shapes["attention_output"] != (a, d, m):
        wrong = f"makes {shapes['attention_output'][2:]} features of {m}, by {a} heads of {d}"
    if wrong is not None:
        raise UnsupportedError(
            f"torch.nn.MultiheadAttention has as many key and value heads as query heads, heads x size = features, and "
            f"no positions; {layer.name} '{layer.path}' {wrong}. {OTHER_WAY}"
        )
    kernels = [paths[part]["kernel"] for part in ("query", "key", "value")]

    def inward(array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, m).T

    def outward(array: np.ndarray) -> np.ndarray:
        return array.T.reshape(-1, a, d)

    if shapes["key"] == shapes["value"] == shapes["query"]:
        found = [
            Conversion(
                tuple(kernels),
                (_named(layer.path, "in_proj_weight"),),
                lambda arrays: [np.concatenate([inward(array) for array in arrays])],
                lambda arrays: [outward(array) for array in np.split(arrays[0], 3)],
            )
        ]
    else:
        theirs = [_named(layer.path, f"{letter}_proj_weight") for letter in "qkv"]
        found = [_one(our, their, inward, outward) for our, their in zip(kernels, theirs, strict=True)]
    output = paths["attention_output"]
    found.append(
        _one(
            output["kernel"],
            _named(layer.path, "out_proj.weight"),
            lambda array: array.reshape(a * d, m).T,
            lambda array: array.T.reshape(a, d, m),
        )
    )
    if "bias" in output:
        found += [
            Conversion(
                tuple(paths[part]["bias"] for part in ("query", "key", "value")),
                (_named(layer.path, "in_proj_bias"),),
                lambda arrays: [np.concatenate([array.reshape(-1) for array in arrays])],
                lambda arrays: [array.reshape(a, d) for array in np.split(arrays[0], 3)],
            ),
            _renamed(output["bias"], _named(layer.path, "out_proj.bias")),
        ]
    return found


_OF_LAYER: dict[str, Callable[[Structure, LayerFacts], list[Conversion]]] = {
    "BatchNormalization": _batch_normalization,
    "Conv1D": _convolution_1d,
    "Conv1DTranspose": _transposed_1d,
    "Conv2D": _convolution_2d,
    "Conv2DTranspose": _transposed_2d,
    "Dense": _dense,
    "DepthwiseConv2D": _depthwise,
    "Embedding": _embedding,
    "GRU": _gru,
    "GroupNormalization": _affine,
    "LSTM": _lstm,
    "LayerNormalization": _affine,
    "RMSNormalization": _rms_normalization,
}


def flattened_images(structure: Structure) -> Iterable[str]:
    """Paths of Dense layers that read flattened images in a Sequential: torch's Flatten puts channels first.

    Only where it can be told: Conv2D (or a kind of it), layers that keep the axes, Flatten, Dense.
    """
    for model in [layer for layer in structure.layers.values() if layer.kind == "sequential"]:
        images = flat = False
        for path in structure.children_of(model.path):
            layer = structure.layers[path]
            if layer.is_own("Conv2D", "Conv2DTranspose", "DepthwiseConv2D"):
                images, flat = True, False
            elif layer.is_own("Flatten"):
                flat = images
            elif layer.is_own("Dense") and flat:
                yield path
                images = flat = False
            elif layer.is_own("Reshape", "Permute", "GlobalAveragePooling2D", "GlobalMaxPooling2D"):
                images = flat = False
