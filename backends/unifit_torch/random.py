"""Random streams on PyTorch: a torch.Generator per stream and device, never the global one."""

import hashlib

import torch

_KEY_BYTES = 16


class Stream:
    """Generators that are made on the first draw on a device, seeded by a hash of the stream's keys."""

    __slots__ = ("_generators", "_seed")

    def __init__(self, seed):
        self._seed = seed
        self._generators = {}

    def on(self, device):
        """The generator for draws on `device`; None on "meta", where nothing is drawn."""
        generator = self._generators.get(device)
        if generator is None and device.type != "meta":
            generator = self._generators[device] = torch.Generator(device)
            generator.manual_seed(self._seed)
        return generator


def stream(*keys):
    digest = hashlib.blake2b(digest_size=8)
    for key in keys:
        digest.update(int(key).to_bytes(_KEY_BYTES, "little", signed=True))
    return Stream(int.from_bytes(digest.digest(), "little", signed=True))


def _empty(shape, dtype):
    """An array on the current default device, in float32 where `dtype` is too short for good random numbers."""
    dtype = getattr(torch, dtype)
    return torch.empty(shape, dtype=torch.float32 if dtype.itemsize < 4 else dtype), dtype


def uniform(shape, minval, maxval, dtype, stream):
    x, dtype = _empty(shape, dtype)
    return x.uniform_(minval, maxval, generator=stream.on(x.device)).to(dtype)


def normal(shape, mean, stddev, dtype, stream):
    x, dtype = _empty(shape, dtype)
    return x.normal_(mean, stddev, generator=stream.on(x.device)).to(dtype)


def truncated_normal(shape, mean, stddev, dtype, stream):
    x, dtype = _empty(shape, dtype)
    bounds = mean - 2 * stddev, mean + 2 * stddev
    return torch.nn.init.trunc_normal_(x, mean, stddev, *bounds, generator=stream.on(x.device)).to(dtype)


def bernoulli(shape, p, stream):
    x = torch.empty(shape, dtype=torch.bool)
    return x.bernoulli_(p, generator=stream.on(x.device))


def randint(shape, minval, maxval, dtype, stream):
    x = torch.empty(shape, dtype=getattr(torch, dtype))
    return x.random_(minval, maxval, generator=stream.on(x.device))


def categorical(logits, num_samples, dtype, stream):
    p = torch.softmax(logits.float(), -1)
    return torch.multinomial(p, num_samples, True, generator=stream.on(p.device)).to(getattr(torch, dtype))


def shuffle(x, axis, stream):
    order = torch.randperm(x.shape[axis], generator=stream.on(x.device), device=x.device)
    return torch.index_select(x, axis, order)


def dropout(x, rate, noise_shape, stream):
    shape = x.shape if noise_shape is None else [x.shape[i] if n is None else n for i, n in enumerate(noise_shape)]
    dropped = torch.empty(shape, dtype=torch.bool, device=x.device)
    dropped.bernoulli_(rate, generator=stream.on(x.device))
    return torch.masked_fill(x * (1 / (1 - rate)), dropped, 0.0)
