"""Weight penalties with Keras' names and formulas. A penalty is float32 and enters the loss once per update."""

from __future__ import annotations

import math
from typing import Any

import unifit.ops as ops
from unifit.config import Configurable
from unifit.errors import ArgumentError
from unifit.registry import Registry

regularizers = Registry("regularizer")

_DEFAULT = 0.01


class Regularizer(Configurable):
    """Base of all regularizers. Subclass it and override `__call__`; a plain function of the array does as well."""

    def __call__(self, x: Any) -> Any:
        """The penalty of an array: a float32 scalar."""
        raise NotImplementedError(f"{type(self).__name__} must override __call__(self, x).")


@regularizers.register
class L1L2(Regularizer):
    """`l1 * sum(|x|) + l2 * sum(x^2)`.

    Args:
        l1: Factor of the first term, at least 0.
        l2: Factor of the second, at least 0. By the name "l1_l2" both are 0.01, as Keras documents.

    Example:
        >>> float(L1L2(l1=0.5, l2=0.25)(ops.convert_to_tensor([1.0, -2.0])))
        2.75
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0):
        self.l1, self.l2 = _factor("l1", l1), _factor("l2", l2)

    def __call__(self, x: Any) -> Any:
        """The penalty."""
        x = ops.cast(x, "float32")
        return self.l1 * ops.sum(ops.abs(x)) + self.l2 * ops.sum(ops.square(x))


@regularizers.register
class L1(Regularizer):
    """`l1 * sum(|x|)`.

    Args:
        l1: Factor, at least 0.

    Example:
        >>> float(L1(0.5)(ops.convert_to_tensor([1.0, -2.0])))
        1.5
    """

    def __init__(self, l1: float = _DEFAULT):
        self.l1 = _factor("l1", l1)

    def __call__(self, x: Any) -> Any:
        """The penalty."""
        return self.l1 * ops.sum(ops.abs(ops.cast(x, "float32")))


@regularizers.register
class L2(Regularizer):
    """`l2 * sum(x^2)`, without a half.

    Args:
        l2: Factor, at least 0.

    Example:
        >>> float(L2(0.5)(ops.convert_to_tensor([1.0, -2.0])))
        2.5
    """

    def __init__(self, l2: float = _DEFAULT):
        self.l2 = _factor("l2", l2)

    def __call__(self, x: Any) -> Any:
        """The penalty."""
        return self.l2 * ops.sum(ops.square(ops.cast(x, "float32")))


def get(identifier: Any) -> Any:
    """The regularizer that the identifier means: a name, an object, a config, a function of the array, or None.

    Raises:
        UnknownNameError: When no regularizer has that name.
        ArgumentError: When the identifier is something else.

    Example:
        >>> get("l2").l2
        0.01
    """
    if isinstance(identifier, str) and regularizers.find(identifier) is L1L2:
        # Keras documents 0.01 for this name, and its code penalises nothing.
        return L1L2(_DEFAULT, _DEFAULT)
    return regularizers.get(identifier)


def _factor(argument: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ArgumentError(f"Argument {argument}={value!r} of a regularizer must be a finite number of at least 0.")
    return float(value)
