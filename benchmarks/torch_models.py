"""The workloads as torch modules: those of the native loop, and of every library over torch."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import workloads as sizes

Weights = dict[str, np.ndarray]


def make(name: str, weights: Weights) -> nn.Module:
    """The workload's module with these weights."""
    return {"mlp": mlp, "cnn": cnn, "gpt": GPT, "lstm": LSTM}[name](weights)


def inputs(name: str, x: np.ndarray) -> Tensor:
    """The rows as the module takes them. Images in (height, width, channel) are channels_last as they lie."""
    tensor = torch.from_numpy(x)
    if name == "gpt":
        return tensor.long()
    return tensor.permute(0, 3, 1, 2) if name == "cnn" else tensor


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of a batch, and how many labels were hit."""
    logits, labels = logits.flatten(0, -2), labels.flatten()
    return F.cross_entropy(logits, labels), (logits.detach().argmax(-1) == labels).sum()


def linear(*kernels: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    """A Linear of kernels (in, out...), side by side."""
    kernel = np.concatenate([k.reshape(len(kernels[0]), -1) for k in kernels], axis=1)
    layer = nn.Linear(*kernel.shape, bias=bias is not None)
    _fill(layer.weight, kernel.T)
    if bias is not None:
        _fill(layer.bias, bias)
    return layer


def _fill(parameter: Tensor, values: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def _dense(weights: Weights, path: str) -> nn.Linear:
    return linear(weights[f"{path}.kernel"], bias=weights[f"{path}.bias"])


def mlp(weights: Weights) -> nn.Module:
    return nn.Sequential(_dense(weights, "0"), nn.ReLU(), _dense(weights, "1"))


# CNN


class BatchNormOverProcesses(nn.BatchNorm2d):
    """Statistics over the rows of all processes, as unifit's; torch's SyncBatchNorm does not run on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // x.shape[1] * dist.get_world_size()
        sums = torch.cat([x.float().sum((0, 2, 3)), x.float().square().sum((0, 2, 3))])
        mean, square = (collectives.all_reduce(sums) / count).chunk(2)
        variance = square - mean.square()
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        offset = self.bias - mean * scale
        return x * scale.to(x.dtype).view(1, -1, 1, 1) + offset.to(x.dtype).view(1, -1, 1, 1)


def cnn(weights: Weights) -> nn.Module:
    normalization = BatchNormOverProcesses if dist.is_initialized() else nn.BatchNorm2d
    layers: list[nn.Module] = []
    channels, place = sizes.CNN_IMAGE[-1], 0
    for width in sizes.CNN_WIDTHS:
        convolution = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        norm = normalization(width, eps=sizes.NORM_EPSILON["cnn"], momentum=1 - sizes.BATCH_NORM_MOMENTUM)
        _fill(convolution.weight, weights[f"{place}.kernel"].transpose(3, 2, 0, 1))
        _fill(norm.weight, weights[f"{place + 1}.gamma"])
        _fill(norm.bias, weights[f"{place + 1}.beta"])
        layers += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2)]
        channels, place = width, place + sizes.CNN_LAYERS_OF_BLOCK
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pooled, _dense(weights, str(place + 1))).to(memory_format=torch.channels_last)


# GPT


class Block(nn.Module):
    """One product for queries, keys and values, and torch's fused attention."""

    def __init__(self, weights: Weights, path: str):
        super().__init__()
        self.norm_attention, self.norm_feed = (_norm(weights, f"{path}.{n}") for n in ("norm_attention", "norm_feed"))
        self.qkv = linear(*(weights[f"{path}.attention.{n}.kernel"] for n in ("query", "key", "value")))
        output = weights[f"{path}.attention.attention_output.kernel"]
        self.out = linear(output.reshape(-1, output.shape[-1]))
        self.up, self.down = _dense(weights, f"{path}.up"), _dense(weights, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, sizes.GPT_HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_feed(x))))


class GPT(nn.Module):
    def __init__(self, weights: Weights):
        super().__init__()
        self.embed = nn.Embedding(sizes.GPT_VOCABULARY, sizes.GPT_WIDTH)
        self.positions = nn.Embedding(sizes.GPT_CONTEXT, sizes.GPT_WIDTH)
        for name in ("embed", "positions"):
            _fill(getattr(self, name).weight, weights[f"{name}.embeddings"])
        self.blocks = nn.ModuleList(Block(weights, f"blocks.{number}") for number in range(sizes.GPT_DEPTH))
        self.norm, self.head = _norm(weights, "norm"), _dense(weights, "head")

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _norm(weights: Weights, path: str) -> nn.LayerNorm:
    layer = nn.LayerNorm(sizes.GPT_WIDTH, eps=sizes.NORM_EPSILON["gpt"])
    _fill(layer.weight, weights[f"{path}.gamma"])
    _fill(layer.bias, weights[f"{path}.beta"])
    return layer


class LSTM(nn.Module):
    """nn.LSTM's second bias stays zero: two that are trained would move twice as fast as one."""

    def __init__(self, weights: Weights):
        super().__init__()
        self.lstm = nn.LSTM(sizes.LSTM_FEATURES, sizes.LSTM_UNITS, batch_first=True)
        _fill(self.lstm.weight_ih_l0, weights["0.kernel"].T)
        _fill(self.lstm.weight_hh_l0, weights["0.recurrent_kernel"].T)
        _fill(self.lstm.bias_ih_l0, weights["0.bias"])
        nn.init.zeros_(self.lstm.bias_hh_l0)
        self.lstm.bias_hh_l0.requires_grad_(False)
        self.head = _dense(weights, "1")

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.lstm(x)
        return self.head(h[0])
