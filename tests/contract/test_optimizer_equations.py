"""The NumPy reference of the update rules against the frameworks' own optimizers, in float64."""

import numpy as np
import pytest

from optimizer_reference import run
from unifit.contract import optimizers as rules

STEPS = 7
FLOAT64_TOLERANCE = 1e-12
FLOAT32_TOLERANCE = 1e-6

# rule, torch.optim class, its arguments; AdamW stands in for the decoupled decay of the others, see `torch_weights`.
TORCH_CASES = [
    (rules.SGD(), "SGD", {}),
    (rules.SGD(momentum=0.9), "SGD", {"momentum": 0.9}),
    (rules.SGD(momentum=0.9, nesterov=True), "SGD", {"momentum": 0.9, "nesterov": True}),
    (rules.SGD(momentum=0.9, weight_decay=0.1), "SGD", {"momentum": 0.9}),
    (rules.Adam(0.8, 0.95, 1e-3), "Adam", {"betas": (0.8, 0.95), "eps": 1e-3}),
    (rules.Adam(0.8, 0.95, 1e-3, 0.1), "AdamW", {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    (rules.AdamW(), "AdamW", {"eps": 1e-7, "weight_decay": 0.004}),
    (rules.RMSprop(0.8, 0.0, 1e-3), "RMSprop", {"alpha": 0.8, "eps": 1e-3}),
    (rules.RMSprop(0.8, 0.5, 1e-3, True), "RMSprop", {"alpha": 0.8, "momentum": 0.5, "eps": 1e-3, "centered": True}),
    (rules.RMSprop(0.8, 0.5, 1e-3, False, 0.1), "RMSprop", {"alpha": 0.8, "momentum": 0.5, "eps": 1e-3}),
    (rules.Adagrad(0.1, 1e-3), "Adagrad", {"initial_accumulator_value": 0.1, "eps": 1e-3}),
    (rules.Adagrad(0.1, 1e-3, 0.1), "Adagrad", {"initial_accumulator_value": 0.1, "eps": 1e-3}),
]


def problem():
    rng = np.random.default_rng(0)
    params = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}
    gradients = [{name: rng.normal(size=value.shape) for name, value in params.items()} for _ in range(STEPS)]
    rates = 0.05 / (1 + np.arange(STEPS))
    return params, gradients, rates


def torch_weights(torch, name, arguments, decay, params, gradients, rates):
    """torch.optim's updates; `decay` is applied by hand where torch's own weight_decay would enter the gradient."""
    weights = {key: torch.nn.Parameter(torch.tensor(value)) for key, value in params.items()}
    optimizer = getattr(torch.optim, name)(weights.values(), lr=1.0, **arguments)
    by_hand = decay if "weight_decay" not in arguments else 0.0
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = float(rate)
        for key, weight in weights.items():
            weight.grad = torch.tensor(gradient[key])
            weight.data.mul_(1 - rate * by_hand)
        optimizer.step()
    return {key: weight.detach().numpy() for key, weight in weights.items()}


@pytest.mark.backends("torch", reason="compares with torch.optim")
@pytest.mark.parametrize(("rule", "name", "arguments"), TORCH_CASES)
def test_reference_equals_torch_optim(rule, name, arguments):
    import torch

    params, gradients, rates = problem()
    expected = torch_weights(torch, name, arguments, rule.weight_decay, params, gradients, rates)
    actual = run(rule, params, gradients, rates)
    for key in params:
        np.testing.assert_allclose(actual[key], expected[key], rtol=FLOAT64_TOLERANCE, atol=FLOAT64_TOLERANCE)


@pytest.mark.backends("jax", reason="torch has no Lion; optax has the published one")
@pytest.mark.parametrize("rule", [rules.Lion(), rules.Lion(0.7, 0.9, 0.1)])
def test_reference_lion_equals_optax(rule):
    import jax
    import optax

    params, gradients, rates = problem()
    # optax.lion decays by lr * d * w. The rate is a schedule, since it changes every step.
    table = np.asarray(rates, np.float32)
    optimizer = optax.lion(
        lambda step: jax.numpy.asarray(table)[step], rule.beta_1, rule.beta_2, weight_decay=rule.weight_decay
    )
    weights = jax.tree.map(np.float32, params)
    state = optimizer.init(weights)
    for gradient in gradients:
        updates, state = optimizer.update(jax.tree.map(np.float32, gradient), state, weights)
        weights = optax.apply_updates(weights, updates)
    actual = run(rule, params, gradients, rates)
    for key in params:
        np.testing.assert_allclose(actual[key], weights[key], rtol=FLOAT32_TOLERANCE, atol=FLOAT32_TOLERANCE)
