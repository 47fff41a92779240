"""Update rules on PyTorch: torch.optim's fused kernels where they obey the contract's equations, else foreach calls.

The kernels are called as torch.optim's own classes call them, without the classes: those keep their state lazily, know
no decoupled decay but AdamW's, and cost dozens of Python calls a step. Nothing here reads a device value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unifit.contract import optimizers as rules
from unifit.errors import UnsupportedError


class Snapshot:
    """Copies of tensors from before an update, to be put back where the update turns out to be skipped."""

    def __init__(self, tensors: list[Tensor]):
        self._tensors = tensors
        self._copies = [torch.empty_like(tensor) for tensor in tensors]

    def take(self) -> None:
        """Copies the tensors as they are."""
        torch._foreach_copy_(self._copies, self._tensors)

    def restore(self) -> None:
        """Puts the copies back."""
        torch._foreach_copy_(self._tensors, self._copies)

    def restore_unless(self, applied: Tensor) -> None:
        """Puts the copies back where `applied`, a bool scalar, is False."""
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            torch.where(applied, tensor, copy, out=tensor)


class Optimizer:
    """A rule bound to parameters: what its subclasses share.

    Args:
        rule: The rule.
        params: Parameters; those that decay come first.
        num_decayed: How many of them decay.
        iterations: Updates so far, an integer scalar that its owner advances after `update`.

    Attributes:
        slots: Canonical slot name -> one float32 tensor for each parameter.
    """

    initial_slot_value = 0.0

    def __init__(self, rule: Any, params: list[Tensor], num_decayed: int, iterations: Tensor):
        self.rule, self.params, self._iterations = rule, params, iterations
        self.slots = {
            name: [
                torch.full_like(p, self.initial_slot_value, dtype=torch.float32, requires_grad=False) for p in params
            ]
            for name in rule.slot_names
        }
        self._decayed = params[:num_decayed] if rule.weight_decay else []
        # The fused kernels' arguments, kept so that each is made in one operation.
        self._step, self._skipped = self._iterations.float(), self._iterations.float()

    def update(self, gradients: list[Tensor], rate: Tensor, applied: Tensor | None) -> None:
        """Changes parameters and slots in place where `applied`, under no_grad.

        Args:
            gradients: One for each parameter; may be overwritten.
            rate: Learning rate, float32 scalar.
            applied: bool scalar; None where it is certain.
        """
        raise NotImplementedError

    def read_native(self, paths: list[str]) -> dict[str, Tensor]:
        """The state of a torch.optim.Optimizer of the user's, which makes it as it goes: `native.<key>.<path>`."""
        return {}

    def write_native(self, paths: list[str], state: dict[str, Tensor]) -> None:
        """The inverse of `read_native`; what is of no parameter of `paths` is of no account."""

    def _decay(self, rate: Tensor) -> None:
        if self._decayed:
            torch._foreach_mul_(self._decayed, 1.0 - rate * self.rule.weight_decay)


class SGD(Optimizer):
    """torch's fused kernel; its own weight decay would enter the velocity."""

    def update(self, gradients: list[Tensor], rate: Tensor, applied: Tensor | None) -> None:
        if self._decayed:
            self._decay(rate if applied is None else rate * applied)
        torch._fused_sgd_(
            self.params,
            gradients,
            self.slots.get("velocity", []),
            weight_decay=0.0,
            momentum=self.rule.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=self.rule.nesterov,
            maximize=False,
            is_first_step=False,
            found_inf=None if applied is None else torch.logical_not(applied, out=self._skipped),
        )


class Adam(Optimizer):
    """torch's fused AdamW kernel, once for the parameters that decay and once for the others."""

    def __init__(self, rule: rules.Adam, params: list[Tensor], num_decayed: int, iterations: Tensor):
        super().__init__(rule, params, num_decayed, iterations)
        decayed = len(self._decayed)
        groups = ((slice(decayed), rule.weight_decay), (slice(decayed, len(params)), 0.0))
        m, v = self.slots["m"], self.slots["v"]
        self._groups = [(part, params[part], m[part], v[part], decay) for part, decay in groups if params[part]]

    def update(self, gradients: list[Tensor], rate: Tensor, applied: Tensor | None) -> None:
        torch.add(self._iterations, 1, out=self._step)
        skipped = None if applied is None else torch.logical_not(applied, out=self._skipped)
        for part, params, m, v, decay in self._groups:
            torch._fused_adamw_(
                params,
                gradients[part],
                m,
                v,
                [],
                [self._step] * len(params),
                lr=rate,
                beta1=self.rule.beta_1,
                beta2=self.rule.beta_2,
                weight_decay=decay,
                eps=self.rule.epsilon,
                amsgrad=False,
                maximize=False,
                found_inf=skipped,
            )


class ForeachOptimizer(Optimizer):
    """Rules without a fused kernel: computed in place, and put back where the update is skipped."""

    def __init__(self, rule: Any, params: list[Tensor], num_decayed: int, iterations: Tensor):
        super().__init__(rule, params, num_decayed, iterations)
        self._before = Snapshot([*params, *(slot for slots in self.slots.values() for slot in slots)])

    def update(self, gradients: list[Tensor], rate: Tensor, applied: Tensor | None) -> None:
        if applied is not None:
            self._before.take()
        self._decay(rate)
        steps = self.steps(gradients)
        torch._foreach_sub_(self.params, torch._foreach_mul(steps, rate))
        if applied is not None:
            self._before.restore_unless(applied)

    def steps(self, gradients: list[Tensor]) -> list[Tensor]:
        """Advances the slots; returns what is multiplied by the rate and subtracted."""
        raise NotImplementedError


class RMSprop(ForeachOptimizer):
    """The equations of the rule, line by line."""

    def steps(self, gradients: list[Tensor]) -> list[Tensor]:
        rule, squares = self.rule, self.slots["square_average"]
        torch._foreach_mul_(squares, rule.rho)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1.0 - rule.rho)
        if rule.centered:
            averages = self.slots["gradient_average"]
            torch._foreach_mul_(averages, rule.rho)
            torch._foreach_add_(averages, gradients, alpha=1.0 - rule.rho)
            squares = torch._foreach_addcmul(squares, averages, averages, value=-1.0)
            torch._foreach_clamp_min_(squares, 0.0)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, rule.epsilon)
        steps = torch._foreach_div(gradients, roots)
        if not rule.momentum:
            return steps
        velocities = self.slots["velocity"]
        torch._foreach_mul_(velocities, rule.momentum)
        torch._foreach_add_(velocities, steps)
        return velocities


class Adagrad(ForeachOptimizer):
    """The equations of the rule; torch's fused kernel has no form for every device."""

    def __init__(self, rule: rules.Adagrad, params: list[Tensor], num_decayed: int, iterations: Tensor):
        self.initial_slot_value = rule.initial_accumulator_value
        super().__init__(rule, params, num_decayed, iterations)

    def steps(self, gradients: list[Tensor]) -> list[Tensor]:
        sums = self.slots["square_sum"]
        torch._foreach_addcmul_(sums, gradients, gradients, value=1.0)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, self.rule.epsilon)
        return torch._foreach_div(gradients, roots)


class Lion(ForeachOptimizer):
    """The equations of the rule."""

    def steps(self, gradients: list[Tensor]) -> list[Tensor]:
        rule, m = self.rule, self.slots["m"]
        steps = torch._foreach_mul(m, rule.beta_1)
        torch._foreach_add_(steps, gradients, alpha=1.0 - rule.beta_1)
        torch._foreach_sign_(steps)
        torch._foreach_mul_(m, rule.beta_2)
        torch._foreach_add_(m, gradients, alpha=1.0 - rule.beta_2)
        return steps


class Native(Optimizer):
    """A torch.optim.Optimizer that the user made: it cannot skip by itself, so the verdict is read on the host."""

    def __init__(self, rule: rules.Native, params: list[Tensor], num_decayed: int, iterations: Tensor):
        super().__init__(rule, params, num_decayed, iterations)
        made = rule.optimizer(params) if callable(rule.optimizer) else None
        if not isinstance(made, torch.optim.Optimizer):
            raise UnsupportedError(
                f"optimizer is {rule.optimizer!r}; on torch a native optimizer is a function of the list of parameters "
                "that returns a torch.optim.Optimizer, such as lambda params: torch.optim.Adam(params, lr=1e-3)."
            )
        self._made = made

    def read_native(self, paths: list[str]) -> dict[str, Tensor]:
        return {
            f"native.{key}.{path}": value if isinstance(value, Tensor) else torch.tensor(value)
            for path, param in zip(paths, self.params, strict=True)
            for key, value in self._made.state.get(param, {}).items()
            if isinstance(value, (Tensor, int, float, bool))
        }

    def write_native(self, paths: list[str], state: dict[str, Tensor]) -> None:
        params = dict(zip(paths, self.params, strict=True))
        for name, value in state.items():
            key, _, path = name.removeprefix("native.").partition(".")
            if path in params:
                # As torch's load_state_dict: counters stay on the host, what is shaped like the parameter goes to it.
                like = params[path]
                placed = value.to(like.device) if value.shape == like.shape and value.ndim else value.clone()
                self._made.state[like][key] = placed

    def update(self, gradients: list[Tensor], rate: Tensor, applied: Tensor | None) -> None:
        if applied is None or bool(applied):
            for param, gradient in zip(self.params, gradients, strict=True):
                param.grad = gradient
            self._made.step()


_OPTIMIZERS: dict[type, type[Optimizer]] = {
    rules.SGD: SGD,
    rules.Adam: Adam,
    rules.AdamW: Adam,
    rules.RMSprop: RMSprop,
    rules.Adagrad: Adagrad,
    rules.Lion: Lion,
    rules.Native: Native,
}


def make(rule: Any, params: list[Tensor], num_decayed: int, iterations: Tensor) -> Optimizer:
    """The rule bound to `params`, of which the first `num_decayed` decay.

    Raises:
        UnsupportedError: For a rule that is not there.
    """
    found = _OPTIMIZERS.get(type(rule))
    if found is None:
        raise UnsupportedError(f"unifit on torch has no update rule for {type(rule).__name__}.")
    return found(rule, params, num_decayed, iterations)
