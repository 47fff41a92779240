"""The law in float64 by hand: Dense(tanh, L2) - BatchNormalization - Dense, mean squared error, without any framework.

Forward and backward are spelled out in NumPy. A window is done the way the law says it, not the way an engine does it:
the sums over all its valid rows first, one division, one update.
"""

import numpy as np

from optimizer_reference import run as run_optimizer

EPSILON, MOMENTUM = 1e-3, 0.99


def forward_backward(params, x, y, weight, l2):
    """One micro-batch over its valid rows, all devices together.

    Returns:
        (sum of weighted losses plus rows * penalty, gradients of that sum, batch mean, batch variance).
    """
    w0, b0, gamma, beta, w1, b1 = (params[k] for k in ("0.kernel", "0.bias", "1.gamma", "1.beta", "2.kernel", "2.bias"))
    n = len(x)
    h = np.tanh(x @ w0 + b0)
    mean = h.mean(0)
    var = ((h - mean) ** 2).mean(0)
    inv = 1 / np.sqrt(var + EPSILON)
    norm = (h - mean) * inv
    z = norm * gamma + beta
    out = z @ w1 + b1
    error = out - y
    total = (weight * (error**2).mean(-1)).sum() + n * l2 * (w0**2).sum()
    d_out = weight[:, None] * 2 * error / error.shape[-1]
    d_z = d_out @ w1.T
    d_norm = d_z * gamma
    # Gradient of the normalisation over the n rows.
    d_h = inv * (d_norm - d_norm.mean(0) - norm * (d_norm * norm).mean(0))
    d_a = d_h * (1 - h**2)
    gradients = {
        "0.kernel": x.T @ d_a + n * 2 * l2 * w0,
        "0.bias": d_a.sum(0),
        "1.gamma": (d_z * norm).sum(0),
        "1.beta": d_z.sum(0),
        "2.kernel": z.T @ d_out,
        "2.bias": d_out.sum(0),
    }
    return total, gradients, mean, var


def train(start, batches, accumulation, rule, rate, l2=0.0, clip_norm=None):
    """Updates over windows of `accumulation` batches.

    Args:
        start: Initial weights by path, moving statistics included.
        batches: (x, y, weight) of each batch's valid rows, in order; a row's mask is applied already.
        rule: unifit.contract.optimizers value.
        rate: Learning rate.

    Returns:
        (weights by path after all updates, per-update losses, per-update gradient norms), float64.
    """
    weights = {k: np.asarray(v, np.float64) for k, v in start.items()}
    names = [k for k in weights if "moving" not in k]
    history, losses, norms = [], [], []
    for first in range(0, len(batches), accumulation):
        params = run_optimizer(rule, {k: start[k] for k in names}, history, [rate] * len(history))
        total, count, sums = 0.0, 0, {k: 0.0 for k in names}
        for x, y, weight in batches[first : first + accumulation]:
            if not len(x):
                continue
            more, gradients, mean, var = forward_backward(params, x, y, weight, l2)
            total, count = total + more, count + len(x)
            sums = {k: sums[k] + gradients[k] for k in names}
            for name, value in (("1.moving_mean", mean), ("1.moving_variance", var)):
                weights[name] = MOMENTUM * weights[name] + (1 - MOMENTUM) * value
        gradient = {k: v / count for k, v in sums.items()}
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        if clip_norm is not None:
            gradient = {k: g * min(1.0, clip_norm / norm) for k, g in gradient.items()}
        history.append(gradient)
        losses.append(total / count)
        norms.append(norm)
    final = run_optimizer(rule, {k: start[k] for k in names}, history, [rate] * len(history))
    return weights | final, losses, norms
