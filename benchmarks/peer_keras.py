"""Keras 3's fit on the same backend, as a peer.

Reference: https://keras.io/api/models/model_training_apis/ (`jit_compile="auto"`, the default, compiles where the model
allows; `steps_per_execution` for small models with a large Python overhead).
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import workloads as sizes
from benchmarks.workloads import Setting, Trained

FUSED_STEPS = 16


def make(setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray) -> list[Any]:
    """Keras' default, and with fused steps for the model that these are meant for, on the backends that have them."""
    os.environ["KERAS_BACKEND"] = setting.backend
    fused = setting.workload == "mlp" and setting.backend != "torch"
    return [KerasRun(setting, weights, x, y, steps) for steps in ([1, FUSED_STEPS] if fused else [1])]


class KerasRun:
    """A compiled model, trained by one call of fit an epoch."""

    def __init__(self, setting: Setting, weights: dict, x: np.ndarray, y: np.ndarray, steps_per_execution: int):
        import keras

        self.name = "Keras" if steps_per_execution == 1 else f"Keras x{steps_per_execution}"
        self.setting, self.x, self.y = setting, x, y
        keras.config.set_dtype_policy(setting.precision)
        named = layers_by_path(keras, setting.workload)
        self.model = model_of(keras, setting, named)
        keras.config.set_dtype_policy("float32")
        for path, layer in named.items():
            layer.set_weights([value for name, value in weights.items() if name.startswith(f"{path}.")])
        k = setting.accumulation
        optimizer = keras.optimizers.AdamW(
            sizes.LEARNING_RATE, sizes.WEIGHT_DECAY, sizes.BETA_1, sizes.BETA_2, sizes.EPSILON,
            gradient_accumulation_steps=k if k > 1 else None,
        )  # fmt: skip
        self.model.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )

        class Clock(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.began = perf_counter()

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.seconds = perf_counter() - self.began

        self.clock = Clock()

    def train(self, first: int, steps: int) -> Trained:
        rows = self.setting.rows_of(first, steps)
        history = self.model.fit(
            self.x[rows], self.y[rows], self.setting.work.batch_size, shuffle=False, verbose=0, callbacks=[self.clock]
        ).history
        return Trained(history["loss"][0], history["accuracy"][0], self.clock.seconds)


def layers_by_path(keras: Any, name: str) -> dict[str, Any]:
    """The workload's layers with weights, by unifit's paths."""
    layers = keras.layers
    if name == "mlp":
        return {"0": layers.Dense(sizes.MLP_SIZES[1], activation="relu"), "1": layers.Dense(sizes.MLP_SIZES[2])}
    if name == "lstm":
        return {"0": layers.LSTM(sizes.LSTM_UNITS), "1": layers.Dense(sizes.CLASSES)}
    found: dict[str, Any] = {}
    if name == "cnn":
        for place, width in enumerate(sizes.CNN_WIDTHS):
            place *= sizes.CNN_LAYERS_OF_BLOCK
            found[f"{place}"] = layers.Conv2D(width, 3, padding="same", use_bias=False)
            found[f"{place + 1}"] = layers.BatchNormalization(
                momentum=sizes.BATCH_NORM_MOMENTUM, epsilon=sizes.NORM_EPSILON["cnn"]
            )
        return found | {str(place + sizes.CNN_LAYERS_OF_BLOCK + 1): layers.Dense(sizes.CLASSES)}
    epsilon, width = sizes.NORM_EPSILON["gpt"], sizes.GPT_WIDTH
    found["embed"] = layers.Embedding(sizes.GPT_VOCABULARY, width)
    found["positions"] = positions_of(keras)
    for block in (f"blocks.{number}" for number in range(sizes.GPT_DEPTH)):
        found[f"{block}.norm_attention"] = layers.LayerNormalization(epsilon=epsilon)
        found[f"{block}.norm_feed"] = layers.LayerNormalization(epsilon=epsilon)
        found[f"{block}.attention"] = layers.MultiHeadAttention(
            sizes.GPT_HEADS, width // sizes.GPT_HEADS, use_bias=False
        )
        found[f"{block}.up"], found[f"{block}.down"] = layers.Dense(4 * width, "gelu"), layers.Dense(width)
    return found | {"norm": layers.LayerNormalization(epsilon=epsilon), "head": layers.Dense(sizes.GPT_VOCABULARY)}


def positions_of(keras: Any) -> Any:
    """A layer that adds a vector a position: an Embedding of numbers that are known would be computed once for all."""

    class Positions(keras.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.embeddings = self.add_weight(shape=(sizes.GPT_CONTEXT, sizes.GPT_WIDTH), name="embeddings")

        def call(self, x: Any) -> Any:
            return x + self.embeddings

    return Positions()


def model_of(keras: Any, setting: Setting, named: dict[str, Any]) -> Any:
    """The workload's model over these layers."""
    layers = keras.layers
    x = entry = keras.Input(setting.work.row, dtype="int32" if setting.workload == "gpt" else "float32")
    if setting.workload == "gpt":
        x = named["positions"](named["embed"](x))
        for block in (f"blocks.{number}" for number in range(sizes.GPT_DEPTH)):
            h = named[f"{block}.norm_attention"](x)
            x = x + named[f"{block}.attention"](h, h, use_causal_mask=True)
            x = x + named[f"{block}.down"](named[f"{block}.up"](named[f"{block}.norm_feed"](x)))
        return keras.Model(entry, named["head"](named["norm"](x)))
    for layer in named.values():
        if setting.workload == "cnn" and isinstance(layer, layers.Dense):
            x = layers.GlobalAveragePooling2D()(x)
        x = layer(x)
        if isinstance(layer, layers.BatchNormalization):
            x = layers.MaxPooling2D()(layers.ReLU()(x))
    return keras.Model(entry, x)
