"""Mixed precision inside the backends: dtypes of the operations that a training window really consists of (S-MP-06)."""

import functools
import re
from typing import NamedTuple

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend

HALVES = ("bfloat16", "float16")
ROWS, ACCUMULATION, CLASSES = 4, 4, 5
PRODUCTS = {
    "jax": {"dot_general", "conv_general_dilated"},
    "torch": {
        *("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    },
    "tensorflow": {
        *("MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum"),
        *("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"),
    },
}
"""Operations that multiply matrices, forward and backward."""

STEADY = {
    "jax": {"exp", "log", "sqrt", "rsqrt", "reduce_max"},
    "torch": {"_log_softmax", "log", "gather", "scatter_add", "var_mean", "rsqrt", "mean", "sqrt", "_foreach_sqrt"},
    "tensorflow": {"Softmax", "LogSoftmax", "Log", "Mean", "SquaredDifference", "Rsqrt", "RsqrtGrad", "Sqrt"},
}
"""Operations of softmax, statistics of norms, loss and optimizer: float32 under every policy."""

FOUND = {
    "jax": {"exp", "log", "sqrt", "rsqrt"},
    "torch": {"log", "gather", "var_mean", "rsqrt"},
    "tensorflow": {"Softmax", "Log", "Mean", "Rsqrt", "Sqrt"},
}
"""Those of them that the model below has, so that no test passes because it found nothing."""


class Operation(NamedTuple):
    """One operation of a window: dtypes of its float inputs, shape of its result, and what else tests ask about."""

    name: str
    inputs: tuple
    shape: tuple = ()
    note: str = ""


class Inside(NamedTuple):
    """What was seen of a window.

    Attributes:
        operations: The window's, over all micro-batches on torch, and of one micro-batch in the traced programs.
        accumulators: dtypes of the sums of gradients.
        casts: How often a weight was cast to the half type, by its path or shape: a window on torch, a pass otherwise.
        compiled: The optimised program on jax, under float16.
    """

    operations: list
    accumulators: set
    casts: dict
    compiled: str = ""


class Traced(Exception):
    """(engine, Inside): all that there is to see was seen, before the window runs."""


def network():
    layers = uf.layers
    x = uf.Input((6, 6, 3))
    h = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    h = layers.Dense(11)(layers.Reshape((6, 24))(layers.Activation("relu")(h)))
    h = layers.LayerNormalization()(layers.MultiHeadAttention(2, 7)(h, h))
    return uf.Model(x, layers.Dense(CLASSES, "softmax")(layers.Flatten()(h)))


def name_of(dtype):
    """A dtype's name, whichever framework it is of."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def is_float(dtype):
    return "float" in dtype


@functools.cache
def inside(policy):
    """(engine, what was seen of the one window of a `fit`)."""
    uf.set_seed(0)
    model = network()
    model.compile(
        uf.optimizers.AdamW(),
        "sparse_categorical_crossentropy",
        precision=policy,
        gradient_accumulation_steps=ACCUMULATION,
    )
    r, rows = np.random.default_rng(0), ROWS * ACCUMULATION
    x, y = r.normal(size=(rows, 6, 6, 3)).astype("float32"), r.integers(0, CLASSES, rows)
    engines, seen = [], []
    train = backend.engine.Engine.train

    def watched(engine, totals, placed):
        engines.append(engine)
        look = {"jax": look_at_jax, "torch": look_at_torch, "tensorflow": look_at_tensorflow}[backend.name]
        totals, found = look(engine, totals, placed, lambda: train(engine, totals, placed))
        seen.append(found)
        return totals

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend.engine.Engine, "train", watched)
        try:
            model.fit(x, y, batch_size=ROWS, epochs=1, verbose=0)
        except Traced as traced:
            return traced.args
    assert len(seen) == 1
    return engines[0], seen[0]


# jax: the program as it was traced. What XLA makes of it depends on the device: on CPUs it computes many products of
# halves in float32.


def look_at_jax(engine, totals, placed, train):
    from jax.extend import core

    params, _ = engine._variables()
    traced = engine._train.trace(*engine.arguments(totals, placed))
    found, accumulators, casts = [], set(), {}
    shapes = {tuple(param.shape) for param in params}

    def walk(jaxpr, on_some_devices=False):
        for equation in jaxpr.eqns:
            name, parameters, out = equation.primitive.name, equation.params, equation.outvars
            inputs = tuple(name_of(value.aval.dtype) for value in equation.invars)
            note = "on some devices" if on_some_devices else str(parameters.get("precision"))
            shape = tuple(out[0].aval.shape) if out else ()
            found.append(Operation(name, tuple(filter(is_float, inputs)), shape, note))
            if name == "scan" and parameters["length"] == ACCUMULATION:
                accumulators.update(name_of(value.aval.dtype) for value in out[: parameters["num_carry"]])
            cast = name == "convert_element_type" and inputs[0] == "float32" and name_of(out[0].aval.dtype) in HALVES
            if cast and shape in shapes:
                casts[shape] = casts.get(shape, 0) + 1
            for inner in core.jaxprs_in_params(parameters):
                walk(inner, on_some_devices or name == "cond")

    walk(traced.jaxpr.jaxpr)
    if engine.plan.loss_scale is None:  # compiling takes most of the time, and tells nothing new
        raise Traced(engine, Inside(found, accumulators, casts))
    engine._train = traced.lower().compile()  # so that it is compiled once
    return train(), Inside(found, accumulators, casts, engine._train.as_text())


# torch: each kernel as it is called.


def look_at_torch(engine, totals, placed, train):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found, casts = [], {}
    pointers = {param.data_ptr(): path for path, param in zip(engine._paths, engine._params, strict=True)}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            flat = [leaf for arg in args for leaf in (arg if isinstance(arg, (list, tuple)) else [arg])]
            tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
            first = result[0] if isinstance(result, (list, tuple)) else result
            shape = tuple(first.shape) if isinstance(first, torch.Tensor) else ()
            inputs = tuple(filter(is_float, (name_of(tensor.dtype) for tensor in tensors)))
            name = function._schema.name.removeprefix("aten::")
            found.append(Operation(name, inputs, shape))
            if name == "_to_copy" and name_of(first.dtype) in HALVES and tensors[0].data_ptr() in pointers:
                path = pointers[tensors[0].data_ptr()]
                casts[path] = casts.get(path, 0) + 1
            return result

    with Watch():
        totals = train()
    # Gradients add up in place.
    sums = {dtype for op in found if op.name in ("add_", "_foreach_add_") for dtype in op.inputs}
    return totals, Inside(found, sums, casts)


# tensorflow: the nodes of the traced graph, and of the functions in it: the loop over micro-batches is one.


def look_at_tensorflow(engine, totals, placed, train):
    from tensorflow.dtypes import as_dtype

    totals = train()
    graph = engine._train.trace(placed.batch).graph.as_graph_def()
    found, casts = [], {}
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            types = [as_dtype(node.attr[key].type).name for key in ("T", "dtype", "SrcT") if node.attr[key].type]
            note = as_dtype(node.attr["DstT"].type).name if node.op == "Cast" else ""
            found.append(Operation(node.op, tuple(filter(is_float, types)), (), note))
            read = node.input[0] if node.input else ""
            if note in HALVES and "ReadVariableOp" in read:
                casts[read] = casts.get(read, 0) + 1
    assert any(op.name == "AssignAddVariableOp" for op in found)
    sums = {dtype for op in found if op.name == "AssignAddVariableOp" for dtype in op.inputs}
    return totals, Inside(found, sums | {name_of(variable.dtype) for variable in engine._gradients}, casts)


def products(found):
    return [op for op in found.operations if op.name in PRODUCTS[backend.name] and op.inputs]


@pytest.mark.parametrize("half", HALVES)
def test_products_read_the_half_type_forward_and_backward(half):
    _, found = inside(f"mixed_{half}")
    wide = [op for op in products(found) if set(op.inputs) != {half}]
    if backend.name == "jax":
        # jax asks for the scores of attention as float32 sums of products of halves. The gradient of the scores comes
        # as float32 for that reason, and the product's algorithm says that it is rounded to the half type first.
        kind = {"bfloat16": "BF16_BF16_F32", "float16": "F16_F16_F32"}[half]
        rounded = [op for op in wide if kind in op.note or (half in op.inputs and op.note == "on some devices")]
        assert all(set(op.inputs) == {half, "float32"} for op in rounded) and len(rounded) == 2
        wide = [op for op in wide if op not in rounded]
        # CPUs have no such product of float16: there, and only there, attention is float32, 2 products and 4 backward.
        in_float32 = [op for op in wide if op.inputs == ("float32", "float32") and op.note == "on some devices"]
        assert len(in_float32) == (6 if half == "float16" else 0)
        wide = [op for op in wide if op not in in_float32]
    if backend.name == "torch":
        # The fused attention keeps the sums of its softmax in float32 for the backward pass: one value a query.
        name = "_scaled_dot_product_flash_attention_for_cpu_backward"
        fused = [op for op in wide if op.name == name and op.inputs.count("float32") == 1]
        assert len(fused) == ACCUMULATION
        wide = [op for op in wide if op not in fused]
    assert wide == []
    kinds = {op.name for op in products(found)}
    assert any("conv" in kind.lower() for kind in kinds) and len(kinds) > 1
    # 7 products of layers (an einsum each in attention) and a convolution, of which all but the convolution's input,
    # which takes no gradient, have two products backward; and attention's own.
    passes = ACCUMULATION if backend.name == "torch" else 1
    assert len(products(found)) >= passes * (3 * 6 + 2)


@pytest.mark.parametrize("policy", ["float32", *(f"mixed_{half}" for half in HALVES)])
def test_softmax_norms_loss_and_optimizer_are_float32(policy):
    engine, found = inside(policy)
    steady = [op for op in found.operations if op.name in STEADY[backend.name] and op.inputs]
    assert {op.name for op in steady} >= FOUND[backend.name]
    assert [op for op in steady if set(op.inputs) != {"float32"}] == []
    assert found.accumulators and not found.accumulators & set(HALVES)
    slots = {name_of(slot.dtype) for _, slot in engine._named_slots()}
    assert "float32" in slots and not slots & set(HALVES)


@pytest.mark.backends("torch", reason="only its softmax takes halves: the kernel computes in float32")
@pytest.mark.parametrize("half", HALVES)
def test_softmax_kernels_of_halves_compute_in_float32(half):
    import torch

    _, found = inside(f"mixed_{half}")
    dtypes = {op.inputs for op in found.operations if op.name == "_softmax"}
    assert dtypes == {(half,)}
    # 5,000 equal scores: a sum of exponentials in a half type stops at 256 or 2,048.
    x = torch.zeros(3, 5000, dtype=getattr(torch, half))
    for function in (uf.ops.softmax, uf.ops.log_softmax):
        assert torch.equal(function(x), function(x.float()).to(x.dtype))


def test_float32_policy_has_no_half_type():
    _, found = inside("float32")
    assert {dtype for op in found.operations for dtype in op.inputs} & set(HALVES) == set()
    assert found.casts == {} and products(found)


@pytest.mark.parametrize("half", HALVES)
def test_weights_are_cast_once(half):
    engine, found = inside(f"mixed_{half}")
    # Those of norms are read in float32.
    paths = engine._trained_paths() if backend.name == "jax" else engine._paths
    number = sum("norm" not in path.lower() for path in paths)
    assert number == 14
    if backend.name == "torch":
        assert len(found.casts) == number and set(found.casts.values()) == {1}
    elif backend.name == "tensorflow":  # once a micro-batch: casts are part of the loop's body
        assert len(found.casts) == number and set(found.casts.values()) == {1}
    else:
        assert found.casts[(3, 3, 3, 4)] == 1 and found.casts[(24, 11)] == 1


@pytest.mark.backends("jax", reason="there the compiler is what takes the casts out of the loop")
def test_compiled_loop_has_no_cast_of_a_weight():
    # Of float16: XLA may drop casts to bfloat16, and then there would be none to find (see the engine's options).
    _, found = inside("mixed_float16")
    computations = dict(re.findall(r"^(?:ENTRY )?%([\w.\-]+) \(.*?\{\n(.*?)^\}", found.compiled, re.M | re.S))
    within, waiting = set(), re.findall(r"body=%([\w.\-]+)", found.compiled)
    assert waiting
    while waiting:
        name = waiting.pop()
        if name not in within:
            within.add(name)
            called = re.findall(r"%([\w.\-]+)", computations[name])
            waiting += [other for other in called if other in computations]
    for shape in ("3,3,3,4", "24,11"):
        cast = re.compile(rf"= f16\[{shape}\]\S* convert\(.*/convert_element_type\"")
        places = [name for name, text in computations.items() if cast.search(text)]
        assert places and not within.intersection(places)
