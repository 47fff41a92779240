"""unifit.contract.fused on TensorFlow: its graph optimizer fuses."""

from __future__ import annotations

from typing import Any

from unifit_tensorflow import ops


def affine(x: Any, kernel: Any, bias: Any) -> Any:
    return ops.add(ops.matmul(x, kernel), bias)
