"""How exact float32 matrix products are, within an engine's passes."""

from __future__ import annotations

from typing import Any

import torch

# "default" is what is fastest, as jax means it: one product of shortened operands.
_TORCH_NAMES = {"highest": "highest", "high": "high", "default": "medium"}


class MatmulPrecision:
    """A context in which products have a precision ("highest", "high", "default"), around another context.

    torch's settings are the process': they are as they were outside.
    """

    def __init__(self, name: str, inner: Any):
        self._name, self._inner = name, inner

    def __enter__(self) -> None:
        self._before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        self._set(_TORCH_NAMES[self._name], self._name != "highest")
        self._inner.__enter__()

    def __exit__(self, *exception: Any) -> None:
        try:
            self._inner.__exit__(*exception)
        finally:
            self._set(*self._before)

    def _set(self, products: str, convolutions_shorten: bool) -> None:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions_shorten
