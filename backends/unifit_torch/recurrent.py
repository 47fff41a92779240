"""unifit.contract.recurrent on PyTorch: aten's LSTM and GRU (cuDNN's, oneDNN's), with and without a mask.

They know no masks, so a masked sequence is rearranged: each row's valid steps move to the front, in their order. What
they give does not depend on what comes after them; `_original_order` puts their outputs back. That costs a sort of the
mask and two gathers, where a loop over the steps would cost some twenty kernels a step. (An LSTM of 64 units, 32 rows,
50 steps, forward and backward on one CPU core: 16 ms, against 9 ms without a mask and 91 ms for the loop.)
"""

import torch
from torch import Tensor

_SATURATING = 2.0**14
"""A sigmoid's argument from which it is 0 or 1 exactly, within the range of every float dtype."""


def lstm(x, h0, c0, kernel, recurrent_kernel, bias, mask=None, reverse=False):
    x, mask = _in_direction(x, mask, reverse)
    h0, c0 = _initial(h0, x, recurrent_kernel), _initial(c0, x, recurrent_kernel)
    if mask is None:
        return _lstm(x, h0, c0, kernel, recurrent_kernel, bias)
    # The last c is not among the outputs, so the steps behind the valid ones must keep it: c = 1 * c + 0 * g. Another
    # feature, 1 there and 0 else, opens their forget gates and shuts their input gates.
    ordered, is_valid = _valid_first(x, mask)
    ordered = torch.cat([ordered, (~is_valid).to(x.dtype).unsqueeze(-1)], 2)
    shut = kernel.new_full((1, h0.shape[-1]), -_SATURATING)
    closing = torch.cat([shut, -shut, torch.zeros_like(shut), torch.zeros_like(shut)], 1)
    outputs, _, c = _lstm(ordered, h0, c0, torch.cat([kernel, closing]), recurrent_kernel, bias)
    return *_original_order(outputs, h0, mask), c


def gru(x, h0, kernel, recurrent_kernel, bias, mask=None, reverse=False):
    x, mask = _in_direction(x, mask, reverse)
    h0 = _initial(h0, x, recurrent_kernel)
    if mask is None:
        return _gru(x, h0, kernel, recurrent_kernel, bias)
    outputs, _ = _gru(_valid_first(x, mask)[0], h0, kernel, recurrent_kernel, bias)
    return _original_order(outputs, h0, mask)


def _lstm(x, h0, c0, kernel, recurrent_kernel, bias):
    """aten's gates have the contract's order; it has two biases."""
    weights = [kernel.t(), recurrent_kernel.t()]
    if bias is not None:
        weights += [bias, torch.zeros_like(bias)]
    states, train = [h0.unsqueeze(0), c0.unsqueeze(0)], torch.is_grad_enabled()
    outputs, h, c = torch.lstm(x, states, _in_one_buffer(weights), bias is not None, 1, 0.0, train, False, True)
    return outputs, h.squeeze(0), c.squeeze(0)


def _gru(x, h0, kernel, recurrent_kernel, bias):
    """aten's gates have the order r, z, n."""
    weights = [_reset_first(kernel.t()), _reset_first(recurrent_kernel.t())]
    if bias is not None:
        weights += [_reset_first(bias[0]), _reset_first(bias[1])]
    train = torch.is_grad_enabled()
    outputs, h = torch.gru(x, h0.unsqueeze(0), _in_one_buffer(weights), bias is not None, 1, 0.0, train, False, True)
    return outputs, h.squeeze(0)


def _reset_first(weight):
    z, r, n = weight.chunk(3)
    return torch.cat([r, z, n])


def _in_one_buffer(weights: list[Tensor]) -> list[Tensor]:
    """Copies that lie one behind the other, as cuDNN wants them: else it copies them itself, and warns."""
    buffer = torch.cat([weight.reshape(-1) for weight in weights])
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def _initial(state, x, recurrent_kernel):
    return x.new_zeros((x.shape[0], recurrent_kernel.shape[0])) if state is None else state


def _in_direction(x, mask, reverse):
    if not reverse:
        return x, mask
    return x.flip(1), None if mask is None else mask.flip(1)


def _valid_first(x, mask):
    """The sequence with each row's valid steps first, zeros behind them, and which steps of it are valid."""
    is_valid, order = torch.sort(mask, dim=1, descending=True, stable=True)
    ordered = torch.gather(x, 1, order.unsqueeze(-1).expand(x.shape))
    return torch.where(is_valid.unsqueeze(-1), ordered, 0.0), is_valid


def _original_order(outputs, h0, mask):
    """Every step's output and the last state, of outputs whose valid steps come first."""
    count = mask.cumsum(1)  # valid steps up to and with this one, so its output is number count - 1
    index = (count - 1).clamp_min(0).unsqueeze(-1).expand(outputs.shape)
    has_begun = (count > 0).unsqueeze(-1)
    outputs = torch.where(has_begun, torch.gather(outputs, 1, index), 0.0)
    return outputs, torch.where(has_begun[:, -1], outputs[:, -1], h0)
