"""The workloads as TensorFlow functions: (weights by path, rows, devices) -> logits and moved statistics."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks import workloads as sizes


def mlp(w: Any, x: Any, devices: int) -> tuple[Any, dict]:
    return _dense(w, "1", tf.nn.relu(_dense(w, "0", x))), {}


def cnn(w: Any, x: Any, devices: int) -> tuple[Any, dict]:
    place, moved = 0, {}
    for _ in sizes.CNN_WIDTHS:
        x = tf.nn.conv2d(x, w[f"{place}.kernel"], 1, "SAME")
        gamma, beta = (tf.cast(w[f"{place + 1}.{name}"], tf.float32) for name in ("gamma", "beta"))
        x, mean, variance = (_normalized if devices == 1 else _normalized_over_devices)(x, gamma, beta)
        moved |= {f"{place + 1}.moving_mean": mean, f"{place + 1}.moving_variance": variance}
        x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
        place += sizes.CNN_LAYERS_OF_BLOCK
    return _dense(w, str(place + 1), tf.reduce_mean(x, (1, 2))), moved


def _normalized(x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    """The fused kernel, on one device."""
    return tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, epsilon=sizes.NORM_EPSILON["cnn"], is_training=True)


def _normalized_over_devices(x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    wide = tf.cast(x, tf.float32)
    own = [tf.reduce_mean(wide, (0, 1, 2)), tf.reduce_mean(tf.square(wide), (0, 1, 2))]
    mean, square = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, own)
    variance = square - tf.square(mean)
    scale = gamma * tf.math.rsqrt(variance + sizes.NORM_EPSILON["cnn"])
    return x * tf.cast(scale, x.dtype) + tf.cast(beta - mean * scale, x.dtype), mean, variance


def gpt(w: Any, x: Any, devices: int) -> tuple[Any, dict]:
    x = tf.gather(w["embed.embeddings"], x) + w["positions.embeddings"]
    rows, steps, width = x.shape
    head = sizes.GPT_WIDTH // sizes.GPT_HEADS
    visible = tf.linalg.band_part(tf.ones((steps, steps), tf.bool), -1, 0)
    for block in (f"blocks.{number}" for number in range(sizes.GPT_DEPTH)):
        h = _norm(w, f"{block}.norm_attention", x)
        kernels = [tf.reshape(w[f"{block}.attention.{n}.kernel"], (width, width)) for n in ("query", "key", "value")]
        qkv = tf.reshape(_matmul(h, tf.concat(kernels, axis=1)), (rows, steps, 3, sizes.GPT_HEADS, head))
        q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
        scores = tf.matmul(q * tf.cast(head**-0.5, q.dtype), k, transpose_b=True)
        scores = tf.nn.softmax(tf.where(visible, tf.cast(scores, tf.float32), -1e9))
        y = tf.reshape(tf.transpose(tf.matmul(tf.cast(scores, v.dtype), v), (0, 2, 1, 3)), (rows, steps, width))
        x = x + _matmul(y, tf.reshape(w[f"{block}.attention.attention_output.kernel"], (width, width)))
        h = tf.nn.gelu(_dense(w, f"{block}.up", _norm(w, f"{block}.norm_feed", x)))
        x = x + _dense(w, f"{block}.down", h)
    return _dense(w, "head", _norm(w, "norm", x)), {}


def lstm(w: Any, x: Any, devices: int) -> tuple[Any, dict]:
    """Unrolled, which was a fifth faster on a CPU than a tf.while_loop over TensorArrays, and twice as fast as its
    own kernel for CPUs, BlockLSTMV2, whose gradient was besides not that of its forward pass.

    Reference: https://keras.io/api/layers/recurrent_layers/lstm/ (`unroll`: faster for short sequences, for memory).
    """
    recurrent = tf.identity(w["0.recurrent_kernel"])
    h = c = tf.zeros((x.shape[0], sizes.LSTM_UNITS), x.dtype)
    for projected in tf.unstack(_matmul(tf.transpose(x, (1, 0, 2)), w["0.kernel"]) + w["0.bias"]):
        i, f, g, o = tf.split(projected + tf.matmul(h, recurrent), 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
    return _dense(w, "1", h), {}


def _dense(w: Any, path: str, x: Any) -> Any:
    return _matmul(x, w[f"{path}.kernel"]) + w[f"{path}.bias"]


def _matmul(x: Any, kernel: Any) -> Any:
    """One product of matrices, which is faster than a batch of them."""
    return tf.reshape(tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel), (*x.shape[:-1], kernel.shape[-1]))


def _norm(w: Any, path: str, x: Any) -> Any:
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), -1, keepdims=True)
    scale = tf.math.rsqrt(variance + sizes.NORM_EPSILON["gpt"])
    return tf.cast((tf.cast(x, tf.float32) - mean) * scale, x.dtype) * w[f"{path}.gamma"] + w[f"{path}.beta"]


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "lstm": lstm}
