"""Every update rule on every backend against its published equations: a changing rate over 5 steps, in float64."""

import numpy as np
import pytest

import optimizer_reference
import unifit as uf

STEPS = 5
RELATIVE, ABSOLUTE = 2e-6, 1e-6

OPTIMIZERS = {
    "sgd": lambda rate: uf.optimizers.SGD(rate),
    "sgd, decay": lambda rate: uf.optimizers.SGD(rate, weight_decay=0.1),
    "momentum": lambda rate: uf.optimizers.SGD(rate, momentum=0.9),
    "nesterov, decay": lambda rate: uf.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=0.05),
    "adam": lambda rate: uf.optimizers.Adam(rate),
    "adam, betas": lambda rate: uf.optimizers.Adam(rate, beta_1=0.5, beta_2=0.9, epsilon=1e-2),
    "adamw": lambda rate: uf.optimizers.AdamW(rate),
    "adamw, decay": lambda rate: uf.optimizers.AdamW(rate, weight_decay=0.3),
    "rmsprop": lambda rate: uf.optimizers.RMSprop(rate),
    "rmsprop, momentum": lambda rate: uf.optimizers.RMSprop(rate, rho=0.8, momentum=0.7, epsilon=1e-3),
    "rmsprop, centered": lambda rate: uf.optimizers.RMSprop(rate, centered=True, epsilon=1e-2, weight_decay=0.1),
    "adagrad": lambda rate: uf.optimizers.Adagrad(rate),
    "adagrad, decay": lambda rate: uf.optimizers.Adagrad(rate, initial_accumulator_value=0.3, weight_decay=0.1),
    "lion": lambda rate: uf.optimizers.Lion(rate),
    "lion, decay": lambda rate: uf.optimizers.Lion(rate, beta_1=0.8, beta_2=0.95, weight_decay=0.2),
}


def rate_of(step):
    """A rate that changes with every update."""
    return 0.1 / (1 + step) + 0.01 * (step % 2)


class Pair(uf.Layer):
    """Two weights, of which the exclusion "bias" leaves one out; an unused third has gradient zero."""

    def build(self, input_shape):
        start = np.linspace(-1.0, 1.0, 4).astype("float32")
        self.kernel = self.add_weight((4,), lambda shape, dtype: start)
        self.bias = self.add_weight((4,), lambda shape, dtype: start[::-1].copy())
        self.unused = self.add_weight((4,), "ones")

    def call(self, x):
        return x[:, :4] * self.kernel + x[:, 4:] * self.bias


def total(y_true, y_pred):
    return uf.ops.sum(y_pred, axis=-1)


@pytest.mark.parametrize("exclude", [None, ["bias"]])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rule_follows_its_equations(name, exclude):
    optimizer = OPTIMIZERS[name](rate_of)
    optimizer.exclude_from_weight_decay = exclude
    x = np.random.default_rng(3).normal(size=(STEPS, 8)).astype("float32")
    model = uf.Sequential([Pair()])
    model.build((None, 8))
    start = model.weights_by_path()
    model.compile(optimizer, total)
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    # The loss of a row is x_1 . kernel + x_2 . bias, so its gradient is the row itself.
    gradients = [{"0.kernel": row[:4], "0.bias": row[4:]} for row in x]
    decayed = {path for path in start if exclude is None or "bias" not in path}
    want = optimizer_reference.run(optimizer.rule, start, gradients, [rate_of(t) for t in range(STEPS)], decayed)
    for path, value in model.weights_by_path().items():
        np.testing.assert_allclose(value, want[path], rtol=RELATIVE, atol=ABSOLUTE, err_msg=path)
