"""The four workloads: their sizes, their data and the shapes of their weights.

NumPy alone: a native loop whose start is timed must not import unifit. Weights have unifit's paths and layouts, and
each loop turns them into its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

LEARNING_RATE, BETA_1, BETA_2, EPSILON, WEIGHT_DECAY = 1e-3, 0.9, 0.999, 1e-7, 0.004
NORM_EPSILON = {"cnn": 1e-3, "gpt": 1e-5}
BATCH_NORM_MOMENTUM = 0.99
MLP_SIZES = (20, 64, 5)
CNN_IMAGE, CNN_WIDTHS, CLASSES = (32, 32, 3), (32, 64, 128), 10
GPT_VOCABULARY, GPT_CONTEXT, GPT_WIDTH, GPT_HEADS, GPT_DEPTH = 96, 64, 128, 4, 4
LSTM_POSITIONS, LSTM_FEATURES, LSTM_UNITS = 64, 32, 128


@dataclass(frozen=True)
class Workload:
    """A model's sizes and how much of it is measured.

    Attributes:
        name: The word for the command line.
        batch_size: Rows of a batch over all devices.
        row: Shape of a row of x.
        classes: Values that a label takes.
        labels: Shape of a row of y.
        steps: Updates of a measured epoch, about a second's work on a slow core.
    """

    name: str
    batch_size: int
    row: tuple[int, ...]
    classes: int
    labels: tuple[int, ...]
    steps: int

    def data(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of noise with labels that can be learned by heart: what is timed does not depend on the values."""
        r = np.random.default_rng(0)
        y = r.integers(0, self.classes, (rows, *self.labels), dtype=np.int32)
        if self.name == "gpt":
            return r.integers(0, GPT_VOCABULARY, (rows, *self.row), dtype=np.int32), y
        return r.standard_normal((rows, *self.row), dtype=np.float32), y

    def weights(self) -> dict[str, np.ndarray]:
        """Initial weights for a loop that runs alone, drawn as good as any."""
        r, made = np.random.default_rng(1), {}
        for path, shape in shapes(self.name).items():
            ones = path.endswith(("gamma", "moving_variance"))
            zeros = path.endswith(("bias", "beta", "moving_mean"))
            noise = 0.05 * r.standard_normal(shape, dtype=np.float32)
            made[path] = np.ones(shape, np.float32) if ones else np.zeros(shape, np.float32) if zeros else noise
        return made


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlp", 32, (MLP_SIZES[0],), MLP_SIZES[-1], (), 400),
        Workload("cnn", 64, CNN_IMAGE, CLASSES, (), 8),
        Workload("gpt", 16, (GPT_CONTEXT,), GPT_VOCABULARY, (GPT_CONTEXT,), 8),
        Workload("lstm", 32, (LSTM_POSITIONS, LSTM_FEATURES), CLASSES, (), 25),
    )
}


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Every weight's shape by its path."""
    if name == "mlp":
        into, hidden, out = MLP_SIZES
        return {"0.kernel": (into, hidden), "0.bias": (hidden,), "1.kernel": (hidden, out), "1.bias": (out,)}
    if name == "lstm":
        gates = 4 * LSTM_UNITS
        cell = {"0.kernel": (LSTM_FEATURES, gates), "0.recurrent_kernel": (LSTM_UNITS, gates), "0.bias": (gates,)}
        return cell | {"1.kernel": (LSTM_UNITS, CLASSES), "1.bias": (CLASSES,)}
    return _cnn_shapes() if name == "cnn" else _gpt_shapes()


CNN_LAYERS_OF_BLOCK = 4
"""Convolution, normalisation, activation, pooling: the places in the Sequential that a block takes."""


def _cnn_shapes() -> dict[str, tuple[int, ...]]:
    found, channels = {}, CNN_IMAGE[-1]
    for block, width in enumerate(CNN_WIDTHS):
        convolution = CNN_LAYERS_OF_BLOCK * block
        found[f"{convolution}.kernel"] = (3, 3, channels, width)
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            found[f"{convolution + 1}.{name}"] = (width,)
        channels = width
    head = CNN_LAYERS_OF_BLOCK * len(CNN_WIDTHS) + 1
    return found | {f"{head}.kernel": (channels, CLASSES), f"{head}.bias": (CLASSES,)}


def _gpt_shapes() -> dict[str, tuple[int, ...]]:
    width, head = GPT_WIDTH, GPT_WIDTH // GPT_HEADS
    found: dict[str, tuple[int, ...]] = {
        "embed.embeddings": (GPT_VOCABULARY, width),
        "positions.embeddings": (GPT_CONTEXT, width),
    }
    for block in (f"blocks.{number}." for number in range(GPT_DEPTH)):
        for norm in ("norm_attention", "norm_feed"):
            found |= {f"{block}{norm}.gamma": (width,), f"{block}{norm}.beta": (width,)}
        for projection in ("query", "key", "value"):
            found[f"{block}attention.{projection}.kernel"] = (width, GPT_HEADS, head)
        found[f"{block}attention.attention_output.kernel"] = (GPT_HEADS, head, width)
        found |= {f"{block}up.kernel": (width, 4 * width), f"{block}up.bias": (4 * width,)}
        found |= {f"{block}down.kernel": (4 * width, width), f"{block}down.bias": (width,)}
    found |= {"norm.gamma": (width,), "norm.beta": (width,)}
    return found | {"head.kernel": (width, GPT_VOCABULARY), "head.bias": (GPT_VOCABULARY,)}


@dataclass(frozen=True)
class Setting:
    """What one measurement is of.

    Attributes:
        backend: torch, jax or tensorflow.
        workload: A name of WORKLOADS.
        devices: CPU devices: processes on torch, virtual devices elsewhere.
        accumulation: Batches of an update.
        precision: float32 or mixed_bfloat16.
        data: "arrays", or "loader": the framework's own loader, which calls Python for each row or batch.
    """

    backend: str
    workload: str
    devices: int = 1
    accumulation: int = 1
    precision: str = "float32"
    data: str = "arrays"

    @property
    def work(self) -> Workload:
        return WORKLOADS[self.workload]

    @property
    def half(self) -> bool:
        return self.precision == "mixed_bfloat16"

    def data_of(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of so many updates."""
        return self.work.data(steps * self.accumulation * self.work.batch_size)

    def batches_of(self, step: int) -> Iterator[slice]:
        """The rows of each batch of update number `step`."""
        for number in range(step * self.accumulation, (step + 1) * self.accumulation):
            yield slice(number * self.work.batch_size, (number + 1) * self.work.batch_size)

    def rows_of(self, first: int, steps: int) -> slice:
        """The rows of `steps` updates from number `first` on."""
        rows = self.accumulation * self.work.batch_size
        return slice(first * rows, (first + steps) * rows)

    def title(self) -> str:
        return f"{self.workload} {self.precision} {self.data} x{self.devices} k={self.accumulation}"

    def facts(self) -> dict[str, Any]:
        return asdict(self)


class Trained(NamedTuple):
    """An epoch's figures, and its seconds from the first step to the reading of these figures."""

    loss: float
    accuracy: float
    seconds: float


class Way(Protocol):
    """One way of training a workload: unifit, a native loop, another library.

    It keeps its weights and optimizer from epoch to epoch, and the same figures: running sums of loss and accuracy that
    stay on the device and are read once, at the epoch's end.
    """

    name: str

    def train(self, first: int, steps: int) -> Trained:
        """An epoch of updates `first` to `first + steps` of its data, in order."""
        ...
