"""Every function of unifit.ops against the table of cases: eagerly, compiled, in half precision and differentiated."""

import dataclasses
import functools
import inspect
import types

import numpy as np
import pytest

from contract import ops_arrays, ops_elementwise, ops_nn
from contract.ops_native import compiled, gradients
from contract.ops_table import ACCUMULATED, map_arrays, normal
from unifit import ops
from unifit.backend import backend
from unifit.contract import arrays as arrays_contract
from unifit.contract import nn as nn_contract
from unifit.contract import ops as ops_contract

SURFACE = [  # the backend's file, its contract, the function
    *(("ops", ops_contract, name) for name in ops_contract.OPS),
    *(("arrays", arrays_contract, name) for name in arrays_contract.ARRAY_OPS),
    *(("nn", nn_contract, name) for name in nn_contract.NN_OPS),
]
CASES = ops_elementwise.CASES + ops_arrays.CASES + ops_nn.CASES
NARROWED = {"float64": "float32", "int64": "int32"}
BFLOAT16_EPSILON = 2.0**-8
FINITE_DIFFERENCES = 1e-3  # float32 gradients against central differences in float64


def first_of_each(cases, number):
    """At most `number` cases of every function, evenly spread over its cases: compiling each of them takes a while."""
    by_name = {}
    for case in cases:
        by_name.setdefault(case.name, []).append(case)
    for group in by_name.values():
        yield from group[:: -(-len(group) // number)]


def arrays_of(value):
    """The NumPy arrays in a case's arguments, in order."""
    found = []
    map_arrays(found.append, value)
    return found


def check(result, expected, case, dtype=None):
    """Values, shape and dtype of a result, through lists and tuples."""
    if isinstance(expected, (list, tuple)) and case.name != "shape":
        assert isinstance(result, (list, tuple)) and len(result) == len(expected)
        for part, expected_part in zip(result, expected, strict=True):
            check(part, expected_part, case, dtype)
        return
    if not isinstance(expected, (np.ndarray, np.generic)):
        assert result == expected and type(result) is type(expected)
        return
    if case.name != "convert_to_numpy":
        assert ops.is_tensor(result)
        assert ops.dtype(result) == (dtype or case.dtype or NARROWED.get(expected.dtype.name, expected.dtype.name))
    result = ops.convert_to_numpy(result)
    assert result.shape == expected.shape
    if expected.dtype == bool or result.dtype == bool:
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(
            result.astype(np.float64), expected.astype(np.float64), rtol=case.tolerance, atol=case.tolerance
        )


def call(case, args, kwargs):
    return getattr(ops, case.name)(*args, **kwargs)


# jax compiles whatever it does, one small program after the other when eager: there, most cases are compiled only.
EAGER = CASES if backend.name != "jax" else [*first_of_each(CASES, 1), *(case for case in CASES if case.eager_only)]
COMPILED = [case for case in CASES if not case.eager_only]


def results_together(cases, to_backend=ops.convert_to_tensor):
    """The cases' results from one compiled function: one compilation for all. Host values stay as they are."""
    host_values = {}

    def function(*arrays):
        remaining = list(arrays)
        results = []
        for index, case in enumerate(cases):
            args, kwargs = map_arrays(lambda _: remaining.pop(0), (case.args, case.kwargs))
            result = call(case, args, kwargs)
            if not any(map(ops.is_tensor, result if isinstance(result, (list, tuple)) else [result])):
                host_values[index], result = result, ()
            results.append(result)
        return results

    arrays = arrays_of([(case.args, case.kwargs) for case in cases])
    results = compiled(function)(*map(to_backend, arrays))
    return [host_values.get(index, result) for index, result in enumerate(results)]


@functools.cache
def compiled_results(name):
    cases = [case for case in COMPILED if case.name == name]
    return {id(case): result for case, result in zip(cases, results_together(cases), strict=True)}


@pytest.mark.parametrize("case", EAGER, ids=str)
def test_op_gives_the_reference_value(case):
    args, kwargs = map_arrays(ops.convert_to_tensor, (case.args, case.kwargs))
    check(call(case, args, kwargs), case.expected(), case)


@pytest.mark.backends("jax", "tensorflow", reason="torch runs eagerly")
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_op_gives_the_reference_value_compiled(case):
    check(compiled_results(case.name)[id(case)], case.expected(), case)


@pytest.mark.backends("torch", reason="the other backends infer shapes by tracing")
@pytest.mark.parametrize("case", [case for case in CASES if not case.eager_only], ids=str)
def test_op_infers_the_shape_on_the_meta_device(case):
    import torch

    if case.name in ("slice", "slice_update") and isinstance(case.args[1], np.ndarray):
        pytest.skip("a start that is an array has no value on the meta device")
    if case.name in ("is_tensor", "repeat"):
        pytest.skip("needs values")
    args, kwargs = map_arrays(lambda x: ops.convert_to_tensor(x).to("meta"), (case.args, case.kwargs))
    with torch.device("meta"):
        result = call(case, args, kwargs)
    results = result if isinstance(result, (list, tuple)) and case.name != "shape" else [result]
    expected = case.expected()
    expected = expected if isinstance(expected, (list, tuple)) and case.name != "shape" else [expected]
    for part, expected_part in zip(results, expected, strict=True):
        if ops.is_tensor(part):
            assert part.device.type == "meta"
            assert tuple(part.shape) == np.shape(expected_part)
        else:
            assert part == expected_part


HALF_EXCEPTIONS = {
    # results that are float32 or not numbers by contract, or inputs that have no meaning in 8 bits
    *("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy"),
    *("convert_to_tensor", "cast", "dtype", "convert_to_numpy", "full", "full_like"),
    *("norm", "expm1", "log1p", "round", "floor_divide", "mod", "searchsorted", "in_top_k"),
}


def half_cases():
    for case in CASES:
        arrays = arrays_of((case.args, case.kwargs))
        floats = [x for x in arrays if x.dtype == np.float32]
        usual = case.label not in ("int_float", "int_float_scalar", "float_scalars", "special", "wide", "mixed")
        wanted = case.name not in HALF_EXCEPTIONS and case.dtype is None and not case.eager_only
        if wanted and usual and floats:
            yield case


def round_to_bfloat16(x):
    """The nearest bfloat16 of each float32, halves to even, as float32."""
    if x.dtype != np.float32:
        return x
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isfinite(x), bits.astype(np.uint32).view(np.float32), x).reshape(x.shape)


HALF = list(first_of_each(half_cases(), 8))


@functools.cache
def half_results(name):
    """Case and result by the identity of the original case, with inputs that are exact in bfloat16."""

    def to_backend(x):
        tensor = ops.convert_to_tensor(x)
        return ops.cast(tensor, "bfloat16") if x.dtype == np.float32 else tensor

    cases = [case for case in HALF if case.name == name]
    rounded = []
    for case in cases:
        args, kwargs = map_arrays(round_to_bfloat16, (case.args, case.kwargs))
        rounded.append(dataclasses.replace(case, args=args, kwargs=kwargs))
    results = results_together(rounded, to_backend)
    return {id(case): pair for case, pair in zip(cases, zip(rounded, results, strict=True), strict=True)}


@pytest.mark.parametrize("case", HALF, ids=str)
def test_op_keeps_bfloat16(case):
    """The result is within some roundings of the true one."""
    case, result = half_results(case.name)[id(case)]
    parts = [x if isinstance(x, (list, tuple)) else [x] for x in (result, case.expected())]
    for part, expected in zip(*parts, strict=True):
        if not ops.is_tensor(part):
            continue
        if np.asarray(expected).dtype != np.float64:
            assert ops.dtype(part) == NARROWED.get(expected.dtype.name, expected.dtype.name)
            continue
        assert ops.dtype(part) == "bfloat16"
        tolerance = 4 * BFLOAT16_EPSILON
        scale = np.max(np.abs(expected), initial=1.0, where=np.isfinite(expected))
        np.testing.assert_allclose(ops.convert_to_numpy(part), expected, rtol=tolerance, atol=tolerance * scale)


def test_table_has_every_op():
    names = [name for _, _, name in SURFACE]
    assert set(names) == {case.name for case in CASES}
    assert len(names) == len(set(names))


def test_surface_is_the_backends_own_functions():
    assert sorted(ops.__all__) == sorted(name for _, _, name in SURFACE)
    for part, contract, name in SURFACE:
        assert getattr(ops, name) is getattr(getattr(backend, part), name)
        assert getattr(contract, name).__doc__


@pytest.mark.parametrize(("part", "contract", "name"), SURFACE, ids=[name for _, _, name in SURFACE])
def test_signature_is_the_contracts(part, contract, name):
    """Ours have the contract's parameters; native functions stand only where all parameters are positional."""
    wanted = inspect.signature(getattr(contract, name)).parameters.values()
    function = getattr(getattr(backend, part), name)
    ours = isinstance(function, types.FunctionType) and function.__module__.startswith("unifit_")
    if not ours:
        assert all(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in wanted)
        return
    found = inspect.signature(function).parameters.values()
    assert len(found) == len(wanted)
    for parameter, ours_parameter in zip(wanted, found, strict=True):
        assert parameter.kind == parameter.POSITIONAL_ONLY or parameter.name == ours_parameter.name
        assert parameter.default == ours_parameter.default


DIFFERENTIATED = (
    "add multiply divide power maximum exp log tanh sqrt gelu silu softplus mish elu selu softmax log_softmax sum mean "
    "var std max prod cumsum logsumexp transpose concatenate pad roll take take_along_axis slice slice_update sort "
    "matmul dot einsum conv conv_transpose depthwise_conv max_pool average_pool resize dot_product_attention "
    "binary_crossentropy moments segment_sum"
).split()


def has_slope(case):
    """Whether the first argument is a float array at which the reference is smooth."""
    if case.name not in DIFFERENTIATED or not case.args or not isinstance(case.args[0], np.ndarray):
        return False
    if case.name == "std" and (case.kwargs.get("axis") == () or case.label in ("size_1", "zero_dim")):
        return False  # no deviation at all: a corner
    x = case.args[0]
    return x.dtype == np.float32 and x.size > 0 and case.label not in ("wide", "nan", "certain")


SLOPED = list(filter(has_slope, CASES))


def as_tuple(x):
    return tuple(x) if isinstance(x, (list, tuple)) else (x,)


def weights_of(case):
    """Random weights that make one number of a case's results."""
    return [np.random.default_rng([8, i]).normal(size=np.shape(y)) for i, y in enumerate(as_tuple(case.expected()))]


@functools.cache
def gradients_together(name):
    """Gradients at the cases' first arguments, from one compiled function."""
    cases = [case for case in SLOPED if case.name == name]

    def function(*xs):
        total = 0.0
        for case, x in zip(cases, xs, strict=True):
            args, kwargs = map_arrays(ops.convert_to_tensor, (case.args[1:], case.kwargs))
            for weight, y in zip(weights_of(case), as_tuple(call(case, (x, *args), kwargs)), strict=True):
                total = total + ops.sum(ops.convert_to_tensor(weight) * y)
        return total

    found = gradients(function, *(case.args[0] for case in cases))
    return {id(case): gradient for case, gradient in zip(cases, found, strict=True)}


@pytest.mark.parametrize("case", SLOPED, ids=str)
def test_gradient_is_the_references_slope(case):
    """The derivative along a random direction, against central differences of the reference in float64."""
    x, *rest = case.args
    direction = np.random.default_rng(7).normal(size=x.shape)
    weights = weights_of(case)

    def reference(step):
        moved = dataclasses.replace(case, args=(x.astype(np.float64) + step * direction, *rest)).expected()
        return sum((weight * y).sum() for weight, y in zip(weights, as_tuple(moved), strict=True))

    step = 1e-5
    slope = (reference(step) - reference(-step)) / (2 * step)
    actual = (gradients_together(case.name)[id(case)] * direction).sum()
    np.testing.assert_allclose(actual, slope, rtol=FINITE_DIFFERENCES, atol=FINITE_DIFFERENCES)


def test_gradient_of_softmax_crossentropy_is_probability_minus_target():
    logits, target = normal(5, 4) * 3, np.eye(4, dtype=np.float32)[[0, 3, 1, 1, 2]]
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    classes = target.argmax(-1).astype(np.int32)
    for loss, labels in ((ops.categorical_crossentropy, target), (ops.sparse_categorical_crossentropy, classes)):
        labels = ops.convert_to_tensor(labels)
        (gradient,) = gradients(lambda x, f=loss, y=labels: ops.sum(f(y, x, from_logits=True)), logits)
        np.testing.assert_allclose(gradient, p - target, rtol=ACCUMULATED, atol=ACCUMULATED)


def test_gradient_of_attention_with_rows_that_see_nothing_is_finite():
    query, key, value = normal(2, 5, 4, 8), normal(2, 6, 4, 8, key=1), normal(2, 6, 4, 8, key=2)
    mask = ops_nn.attention_mask()

    def function(query, key, value):
        return ops.sum(ops.dot_product_attention(query, key, value, mask=ops.convert_to_tensor(mask)) ** 2)

    for gradient in gradients(function, query, key, value):
        assert np.isfinite(gradient).all()
    (gradient,) = gradients(lambda q: function(q, *map(ops.convert_to_tensor, (key, value))), query)
    assert (gradient[0, 1] == 0).all() and (gradient[1, 4] == 0).all() and (gradient[0, 0] != 0).any()


def test_gradient_of_where_is_poisoned_by_a_dead_branch_unless_the_input_is_made_safe():
    x = np.array([0.0, 2.0], np.float32)
    (poisoned,) = gradients(lambda x: ops.sum(ops.where(x > 0, ops.sqrt(x) * 0 + ops.log(x), 0.0)), x)
    assert not np.isfinite(poisoned[0])
    (safe,) = gradients(lambda x: ops.sum(ops.where(x > 0, ops.log(ops.where(x > 0, x, 1.0)), 0.0)), x)
    np.testing.assert_allclose(safe, [0.0, 0.5])


def test_gradient_of_normalize_is_finite_at_zero():
    (gradient,) = gradients(lambda x: ops.sum(ops.normalize(x)), np.zeros((2, 3), np.float32))
    assert np.isfinite(gradient).all()


def test_gradient_does_not_pass_stop_gradient():
    (gradient,) = gradients(lambda x: ops.sum(x * ops.stop_gradient(x)), normal(3))
    np.testing.assert_allclose(gradient, normal(3))


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("window", [2, 3, 4])
def test_conv_transpose_is_the_adjoint_of_conv(window, stride, padding):
    """<conv_transpose(x, k), y> = <x, conv(y, k)> for every y."""
    x, kernel = normal(2, 5, 3), normal(window, 4, 3)
    tensors = [ops.convert_to_tensor(a) for a in (x, kernel)]
    up = ops.convert_to_numpy(ops.conv_transpose(*tensors, strides=stride, padding=padding))
    y = normal(*up.shape, key=1)
    down = ops.convert_to_numpy(ops.conv(ops.convert_to_tensor(y), tensors[1], strides=stride, padding=padding))
    np.testing.assert_allclose((up * y).sum(), (x * down).sum(), rtol=1e-4, atol=1e-4)


def test_loss_of_labels_outside_the_classes_is_never_a_number():
    logits = ops.convert_to_tensor(normal(2, 3))
    for label in (-1, 3):
        labels = ops.convert_to_tensor(np.array([0, label], np.int32))
        try:
            loss = ops.convert_to_numpy(ops.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        except Exception:
            continue
        assert np.isfinite(loss[0]) and np.isnan(loss[1])


LOSSES = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_shapes_that_only_broadcast_is_refused(name):
    target, output = ops.zeros((4, 1) if name != LOSSES[2] else (1,), "int32"), ops.ones((4, 3))
    with pytest.raises(ValueError, match=r"\(4, 3\)"):
        getattr(ops, name)(target, output)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_half_logits_is_computed_in_float32(name):
    logits = ops.cast(ops.convert_to_tensor(normal(64, 300) * 4), "float16")
    exact = ops.cast(logits, "float32")
    target = ops.one_hot(ops.argmax(exact, axis=-1), 300)
    target = ops.argmin(exact, axis=-1) if name == LOSSES[2] else target
    half, full = (getattr(ops, name)(target, x, from_logits=True) for x in (logits, exact))
    assert ops.dtype(half) == "float32"
    np.testing.assert_array_equal(ops.convert_to_numpy(half), ops.convert_to_numpy(full))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_halves_accumulate_in_float32(dtype):
    x = ops.full((4096,), 1.0, dtype)
    for name, expected in (("sum", 4096.0), ("mean", 1.0), ("logsumexp", None), ("softmax", None)):
        result = ops.convert_to_numpy(getattr(ops, name)(x))
        if expected is not None:
            np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.moments(x, 0)[0]), 1.0)


def test_conversion_never_shares_memory_with_a_numpy_array():
    for x in (np.zeros(1024, np.float32), np.zeros(1024, np.int32)):
        tensor = ops.convert_to_tensor(x)
        x += 1
        assert (ops.convert_to_numpy(tensor) == 0).all()


def test_conversion_narrows_to_32_bits():
    for value, dtype in ((np.zeros(2), "float32"), (np.zeros(2, np.int64), "int32"), (np.zeros(2, bool), "bool")):
        assert ops.dtype(ops.convert_to_tensor(value)) == dtype
    assert ops.dtype(ops.convert_to_tensor([ops.ones(()), 2])) == "float32"


def test_conversion_refuses_integers_beyond_32_bits():
    with pytest.raises(OverflowError, match="int32"):
        ops.convert_to_tensor(np.array([2**40]))


def test_conversion_of_bfloat16_to_numpy_is_float32():
    x = ops.convert_to_numpy(ops.full((2,), 1.5, "bfloat16"))
    assert x.dtype == np.float32 and (x == 1.5).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.split(ops.ones((5,)), 2), "divi"),
        (lambda: ops.squeeze(ops.ones((2, 1)), 0), "size"),
        (lambda: ops.conv(ops.ones((1, 4, 1)), ops.ones((2, 1, 1)), padding="SAME"), "padding"),
        (lambda: ops.max_pool(ops.ones((1, 4, 1)), 2, padding="full"), "padding"),
        (lambda: ops.resize(ops.ones((1, 4, 4, 1)), (2, 2), "cubic"), "cubic"),
        (lambda: ops.unstack(ops.ones((3, 1)), num=2), "num"),
    ],
)
def test_wrong_argument_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_float16_with_bfloat16_gives_float32():
    result = ops.add(ops.ones((2,), "float16"), ops.ones((2,), "bfloat16"))
    assert ops.dtype(result) == "float32"
    assert ops.dtype(ops.multiply(ops.ones((2,), "bfloat16"), ops.ones((2,)))) == "float32"
    assert ops.dtype(ops.multiply(ops.ones((2,), "bfloat16"), ops.ones((2,), "int32"))) == "bfloat16"
