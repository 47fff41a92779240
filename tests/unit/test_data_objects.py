"""Objects that yield batches: indexed batches, generators, iterables, tables of rows; what a batch is."""

import random

import numpy as np
import pytest

from data_tools import flat, own_rows, slicer_of
from unifit.contract.data import ENDLESS
from unifit.data.adapt import make_source
from unifit.errors import ArgumentError, ShapeError


def batch(*values):
    return np.array(values, np.float32)[:, None]


BATCHES = [batch(0, 1), batch(2, 3), batch(4)]


class Indexed:
    """A PyDataset by its methods."""

    def __init__(self):
        self.read, self.events = [], []

    def __len__(self):
        return len(BATCHES)

    def __getitem__(self, index):
        self.read.append(index)
        return BATCHES[index], BATCHES[index]

    def on_epoch_begin(self):
        self.events.append("begin")

    def on_epoch_end(self):
        self.events.append("end")


class Repeated:
    """Can be iterated again, and has no length."""

    def __iter__(self):
        return iter(BATCHES)


def generator():
    yield from BATCHES


def test_indexed_batches_shuffle_by_batch_with_an_order_for_each_epoch():
    data = Indexed()
    source = make_source(data, shuffle=True)
    orders = {str(own_rows(source, epoch)) for epoch in range(8)}
    assert source.num_batches == 3 and len(orders) > 1
    assert sorted(flat(own_rows(source, 5))) == [0, 1, 2, 3, 4]
    assert own_rows(make_source(data)) == [[0, 1], [2, 3], [4]]


def test_indexed_batches_read_no_item_before_the_start_and_tell_epochs():
    data = Indexed()
    assert own_rows(make_source(data), first=2) == [[4]]
    assert (data.read, data.events) == ([2], ["begin", "end"])


def test_indexed_batches_random_numbers_follow_seed_epoch_and_item():
    class Drawing(Indexed):
        def __getitem__(self, index):
            return batch(random.randrange(10**6), np.random.randint(10**6))

    def draws(epoch, seed, first=0):
        return own_rows(make_source(Drawing()), epoch, seed, first=first)

    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    whole = draws(0, 0)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert len(set(flat(whole))) == 6
    assert draws(0, 0, first=1) == whole[1:]
    assert draws(1, 0) != whole and draws(0, 1) != whole


SOURCES = {
    "generator": (generator, None, True),
    "running generator": (lambda: generator(), None, True),
    "iterable": (Repeated(), None, True),
    "once": (iter(BATCHES), None, False),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_streams_come_in_their_own_order(kind):
    data, count, restartable = SOURCES[kind]
    if kind == "once":
        data = iter(BATCHES)
    source = make_source(data, shuffle=True)
    assert (source.num_batches, source.restartable) == (count, restartable)
    assert own_rows(source) == [[0, 1], [2, 3], [4]]
    assert own_rows(source, 1) == ([[0, 1], [2, 3], [4]] if restartable else [])
    assert own_rows(make_source(Repeated()), first=1) == [[2, 3], [4]]


@pytest.mark.parametrize("processes", [2, 3])
def test_streams_each_process_takes_its_rows_of_a_batch(processes):
    source = make_source(Repeated())
    parts = [own_rows(source, process=process, processes=processes) for process in range(processes)]
    assert [flat(rows) for rows in zip(*parts, strict=True)] == [[0, 1], [2, 3], [4]]


def test_stream_may_reuse_its_array():
    def one_buffer():
        buffer = np.zeros((2, 1), np.float32)
        for number in range(3):
            buffer[:] = number
            yield buffer, buffer[:, 0]

    source = make_source(one_buffer)
    batches = list(source.epoch(0, 0, slicer_of(source).own))
    assert [b.x[0, 0] for b in batches] == [b.y[0] for b in batches] == [0, 1, 2]


RAW = {
    "x": (BATCHES[0], 1),
    "one part": ((BATCHES[0],), 1),
    "pair": ((BATCHES[0], BATCHES[0]), 2),
    "list": ([BATCHES[0], BATCHES[0]], 2),
    "none for y": ((BATCHES[0], None), 1),
    "weights": ((BATCHES[0], [1, 0], [1.0, 2.0]), 3),
    "dict": ({"a": BATCHES[0]}, 1),
    "two inputs": (((BATCHES[0], BATCHES[0]), BATCHES[0]), 2),
}


@pytest.mark.parametrize(("raw", "parts"), RAW.values(), ids=RAW)
def test_batch_parts_are_x_y_and_weights(raw, parts):
    source = make_source(lambda: iter([raw]))
    found = next(source.epoch(0, 0, slicer_of(source).own))
    assert sum(part is not None for part in found[:3]) == parts and found.rows == 2


BAD = {
    "four parts": ((BATCHES[0],) * 4, ArgumentError, "tuple of 4 parts"),
    "lengths": ((BATCHES[0], BATCHES[2]), ShapeError, r"batch 0 have different numbers of rows: \[2, 1\]"),
    "no rows": (BATCHES[0][:0], ArgumentError, "Batch 0 of the data has no rows"),
    "row": (np.float32(3), ShapeError, "lone number"),
    "text": (np.array(["a"]), ArgumentError, "dtype <U1"),
    "nothing": (None, ArgumentError, "no x"),
    "big ints": (np.array([2**40]), ArgumentError, "int32"),
}


@pytest.mark.parametrize(("raw", "error", "message"), BAD.values(), ids=BAD)
def test_batch_that_cannot_be_is_refused(raw, error, message):
    with pytest.raises(error, match=message):
        own_rows(make_source(lambda: iter([raw])))


@pytest.mark.parametrize("data", [generator, Repeated(), Indexed(), iter(BATCHES)], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("extra", ["y", "sample_weight", "batch_size"])
def test_batches_refuse_what_they_hold_already(data, extra):
    given = {extra: 4 if extra == "batch_size" else BATCHES[0]}
    with pytest.raises(ArgumentError, match=extra):
        make_source(data, **given)


def test_indexed_batches_none_at_all_are_refused():
    class Empty(Indexed):
        def __len__(self):
            return 0

    with pytest.raises(ArgumentError, match="no batch"):
        make_source(Empty())


def test_function_that_returns_no_iterator_is_refused():
    with pytest.raises(ArgumentError, match="returned a int"):
        own_rows(make_source(lambda: 3))


def test_indexed_batches_without_length_never_end():
    class Endless:
        num_batches = None

        def __getitem__(self, index):
            return batch(index)

    assert make_source(Endless()).num_batches == ENDLESS


def test_many_row_shapes_bring_one_warning():
    source = make_source(lambda: (np.ones((2, width)) for width in (5, 6, 7, 8, 9)))
    with pytest.warns(UserWarning, match="many shapes") as caught:
        own_rows(source)
        own_rows(source, 1)
    assert len(caught) == 1


class Table:
    """A Hugging Face dataset by its methods."""

    column_names = ("pixels", "label")
    format = {"type": None}

    def __init__(self, labelled=True):
        self.read = []
        if not labelled:
            self.column_names = ("pixels",)

    def __len__(self):
        return 5

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, rows):
        self.read += rows
        columns = {"pixels": batch(*rows), "label": np.array(rows)}
        return {name: columns[name] for name in self.column_names}


def test_table_rows_are_batched_here_and_the_label_column_is_y():
    data = Table()
    source = make_source(data, batch_size=2, shuffle=True)
    batches = list(source.epoch(0, 0, slicer_of(source, 1, 2).own))
    assert all(np.array_equal(b.x["pixels"][: b.own, 0], b.y[: b.own]) for b in batches)
    assert len(data.read) == 3  # one row a batch is this process', one row more pads the last
    assert next(make_source(Table(labelled=False)).epoch(0, 0, lambda n: slice(0, n))).y is None
