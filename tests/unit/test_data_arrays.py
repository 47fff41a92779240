"""Arrays as data: what is accepted and refused, order, slices, views, and memory."""

import tracemalloc
from typing import NamedTuple

import numpy as np
import pandas
import pytest

from data_tools import flat, own_rows, slicer_of
from unifit.contract.data import Batch
from unifit.data.adapt import make_source
from unifit.data.arrays import ArraySource
from unifit.data.validation import split_validation, validation_source
from unifit.errors import ArgumentError, ShapeError, UnifitError

X = np.arange(10.0)[:, None]


class Inputs(NamedTuple):
    left: np.ndarray
    right: np.ndarray


def first_batch(source) -> Batch:
    return next(source.epoch(0, 0, slicer_of(source).own))


ACCEPTED = {
    "array": (np.ones((3, 2)), (3, 2), np.float32),
    "lists": ([[1.0, 2], [3, 4], [5, 6]], (3, 2), np.float32),
    "tuple of numbers": ((1, 2, 3), (3,), np.int32),
    "ints": (np.arange(3), (3,), np.int32),
    "uint8": (np.zeros((3, 2), np.uint8), (3, 2), np.uint8),
    "bool": (np.zeros(3, bool), (3,), np.bool_),
    "half": (np.zeros(3, np.float16), (3,), np.float16),
    "data frame": (pandas.DataFrame({"a": [1.0, 2, 3], "b": [4, 5, 6]}), (3, 2), np.float32),
    "series": (pandas.Series([1, 2, 3]), (3,), np.int32),
}


@pytest.mark.parametrize(("given", "shape", "dtype"), ACCEPTED.values(), ids=ACCEPTED)
def test_arrays_accepted_kind_is_placed_as_numbers(given, shape, dtype):
    batch = first_batch(make_source(given))
    assert (batch.x.shape, batch.x.dtype) == (shape, dtype)


def test_arrays_tree_keeps_its_structure():
    x = {"a": X, "b": (X, [list(range(10)), X]), "n": Inputs(X, X)}
    batch = first_batch(make_source(x, y=[X, X], batch_size=4))
    assert sorted(batch.x) == ["a", "b", "n"] and batch.x["b"][1][0].shape == (4,)
    assert isinstance(batch.x["b"], tuple) and isinstance(batch.x["b"][1], list) and isinstance(batch.x["n"], Inputs)
    assert len(batch.y) == 2 and batch.sample_weight is None and batch.rows == batch.own == 4


REFUSED = {
    "no rows": (lambda: make_source(np.zeros((0, 2))), "no rows"),
    "empty list": (lambda: make_source([]), "no rows"),
    "none": (lambda: make_source(None), "x is None"),
    "batch size 0": (lambda: make_source(X, batch_size=0), "batch_size is 0"),
    "batch size bool": (lambda: make_source(X, batch_size=True), "batch_size is True"),
    "lengths": (lambda: make_source(X, X[:9]), r"\[10, 9\]"),
    "weight length": (lambda: make_source(X, X, np.ones(3)), r"\[10, 10, 3\]"),
    "strings": (lambda: make_source(X, np.array(["a"] * 10)), "y has dtype <U1"),
    "a string": (lambda: make_source("abc"), "x has dtype <U3"),
    "objects": (lambda: make_source({"a": np.array([None] * 3)}), r"x\['a'\] has dtype object"),
    "dates": (lambda: make_source(np.zeros(3, "datetime64[s]")), "Express times"),
    "complex": (lambda: make_source(np.zeros(3, complex)), "two channels"),
    "ragged": (lambda: make_source([[1, 2], [3]]), "differ in length"),
    "scalar": (lambda: make_source(3.0), "lone number"),
    "masked": (lambda: make_source(np.ma.masked_array(np.ones(3))), "masked array"),
    "big ints": (lambda: make_source(X, np.full(10, 2**31)), "devices take int32"),
    "mixed frame": (lambda: make_source(pandas.DataFrame({"a": [1], "b": ["x"]})), "astype"),
    "unknown": (lambda: make_source(object()), "no data that unifit knows"),
    "unknown leaf": (lambda: make_source([object()]), r"x\[0\] is a builtins.object"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_arrays_wrong_kind_is_refused_when_made(make, message):
    with pytest.raises((ArgumentError, ShapeError), match=message):
        make()


def test_arrays_ints_at_the_edge_of_int32_pass():
    y = np.array([-(2**31), 2**31 - 1])
    assert first_batch(make_source(y)).x.tolist() == y.tolist()


def test_arrays_without_shuffle_come_in_order_and_keep_the_short_batch():
    source = make_source(X, batch_size=4)
    assert own_rows(source) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (source.num_batches, source.batch_size) == (3, 4)
    assert make_source(X, batch_size=64).batch_size == 10


def test_s_di_03_order_changes_each_epoch_covers_all_and_follows_the_seed():
    x = np.arange(8.0)[:, None]
    orders = {}
    for seed in (1, 2):
        source = make_source(x, batch_size=2, shuffle=True)
        for epoch in range(3):
            parts = [own_rows(source, epoch, seed, process, 2) for process in range(2)]
            assert sorted(flat(parts[0]) + flat(parts[1])) == list(range(8))
            assert all(len(batch) == 1 for part in parts for batch in part)
            orders[seed, epoch] = parts
    again = make_source(x, batch_size=2, shuffle=True)
    assert [own_rows(again, e, 1, 0, 2) for e in range(3)] == [orders[1, e][0] for e in range(3)]
    assert len({str(orders[1, epoch]) for epoch in range(3)}) == 3
    assert orders[1, 0] != orders[2, 0]


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 5])
def test_arrays_processes_together_read_the_one_order(processes):
    """Batch by batch, the processes' rows put end to end are the batch of one process."""
    source = make_source(X, batch_size=4, shuffle=True)
    whole = own_rows(source, epoch=3)
    parts = [own_rows(source, 3, 0, process, processes) for process in range(processes)]
    assert [flat(batch) for batch in zip(*parts, strict=True)] == whole


def test_arrays_process_without_rows_gets_one_to_pad_with():
    source = make_source(np.arange(3.0)[:, None], batch_size=3)
    batch = next(source.epoch(0, 0, slicer_of(source, 3, 4).own))
    assert (batch.own, batch.rows, batch.x.shape) == (0, 3, (1, 1))


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_epoch_can_start_at_a_batch(shuffle):
    source = make_source(X, batch_size=3, shuffle=shuffle)
    assert own_rows(source, 1, first=2) == own_rows(source, 1)[2:]
    assert own_rows(source, 1, first=4) == []


def test_arrays_float32_without_shuffle_are_views():
    x = np.ones((8, 3), np.float32)
    assert all(
        np.shares_memory(batch.x, x) for batch in make_source(x, batch_size=4).epoch(0, 0, lambda n: slice(0, n))
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_memmap_is_never_copied_whole(tmp_path, dtype):
    rows, width, batch_size = 4096, 512, 32
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", dtype, (rows, width)).flush()
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        source = make_source(x, np.zeros(rows, np.float32), batch_size=batch_size, shuffle=True)
        total = sum(batch.x.shape[0] for batch in source.epoch(0, 0, slicer_of(source).own))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == rows and source.read_ahead
    assert peak < 8 * batch_size * width * x.itemsize  # a few batches; the whole is 128


def test_memmap_ints_are_checked_as_they_are_read(tmp_path):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "int64", (4,))
    x[3] = 2**40
    source = make_source(x, batch_size=2)
    with pytest.raises(ArgumentError, match="int32"):
        own_rows(source)


def test_arrays_read_ahead_is_a_matter_of_size():
    assert not make_source(X, batch_size=2).read_ahead
    assert make_source(np.zeros((64, 2**16), np.float32)).read_ahead
    assert not make_source(np.zeros((32, 2**16), np.float32)).read_ahead  # one batch: nothing to be ahead of


def test_validation_split_takes_the_last_rows_as_views():
    x, y = np.arange(10), np.arange(10.0)
    (xt, yt, wt), (xv, yv, wv) = split_validation({"a": x}, y, None, 0.25)
    assert xt["a"].tolist() == list(range(7)) and yv.tolist() == [7, 8, 9] and wt is None and wv is None
    assert np.shares_memory(xv["a"], x)
    assert len(split_validation(pandas.Series(x), None, None, 0.2)[1][0]) == 2
    assert len(split_validation(x[:3], None, None, 0.0001)[1][0]) == 1  # rounded down for training, as in Keras


SPLITS = {
    "above 1": (X, 1.0, "from 0 up to"),
    "negative": (X, -0.1, "from 0 up to"),
    "nothing to train on": (X[:1], 0.5, "leaves 0 rows"),
    "a generator": ((batch for batch in ()), 0.5, "validation_data instead"),
}


@pytest.mark.parametrize(("x", "fraction", "message"), SPLITS.values(), ids=SPLITS)
def test_validation_split_impossible_is_refused(x, fraction, message):
    with pytest.raises(ArgumentError, match=message):
        split_validation(x, None, None, fraction)


def test_validation_source_takes_tuples_arrays_and_streams():
    assert validation_source((X, X), None, 5).batch_size == 5
    assert validation_source([X, X, np.ones(10)], 3, 5).batch_size == 3
    assert validation_source(X, None, 5).batch_size == 5
    assert validation_source(iter([X]), None, 5).batch_size is None
    with pytest.raises(ArgumentError, match="validation_data: .*no rows"):
        validation_source((X[:0], X[:0]), None, None)
    with pytest.raises(ArgumentError, match="4 parts"):
        validation_source((X,) * 4, None, None)
    with pytest.raises(UnifitError, match="batch_size=3"):
        validation_source(iter([X]), 3, 5)


def test_arrays_two_epochs_can_be_read_side_by_side():
    source = ArraySource(X, batch_size=4, shuffle=True)
    own = slicer_of(source).own
    pairs = list(zip(source.epoch(0, 0, own), source.epoch(0, 0, own), strict=True))
    assert all(np.array_equal(a.x, b.x) for a, b in pairs)
