"""unifit.contract.fused on PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def affine(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    # addmm is one kernel, and one node of the graph, in place of two; it takes two axes.
    if x.dtype != bias.dtype or x.ndim < 2:
        return torch.add(torch.matmul(x, kernel), bias)
    if x.ndim == 2:
        return torch.addmm(bias, x, kernel)
    return torch.addmm(bias, x.reshape(-1, x.shape[-1]), kernel).view(*x.shape[:-1], -1)
