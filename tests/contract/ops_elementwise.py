"""Cases of the elementwise functions, activations and reductions."""

import functools

import numpy as np
import scipy.special

from contract.ops_table import ACCUMULATED, ELEMENTWISE, Case, bools, integers, normal, positive, shuffled

SPECIAL = np.array([-np.inf, -1.5, -0.0, 0.0, 2.5, np.inf, np.nan], np.float32)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49, -7.2], np.float32)
UNIT = np.linspace(-0.95, 0.95, 12, dtype=np.float32).reshape(3, 4)
WIDE = np.array([-90.0, -20.0, -3.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 3.0, 20.0, 90.0], np.float32)


def _binary_cases():
    pairs = {
        "same": (normal(3, 4), normal(3, 4, key=1)),
        "broadcast": (normal(3, 1), normal(4, key=1)),
        "scalar_right": (normal(3, 4), 0.5),
        "scalar_left": (0.5, normal(3, 4)),
        "int_right": (normal(3, 4), 2),
        "integers": (integers(3, 4), integers(3, 4, low=1, key=1)),
        "mixed": (integers(3, 4), positive(3, 4)),
        "int_float_scalar": (integers(3, 4), 1.5),
        "empty": (normal(0, 4), normal(4)),
        "zero_dim": (normal(), normal(key=1)),
    }
    for name in ("add", "subtract", "multiply", "maximum", "minimum"):
        for label, args in pairs.items():
            yield Case(name, args, getattr(np, name), tolerance=ELEMENTWISE, label=label)
    for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"):
        for label, args in pairs.items():
            yield Case(name, args, getattr(np, name), label=label)
        yield Case(name, (SPECIAL, SPECIAL[::-1].copy()), getattr(np, name), label="special")
    yield Case("add", (bools(3, 4), integers(3, 4)), np.add, label="bool_int")
    yield Case("multiply", (normal(3, 4), bools(3, 4)), np.multiply, tolerance=ELEMENTWISE, label="float_bool")
    yield Case("maximum", (SPECIAL, 0.0), np.maximum, label="nan")
    yield Case("minimum", (SPECIAL, 0.0), np.minimum, label="nan")
    nonzero = {
        "same": (normal(3, 4), positive(3, 4, key=1)),
        "negative": (normal(3, 4), -positive(3, 4, key=1)),
        "scalar_right": (normal(3, 4), 0.7),
        "scalar_left": (1.3, -positive(3, 4)),
        "integers": (integers(3, 4, low=-9, high=9), integers(3, 4, low=1, key=1)),
        "integers_negative": (integers(3, 4, low=-9, high=9), -integers(3, 4, low=1, key=1)),
        "int_left": (7, integers(3, 4, low=1, key=1)),
    }
    for label, args in nonzero.items():
        yield Case("divide", args, np.divide, tolerance=ELEMENTWISE, label=label)
        yield Case("floor_divide", args, np.floor_divide, label=label)
        yield Case("mod", args, np.mod, tolerance=ELEMENTWISE, label=label)
    powers = {
        "same": (positive(3, 4), normal(3, 4)),
        "square": (normal(3, 4), 2),
        "scalar_left": (2.0, normal(3, 4)),
        "half": (positive(3, 4), 0.5),
        "integers": (integers(3, 4), integers(3, 4, low=0)),
        "int_half": (integers(3, 4, low=1), 0.5),
    }
    for label, args in powers.items():
        yield Case("power", args, np.power, tolerance=ELEMENTWISE, label=label)
    yield Case("arctan2", (normal(3, 4), normal(3, 4, key=1)), np.arctan2, tolerance=ELEMENTWISE)
    yield Case("arctan2", (normal(3, 4), 1.0), np.arctan2, tolerance=ELEMENTWISE, label="scalar")
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield Case(name, (bools(3, 4), bools(4, key=1)), getattr(np, name))
        yield Case(name, (integers(3, 4, low=-1, high=2), bools(3, 4, key=1)), getattr(np, name), label="int")
        yield Case(name, (bools(3, 4), True), getattr(np, name), label="scalar")
    yield Case("logical_not", (bools(3, 4),), np.logical_not)
    yield Case("logical_not", (integers(3, 4, low=-1, high=2),), np.logical_not, label="int")


def _unary_cases():
    inputs = {
        **dict.fromkeys(
            "negative sign square exp expm1 sin cos tan sinh cosh tanh arctan floor ceil".split(), normal(3, 4)
        ),
        **dict.fromkeys("sqrt log log2 reciprocal".split(), positive(3, 4)),
        **dict.fromkeys("arcsin arccos log1p".split(), UNIT),
    }
    for name, x in inputs.items():
        exact = name in ("negative", "sign", "floor", "ceil")
        yield Case(name, (x,), getattr(np, name), tolerance=0.0 if exact else ELEMENTWISE)
        yield Case(name, (x[:0],), getattr(np, name), label="empty")
    for name in "sqrt exp log log2 sin cos tanh".split():
        yield Case(name, (integers(3, 4, low=1),), getattr(np, name), tolerance=ELEMENTWISE, label="int")
    for name in "negative sign square abs floor ceil".split():
        yield Case(name, (integers(3, 4),), getattr(np, name), label="int")
    yield Case("abs", (normal(3, 4),), np.abs)
    yield Case("reciprocal", (integers(3, 4, low=1),), lambda x: 1.0 / x, tolerance=ELEMENTWISE, label="int")
    for x in (positive(3, 4), integers(3, 4, low=1)):
        yield Case("rsqrt", (x,), lambda x: 1 / np.sqrt(x), tolerance=ELEMENTWISE, label=str(x.dtype))
    yield Case("expm1", (np.array([1e-6, -1e-7], np.float32),), np.expm1, tolerance=1e-11, label="near_0")
    yield Case("log1p", (np.array([1e-6, -1e-7], np.float32),), np.log1p, tolerance=1e-11, label="near_0")
    yield Case("erf", (normal(3, 4),), scipy.special.erf, tolerance=ELEMENTWISE)
    yield Case("floor", (HALVES,), np.floor, label="halves")
    yield Case("round", (HALVES,), np.round)
    yield Case("round", (normal(3, 4),), np.round, {"decimals": 2}, tolerance=ELEMENTWISE)
    yield Case("round", (normal(3, 4) * 100,), np.round, {"decimals": -1}, tolerance=ELEMENTWISE)
    for name in ("isfinite", "isnan", "isinf"):
        yield Case(name, (SPECIAL,), getattr(np, name))
        yield Case(name, (integers(3),), getattr(np, name), label="int")
    x = normal(3, 4)
    yield Case("clip", (x, -0.5, 0.5), np.clip)
    yield Case("clip", (x,), lambda x, x_min, x_max: np.clip(x, x_min, x_max), {"x_min": None, "x_max": 0.25})
    yield Case("clip", (x, 0.125, None), np.clip, label="below")
    yield Case("clip", (x, normal(4, key=1) - 1, 0.5), np.clip, label="array_bound")
    yield Case("clip", (integers(3, 4), -1, 2), np.clip, label="int")
    where = (bools(3, 4), normal(3, 4), normal(3, 4, key=1))
    yield Case("where", where, np.where)
    yield Case("where", (bools(3, 1), normal(4), 0.0), np.where, label="scalar_right")
    yield Case("where", (bools(3, 4), 1.0, normal(4)), np.where, label="scalar_left")
    yield Case("where", (bools(3, 4), 1.0, 0.0), np.where, label="float_scalars")
    yield Case("where", (bools(3, 4), 1, 0), np.where, label="int_scalars")
    yield Case("where", (integers(3, 4, low=-1, high=2), normal(3, 4), 0.0), np.where, label="int_condition")
    yield Case("where", (bools(3, 4), integers(3, 4), 0.5), np.where, label="int_float")
    yield Case("where", (bools(3, 4), integers(3, 4), normal(3, 4)), np.where, label="mixed")


def _sigmoid(x):
    return scipy.special.expit(x)


def _softplus(x):
    return np.logaddexp(x, 0)


def _gelu(x, approximate=True):
    if approximate:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x * scipy.special.ndtr(x)


def _relu6(x):
    return np.clip(x, 0, 6)


def _elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _activation_cases():
    functions = {
        "relu": lambda x: np.maximum(x, 0),
        "relu6": _relu6,
        "elu": _elu,
        "selu": lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772),
        "gelu": _gelu,
        "silu": lambda x: x * _sigmoid(x),
        "sigmoid": _sigmoid,
        "hard_sigmoid": lambda x: _relu6(x + 3) / 6,
        "hard_silu": lambda x: x * _relu6(x + 3) / 6,
        "log_sigmoid": lambda x: -_softplus(-x),
        "softplus": _softplus,
        "softsign": lambda x: x / (1 + np.abs(x)),
        "mish": lambda x: x * np.tanh(_softplus(x)),
        "leaky_relu": lambda x, negative_slope=0.2: np.where(x > 0, x, negative_slope * x),
        "softmax": functools.partial(scipy.special.softmax, axis=-1),
        "log_softmax": functools.partial(scipy.special.log_softmax, axis=-1),
    }
    for name, reference in functions.items():
        yield Case(name, (normal(3, 4) * 3,), reference, tolerance=ELEMENTWISE)
        yield Case(name, (WIDE,), reference, tolerance=ELEMENTWISE, label="wide")
    yield Case("leaky_relu", (normal(3, 4),), functions["leaky_relu"], {"negative_slope": 0.01}, tolerance=ELEMENTWISE)
    yield Case("elu", (normal(3, 4),), _elu, {"alpha": 0.5}, tolerance=ELEMENTWISE)
    yield Case("gelu", (normal(3, 4),), _gelu, {"approximate": False}, tolerance=ELEMENTWISE)
    for name in ("softmax", "log_softmax"):
        reference = getattr(scipy.special, name)
        for axis in (0, 1, -2, (0, 2), (-1, 1)):
            yield Case(name, (normal(2, 3, 4),), reference, {"axis": axis}, tolerance=ELEMENTWISE)
        yield Case(name, (normal(3, 1),), reference, {"axis": -1}, tolerance=ELEMENTWISE, label="size_1")


AXES = (None, 0, -1, (0, 2), (-1, 1), ())


def _reduction_cases():
    x = normal(2, 3, 4)
    for name in ("sum", "mean", "var", "std", "max", "min", "prod"):
        reference = getattr(np, name)
        for axis in AXES:
            for keepdims in (False, True):
                kwargs = {"axis": axis, "keepdims": keepdims}
                yield Case(name, (x,), reference, kwargs, tolerance=ACCUMULATED)
        yield Case(name, (x, 0, True), lambda x, a, k, f=reference: f(x, axis=a, keepdims=k), tolerance=ACCUMULATED)
        yield Case(name, (normal(3, 1),), reference, {"axis": 1}, tolerance=ACCUMULATED, label="size_1")
        yield Case(name, (normal(),), reference, tolerance=ACCUMULATED, label="zero_dim")
        yield Case(name, (integers(3, 4),), reference, {"axis": 0}, tolerance=ACCUMULATED, label="int")
    for name in ("max", "min"):
        yield Case(name, (bools(3, 4),), getattr(np, name), {"axis": 1}, label="bool")
    for name, dtype in (("sum", "int32"), ("mean", "float32"), ("prod", "int32")):
        reference = getattr(np, name)
        yield Case(name, (bools(3, 4),), reference, {"axis": 1}, tolerance=ELEMENTWISE, label="bool")
        small = integers(3, 4).astype(np.int8)
        yield Case(name, (small,), reference, {"axis": 1}, tolerance=ELEMENTWISE, dtype=dtype, label="int8")
        small = integers(3, 4, low=100, high=256).astype(np.uint8)[:, :3]
        yield Case(name, (small,), reference, {"axis": 1}, tolerance=ELEMENTWISE, dtype=dtype, label="uint8")
        yield Case(name, (normal(0, 4),), reference, {"axis": 1}, label="empty_result")
    yield Case("sum", (normal(0, 4),), np.sum, {"axis": 0}, label="over_empty")
    yield Case("prod", (normal(0, 4),), np.prod, {"axis": 0}, label="over_empty")
    yield Case("prod", (integers(3, 4),), np.prod, {"axis": 0, "dtype": "float32"}, dtype="float32")
    for name in ("any", "all"):
        for axis in AXES:
            for keepdims in (False, True):
                kwargs = {"axis": axis, "keepdims": keepdims}
                yield Case(name, (bools(2, 3, 4),), getattr(np, name), kwargs)
        yield Case(name, (integers(3, 4, low=-1, high=2),), getattr(np, name), {"axis": 1}, dtype="bool", label="int")
        yield Case(name, (normal(3, 0),), getattr(np, name), {"axis": 1}, label="over_empty")
    for name in ("argmax", "argmin"):
        for axis in (None, 0, -1):
            for keepdims in (False, True):
                yield Case(name, (shuffled(2, 3, 4),), getattr(np, name), {"axis": axis, "keepdims": keepdims})
        yield Case(name, (np.array([[2, 1, 2], [1, 2, 1]], np.int32),), getattr(np, name), {"axis": 1}, label="first")
        yield Case(name, (bools(3, 4),), getattr(np, name), {"axis": 1}, label="bool")
    for name in ("cumsum", "cumprod"):
        for axis in (None, 0, -1):
            yield Case(name, (x,), getattr(np, name), {"axis": axis}, tolerance=ACCUMULATED)
        yield Case(name, (bools(3, 4),), getattr(np, name), {"axis": 1}, label="bool")
        yield Case(name, (integers(3, 4),), getattr(np, name), {"axis": 1}, label="int")
        yield Case(name, (integers(3, 4),), getattr(np, name), {"axis": 1, "dtype": "float32"}, dtype="float32")
    for axis in AXES[:-1]:
        for keepdims in (False, True):
            kwargs = {"axis": axis, "keepdims": keepdims}
            yield Case("logsumexp", (x * 30,), scipy.special.logsumexp, kwargs, tolerance=ELEMENTWISE)
    yield Case("logsumexp", (x,), lambda x, axis: x, {"axis": ()}, tolerance=ELEMENTWISE)
    for axis in AXES:
        yield Case("count_nonzero", (integers(2, 3, 4, low=-1, high=2),), np.count_nonzero, {"axis": axis})
    yield Case("count_nonzero", (bools(3, 4),), np.count_nonzero, label="bool")


def _norm(x, ord=None, axis=None, keepdims=False):
    return np.linalg.norm(x, ord, axis, keepdims)


def _norm_cases():
    x = normal(2, 3, 4)
    for keepdims in (False, True):
        yield Case("norm", (x,), _norm, {"keepdims": keepdims}, tolerance=ACCUMULATED)
        for ord in (None, 1, 2, 3, 0, np.inf, -np.inf, 0.5):
            kwargs = {"ord": ord, "axis": -1, "keepdims": keepdims}
            yield Case("norm", (x,), _norm, kwargs, tolerance=ACCUMULATED)
        for ord in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
            kwargs = {"ord": ord, "axis": (2, 0), "keepdims": keepdims}
            yield Case("norm", (x,), _norm, kwargs, tolerance=ACCUMULATED)
    yield Case("norm", (x[0],), _norm, {"ord": 1}, tolerance=ACCUMULATED, label="matrix")
    yield Case("norm", (x[0, 0],), _norm, {"ord": 1}, tolerance=ACCUMULATED, label="vector")
    yield Case("norm", (integers(3, 4),), _norm, {"axis": 1}, tolerance=ACCUMULATED, label="int")


CASES = [*_binary_cases(), *_unary_cases(), *_activation_cases(), *_reduction_cases(), *_norm_cases()]
