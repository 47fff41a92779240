"""fit against a short loop written by hand in each framework: the same weights after 10 steps."""

import numpy as np
import pytest

import unifit as uf
from tolerance import assert_same_weights

STEPS, BATCH, RATE, DECAY = 10, 16, 1e-2, 0.1


def data():
    r = np.random.default_rng(2)
    return r.normal(size=(STEPS * BATCH, 6)).astype("float32"), r.integers(0, 4, STEPS * BATCH).astype("int32")


def fitted():
    """unifit's weights before and after one epoch of STEPS batches, in order."""
    model = uf.Sequential([uf.layers.Dense(12, activation="relu"), uf.layers.Dense(4)])
    model.build((None, 6))
    start = model.weights_by_path()
    loss = uf.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(uf.optimizers.AdamW(RATE, weight_decay=DECAY), loss)
    x, y = data()
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return start, model.weights_by_path(), history.history["loss"][0]


def check(native):
    start, got, loss = fitted()
    want, losses = native(start, *data())
    assert_same_weights(got, want, rate_sum=STEPS * RATE)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.backends("torch")
def test_fit_equals_hand_written_torch_loop():
    import torch

    def native(start, x, y):
        model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
        with torch.no_grad():
            for i, layer in ((0, model[0]), (1, model[2])):
                layer.weight.copy_(torch.from_numpy(start[f"{i}.kernel"]).T)
                layer.bias.copy_(torch.from_numpy(start[f"{i}.bias"]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-7, weight_decay=DECAY)
        losses = []
        for i in range(0, len(x), BATCH):
            optimizer.zero_grad()
            labels = torch.from_numpy(y[i : i + BATCH]).long()
            loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[i : i + BATCH])), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        weights = {}
        for i, layer in ((0, model[0]), (1, model[2])):
            weights |= {f"{i}.kernel": layer.weight.detach().numpy().T, f"{i}.bias": layer.bias.detach().numpy()}
        return weights, losses

    check(native)


@pytest.mark.backends("jax")
def test_fit_equals_hand_written_jax_loop():
    import jax
    import jax.numpy as jnp
    import optax

    def native(start, x, y):
        def loss_of(params, x, y):
            h = jax.nn.relu(x @ params["0.kernel"] + params["0.bias"])
            logits = h @ params["1.kernel"] + params["1.bias"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        optimizer = optax.adamw(RATE, eps=1e-7, weight_decay=DECAY)
        params = jax.tree.map(jnp.asarray, start)
        state = optimizer.init(params)

        @jax.jit
        def step(params, state, x, y):
            loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, loss

        losses = []
        for i in range(0, len(x), BATCH):
            params, state, loss = step(params, state, x[i : i + BATCH], y[i : i + BATCH])
            losses.append(float(loss))
        return {k: np.asarray(v) for k, v in params.items()}, losses

    check(native)


@pytest.mark.backends("tensorflow")
def test_fit_equals_hand_written_tensorflow_loop():
    import tensorflow as tf

    def native(start, x, y):
        w = {k: tf.Variable(v) for k, v in start.items()}
        slots = {k: (tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for k, v in w.items()}

        @tf.function
        def step(x, y, t):
            with tf.GradientTape() as tape:
                h = tf.nn.relu(x @ w["0.kernel"] + w["0.bias"])
                logits = h @ w["1.kernel"] + w["1.bias"]
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            gradients = tape.gradient(loss, w)
            for k, v in w.items():
                m, s = slots[k]
                m.assign(0.9 * m + 0.1 * gradients[k])
                s.assign(0.999 * s + 0.001 * tf.square(gradients[k]))
                direction = (m / (1 - 0.9**t)) / (tf.sqrt(s / (1 - 0.999**t)) + 1e-7)
                v.assign(v - RATE * DECAY * v - RATE * direction)
            return loss

        losses = []
        for t, i in enumerate(range(0, len(x), BATCH), start=1):
            losses.append(float(step(x[i : i + BATCH], y[i : i + BATCH], tf.constant(float(t)))))
        return {k: v.numpy() for k, v in w.items()}, losses

    check(native)
