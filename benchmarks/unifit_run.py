"""The workloads in unifit: models, and an epoch of fit with metrics, History and the progress bar's line on."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

import unifit as uf
from benchmarks import workloads as sizes
from benchmarks.loaders import loader
from benchmarks.workloads import Setting, Trained

layers = uf.layers


class Block(uf.Layer):
    """Pre-norm attention and feed-forward, both with a residual."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        width, heads, epsilon = sizes.GPT_WIDTH, sizes.GPT_HEADS, sizes.NORM_EPSILON["gpt"]
        self.norm_attention = layers.LayerNormalization(epsilon=epsilon)
        self.attention = layers.MultiHeadAttention(heads, width // heads, use_bias=False)
        self.norm_feed = layers.LayerNormalization(epsilon=epsilon)
        self.up, self.down = layers.Dense(4 * width, activation="gelu"), layers.Dense(width)

    def call(self, x: Any) -> Any:
        h = self.norm_attention(x)
        x = x + self.attention(h, h, use_causal_mask=True)
        return x + self.down(self.up(self.norm_feed(x)))


class GPT(uf.Model):
    """Tokens in, logits of the next token out."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.embed = layers.Embedding(sizes.GPT_VOCABULARY, sizes.GPT_WIDTH)
        self.positions = layers.Embedding(sizes.GPT_CONTEXT, sizes.GPT_WIDTH)
        self.blocks = [Block() for _ in range(sizes.GPT_DEPTH)]
        self.norm = layers.LayerNormalization(epsilon=sizes.NORM_EPSILON["gpt"])
        self.head = layers.Dense(sizes.GPT_VOCABULARY)

    def call(self, x: Any) -> Any:
        x = self.embed(x) + self.positions(uf.ops.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model(name: str) -> uf.Model:
    """The workload's model, not built."""
    if name == "mlp":
        return uf.Sequential([layers.Dense(sizes.MLP_SIZES[1], activation="relu"), layers.Dense(sizes.MLP_SIZES[2])])
    if name == "lstm":
        return uf.Sequential([layers.LSTM(sizes.LSTM_UNITS), layers.Dense(sizes.CLASSES)])
    if name == "gpt":
        return GPT()
    stack: list[Any] = []
    for width in sizes.CNN_WIDTHS:
        stack += [
            layers.Conv2D(width, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=sizes.BATCH_NORM_MOMENTUM, epsilon=sizes.NORM_EPSILON["cnn"]),
            layers.Activation("relu"),
            layers.MaxPooling2D(),
        ]
    return uf.Sequential([*stack, layers.GlobalAveragePooling2D(), layers.Dense(sizes.CLASSES)])


class Clock(uf.callbacks.Callback):
    """Seconds from an epoch's begin to its end, when its figures have been read."""

    seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds = perf_counter() - self._began


class UnifitRun:
    """A compiled model, trained by one call of fit an epoch.

    Args:
        setting: What is measured.
        x: Rows of all epochs.
        y: Their labels.
        callbacks: More callbacks for fit.

    Attributes:
        call_seconds: What the last call of fit took as a whole, besides its epoch.
    """

    name = "unifit"

    def __init__(self, setting: Setting, x: np.ndarray, y: np.ndarray, callbacks: tuple[Any, ...] = ()):
        self.setting, self.x, self.y = setting, x, y
        self.clock, self.callbacks = Clock(), callbacks
        self.call_seconds = 0.0
        uf.set_seed(0)
        self.model = make_model(setting.workload)
        rule = uf.optimizers.AdamW(
            sizes.LEARNING_RATE, sizes.WEIGHT_DECAY, sizes.BETA_1, sizes.BETA_2, epsilon=sizes.EPSILON
        )
        self.model.compile(
            rule,
            uf.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            precision=setting.precision,
            gradient_accumulation_steps=setting.accumulation,
        )

    def weights(self) -> dict[str, np.ndarray]:
        """The initial weights by path; makes them."""
        self.model.build((None, *self.setting.work.row))
        return self.model.weights_by_path()

    def train(self, first: int, steps: int) -> Trained:
        setting = self.setting
        rows = setting.rows_of(first, steps)
        x, y = self.x[rows], self.y[rows]
        if setting.data == "loader":
            data: dict[str, Any] = {"x": loader(setting.backend, x, y, setting.work.batch_size)}
        else:
            data = {"x": x, "y": y, "batch_size": setting.work.batch_size, "shuffle": False}
        distribution = uf.DataParallel(devices=setting.devices)
        began = perf_counter()
        # Between the two clocks of an epoch lie History's and the progress bar's work too.
        history = self.model.fit(
            **data, verbose=2, callbacks=[self.clock, *self.callbacks], distribution=distribution
        ).history
        self.call_seconds = perf_counter() - began - self.clock.seconds
        return Trained(history["loss"][0], history["accuracy"][0], self.clock.seconds)
