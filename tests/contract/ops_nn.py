"""Cases of convolution, pooling, attention, losses and normalisation, against loops that follow their definitions."""

import itertools

import numpy as np
import scipy.special

from contract.ops_table import ACCUMULATED, ELEMENTWISE, Case, bools, integers, normal, positive

EPSILON = 1e-7


def spatial(value, num_spatial):
    """One value for each spatial axis."""
    return (value,) * num_spatial if isinstance(value, int) else tuple(value)


def window_starts(n, window, stride, padding):
    """Where the windows of one axis begin, counted from the first element of the input."""
    if padding == "valid":
        return range(0, n - window + 1, stride)
    out = -(-n // stride)
    before = max((out - 1) * stride + window - n, 0) // 2
    return range(-before, -before + out * stride, stride)


def windows(shape, sizes, strides, padding, dilation):
    """Yields (output index, [(tap, input index)]) of every window, without the taps outside the input."""
    starts = [
        window_starts(n, (size - 1) * rate + 1, stride, padding)
        for n, size, stride, rate in zip(shape, sizes, strides, dilation, strict=True)
    ]
    for out in itertools.product(*(range(len(s)) for s in starts)):
        first = [s[o] for s, o in zip(starts, out, strict=True)]
        taps = []
        for tap in np.ndindex(*sizes):
            place = tuple(f + t * rate for f, t, rate in zip(first, tap, dilation, strict=True))
            if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
                taps.append((tap, place))
        yield out, taps


def num_windows(shape, sizes, strides, padding, dilation):
    """Spatial shape of the result."""
    return tuple(
        len(window_starts(n, (size - 1) * rate + 1, stride, padding))
        for n, size, stride, rate in zip(shape, sizes, strides, dilation, strict=True)
    )


def conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    """Every output is the sum over a window's taps of input @ kernel, for each group of channels."""
    num_spatial = inputs.ndim - 2
    strides, dilation = spatial(strides, num_spatial), spatial(dilation_rate, num_spatial)
    shape, sizes = inputs.shape[1:-1], kernel.shape[:-2]
    result = np.zeros((len(inputs), *num_windows(shape, sizes, strides, padding, dilation), kernel.shape[-1]))
    groups = inputs.shape[-1] // kernel.shape[-2]
    per_in, per_out = kernel.shape[-2], kernel.shape[-1] // groups
    for out, taps in windows(shape, sizes, strides, padding, dilation):
        for tap, place in taps:
            for g in range(groups):
                ins, outs = slice(g * per_in, (g + 1) * per_in), slice(g * per_out, (g + 1) * per_out)
                for b in range(len(inputs)):
                    result[(b, *out, outs)] += inputs[(b, *place, ins)] @ kernel[(*tap, slice(None), outs)]
    return result


def depthwise_conv(inputs, kernel, strides=1, padding="valid", dilation_rate=1):
    """Each channel is convolved alone; the results lie side by side."""
    parts = [
        conv(inputs[..., c : c + 1], kernel[..., c : c + 1, :], strides, padding, dilation_rate)
        for c in range(inputs.shape[-1])
    ]
    return np.concatenate(parts, -1)


def conv_transpose(inputs, kernel, strides=1, padding="valid", output_padding=None, dilation_rate=1):
    """Every input adds its multiple of the kernel to the full result, of which the output is a part."""
    num_spatial = inputs.ndim - 2
    strides, dilation = spatial(strides, num_spatial), spatial(dilation_rate, num_spatial)
    extras = spatial(output_padding, num_spatial) if output_padding is not None else (None,) * num_spatial
    shape, sizes = inputs.shape[1:-1], kernel.shape[:-2]
    reach = [(size - 1) * rate + 1 for size, rate in zip(sizes, dilation, strict=True)]
    full_shape = [(n - 1) * stride + window for n, stride, window in zip(shape, strides, reach, strict=True)]
    full = np.zeros((len(inputs), *full_shape, kernel.shape[-2]))
    for place in np.ndindex(*shape):
        for tap in np.ndindex(*sizes):
            target = tuple(p * s + t * d for p, s, t, d in zip(place, strides, tap, dilation, strict=True))
            full[(slice(None), *target)] += inputs[(slice(None), *place)] @ kernel[tap].T
    for axis, (n, stride, window, extra) in enumerate(zip(shape, strides, reach, extras, strict=True), start=1):
        if padding == "valid":
            out = (n - 1) * stride + (max(window, stride) if extra is None else window + extra)
        else:
            out = n * stride if extra is None else (n - 1) * stride + window % 2 + extra
        left = max(full.shape[axis] - out, 0) // 2
        missing = max(left + out - full.shape[axis], 0)
        full = np.pad(full, [(0, missing if a == axis else 0) for a in range(full.ndim)])
        full = np.take(full, range(left, left + out), axis)
    return full


def _pool(reduce):
    def pool(inputs, pool_size, strides=None, padding="valid"):
        num_spatial = inputs.ndim - 2
        sizes = spatial(pool_size, num_spatial)
        strides = sizes if strides is None else spatial(strides, num_spatial)
        shape, ones = inputs.shape[1:-1], (1,) * num_spatial
        result = np.zeros(
            (len(inputs), *num_windows(shape, sizes, strides, padding, ones), inputs.shape[-1]), inputs.dtype
        )
        for out, taps in windows(shape, sizes, strides, padding, ones):
            inside = np.stack([inputs[(slice(None), *place)] for _, place in taps])
            result[(slice(None), *out)] = reduce(inside, axis=0)
        return result

    return pool


max_pool = _pool(np.max)
average_pool = _pool(np.mean)


def _conv_cases():
    one = [
        dict(size=7, window=3),
        dict(size=8, window=4, padding="same"),
        dict(size=7, window=3, strides=2, padding="same"),
        dict(size=8, window=3, strides=3, padding="same"),
        dict(size=7, window=2, strides=3, padding="same"),
        dict(size=9, window=3, dilation_rate=2),
        dict(size=9, window=2, dilation_rate=3, padding="same"),
        dict(size=9, window=3, dilation_rate=2, strides=2, padding="same"),
        dict(size=3, window=5, padding="same"),
        dict(size=3, window=3),
        dict(size=5, window=1, strides=2),
    ]
    two = [
        dict(size=(6, 7), window=(3, 3)),
        dict(size=(6, 7), window=(3, 2), padding="same"),
        dict(size=(7, 8), window=(3, 3), strides=2, padding="same"),
        dict(size=(8, 7), window=(4, 3), strides=(3, 2), padding="same"),
        dict(size=(7, 6), window=(2, 3), strides=(1, 2)),
        dict(size=(7, 8), window=(3, 2), dilation_rate=(2, 3), padding="same"),
        dict(size=(7, 8), window=3, dilation_rate=2),
        dict(size=(9, 8), window=3, dilation_rate=2, strides=2, padding="same"),
    ]
    for num_spatial, options in [*((1, o) for o in one), *((2, o) for o in two)]:
        kwargs = dict(options)
        size, window = spatial(kwargs.pop("size"), num_spatial), spatial(kwargs.pop("window"), num_spatial)
        x, label = normal(2, *size, 4), f"size={size}-window={window}"
        yield Case("conv", (x, normal(*window, 4, 3)), conv, kwargs, tolerance=ACCUMULATED, label=label)
        yield Case("conv", (x, normal(*window, 2, 6)), conv, kwargs, tolerance=ACCUMULATED, label=label + "-groups")
        for multiplier in (1, 2):
            args = (x, normal(*window, 4, multiplier))
            yield Case("depthwise_conv", args, depthwise_conv, kwargs, tolerance=ACCUMULATED, label=label)


def _conv_transpose_cases():
    one = [
        dict(size=5, window=3),
        dict(size=5, window=3, strides=2),
        dict(size=5, window=2, strides=3),
        dict(size=4, window=3, strides=2, output_padding=1),
        dict(size=5, window=3, padding="same"),
        dict(size=5, window=3, strides=2, padding="same"),
        dict(size=5, window=4, strides=2, padding="same"),
        dict(size=5, window=5, strides=3, padding="same"),
        dict(size=5, window=2, strides=3, padding="same"),
        dict(size=5, window=2, padding="same"),
        dict(size=4, window=3, strides=2, padding="same", output_padding=0),
        dict(size=4, window=3, strides=2, padding="same", output_padding=1),
        dict(size=4, window=4, strides=3, padding="same", output_padding=2),
        dict(size=5, window=3, dilation_rate=2),
        dict(size=5, window=3, dilation_rate=2, padding="same"),
        dict(size=1, window=3, strides=2, padding="same"),
    ]
    two = [
        dict(size=(4, 3), window=(3, 3), strides=2),
        dict(size=(4, 3), window=(3, 3), strides=2, padding="same"),
        dict(size=(4, 3), window=(4, 4), strides=2, padding="same"),
        dict(size=(3, 4), window=(3, 2), strides=(2, 3), padding="same"),
        dict(size=(3, 4), window=(2, 5), strides=(3, 1), padding="same"),
        dict(size=(3, 4), window=3, strides=2, padding="same", output_padding=(0, 1)),
        dict(size=(3, 4), window=3, strides=(2, 3), output_padding=1),
        dict(size=(3, 4), window=(2, 3), dilation_rate=(3, 2), padding="same"),
    ]
    for num_spatial, options in [*((1, o) for o in one), *((2, o) for o in two)]:
        kwargs = dict(options)
        size, window = spatial(kwargs.pop("size"), num_spatial), spatial(kwargs.pop("window"), num_spatial)
        args, label = (normal(2, *size, 3), normal(*window, 4, 3)), f"size={size}-window={window}"
        yield Case("conv_transpose", args, conv_transpose, kwargs, tolerance=ACCUMULATED, label=label)


def _pool_cases():
    one = [dict(pool_size=2), dict(pool_size=3, strides=2), dict(pool_size=2, strides=3), dict(pool_size=4, strides=1)]
    two = [*one, dict(pool_size=(3, 2)), dict(pool_size=(2, 3), strides=(3, 1)), dict(pool_size=(1, 2), strides=2)]
    sizes = [*(((n,), o) for n in (7, 8) for o in one), *(((7, 8), o) for o in two)]
    for (size, options), padding in itertools.product(sizes, ("valid", "same")):
        x, kwargs = normal(2, *size, 3), {**options, "padding": padding}
        yield Case("max_pool", (x,), max_pool, kwargs)
        yield Case("average_pool", (x,), average_pool, kwargs, tolerance=ELEMENTWISE)
    yield Case("max_pool", (-positive(2, 5, 3), 3, 2, "same"), max_pool, label="negative")


def _resize(images, size, interpolation="bilinear"):
    """Samples at the new pixels' centres: the nearest pixel, or the two around, clamped at the edges."""
    result = images
    for axis, new in ((1, size[0]), (2, size[1])):
        old = result.shape[axis]
        centre = (np.arange(new) + 0.5) * old / new
        if interpolation == "nearest":
            result = np.take(result, np.floor(centre).astype(int), axis)
            continue
        low = np.floor(centre - 0.5).astype(int)
        share = (centre - 0.5 - low).reshape([-1 if a == axis else 1 for a in range(4)])
        below, above = (np.take(result, np.clip(low + d, 0, old - 1), axis) for d in (0, 1))
        result = below * (1 - share) + above * share
    return result


def _resize_cases():
    x = normal(2, 4, 6, 3)
    for size in ((8, 12), (2, 3), (5, 9), (3, 4), (4, 6), (1, 1)):
        yield Case("resize", (x, size), _resize, {"interpolation": "nearest"}, label=str(size))
        yield Case("resize", (x, size), _resize, {"interpolation": "bilinear"}, tolerance=ELEMENTWISE, label=str(size))
    yield Case("resize", (integers(2, 4, 6, 1), (8, 3)), _resize, {"interpolation": "nearest"}, label="int")
    yield Case("resize", (integers(2, 4, 6, 1), (8, 3)), _resize, tolerance=ELEMENTWISE, label="int")
    bytes_ = integers(2, 4, 6, 1, low=0, high=255).astype(np.uint8)
    yield Case("resize", (bytes_, (8, 3)), _resize, {"interpolation": "nearest"}, label="uint8")


def attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """One head and one query at a time."""
    batch, queries, heads, head_dim = query.shape
    keys, key_heads = key.shape[1:3]
    full = (batch, heads, queries, keys)
    bias = np.zeros(full) if bias is None else np.broadcast_to(bias, full)
    mask = np.ones(full, bool) if mask is None else np.broadcast_to(mask, full)
    if is_causal:
        mask = mask & np.tri(queries, keys, dtype=bool)
    scale = head_dim**-0.5 if scale is None else scale
    result = np.zeros(query.shape)
    for b, h, q in np.ndindex(batch, heads, queries):
        seen = np.flatnonzero(mask[b, h, q])
        if len(seen):
            shared = h // (heads // key_heads)
            scores = scale * key[b, seen, shared] @ query[b, q, h] + bias[b, h, q, seen]
            result[b, q, h] = scipy.special.softmax(scores) @ value[b, seen, shared]
    return result


def attention_mask():
    """Batch 2, 5 queries, 6 keys; two queries see nothing."""
    mask = bools(2, 1, 5, 6)
    mask[0, 0, 1] = mask[1, 0, 4] = False
    return mask


def _attention_cases():
    query, key, value = normal(2, 5, 4, 8), normal(2, 6, 4, 8, key=1), normal(2, 6, 4, 8, key=2)
    bias, mask = normal(1, 4, 5, 6, key=3), attention_mask()
    padding = np.arange(6) < np.array([4, 6])[:, None, None, None]
    options = {
        "plain": {},
        "bias": {"bias": bias},
        "mask": {"mask": mask},
        "padding": {"mask": padding},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.5},
        "mask_causal": {"mask": mask, "is_causal": True},
        "bias_causal": {"bias": bias, "is_causal": True},
        "bias_mask": {"bias": bias, "mask": mask, "scale": 0.1},
        "all": {"bias": bias[:, :1], "mask": mask, "is_causal": True},
    }
    for label, kwargs in options.items():
        args = (query, key, value)
        yield Case("dot_product_attention", args, attention, kwargs, tolerance=ACCUMULATED, label=label)
        for key_heads in (1, 2):
            args = (query, key[:, :, :key_heads].copy(), value[:, :, :key_heads].copy())
            label_heads = f"{label}-key_heads={key_heads}"
            yield Case("dot_product_attention", args, attention, kwargs, tolerance=ACCUMULATED, label=label_heads)


def _binary_crossentropy(target, output, from_logits=False):
    if from_logits:
        return target * np.logaddexp(0, -output) + (1 - target) * np.logaddexp(0, output)
    p = np.clip(output, EPSILON, 1 - EPSILON)
    return -(target * np.log(p) + (1 - target) * np.log1p(-p))


def _categorical_crossentropy(target, output, from_logits=False, axis=-1):
    if from_logits:
        log_p = scipy.special.log_softmax(output, axis)
    else:
        log_p = np.log(np.clip(output / output.sum(axis, keepdims=True), EPSILON, 1 - EPSILON))
    return -(target * log_p).sum(axis)


def _sparse_categorical_crossentropy(target, output, from_logits=False, axis=-1):
    target = target.reshape(np.delete(output.shape, axis)).astype(int)
    one_hot = np.moveaxis(np.eye(output.shape[axis])[target], -1, axis)
    return _categorical_crossentropy(one_hot, output, from_logits, axis)


def _loss_cases():
    logits = np.array([[-90.0, -3.0, 0.0, 2.0], [90.0, 0.5, -0.5, 30.0]], np.float32)
    labels = np.array([[0.0, 1.0, 0.3, 1.0], [1.0, 0.0, 0.0, 1.0]], np.float32)
    kwargs, name = {"from_logits": True}, "binary_crossentropy"
    yield Case(name, (labels, logits), _binary_crossentropy, kwargs, tolerance=ELEMENTWISE)
    yield Case(name, (labels > 0.5, logits), _binary_crossentropy, kwargs, tolerance=ELEMENTWISE, label="bool")
    yield Case(name, (labels, positive(2, 4) / 3), _binary_crossentropy, tolerance=ELEMENTWISE)
    yield Case(name, (labels, labels), _binary_crossentropy, tolerance=1e-7 / EPSILON * 4e-6 * 300, label="certain")
    for axis in (-1, 1, 0):
        logits, name = normal(2, 3, 4) * 5, "categorical_crossentropy"
        soft = scipy.special.softmax(normal(2, 3, 4, key=1), axis).astype(np.float32)
        p = scipy.special.softmax(logits, axis).astype(np.float32)
        kwargs = {"from_logits": True, "axis": axis}
        yield Case(name, (soft, logits), _categorical_crossentropy, kwargs, tolerance=ACCUMULATED)
        yield Case(name, (soft, p * 2), _categorical_crossentropy, {"axis": axis}, tolerance=ACCUMULATED)
        yield Case(name, (soft > 0.3, logits), _categorical_crossentropy, kwargs, tolerance=ACCUMULATED, label="bool")
        name = "sparse_categorical_crossentropy"
        classes = integers(*np.delete(logits.shape, axis), low=0, high=logits.shape[axis])
        for dtype in ("int32", "uint8", "float32"):
            args = (classes.astype(dtype), logits)
            yield Case(name, args, _sparse_categorical_crossentropy, kwargs, tolerance=ACCUMULATED, label=dtype)
        args = (classes, p * 2)
        yield Case(name, args, _sparse_categorical_crossentropy, {"axis": axis}, tolerance=ACCUMULATED)
    args, kwargs = (integers(5, 1, low=0, high=4), normal(5, 4) * 100), {"from_logits": True}
    yield Case(name, args, _sparse_categorical_crossentropy, kwargs, tolerance=ACCUMULATED, label="column")


def _normalisation_cases():
    x = normal(2, 3, 4) + 10
    for axes in (0, -1, (0, 1), (-1, 0)):
        for keepdims in (False, True):
            reference = lambda x, axes, keepdims: (x.mean(axes, keepdims=keepdims), x.var(axes, keepdims=keepdims))  # noqa: E731
            yield Case("moments", (x,), reference, {"axes": axes, "keepdims": keepdims}, tolerance=ACCUMULATED)
    x = normal(2, 3, 4)
    x[1, 1] = 0
    for axis, order in ((-1, 2), (0, 2), (1, 1), (-1, 3), ((0, 2), 2)):
        kwargs = {"axis": axis, "order": order}
        yield Case("normalize", (x,), _normalize, kwargs, tolerance=ELEMENTWISE)
    yield Case("normalize", (x,), _normalize, {"epsilon": 3.0}, tolerance=ELEMENTWISE)
    yield Case("stop_gradient", (x,), lambda x: x)


def _normalize(x, axis=-1, order=2, epsilon=EPSILON):
    return x / np.maximum((np.abs(x) ** order).sum(axis, keepdims=True) ** (1 / order), epsilon)


CASES = [
    *_conv_cases(),
    *_conv_transpose_cases(),
    *_pool_cases(),
    *_resize_cases(),
    *_attention_cases(),
    *_loss_cases(),
    *_normalisation_cases(),
]
