"""The cases behind test_ops.py: every function of the contract with a right answer from NumPy, SciPy or a loop.

A case's NumPy arrays become arrays of the backend; everything else is passed as it is. The reference gets the same
arguments, with float32 widened to float64, so what it gives is the true value; its dtype, narrowed to 32 bits, is the
one that the function has to have.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

EXACT = 0.0
ELEMENTWISE = 4e-6  # the frameworks' float32 transcendentals are within some units in the last place
ACCUMULATED = 2e-5  # sums and products of some dozen float32 terms


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of one function.

    Attributes:
        name: The function in unifit.ops.
        args: Positional arguments.
        reference: What gives the right answer; called with the same arguments.
        kwargs: Keyword arguments, passed to the reference as well.
        tolerance: Largest error, relative and absolute.
        dtype: The result's, where NumPy's own, narrowed to 32 bits, is not the right one.
        label: Tells cases of one function apart.
        eager_only: The function takes or gives host values that depend on an array's content.
    """

    name: str
    args: tuple
    reference: Callable[..., Any]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    tolerance: float = EXACT
    dtype: str | None = None
    label: str = ""
    eager_only: bool = False

    def __str__(self) -> str:
        shapes = "_".join("x".join(map(str, x.shape)) or "scalar" for x in self.args if isinstance(x, np.ndarray))
        options = "-".join(f"{key}={value}" for key, value in self.kwargs.items() if not isinstance(value, np.ndarray))
        return "-".join(part for part in (self.name, shapes, options, self.label) if part)

    def expected(self) -> Any:
        """The right answer."""
        args, kwargs = map_arrays(widen, (self.args, self.kwargs))
        return self.reference(*args, **kwargs)


def map_arrays(function: Callable[[np.ndarray], Any], value: Any) -> Any:
    """`value` with `function` applied to the NumPy arrays in it, through tuples, lists and dicts."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_arrays(function, part) for part in value)
    if isinstance(value, dict):
        return {key: map_arrays(function, part) for key, part in value.items()}
    return value


def widen(x: np.ndarray) -> np.ndarray:
    """float32 and float16 as float64."""
    return x.astype(np.float64) if x.dtype in (np.float32, np.float16) else x


def normal(*shape: int, key: int = 0) -> np.ndarray:
    """float32 values around 0, the same for the same shape and key."""
    return np.random.default_rng([key, *shape]).normal(size=shape).astype(np.float32)


def positive(*shape: int, key: int = 0) -> np.ndarray:
    """float32 values in [0.1, 2.1)."""
    return (np.random.default_rng([key, *shape]).random(shape) * 2 + 0.1).astype(np.float32)


def integers(*shape: int, low: int = -4, high: int = 5, key: int = 0) -> np.ndarray:
    """int32 values in [low, high)."""
    return np.random.default_rng([key, *shape]).integers(low, high, shape).astype(np.int32)


def bools(*shape: int, key: int = 0) -> np.ndarray:
    """Some True, some False."""
    return np.random.default_rng([key, *shape]).random(shape) < 0.5


def shuffled(*shape: int, key: int = 0) -> np.ndarray:
    """Different float32 values, multiples of 0.25 around 0, in a random order: no ties."""
    n = int(np.prod(shape))
    return ((np.random.default_rng([key, *shape]).permutation(n) - n // 2) / 4).astype(np.float32).reshape(shape)
