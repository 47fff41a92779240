"""Cases of the functions that shape, create, index, sort and multiply arrays."""

import itertools

import numpy as np

from contract.ops_table import ACCUMULATED, ELEMENTWISE, Case, bools, integers, normal, positive, shuffled


def _shape_cases():
    x = normal(2, 3, 4)
    yield Case("shape", (x,), np.shape)
    yield Case("shape", (normal(),), np.shape, label="zero_dim")
    yield Case("ndim", (x,), np.ndim)
    yield Case("size", (x,), np.size)
    yield Case("size", (normal(0, 3),), np.size, label="empty")
    for newshape in ((4, 6), (-1,), (2, -1, 2), -1, [24], (1, 24)):
        yield Case("reshape", (x, newshape), np.reshape, label=str(newshape))
    yield Case("reshape", (normal(0, 3), (3, 0)), np.reshape, label="empty")
    yield Case("transpose", (x,), np.transpose)
    yield Case("transpose", (x,), np.transpose, {"axes": (1, -1, 0)})
    yield Case("swapaxes", (x, 0, -1), np.swapaxes)
    yield Case("moveaxis", (x, 0, -1), np.moveaxis)
    yield Case("moveaxis", (x, (0, 1), (-1, 0)), np.moveaxis, label="pairs")
    for axis in (0, 1, -1, (0, -1), (1, 2), (3, 0)):
        yield Case("expand_dims", (x, axis), np.expand_dims, label=str(axis))
    for axis in (None, 0, -1, (0, 2), ()):
        yield Case("squeeze", (normal(1, 3, 1),), np.squeeze, {"axis": axis})
    for axis in (0, 1, -1):
        yield Case("concatenate", ([x, x[:, :], -x],), np.concatenate, {"axis": axis})
        yield Case("stack", ([x, -x],), np.stack, {"axis": axis})
        yield Case("unstack", (x,), lambda x, axis: list(np.moveaxis(x, axis, 0)), {"axis": axis})
    yield Case("concatenate", ([x, normal(2, 1, 4), normal(2, 0, 4)],), np.concatenate, {"axis": 1}, label="sizes")
    yield Case("concatenate", ([normal(3), integers(2)],), np.concatenate, label="mixed")
    yield Case("stack", ([normal(3), integers(3)],), np.stack, label="mixed")
    yield Case("unstack", (x,), lambda x, num: list(x), {"num": 2})
    for sections, axis in ((2, 0), (2, -1), ([1, 3], 2), ((2,), 1), ([0, 2], 1), ([-1], 2), ([2, 9], 2)):
        yield Case("split", (x, sections), np.split, {"axis": axis}, label=str(sections))
    for repeats, axis in ((2, None), (2, 1), (0, 1), ([1, 0, 2], 1), (3, -1)):
        yield Case("repeat", (x, repeats), np.repeat, {"axis": axis}, label=str(repeats))
    for repeats in (2, (2,), (1, 2), (2, 1, 3), (2, 1, 1, 2)):
        yield Case("tile", (x, repeats), np.tile, label=str(repeats))
    for axis in (None, 0, -1, (0, 2)):
        yield Case("flip", (x,), np.flip, {"axis": axis})
        yield Case("roll", (x, 5), np.roll, {"axis": axis})
        yield Case("roll", (x, -2), np.roll, {"axis": axis}, label="back")
    yield Case("roll", (x, (1, 2)), np.roll, {"axis": (0, 2)}, label="two")
    for pad_width in (1, (1, 2), ((1, 0), (0, 2), (1, 1))):
        yield Case("pad", (x, pad_width), np.pad, label=str(pad_width))
        for mode in ("reflect", "symmetric", "edge"):
            width = ((1, 0), (0, 2), (1, 1)) if pad_width == (1, 2) else pad_width  # reflect has room for size - 1
            if mode != "reflect" or pad_width != 1:
                yield Case("pad", (x, width), np.pad, {"mode": mode}, label=str(pad_width))
    yield Case("pad", (x, 1), np.pad, {"constant_values": 2.5})
    yield Case("pad", (integers(3), 1), np.pad, label="int")
    yield Case("pad", (bools(3), 1), np.pad, label="bool")
    yield Case("broadcast_to", (normal(3, 1),), np.broadcast_to, {"shape": (2, 3, 4)})
    yield Case("broadcast_to", (normal(), (0, 2)), np.broadcast_to, label="empty")
    yield Case("ravel", (x,), np.ravel)


def _creation_cases():
    yield Case("convert_to_tensor", ([[1.0, 2.5]],), np.array, dtype="float32")
    yield Case("convert_to_tensor", ([[1, 2]],), np.array, dtype="int32", label="ints")
    yield Case("convert_to_tensor", (3.5,), np.array, dtype="float32", label="float")
    yield Case("convert_to_tensor", (True,), np.array, label="bool")
    yield Case("convert_to_tensor", (normal(3),), np.array, label="array")
    yield Case("convert_to_tensor", (integers(3), "float32"), lambda x, d: x.astype(d), label="to_float32")
    yield Case("convert_to_tensor", ([1, 2], "bfloat16"), lambda x, d: np.array(x), dtype="bfloat16", label="bfloat16")
    for x in (normal(3), integers(3), bools(3)):
        yield Case("convert_to_numpy", (x,), np.array, label=str(x.dtype), eager_only=True)
        yield Case("is_tensor", (x,), lambda x: True, label=str(x.dtype))
        yield Case("dtype", (x,), lambda x: x.dtype.name if x.dtype != np.float64 else "float32", label=str(x.dtype))
    yield Case("is_tensor", ([1.0],), lambda x: False, label="list")
    cast = np.array([-1.7, 0.0, 0.4, 2.9], np.float32)
    for dtype in ("int32", "int8", "bool", "float32", "float16", "int64", "uint8"):
        x = abs(cast) if dtype == "uint8" else cast
        if dtype != "int64":
            yield Case("cast", (x, dtype), lambda x, d: x.astype(np.float32).astype(d), dtype=dtype, label=dtype)
    yield Case("cast", (bools(3, 4), "float32"), lambda x, d: x.astype(d), label="bool_float32")
    yield Case("cast", (integers(3, 4), "bfloat16"), lambda x, d: x, dtype="bfloat16", label="bfloat16")
    yield Case("cast", (2, "float32"), lambda x, d: np.float32(x), label="scalar")
    for name, fill in (("zeros", 0), ("ones", 1)):
        for shape in ((), (3,), (2, 0), [2, 3]):
            yield Case(name, (shape,), lambda s, f=fill: np.full(s, f, "float32"), label=str(shape))
        for dtype in ("int32", "bool", "float16"):
            reference = lambda s, dtype, f=fill: np.full(s, f, dtype)  # noqa: E731
            yield Case(name, ((2, 3),), reference, {"dtype": dtype})
        for x in (normal(3, 4), integers(3), bools(2)):
            reference = lambda x, f=fill: np.full_like(x, f)  # noqa: E731
            yield Case(f"{name}_like", (x,), reference, label=str(x.dtype))
        reference = lambda x, dtype, f=fill: np.full_like(x, f, dtype)  # noqa: E731
        yield Case(f"{name}_like", (normal(3),), reference, {"dtype": "int32"})
    yield Case("full", ((2, 3), 7), lambda s, v: np.full(s, v, "float32"))
    yield Case("full", ((2, 3), 7.5), np.full, {"dtype": "float32"})
    yield Case("full", ((2, 3), normal(3)), lambda s, v: np.full(s, v), label="array")
    yield Case("full", ((2,), True), np.full, {"dtype": "bool"}, label="bool")
    yield Case("full_like", (normal(2, 3), 7), np.full_like)
    yield Case("full_like", (integers(2, 3), 7), np.full_like, label="int")
    yield Case("full_like", (normal(2, 3), normal(3)), np.full_like, label="array")
    yield Case("full_like", (normal(2, 3), 7), np.full_like, {"dtype": "int32"})
    for args in ((5,), (2, 7), (2, 9, 3), (9, 2, -2), (0,), (0.0, 1.0, 0.25), (3.0,)):
        yield Case("arange", args, np.arange, label=str(args))
    yield Case("arange", (5,), np.arange, {"dtype": "float32"}, dtype="float32")
    yield Case("arange", (1,), lambda start, stop: np.arange(start, stop), {"stop": 4})
    yield Case("linspace", (0, 1), np.linspace, {"num": 7}, tolerance=ELEMENTWISE)
    yield Case("linspace", (-1.0, 2.0), np.linspace, {"num": 4, "endpoint": False}, tolerance=ELEMENTWISE)
    yield Case("linspace", ([0, 1], [2, 5]), np.linspace, {"num": 3, "axis": 1}, tolerance=ELEMENTWISE)
    yield Case("linspace", (0, 4), np.linspace, {"num": 5, "dtype": "int32"})
    for name in ("eye", "tri"):
        for kwargs in ({}, {"M": 5}, {"M": 2, "k": -1}, {"k": 1}, {"dtype": "int32"}, {"dtype": "bool", "k": 9}):
            yield Case(name, (3,), getattr(np, name), kwargs, dtype=kwargs.get("dtype", "float32"))
    for name in ("tril", "triu"):
        for k in (0, 1, -2, 9):
            yield Case(name, (normal(2, 3, 4),), getattr(np, name), {"k": k})
        yield Case(name, (integers(3, 3),), getattr(np, name), label="int")
    yield Case("tril", (bools(3, 3),), np.tril, label="bool")
    classes = np.array([[0, 2, 4], [-1, 5, 1]], np.int32)
    for axis in (-1, 0, 1, 2, -2):
        yield Case("one_hot", (classes, 5), _one_hot, {"axis": axis})
    yield Case("one_hot", (classes, 5), _one_hot, {"dtype": "int32"})
    yield Case("one_hot", (classes, 5), _one_hot, {"dtype": "bool"})
    yield Case("one_hot", (np.array(2, np.int32), 5), _one_hot, label="zero_dim")


def _one_hot(x, num_classes, axis=-1, dtype="float32"):
    result = np.zeros((*x.shape, num_classes), dtype)
    for index in np.ndindex(*x.shape):
        if 0 <= x[index] < num_classes:
            result[index][x[index]] = 1
    return np.moveaxis(result, -1, axis)


def _indexing_cases():
    x = normal(3, 4, 5)
    indices = np.array([[0, 2], [-1, 1]], np.int32)
    for axis in (None, 0, 1, -1):
        yield Case("take", (x, indices), np.take, {"axis": axis})
    yield Case("take", (normal(6, 2), indices), np.take, {"axis": 0}, label="rows")
    yield Case("take", (x, indices.clip(0).astype(np.uint8)), np.take, {"axis": 0}, label="uint8")
    yield Case("take", (x, 1), np.take, {"axis": 1}, label="int")
    yield Case("take", (x, [2, 0]), np.take, {"axis": 1}, label="list")
    yield Case("take", (x, indices[:0]), np.take, {"axis": 1}, label="none")
    for axis in (0, 1, -1):
        along = integers(3, 4, 5, low=-3, high=3)
        yield Case("take_along_axis", (x, along), np.take_along_axis, {"axis": axis})
    yield Case("take_along_axis", (x, integers(3, 1, 5, low=0, high=4)), np.take_along_axis, {"axis": 1})
    yield Case("take_along_axis", (x, integers(1, 4, 2, low=0, high=4)), np.take_along_axis, {"axis": 2}, label="broad")
    yield Case("take_along_axis", (x, integers(7, low=0)), np.take_along_axis, {"axis": None})
    block = lambda x, s, n: x[tuple(slice(a, a + b) for a, b in zip(s, n, strict=True))]  # noqa: E731
    yield Case("slice", (x, (1, 0, 2), (2, 4, 3)), block)
    yield Case("slice", (x, [0, 3, 4], [1, 1, 1]), block, label="one")
    yield Case("slice", (x, np.array([1, 2, 0], np.int32), (2, 2, 5)), block, label="array")
    yield Case("slice_update", (x, (1, 0, 2), normal(2, 4, 3, key=1)), _slice_update)
    yield Case("slice_update", (x, np.array([1, 2, 0], np.int32), normal(1, 2, 5, key=1)), _slice_update, label="array")
    yield Case("slice_update", (integers(4), (1,), integers(2, key=1)), _slice_update, label="int")
    for axis in (-1, 0, 1):
        yield Case("sort", (x,), np.sort, {"axis": axis})
        yield Case("argsort", (shuffled(3, 4, 5),), np.argsort, {"axis": axis})
        ties = integers(6, 7, low=0, high=3)
        if axis < 1:
            yield Case(
                "argsort", (ties,), lambda x, axis: np.argsort(x, axis, kind="stable"), {"axis": axis}, label="ties"
            )
    yield Case("sort", (integers(3, 4),), np.sort, label="int")
    for k in (1, 3, 5):
        yield Case("top_k", (shuffled(3, 5), k), _top_k, label=str(k))
    yield Case("top_k", (np.array([3, 1, 2], np.int32), 2), _top_k, label="int")
    scores = np.array([[0.1, 0.7, 0.2], [0.4, 0.3, 0.3], [0.5, np.nan, 0.1], [0.2, 0.2, 0.2]], np.float32)
    targets = np.array([1, 2, 1, 0], np.int32)
    for k in (1, 2, 3):
        yield Case("in_top_k", (targets, scores, k), _in_top_k, label=str(k))
    yield Case("in_top_k", (targets.reshape(2, 2), scores.reshape(2, 2, 3), 1), _in_top_k, label="batched")
    sequence = np.array([-1, 0, 0, 0.5, 2], np.float32)
    values = np.array([[-3, 0, 0.5], [0.6, 2, 9]], np.float32)
    for side in ("left", "right"):
        yield Case("searchsorted", (sequence, values), np.searchsorted, {"side": side})
    counted = np.array([0, 3, 1, 3, 3, 0], np.int32)
    yield Case("bincount", (counted,), np.bincount, eager_only=True)
    yield Case("bincount", (counted,), np.bincount, {"weights": normal(6)}, tolerance=ACCUMULATED, eager_only=True)
    yield Case("bincount", (counted,), np.bincount, {"minlength": 6})
    yield Case("bincount", (counted,), lambda x, minlength: np.bincount(x)[:minlength], {"minlength": 2})
    yield Case("bincount", (counted,), np.bincount, {"weights": normal(6), "minlength": 5}, tolerance=ACCUMULATED)
    yield Case("bincount", (counted[:0],), np.bincount, {"minlength": 3}, label="none")
    ids = np.array([2, 0, 2, 1], np.int32)
    for data in (normal(4, 3), normal(4), integers(4, 2)):
        yield Case("segment_sum", (data, ids, 4), _segment_sum, tolerance=ACCUMULATED, label=str(data.dtype))
    yield Case("segment_sum", (normal(4, 3), np.sort(ids), 3), _segment_sum, {"sorted": True}, tolerance=ACCUMULATED)


def _slice_update(x, start, updates):
    x = x.copy()
    x[tuple(slice(a, a + n) for a, n in zip(start, updates.shape, strict=True))] = updates
    return x


def _top_k(x, k):
    order = np.argsort(-x, -1)[..., :k]
    return np.take_along_axis(x, order, -1), order


def _in_top_k(targets, predictions, k):
    result = np.zeros(targets.shape, bool)
    for index in np.ndindex(*targets.shape):
        own = predictions[index][targets[index]]
        own = -np.inf if np.isnan(own) else own
        result[index] = sum(p > own for p in predictions[index]) < k
    return result


def _segment_sum(data, ids, num_segments, sorted=False):
    return np.stack([data[ids == i].sum(0, dtype=data.dtype) for i in range(num_segments)])


def _linear_algebra_cases():
    shapes = [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((3, 4), (4,)), ((4,), (4, 5))]
    shapes += [((4,), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((0, 4), (4, 5))]
    for left, right in shapes:
        yield Case("matmul", (normal(*left), normal(*right, key=1)), np.matmul, tolerance=ACCUMULATED)
    shapes = [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (4,)), ((2, 3, 4), (6, 4, 5)), ((), (3,)), ((3, 2), ())]
    for left, right in shapes:
        yield Case("dot", (normal(*left), normal(*right, key=1)), np.dot, tolerance=ACCUMULATED)
    contractions = {
        "bqd,bkd->bqk": ((2, 3, 4), (2, 5, 4)),
        "ij,jk": ((3, 4), (4, 5)),
        "...ij,jk->...ik": ((2, 3, 4), (4, 5)),
        "ii->i": ((3, 3),),
        "ij->": ((3, 4),),
    }
    for subscripts, shapes in contractions.items():
        operands = [normal(*shape, key=i) for i, shape in enumerate(shapes)]
        yield Case("einsum", (subscripts, *operands), np.einsum, tolerance=ACCUMULATED, label=subscripts)
    tensordots = [
        (1, (4, 3)),
        (2, (3, 4, 2)),
        (([1, 2], [0, 1]), (3, 4, 2)),
        ((-1, 1), (3, 4)),
        (((0,), (2,)), (3, 4, 2)),
    ]
    for axes, right in tensordots:
        args = (normal(2, 3, 4), normal(*right, key=1))
        yield Case("tensordot", args, np.tensordot, {"axes": axes}, tolerance=ACCUMULATED)
    yield Case("outer", (normal(3), normal(4)), np.outer, tolerance=ELEMENTWISE)
    yield Case("outer", (normal(2, 2), positive(3)), np.outer, tolerance=ELEMENTWISE, label="flattens")


CASES = list(itertools.chain(_shape_cases(), _creation_cases(), _indexing_cases(), _linear_algebra_cases()))
