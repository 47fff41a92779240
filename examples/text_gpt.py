"""A small causal language model on the source text of Python's standard library, two devices, any backend."""

import json
import os
from pathlib import Path

import numpy as np

import unifit as uf

DEVICES, EPOCHS, CONTEXT = int(os.environ.get("DEVICES", 2)), int(os.environ.get("EPOCHS", 4)), 64
PRECISION = os.environ.get("PRECISION", "float32")
PAD = 0

text = "".join((Path(os.__file__).parent / f"{name}.py").read_text() for name in ("bisect", "heapq", "textwrap"))
alphabet = sorted(set(text))
ids = np.array([alphabet.index(c) + 1 for c in text], "int32")  # 0 is padding
rows = -(-(len(ids) - 1) // CONTEXT)
tokens, targets = np.full((2, rows * CONTEXT), PAD, "int32")
tokens[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]  # the last row is padded
tokens, targets = tokens.reshape(rows, CONTEXT), targets.reshape(rows, CONTEXT)


@uf.register_serializable(package="gpt")
class Block(uf.Layer):
    """Pre-norm attention and feed-forward, both with a residual."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.norm_attention, self.norm_feed = uf.layers.RMSNormalization(), uf.layers.RMSNormalization()
        self.attention = uf.layers.MultiHeadAttention(heads, width // heads, rotary=True, use_bias=False)
        self.feed = uf.Sequential([uf.layers.Dense(4 * width, activation="gelu"), uf.layers.Dense(width)])
        self.add = uf.layers.Add()  # keeps the padding mask

    def call(self, x):
        h = self.norm_attention(x)
        x = self.add([x, self.attention(h, h, use_causal_mask=True)])
        return self.add([x, self.feed(self.norm_feed(x))])


@uf.register_serializable(package="gpt")
class GPT(uf.Model):
    """Characters in, logits of the next character out."""

    def __init__(self, vocabulary, width, heads, depth, **kwargs):
        super().__init__(**kwargs)
        self.embed = uf.layers.Embedding(vocabulary, width, mask_zero=True)
        self.blocks = [Block(width, heads) for _ in range(depth)]
        self.norm, self.head = uf.layers.RMSNormalization(), uf.layers.Dense(vocabulary)

    def call(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = GPT(len(alphabet) + 1, width=64, heads=4, depth=2)
steps = EPOCHS * -(-rows // 16)
model.compile(
    optimizer=uf.optimizers.AdamW(
        uf.schedules.CosineDecay(3e-3, steps, warmup_steps=steps // 10),
        weight_decay=0.1,
        exclude_from_weight_decay="norms_and_biases",
    ),
    loss=uf.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD),
    metrics=["accuracy"],
    clip_norm=1.0,
    precision=PRECISION,
)
history = model.fit(tokens, targets, batch_size=16, epochs=EPOCHS, distribution=uf.DataParallel(devices=DEVICES))
loss, accuracy = model.evaluate(tokens[-8:], targets[-8:], verbose=0)
predicted = model.predict(tokens[-8:], verbose=0)

model.save("gpt.unifit")
again = uf.load_model("gpt.unifit").predict(tokens[-8:], verbose=0)
np.testing.assert_allclose(again, predicted, rtol=1e-4, atol=1e-4)

row = {"backend": uf.backend.name, "devices": DEVICES, "losses": history.history["loss"]}
print(json.dumps(row | {"characters": len(ids), "evaluated_loss": loss, "evaluated_accuracy": accuracy}))
