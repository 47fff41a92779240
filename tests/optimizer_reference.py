"""The update rules in NumPy float64, written from the published equations: every backend is held to them."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from unifit.contract import optimizers as rules

Arrays = Mapping[str, np.ndarray]


def run(
    rule: rules.OptimizerRule,
    params: Arrays,
    gradients_per_step: Sequence[Arrays],
    rates: Sequence[float],
    decayed: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """Applies one update for each entry of `gradients_per_step`.

    Args:
        rule: The rule with its hyper-parameters.
        params: Start values by name.
        gradients_per_step: Gradients by name, one mapping a step. A missing name is a gradient of zero.
        rates: The learning rate of each step.
        decayed: Names that weight decay applies to; all by default.

    Returns:
        The values after the last step, float64. The arguments are unchanged.
    """
    if len(rates) != len(gradients_per_step):
        raise ValueError(f"{len(gradients_per_step)} steps of gradients, {len(rates)} rates")
    result = {}
    for name, value in params.items():
        w = np.array(value, np.float64)
        decay = rule.weight_decay if decayed is None or name in decayed else 0.0
        direction = _DIRECTIONS[type(rule)](rule, w.shape)
        for gradients, lr in zip(gradients_per_step, rates, strict=True):
            g = np.asarray(gradients.get(name, np.zeros(w.shape)), np.float64)
            w = w - lr * decay * w - lr * direction(g)
        result[name] = w
    return result


# Each makes a function g -> direction for one parameter, with its slots inside: w -= lr * (decay * w + direction).


def _sgd(rule: rules.SGD, shape):
    # Sutskever, Martens, Dahl, Hinton, 2013, in the form with the rate outside the velocity.
    velocity = np.zeros(shape)

    def direction(g):
        nonlocal velocity
        velocity = rule.momentum * velocity + g
        return g + rule.momentum * velocity if rule.nesterov else velocity

    return direction


def _adam(rule: rules.Adam, shape):
    # Kingma, Ba, 2015, Algorithm 1.
    m, v, t = np.zeros(shape), np.zeros(shape), 0

    def direction(g):
        nonlocal m, v, t
        t += 1
        m = rule.beta_1 * m + (1 - rule.beta_1) * g
        v = rule.beta_2 * v + (1 - rule.beta_2) * g**2
        m_hat = m / (1 - rule.beta_1**t)
        v_hat = v / (1 - rule.beta_2**t)
        return m_hat / (np.sqrt(v_hat) + rule.epsilon)

    return direction


def _rmsprop(rule: rules.RMSprop, shape):
    # Tieleman, Hinton, 2012, Lecture 6.5; Graves, 2013, equations 38 to 40, for the centred form.
    square_average, gradient_average, velocity = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    def direction(g):
        nonlocal square_average, gradient_average, velocity
        square_average = rule.rho * square_average + (1 - rule.rho) * g**2
        variance = square_average
        if rule.centered:
            gradient_average = rule.rho * gradient_average + (1 - rule.rho) * g
            variance = np.maximum(square_average - gradient_average**2, 0)
        velocity = rule.momentum * velocity + g / (np.sqrt(variance) + rule.epsilon)
        return velocity

    return direction


def _adagrad(rule: rules.Adagrad, shape):
    # Duchi, Hazan, Singer, 2011, the diagonal form.
    square_sum = np.full(shape, rule.initial_accumulator_value)

    def direction(g):
        nonlocal square_sum
        square_sum = square_sum + g**2
        return g / (np.sqrt(square_sum) + rule.epsilon)

    return direction


def _lion(rule: rules.Lion, shape):
    # Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms", Program 1.
    m = np.zeros(shape)

    def direction(g):
        nonlocal m
        update = np.sign(rule.beta_1 * m + (1 - rule.beta_1) * g)
        m = rule.beta_2 * m + (1 - rule.beta_2) * g
        return update

    return direction


_DIRECTIONS = {
    rules.SGD: _sgd,
    rules.Adam: _adam,
    rules.AdamW: _adam,
    rules.RMSprop: _rmsprop,
    rules.Adagrad: _adagrad,
    rules.Lion: _lion,
}
