"""Leaving and entering by torch's names and layouts: against real modules of torch.nn, which are asked for outputs."""

import os
import stat
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

import checkpoint_tools
import unifit as uf
import unifit.checkpoint.exporting as exporting
from unifit.checkpoint import Checkpoint, export, load_torch, newest
from unifit.errors import ArgumentError, CheckpointError, UnknownNameError, UnsupportedError

L = uf.layers
TOLERANCE = 1e-6
ROWS = 4
EPSILON = 1e-3


class Case(NamedTuple):
    """A layer, torch's module for it, how that is called on unifit's input, and the input's shape."""

    layer: Any
    module: Any
    run: Any
    shape: tuple[int, ...]


def plainly(module, x):
    return module(x)


def channels_first(module, x):
    """unifit's channels come last."""
    return module(x.movedim(-1, 1)).movedim(1, -1)


def first_output(module, x):
    return module(x)[0]


def reversed_time(module, x):
    return module(x.flip(1))[0]


def attention(module, x):
    return module(x, x, x)[0]


CASES = {
    "Dense": Case(lambda: L.Dense(5), lambda: nn.Linear(8, 5), plainly, (3, 8)),
    "Dense without bias": Case(
        lambda: L.Dense(5, use_bias=False), lambda: nn.Linear(8, 5, bias=False), plainly, (8,)
    ),
    "Conv1D": Case(
        lambda: L.Conv1D(6, 3, strides=2, groups=2), lambda: nn.Conv1d(8, 6, 3, 2, groups=2), channels_first, (9, 8)
    ),
    "Conv2D": Case(
        lambda: L.Conv2D(6, (3, 2), groups=2, dilation_rate=2),
        lambda: nn.Conv2d(4, 6, (3, 2), groups=2, dilation=2),
        channels_first,
        (7, 6, 4),
    ),
    "DepthwiseConv2D": Case(
        lambda: L.DepthwiseConv2D((2, 3), depth_multiplier=2),
        lambda: nn.Conv2d(3, 6, (2, 3), groups=3),
        channels_first,
        (5, 6, 3),
    ),
    "Conv1DTranspose": Case(
        lambda: L.Conv1DTranspose(5, 3, strides=2), lambda: nn.ConvTranspose1d(4, 5, 3, 2), channels_first, (6, 4)
    ),
    "Conv2DTranspose": Case(
        lambda: L.Conv2DTranspose(5, (3, 2), strides=2),
        lambda: nn.ConvTranspose2d(4, 5, (3, 2), 2),
        channels_first,
        (4, 3, 4),
    ),
    "BatchNormalization": Case(
        lambda: L.BatchNormalization(), lambda: nn.BatchNorm2d(4, EPSILON), channels_first, (3, 3, 4)
    ),
    "BatchNormalization without gamma": Case(
        lambda: L.BatchNormalization(scale=False), lambda: nn.BatchNorm1d(8, EPSILON), plainly, (8,)
    ),
    "BatchNormalization without beta": Case(
        lambda: L.BatchNormalization(center=False), lambda: nn.BatchNorm1d(8, EPSILON), plainly, (8,)
    ),
    "BatchNormalization without both": Case(
        lambda: L.BatchNormalization(center=False, scale=False),
        lambda: nn.BatchNorm1d(8, EPSILON, affine=False),
        plainly,
        (8,),
    ),
    "LayerNormalization": Case(lambda: L.LayerNormalization(), lambda: nn.LayerNorm(8, EPSILON), plainly, (3, 8)),
    "RMSNormalization": Case(lambda: L.RMSNormalization(), lambda: nn.RMSNorm(8, 1e-6), plainly, (3, 8)),
    "GroupNormalization": Case(
        lambda: L.GroupNormalization(2), lambda: nn.GroupNorm(2, 4, EPSILON), channels_first, (3, 3, 4)
    ),
    "LSTM": Case(
        lambda: L.LSTM(5, return_sequences=True), lambda: nn.LSTM(8, 5, batch_first=True), first_output, (6, 8)
    ),
    "LSTM without bias": Case(
        lambda: L.LSTM(5, return_sequences=True, use_bias=False),
        lambda: nn.LSTM(8, 5, batch_first=True, bias=False),
        first_output,
        (6, 8),
    ),
    "LSTM backwards": Case(
        lambda: L.LSTM(5, return_sequences=True, go_backwards=True),
        lambda: nn.LSTM(8, 5, batch_first=True),
        reversed_time,
        (6, 8),
    ),
    "GRU": Case(
        lambda: L.GRU(5, return_sequences=True), lambda: nn.GRU(8, 5, batch_first=True), first_output, (6, 8)
    ),
    "GRU without bias": Case(
        lambda: L.GRU(5, return_sequences=True, use_bias=False),
        lambda: nn.GRU(8, 5, batch_first=True, bias=False),
        first_output,
        (6, 8),
    ),
    "Bidirectional LSTM": Case(
        lambda: L.Bidirectional(L.LSTM(5, return_sequences=True)),
        lambda: nn.LSTM(8, 5, batch_first=True, bidirectional=True),
        first_output,
        (6, 8),
    ),
    "Bidirectional GRU": Case(
        lambda: L.Bidirectional(L.GRU(5, return_sequences=True)),
        lambda: nn.GRU(8, 5, batch_first=True, bidirectional=True),
        first_output,
        (6, 8),
    ),
    "MultiHeadAttention": Case(
        lambda: SelfAttention(L.MultiHeadAttention(2, 4)),
        lambda: holding(attention=nn.MultiheadAttention(8, 2, batch_first=True)),
        lambda module, x: attention(module.attention, x),
        (6, 8),
    ),
    "MultiHeadAttention without bias": Case(
        lambda: SelfAttention(L.MultiHeadAttention(2, 4, use_bias=False)),
        lambda: holding(attention=nn.MultiheadAttention(8, 2, bias=False, batch_first=True)),
        lambda module, x: attention(module.attention, x),
        (6, 8),
    ),
    "MultiHeadAttention over others": Case(
        lambda: SelfAttention(L.MultiHeadAttention(2, 4), keys=3),
        lambda: holding(attention=nn.MultiheadAttention(8, 2, kdim=3, vdim=3, batch_first=True)),
        lambda module, x: module.attention(x, x[..., :3], x[..., :3])[0],
        (6, 8),
    ),
}  # fmt: skip


class SelfAttention(uf.Layer):
    """Attention to the input itself, or to its first `keys` features."""

    def __init__(self, attention, keys=None):
        super().__init__()
        self.attention, self.keys = attention, keys

    def call(self, x):
        others = x if self.keys is None else x[..., : self.keys]
        return self.attention(x, others)


def holding(**modules):
    found = nn.Module()
    for name, module in modules.items():
        found.add_module(name, module)
    return found


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def trained(folder, model, x, epochs=1, **compile_arguments):
    """The folder of the checkpoints of a model that was trained on x, so that none of its weights is as it began."""
    y = array(*model.predict(x, verbose=0).shape, seed=9)
    model.compile(uf.optimizers.SGD(0.1), "mse", **compile_arguments)
    model.fit(x, y, batch_size=ROWS, epochs=epochs, verbose=0, checkpoint_dir=folder)
    return folder


def scrambled(module):
    """Every parameter and buffer drawn anew, so that none has a value that says nothing."""
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.from_numpy(np.float32(array(*value.shape, seed=len(name)) * 0.3)))
                if name.endswith("running_var"):
                    value.abs_().add_(0.5)
    return module


def assert_alike(a, b):
    assert np.abs(a - b).max() <= TOLERANCE * max(1.0, np.abs(b).max())


def outputs_of(case, module, x):
    module = nn.Sequential(module).eval()[0]
    with torch.no_grad():
        return case.run(module, torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("name", CASES)
def test_torch_module_with_an_exported_state_gives_the_same_outputs_and_gives_it_back(name, tmp_path):
    case = CASES[name]
    x = array(ROWS, *case.shape)
    model = uf.Sequential([case.layer()])
    export(trained(tmp_path / "run", model, x), "torch", tmp_path / "state.safetensors")
    module = nn.Sequential(case.module())
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "state.safetensors"))
    assert_alike(outputs_of(case, module[0], x), model.predict(x, verbose=0))
    again = uf.Sequential([case.layer()])
    again.build((None, *case.shape))
    load_torch(again, tmp_path / "state.safetensors")
    np.testing.assert_equal(again.weights_by_path(), model.weights_by_path())


@pytest.mark.parametrize("name", [name for name in CASES if "without gamma" not in name and "without beta" not in name])
def test_model_with_a_torch_modules_weights_gives_the_same_outputs(name, tmp_path):
    case = CASES[name]
    x = array(ROWS, *case.shape)
    module = scrambled(nn.Sequential(case.module()))
    safetensors.torch.save_file(module.state_dict(), tmp_path / "state.safetensors")
    model = uf.Sequential([case.layer()])
    model.predict(x, verbose=0)
    load_torch(model, tmp_path / "state.safetensors")
    assert_alike(model.predict(x, verbose=0), outputs_of(case, module[0], x))


class Text(uf.Model):
    """A model as users write them: attributes, a list, an embedding, weights of its own."""

    def __init__(self):
        super().__init__()
        self.table = L.Embedding(11, 8)
        self.blocks = [Block(), Block()]
        self.head = L.Dense(3)

    def call(self, x):
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(uf.Layer):
    def __init__(self):
        super().__init__()
        self.norm, self.hidden = L.LayerNormalization(), L.Dense(8, "relu")

    def call(self, x):
        return x + self.hidden(self.norm(x))


class TorchText(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([TorchBlock(), TorchBlock()])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TorchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.hidden = nn.LayerNorm(8, EPSILON), nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.hidden(self.norm(x)))


TOKENS = np.random.default_rng(0).integers(0, 11, (ROWS, 5)).astype("int32")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A trained Text with running averages, and its checkpoints' folder. Tests only read it."""
    uf.set_seed(0)
    model = Text()
    folder = trained(tmp_path_factory.mktemp("text") / "run", model, TOKENS, epochs=2, ema=uf.EMA(0.5))
    return model, folder


def torch_text(path):
    module = TorchText()
    module.load_state_dict(safetensors.torch.load_file(path))
    with torch.no_grad():
        return module(torch.from_numpy(TOKENS)).numpy()


def test_whole_model_leaves_for_torch(text, tmp_path):
    model, folder = text
    export(folder, "torch", tmp_path / "t.safetensors")
    assert_alike(torch_text(tmp_path / "t.safetensors"), model.predict(TOKENS, verbose=0))


def test_averages_leave_in_the_place_of_the_weights(text, tmp_path):
    model, folder = text
    export(folder, "torch", tmp_path / "t.safetensors", weights="ema")
    export(folder, "safetensors", tmp_path / "own.safetensors", weights="ema")
    averages = newest(folder).arrays("ema")
    assert averages.keys() == model.weights_by_path().keys()
    np.testing.assert_equal(safetensors.numpy.load_file(tmp_path / "own.safetensors"), averages)
    other = Text()
    other.predict(TOKENS, verbose=0)
    other.load_weights_by_path(averages)
    assert_alike(torch_text(tmp_path / "t.safetensors"), other.predict(TOKENS, verbose=0))
    assert np.abs(other.predict(TOKENS, verbose=0) - model.predict(TOKENS, verbose=0)).max() > 100 * TOLERANCE


def test_averages_of_a_run_without_any_are_refused(tmp_path):
    folder = trained(tmp_path / "run", uf.Sequential([L.Dense(2)]), array(ROWS, 3))
    with pytest.raises(ArgumentError, match="no running averages"):
        export(folder, "safetensors", tmp_path / "t.safetensors", weights="ema")


def test_names_of_layers_and_weights_are_mapped(text, tmp_path):
    model, folder = text
    names = {"blocks": "encoder.layer", "head.kernel": "classifier.weight", "head.bias": None}
    export(folder, "torch", tmp_path / "t.safetensors", names=names)
    found = safetensors.numpy.load_file(tmp_path / "t.safetensors")
    expected = {"table.weight", "classifier.weight"} | {
        f"encoder.layer.{number}.{part}"
        for number in (0, 1)
        for part in ("norm.weight", "norm.bias", "hidden.weight", "hidden.bias")
    }
    assert found.keys() == expected
    np.testing.assert_array_equal(found["classifier.weight"], model.weights_by_path()["head.kernel"].T)


def test_function_of_names_gets_the_paths_of_weights(text, tmp_path):
    model, folder = text
    for format in ("torch", "safetensors"):
        target = tmp_path / f"{format}.safetensors"
        export(folder, format, target, names=lambda name: f"model.{name}")
        assert safetensors.numpy.load_file(target).keys() == {f"model.{path}" for path in model.weights_by_path()}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"blokcs": "layers"}, "'blokcs'.*no such name.*Known: 'table"),
        ({"head.kernel": "head.bias"}, "one name: 'head.bias'"),
        (lambda name: 3, "returned 3"),
        ({"head": 3}, "expected a dict"),
        ("head", "expected a dict"),
    ],
)
@pytest.mark.parametrize("format", ["torch", "safetensors"])
def test_names_that_cannot_be_meant_are_refused(text, tmp_path, format, names, message):
    with pytest.raises(ArgumentError, match=message):
        export(text[1], format, tmp_path / "t.safetensors", names=names)
    assert not any(tmp_path.iterdir())


def test_layer_in_two_places_has_both_of_torchs_names(tmp_path):
    shared, x = L.Dense(8), array(ROWS, 8)
    model = uf.Sequential([shared, L.ReLU(), shared])
    export(trained(tmp_path / "run", model, x), "torch", tmp_path / "t.safetensors")
    linear = nn.Linear(8, 8)
    module = nn.Sequential(linear, nn.ReLU(), linear)
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "t.safetensors"))
    with torch.no_grad():
        assert_alike(module(torch.from_numpy(x)).numpy(), model.predict(x, verbose=0))
    again = uf.Sequential([other := L.Dense(8), L.ReLU(), other])
    again.build((None, 8))
    load_torch(again, tmp_path / "t.safetensors")
    np.testing.assert_equal(again.weights_by_path(), model.weights_by_path())


def test_flattened_images_are_warned_of_and_fit_where_they_are_permuted(tmp_path):
    x = array(ROWS, 5, 6, 2)
    model = uf.Sequential([L.Conv2D(3, 2), L.MaxPooling2D(2), L.Flatten(), L.Dense(4)])
    folder = trained(tmp_path / "run", model, x)
    with pytest.warns(UserWarning, match=r"Dense '3'.*permute\(0, 2, 3, 1\)"):
        export(folder, "torch", tmp_path / "t.safetensors")
    convolution, linear = nn.Conv2d(2, 3, 2), nn.Linear(12, 4)
    module = nn.Sequential(convolution, nn.MaxPool2d(2), nn.Flatten(), linear)
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "t.safetensors"))
    with torch.no_grad():
        images = module[1](module[0](torch.from_numpy(x).permute(0, 3, 1, 2)))
        assert_alike(linear(images.permute(0, 2, 3, 1).flatten(1)).numpy(), model.predict(x, verbose=0))


class Scale(uf.Layer):
    def build(self, input_shape):
        self.factor = self.add_weight((input_shape[-1],), "ones")

    def call(self, x):
        return x * self.factor


def test_weights_of_a_users_layer_keep_their_names_with_a_warning(tmp_path):
    model = uf.Sequential([Scale(), L.Dense(2)])
    folder = trained(tmp_path / "run", model, array(ROWS, 3))
    with pytest.warns(UserWarning, match=r"Scale \('0.factor'\)"):
        export(folder, "torch", tmp_path / "t.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "t.safetensors")
    assert found.keys() == {"0.factor", "1.weight", "1.bias"}
    np.testing.assert_array_equal(found["0.factor"], model.weights_by_path()["0.factor"])


def test_users_layer_of_a_name_of_unifits_is_not_taken_for_it(tmp_path):
    class Dense(uf.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight((4, input_shape[-1]), "ones")

        def call(self, x):
            return x @ uf.ops.transpose(self.kernel)

    model = uf.Sequential([Dense()])
    with pytest.warns(UserWarning, match="Dense"):
        export(trained(tmp_path / "run", model, array(ROWS, 3)), "torch", tmp_path / "t.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "t.safetensors")
    np.testing.assert_equal(found, {"0.kernel": model.weights_by_path()["0.kernel"]})


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (lambda: L.EinsumDense("abc,cd->abd", (None, 3)), (5, 8), "EinsumDense '0'"),
        (lambda: L.Bidirectional(L.LSTM(3), merge_mode="sum"), (5, 8), "Bidirectional '0'.*merge_mode='sum'"),
        (
            lambda: L.Bidirectional(L.LSTM(3), backward_layer=L.GRU(3, go_backwards=True)),
            (5, 8),
            "Bidirectional '0' has others",
        ),
        (lambda: SelfAttention(L.MultiHeadAttention(2, 4, rotary=True)), (5, 8), "'0.attention' has rotary=True"),
        (lambda: SelfAttention(L.MultiHeadAttention(2, 4, sliding_window=2)), (5, 8), "'0.attention'.*sliding_window"),
        (lambda: SelfAttention(L.MultiHeadAttention(2, 3)), (5, 8), "by 2 heads of 3"),
        (lambda: SelfAttention(L.MultiHeadAttention(2, 4, value_dim=5)), (5, 8), r"value heads of shape \(2, 5\)"),
        (lambda: SelfAttention(L.MultiHeadAttention(2, 4, output_shape=5)), (5, 8), "makes .*5.* features of 8"),
        (lambda: SelfAttention(L.GroupQueryAttention(4, 2, 1)), (5, 8), r"GroupQueryAttention.*key heads of shape"),
    ],
)
def test_layer_that_torch_has_not_is_named(layer, shape, message, tmp_path):
    model = uf.Sequential([layer()])
    folder = trained(tmp_path / "run", model, array(ROWS, *shape))
    with pytest.raises(UnsupportedError, match=message):
        export(folder, "torch", tmp_path / "t.safetensors")
    with pytest.raises(UnsupportedError, match=message):
        load_torch(model, written(tmp_path / "some.safetensors", a=array(2)))
    export(folder, "safetensors", tmp_path / "t.safetensors")  # the way out that the message names
    np.testing.assert_equal(safetensors.numpy.load_file(tmp_path / "t.safetensors"), model.weights_by_path())


# What every format shares


def test_newest_of_a_directory_and_any_of_its_folders_leave(text, tmp_path):
    model, folder = text
    export(folder, "safetensors", tmp_path / "newest.safetensors")
    export(folder / "step-00000001", "safetensors", tmp_path / "first.safetensors")
    np.testing.assert_equal(safetensors.numpy.load_file(tmp_path / "newest.safetensors"), model.weights_by_path())
    first = Checkpoint.open(folder / "step-00000001").arrays("weights")
    np.testing.assert_equal(safetensors.numpy.load_file(tmp_path / "first.safetensors"), first)


def test_target_that_exists_is_left_alone_without_overwrite(text, tmp_path):
    target = tmp_path / "t.safetensors"
    target.write_text("mine")
    with pytest.raises(ArgumentError, match="exists.*overwrite=True"):
        export(text[1], "safetensors", target)
    assert target.read_text() == "mine"
    export(text[1], "safetensors", target, overwrite=True)
    assert safetensors.numpy.load_file(target).keys() == text[0].weights_by_path().keys()
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.safetensors"]


def test_file_that_cannot_be_written_leaves_nothing_and_what_was_there(text, tmp_path, monkeypatch):
    target = tmp_path / "t.safetensors"
    target.write_text("mine")

    def fail(path, arrays):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "_write_safetensors", fail)
    with pytest.raises(CheckpointError, match="t.safetensors.*No space left"):
        export(text[1], "safetensors", target, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.safetensors"]
    assert target.read_text() == "mine"


def test_file_has_the_permissions_of_any_new_file(text, tmp_path):
    mask = os.umask(0o027)
    try:
        export(text[1], "torch", tmp_path / "t.safetensors")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "t.safetensors").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("format", "target", "arguments", "error", "message"),
    [
        ("pickle", "t.pt", {}, UnknownNameError, "format 'pickle'"),
        ("safetensors", "none/t.safetensors", {}, ArgumentError, "does not exist"),
        ("safetensors", "t.safetensors", {"weights": "best"}, ArgumentError, "'own' or 'ema'"),
        ("keras", "t.h5", {}, ArgumentError, "ends in .weights.h5"),
        ("keras", "t.weights.h5", {"names": {"head": "a"}}, ArgumentError, "names"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(text, tmp_path, format, target, arguments, error, message):
    with pytest.raises(error, match=message):
        export(text[1], format, tmp_path / target, **arguments)
    assert not any(tmp_path.iterdir())


def test_damaged_checkpoint_does_not_leave(text, tmp_path):
    folder = checkpoint_tools.write(tmp_path / "run", 1).at(1)
    data = bytearray((folder / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="weights.safetensors"):
        export(folder, "safetensors", tmp_path / "t.safetensors")
    assert not (tmp_path / "t.safetensors").exists()


def test_checkpoint_that_does_not_say_its_layers_is_refused_where_they_are_needed(tmp_path):
    folder = checkpoint_tools.write(tmp_path / "run", 1).at(1)
    with pytest.raises(CheckpointError, match="'layers'.*format='safetensors'"):
        export(folder, "torch", tmp_path / "t.safetensors")
    export(folder, "safetensors", tmp_path / "t.safetensors")


# Entering


def written(path, **arrays):
    safetensors.numpy.save_file(arrays, path)
    return path


def test_file_that_does_not_fit_is_described_whole_and_loads_nothing(tmp_path):
    model = uf.Sequential([L.Dense(4), L.Dense(2)])
    model.build((None, 3))
    before = model.weights_by_path()
    path = written(
        tmp_path / "t.safetensors",
        **{"0.weight": array(4, 3), "0.bias": array(5), "1.weight": array(4, 2), "fc.weight": array(1)},
    )
    with pytest.raises(ArgumentError) as caught:
        load_torch(model, path)
    message = str(caught.value)
    assert "missing in the file: '1.bias'" in message
    assert "not in the model: 'fc.weight'" in message
    assert "'0.bias' (file (5,), model (4,))" in message and "'1.weight' (file (4, 2), model (2, 4))" in message
    np.testing.assert_equal(model.weights_by_path(), before)


def test_names_of_the_file_are_mapped(tmp_path):
    """To layers, to weights by their paths, to torch's names for them, and to nothing."""
    first, last, shift = array(4, 3), array(2, 4), array(2)
    arrays = {"net.a.weight": first, "net.a.bias": shift.repeat(2), "fc": last, "shift": shift, "junk": array(1)}
    names = {"net.a": "0", "fc": "1.kernel", "shift": "1.bias", "junk": None}
    whole = names | {"net.a.weight": "0.weight", "net.a.bias": "0.bias"}
    path = written(tmp_path / "t.safetensors", **arrays)
    for given in (names, names | {"fc": "1.weight"}, whole.__getitem__):
        model = uf.Sequential([L.Dense(4), L.Dense(2)])
        model.build((None, 3))
        load_torch(model, path, names=given)
        expected = {"0.kernel": first.T, "0.bias": shift.repeat(2), "1.kernel": last.T, "1.bias": shift}
        np.testing.assert_equal(model.weights_by_path(), expected)


@pytest.mark.parametrize(
    ("names", "message"),
    [({"frist": "0"}, "'frist'.*no such name"), ({"0.weight": "0.bias"}, "one name")],
)
def test_name_maps_that_cannot_be_meant_are_refused(tmp_path, names, message):
    model = uf.Sequential([L.Dense(4)])
    model.build((None, 3))
    path = written(tmp_path / "t.safetensors", **{"0.weight": array(4, 3), "0.bias": array(4)})
    with pytest.raises(ArgumentError, match=message):
        load_torch(model, path, names=names)


def test_gamma_that_the_layer_has_not_must_be_neutral(tmp_path):
    model = uf.Sequential([L.BatchNormalization(scale=False)])
    model.build((None, 3))
    parts = {"0.bias": array(3), "0.running_mean": array(3), "0.running_var": np.full(3, 2, "float32")}
    load_torch(model, written(tmp_path / "a.safetensors", **parts))
    load_torch(model, written(tmp_path / "b.safetensors", **parts, **{"0.weight": np.ones(3, "float32")}))
    before = model.weights_by_path()
    with pytest.raises(ArgumentError, match="'0.weight' is not 1 everywhere"):
        load_torch(model, written(tmp_path / "c.safetensors", **parts, **{"0.weight": array(3)}))
    np.testing.assert_equal(model.weights_by_path(), before)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_pickled_file_is_refused_with_the_line_that_converts_it(tmp_path, suffix):
    model = uf.Sequential([L.Dense(4)])
    model.build((None, 3))
    module = nn.Sequential(nn.Linear(3, 4))
    path = tmp_path / f"net{suffix}"
    torch.save(module.state_dict(), path)
    with pytest.raises(ArgumentError) as caught:
        load_torch(model, path)
    line = str(caught.value).rpartition(": ")[2]
    folder = os.getcwd()
    os.chdir(tmp_path)
    try:
        eval(line, {"safetensors": safetensors, "torch": torch})
    finally:
        os.chdir(folder)
    load_torch(model, tmp_path / "net.safetensors")
    np.testing.assert_array_equal(model.weights_by_path()["0.kernel"], module[0].weight.detach().numpy().T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_float_dtypes_enter(tmp_path, dtype):
    module = nn.Sequential(nn.Linear(3, 4)).to(dtype)
    safetensors.torch.save_file(module.state_dict(), tmp_path / "t.safetensors")
    model = uf.Sequential([L.Dense(4)])
    model.build((None, 3))
    load_torch(model, tmp_path / "t.safetensors")
    expected = module[0].weight.detach().float().numpy().T
    np.testing.assert_array_equal(model.weights_by_path()["0.kernel"], expected)


def test_what_is_no_safetensors_file_is_refused(tmp_path):
    model = uf.Sequential([L.Dense(4)])
    with pytest.raises(ArgumentError, match="not built"):
        load_torch(model, tmp_path / "t.safetensors")
    model.build((None, 3))
    with pytest.raises(ArgumentError, match="no file"):
        load_torch(model, tmp_path / "t.safetensors")
    (tmp_path / "t.safetensors").write_bytes(b"not at all")
    with pytest.raises(ArgumentError, match="no safetensors file"):
        load_torch(model, tmp_path / "t.safetensors")
