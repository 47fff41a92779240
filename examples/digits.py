"""Handwritten digits on two devices: one script for UNIFIT_BACKEND=torch, jax and tensorflow."""

import json
import os
import time

import numpy as np
from sklearn.datasets import load_digits

import unifit as uf

DEVICES, EPOCHS, BATCH = int(os.environ.get("DEVICES", 2)), int(os.environ.get("EPOCHS", 12)), 64
PRECISION = os.environ.get("PRECISION", "float32")

x, y = load_digits(return_X_y=True)
x = (x.reshape(-1, 8, 8, 1) / 16.0).astype("float32")
order = np.random.default_rng(0).permutation(len(x))
train, test = order[:1440], order[1440:]

model = uf.Sequential(
    [
        uf.layers.Conv2D(32, 3, padding="same", use_bias=False),
        uf.layers.BatchNormalization(momentum=0.9),
        uf.layers.Activation("silu"),
        uf.layers.AveragePooling2D(),
        uf.layers.Conv2D(64, 3, padding="same", activation="silu"),
        uf.layers.Flatten(),
        uf.layers.Dense(10),
    ]
)
steps = EPOCHS * -(-len(train) // BATCH)
model.compile(
    optimizer=uf.optimizers.AdamW(uf.schedules.CosineDecay(3e-3, steps, warmup_steps=steps // 10), weight_decay=0.01),
    loss=uf.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    precision=PRECISION,
)
start = time.perf_counter()
history = model.fit(
    x[train],
    y[train],
    batch_size=BATCH,
    epochs=EPOCHS,
    validation_data=(x[test], y[test]),
    distribution=uf.DataParallel(devices=DEVICES),
)
seconds = time.perf_counter() - start
loss, accuracy = model.evaluate(x[test], y[test], verbose=0)
predicted = model.predict(x[test], verbose=0)

model.save("digits.unifit")
again = uf.load_model("digits.unifit").predict(x[test], verbose=0)
np.testing.assert_allclose(again, predicted, rtol=1e-4, atol=1e-5)
assert np.mean(np.argmax(predicted, -1) == y[test]) == accuracy

row = {"backend": uf.backend.name, "devices": DEVICES, "loss": history.history["loss"][-1]}
print(json.dumps(row | {"val_accuracy": history.history["val_accuracy"][-1], "seconds": round(seconds, 2)}))
