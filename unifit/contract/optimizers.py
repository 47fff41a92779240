"""The update rules that cross to a backend: hyper-parameters only, one frozen value a rule.

A backend turns a rule into its framework's optimizer and must compute exactly the equations below; the learning rate
reaches it apart, as one float32 number a step. The notation, the same in every docstring:

    t    number of this update, from 1        g    gradient of w, after reduction and clipping
    lr   learning rate of this update         d    `weight_decay` where w decays, 0 where it is excluded

Weight decay is decoupled in every rule: `w -= lr * d * w` with the w before the update; it never enters g, a moment or
a norm. All products and roots are elementwise, and a gradient that is absent counts as zero.

`slot_names` are the optimizer's per-parameter arrays under the canonical names that checkpoints use. A slot has its
parameter's shape, is float32 and starts at zero unless the docstring says otherwise.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SGD:
    """Gradient descent with momentum; the rate is outside the velocity.

        velocity = momentum * velocity + g
        step     = g + momentum * velocity    if nesterov
                 = velocity                   otherwise (g when momentum is 0: there is no slot then)
        w       -= lr * d * w + lr * step

    Reference: torch.optim.SGD with dampening 0; Sutskever et al., 2013.

    Args:
        momentum: Share of the velocity kept a step, in [0, 1].
        nesterov: Look ahead along the velocity. Only with momentum above 0.
        weight_decay: d, at least 0.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The arrays kept for each parameter."""
        return ("velocity",) if self.momentum else ()


@dataclass(frozen=True)
class Adam:
    """Adam; epsilon is added after the bias correction.

        m  = beta_1 * m + (1 - beta_1) * g
        v  = beta_2 * v + (1 - beta_2) * g^2
        w -= lr * d * w + lr * (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)

    Reference: Kingma and Ba, 2015, Algorithm 1; torch.optim.AdamW for the decay.

    Args:
        beta_1: Decay rate of the first moment m, in [0, 1).
        beta_2: Decay rate of the second moment v, in [0, 1).
        epsilon: Added to the root, at least 0.
        weight_decay: d, at least 0.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float = 0.0

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The arrays kept for each parameter."""
        return ("m", "v")


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam under the name that announces its decay: the equations are Adam's, only the default decay differs.

    Reference: Loshchilov and Hutter, 2019, with a rate of lr for the decay too (torch.optim.AdamW).

    Args:
        beta_1: Decay rate of the first moment m, in [0, 1).
        beta_2: Decay rate of the second moment v, in [0, 1).
        epsilon: Added to the root, at least 0.
        weight_decay: d, at least 0.
    """

    weight_decay: float = 0.004


@dataclass(frozen=True)
class RMSprop:
    """Gradient over a running root mean square; epsilon is outside the root and the rate outside the momentum.

        square_average   = rho * square_average   + (1 - rho) * g^2
        gradient_average = rho * gradient_average + (1 - rho) * g                          if centered
        root = sqrt(max(square_average - gradient_average^2, 0))                           if centered
             = sqrt(square_average)                                                        otherwise
        step = g / (root + epsilon)
        velocity = momentum * velocity + step;  step = velocity                            if momentum > 0
        w -= lr * d * w + lr * step

    The difference is never negative in exact arithmetic; `max` keeps rounding from making it so.

    Reference: torch.optim.RMSprop; Tieleman and Hinton, 2012; Graves, 2013 for the centred form.

    Args:
        rho: Decay rate of the averages, in [0, 1).
        momentum: Share of the velocity kept a step, in [0, 1].
        epsilon: Added to the root, at least 0.
        centered: Divide by the standard deviation instead of the root mean square.
        weight_decay: d, at least 0.
    """

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    weight_decay: float = 0.0

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The arrays kept for each parameter."""
        names = ["square_average"]
        if self.centered:
            names.append("gradient_average")
        if self.momentum:
            names.append("velocity")
        return tuple(names)


@dataclass(frozen=True)
class Adagrad:
    """Gradient over the root of the sum of all squared gradients; epsilon is outside the root.

        square_sum = square_sum + g^2              starts at initial_accumulator_value
        w -= lr * d * w + lr * g / (sqrt(square_sum) + epsilon)

    Reference: torch.optim.Adagrad with lr_decay 0; Duchi et al., 2011.

    Args:
        initial_accumulator_value: Start of the sum, at least 0.
        epsilon: Added to the root, at least 0.
        weight_decay: d, at least 0.
    """

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    weight_decay: float = 0.0

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The arrays kept for each parameter."""
        return ("square_sum",)


@dataclass(frozen=True)
class Lion:
    """The sign of an interpolated momentum: every element moves by lr.

        w -= lr * d * w + lr * sign(beta_1 * m + (1 - beta_1) * g)      sign(0) = 0
        m  = beta_2 * m + (1 - beta_2) * g                              after w

    Reference: Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms", Program 1.

    Args:
        beta_1: Share of the momentum in the step, in [0, 1).
        beta_2: Decay rate of the momentum m, in [0, 1).
        weight_decay: d, at least 0.
    """

    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float = 0.0

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The arrays kept for each parameter."""
        return ("m",)


@dataclass(frozen=True, eq=False)
class Native:
    """An optimizer of the framework's own: its equations, its rate and its slots are its own.

    Args:
        optimizer: jax: an optax transformation, whose updates are added to w. torch: a function that takes the list of
            parameters and returns a torch.optim.Optimizer.
    """

    optimizer: Any
    weight_decay: float = 0.0

    @property
    def slot_names(self) -> tuple[str, ...]:
        """None under canonical names."""
        return ()


OptimizerRule = SGD | Adam | AdamW | RMSprop | Adagrad | Lion | Native
