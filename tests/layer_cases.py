"""One table of layers: constructor arguments, input shapes, call arguments. Contract and parity tests run it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import unifit as uf


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and one call of it.

    Attributes:
        name: The layer's name, in unifit and in Keras.
        arguments: Constructor arguments.
        inputs: Shapes of the inputs.
        call: Arguments of the call by name; arrays of bool are masks.
        indices: Inputs are whole numbers below this, instead of normal floats.
        as_list: The inputs are one list.
    """

    name: str
    arguments: dict[str, Any]
    inputs: tuple[tuple[int, ...], ...]
    call: dict[str, Any] = dataclasses.field(default_factory=dict)
    indices: int = 0
    as_list: bool = False

    @property
    def id(self) -> str:
        given = [f"{key}={value}" for key, value in {**self.arguments, **self.call}.items() if np.ndim(value) < 2]
        given += [key for key, value in self.call.items() if np.ndim(value) >= 2]
        return f"{self.name}({', '.join(given)})@{'+'.join('x'.join(map(str, shape)) for shape in self.inputs)}"

    def make(self) -> Any:
        """The unifit layer."""
        return getattr(uf.layers, self.name)(**self.arguments)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Host inputs."""
        rng = np.random.default_rng(seed)
        if self.indices:
            return [rng.integers(0, self.indices, shape).astype("int32") for shape in self.inputs]
        return [rng.normal(size=shape).astype("float32") for shape in self.inputs]

    def call_with(self, layer: Any, arrays: list[Any], convert: Any = lambda x: x) -> Any:
        """Calls a layer, of unifit or of Keras, on these inputs."""
        named = {key: convert(value) if isinstance(value, np.ndarray) else value for key, value in self.call.items()}
        given = [convert(array) for array in arrays]
        return layer(given, **named) if self.as_list else layer(*given, **named)


def steps_mask(rows: int, steps: int) -> np.ndarray:
    """bool (rows, steps): row i has its last i steps masked."""
    return np.arange(steps) < steps - np.arange(rows)[:, None]


def one(name: str, shape: tuple[int, ...], call: dict[str, Any] | None = None, **arguments: Any) -> Case:
    return Case(name, arguments, (shape,), call or {})


def several(name: str, *shapes: tuple[int, ...], **arguments: Any) -> Case:
    return Case(name, arguments, shapes, as_list=True)


def attention(*shapes: tuple[int, ...], call: dict[str, Any] | None = None, **arguments: Any) -> Case:
    return Case("MultiHeadAttention", arguments, shapes, call or {})


VECTORS, STEPS, IMAGES, ODD = (3, 6), (3, 7, 6), (3, 8, 9, 4), (2, 7, 7, 4)
PAIRS = np.random.default_rng(5).random((3, 5, 7)) < 0.6
PAIRS[..., 0] = True

CASES = [
    one("Dense", VECTORS, units=4),
    one("Dense", STEPS, units=4, activation="gelu", use_bias=False),
    one("Dense", IMAGES, units=2, activation="softmax"),
    one("EinsumDense", STEPS, equation="abc,cde->abde", output_shape=(None, 2, 3), bias_axes="de"),
    one("EinsumDense", STEPS, equation="abc,bd->adc", output_shape=(5, 6), bias_axes="d", activation="relu"),
    one("EinsumDense", IMAGES, equation="...x,xy->...y", output_shape=5, bias_axes="y"),
    one("EinsumDense", IMAGES, equation="ab...,bc->ac...", output_shape=5, bias_axes="c"),
    one("EinsumDense", VECTORS, equation="ab,bc->ac", output_shape=4),
    Case("Embedding", {"input_dim": 11, "output_dim": 4}, ((3, 7),), indices=11),
    Case("Embedding", {"input_dim": 11, "output_dim": 4, "mask_zero": True}, ((3, 7),), indices=11),
    one("Masking", STEPS, mask_value=0.0),
    one("Dropout", VECTORS, rate=0.5),
    one("Activation", VECTORS, activation="silu"),
    one("Activation", VECTORS, activation="tanh"),
    one("ReLU", VECTORS),
    one("ReLU", VECTORS, max_value=0.9, negative_slope=0.2, threshold=0.3),
    one("LeakyReLU", VECTORS),
    one("LeakyReLU", VECTORS, negative_slope=0.1),
    one("Softmax", STEPS),
    one("Softmax", STEPS, axis=[1, 2]),
    one("Softmax", (3, 7), {"mask": steps_mask(3, 7)}),
    one("Rescaling", IMAGES, scale=1 / 255, offset=-0.5),
    one("Rescaling", STEPS, scale=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    one("Identity", VECTORS),
    one("Flatten", IMAGES),
    one("Flatten", (3,)),
    one("Reshape", STEPS, target_shape=(3, -1)),
    one("Reshape", STEPS, target_shape=(42,)),
    one("Permute", IMAGES, dims=(3, 1, 2)),
    one("ZeroPadding2D", IMAGES),
    one("ZeroPadding2D", IMAGES, padding=3),
    one("ZeroPadding2D", IMAGES, padding=((1, 0), (2, 3))),
    one("UpSampling2D", IMAGES),
    one("UpSampling2D", IMAGES, size=(3, 1)),
    one("UpSampling2D", IMAGES, size=2, interpolation="bilinear"),
    several("Add", VECTORS, VECTORS, VECTORS),
    several("Add", STEPS, VECTORS),
    several("Subtract", VECTORS, VECTORS),
    several("Multiply", VECTORS, VECTORS, VECTORS),
    several("Average", VECTORS, VECTORS, VECTORS),
    several("Maximum", VECTORS, VECTORS, VECTORS),
    several("Minimum", VECTORS, VECTORS),
    several("Concatenate", VECTORS, (3, 2)),
    several("Concatenate", STEPS, (3, 2, 6), axis=1),
    one("Conv1D", STEPS, filters=4, kernel_size=3),
    one("Conv1D", STEPS, filters=4, kernel_size=4, strides=2, padding="same", activation="relu"),
    one("Conv1D", STEPS, filters=4, kernel_size=3, padding="causal", dilation_rate=2),
    one("Conv1D", STEPS, filters=4, kernel_size=2, padding="causal", strides=2),
    one("Conv1D", STEPS, filters=4, kernel_size=3, groups=2, use_bias=False),
    one("Conv2D", IMAGES, filters=5, kernel_size=3),
    one("Conv2D", IMAGES, filters=5, kernel_size=(2, 4), strides=(2, 1), padding="same"),
    one("Conv2D", IMAGES, filters=6, kernel_size=(4, 3), padding="SAME", groups=2, activation="elu"),
    one("Conv2D", ODD, filters=5, kernel_size=3, strides=2, padding="same", use_bias=False),
    one("Conv2D", IMAGES, filters=5, kernel_size=3, dilation_rate=(2, 3)),
    one("Conv2D", IMAGES, filters=5, kernel_size=3, dilation_rate=2, padding="same"),
    one("Conv1DTranspose", STEPS, filters=4, kernel_size=3),
    one("Conv1DTranspose", STEPS, filters=4, kernel_size=4, strides=2, padding="same"),
    one("Conv1DTranspose", STEPS, filters=4, kernel_size=3, strides=3, padding="same", output_padding=1),
    one("Conv2DTranspose", IMAGES, filters=5, kernel_size=3),
    one("Conv2DTranspose", IMAGES, filters=5, kernel_size=(2, 4), strides=2, padding="same", activation="relu"),
    one("Conv2DTranspose", IMAGES, filters=5, kernel_size=2, strides=3, use_bias=False),
    one("Conv2DTranspose", IMAGES, filters=5, kernel_size=3, strides=2, padding="valid", output_padding=1),
    one("Conv2DTranspose", IMAGES, filters=5, kernel_size=3, dilation_rate=2),
    one("DepthwiseConv2D", IMAGES, kernel_size=3),
    one("DepthwiseConv2D", IMAGES, kernel_size=(2, 4), strides=2, padding="same", depth_multiplier=3),
    one("DepthwiseConv2D", IMAGES, kernel_size=3, dilation_rate=2, use_bias=False, activation="relu"),
    one("MaxPooling1D", STEPS),
    one("MaxPooling1D", STEPS, pool_size=3, strides=2, padding="same"),
    one("MaxPooling2D", IMAGES),
    one("MaxPooling2D", IMAGES, pool_size=(3, 2), strides=(1, 2), padding="same"),
    one("AveragePooling1D", STEPS, pool_size=2),
    one("AveragePooling1D", STEPS, pool_size=3, strides=2, padding="same"),
    one("AveragePooling2D", IMAGES, pool_size=2),
    one("AveragePooling2D", IMAGES, pool_size=(3, 2), strides=(1, 2), padding="same"),
    one("GlobalMaxPooling1D", STEPS),
    one("GlobalMaxPooling2D", IMAGES, keepdims=True),
    one("GlobalAveragePooling1D", STEPS),
    one("GlobalAveragePooling1D", STEPS, {"mask": steps_mask(3, 7)}, keepdims=True),
    one("GlobalAveragePooling2D", IMAGES),
    one("GlobalAveragePooling2D", IMAGES, keepdims=True),
    one("BatchNormalization", VECTORS),
    one("BatchNormalization", IMAGES, {"training": True}),
    one("BatchNormalization", STEPS, {"training": True}, axis=1, momentum=0.9, epsilon=1e-5),
    one("BatchNormalization", STEPS, {"training": True}, center=False, scale=False),
    one("BatchNormalization", STEPS, {"training": True, "mask": steps_mask(3, 7)}),
    one("BatchNormalization", IMAGES, {"training": True}, trainable=False),
    one("LayerNormalization", STEPS),
    one("LayerNormalization", IMAGES, axis=[1, 3], epsilon=1e-5),
    one("LayerNormalization", IMAGES, axis=(-1, -2), center=False),
    one("LayerNormalization", STEPS, scale=False),
    one("RMSNormalization", STEPS),
    one("RMSNormalization", STEPS, axis=(1, 2), epsilon=1e-3),
    one("GroupNormalization", IMAGES, groups=2),
    one("GroupNormalization", IMAGES, groups=-1, scale=False),
    one("GroupNormalization", STEPS, groups=7, axis=1, center=False),
    attention(STEPS, STEPS, num_heads=2, key_dim=4),
    attention((3, 5, 6), (3, 7, 4), num_heads=3, key_dim=4, value_dim=2, use_bias=False),
    attention((3, 5, 6), (3, 7, 4), (3, 7, 8), num_heads=2, key_dim=4, output_shape=5),
    attention((3, 5, 6), STEPS, num_heads=2, key_dim=4, output_shape=(2, 3)),
    attention(STEPS, STEPS, call={"use_causal_mask": True}, num_heads=2, key_dim=4),
    attention((3, 5, 6), STEPS, call={"use_causal_mask": True, "attention_mask": PAIRS}, num_heads=2, key_dim=4),
    attention(
        (3, 5, 6), STEPS, call={"return_attention_scores": True, "attention_mask": PAIRS}, num_heads=2, key_dim=4
    ),
    attention((3, 5, 6), STEPS, call={"value_mask": steps_mask(3, 7)}, num_heads=2, key_dim=4),
    attention(STEPS, STEPS, call={"use_causal_mask": True}, num_heads=2, key_dim=4, sliding_window=3),
    attention(STEPS, STEPS, num_heads=2, key_dim=4, dropout=0.3),
    Case("GroupQueryAttention", {"head_dim": 4, "num_query_heads": 6, "num_key_value_heads": 2}, (STEPS, STEPS)),
    Case(
        "GroupQueryAttention",
        {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 1, "use_bias": False},
        ((3, 5, 6), STEPS),
        {"use_causal_mask": True, "return_attention_scores": True},
    ),
]

OWN_CASES = [
    attention(STEPS, STEPS, num_heads=4, key_dim=4, num_key_value_heads=2, rotary=True),
    attention(STEPS, STEPS, call={"use_causal_mask": True}, num_heads=4, key_dim=4, num_key_value_heads=1, rotary=True,
              rotary_base=500.0),
]  # fmt: skip
"""What Keras does not have."""


def with_random_weights(layer: Any, seed: int = 1) -> list[np.ndarray]:
    """Gives a built layer weights in [0.5, 1.5), so that no scale, bias or variance is neutral; returns them."""
    rng = np.random.default_rng(seed)
    weights = [rng.uniform(0.5, 1.5, value.shape).astype("float32") for value in layer.get_weights()]
    layer.set_weights(weights)
    return weights


def numpy_tree(value: Any) -> list[np.ndarray]:
    """The arrays of a unifit result on the host."""
    return [uf.ops.convert_to_numpy(leaf) for leaf in (value if isinstance(value, (list, tuple)) else [value])]
