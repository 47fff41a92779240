"""Several processes' data: rows of their own, exchanges, ends, mismatches. Processes are threads, channels queues."""

import importlib.util
import itertools
import json
import warnings

import numpy as np
import pytest

import unifit.data
from data_tools import flat
from process_threads import errors_of, feed_of, good, on_all
from unifit.contract import tree
from unifit.contract.values import Placement
from unifit.data.adapt import make_source
from unifit.data.fingerprint import batch_fingerprint, fingerprint
from unifit.data.length_buckets import LengthBuckets
from unifit.data.per_process import PerProcess
from unifit.data.slicer import valid_rows
from unifit.data.validation import validation_source
from unifit.data.windows import padded_batch, windows
from unifit.errors import ArgumentError, ShapeError

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def numbered(*batches):
    """A function that yields batches of the given rows."""
    return lambda: iter([np.array(rows, np.float32)[:, None] for rows in batches])


def rows_in(feed, batches, k=1):
    """(valid rows of each window on this process, shape, live, full)."""
    return [
        (w.batch.x[..., 0][w.batch.valid].astype(int).tolist(), w.batch.x.shape[:2], w.live, w.full)
        for w, _ in windows(batches, feed.slicer, k)
    ]


# Rows of their own


def test_s_di_01_shorter_process_goes_on_with_empty_batches_and_one_warning():
    data = [numbered([1, 2], [3, 4], [5]), numbered([11, 12], [13])]

    def run(process, channel):
        feed = feed_of(PerProcess(data[process]), process, channel)
        feed.first()
        return [rows_in(feed, feed.epoch(epoch)) for epoch in range(2)]

    with pytest.warns(UserWarning, match="process 0: 3, process 1: 2") as caught:
        first, second = good(on_all(run)[0])
    assert len(caught) == 1
    assert first[0] == first[1] == [([1, 2], (1, 2), 1, True), ([3, 4], (1, 2), 1, False), ([5], (1, 2), 1, False)]
    assert second[0] == second[1] == [([11, 12], (1, 2), 1, True), ([13], (1, 2), 1, False), ([], (1, 2), 1, False)]


def test_per_process_batches_are_padded_to_the_fullest_process():
    data = [numbered([1]), numbered([11, 12, 13])]

    def run(process, channel):
        feed = feed_of(PerProcess(data[process]), process, channel, local=2)
        (batch,) = feed.epoch(0)
        return batch.rows, batch.own, batch.owns, padded_batch(batch, feed.slicer).x.shape

    assert good(on_all(run)[0]) == [(4, 1, (1, 3), (4, 1)), (4, 3, (1, 3), (4, 1))]


def test_per_process_prediction_takes_the_valid_rows_of_all_processes():
    data = [numbered([1], [2, 3]), numbered([11, 12, 13])]

    def run(process, channel):
        feed = feed_of(PerProcess(data[process]), process, channel)
        return [(batch, padded_batch(batch, feed.slicer).x) for batch in feed.again()]

    with pytest.warns(UserWarning, match="different numbers of batches"):
        first, second = good(on_all(run)[0])
    predicted = []
    for (batch, mine), (_, others) in zip(first, second, strict=True):
        output = np.concatenate([mine, others])
        predicted += output[valid_rows(batch, len(output)), 0].astype(int).tolist()
    assert predicted == [1, 11, 12, 13, 2, 3]


def test_per_process_without_any_batch_names_the_process():
    data = [numbered([1, 2]), numbered(), numbered([3])]
    results, _ = on_all(lambda p, c: feed_of(PerProcess(data[p]), p, c).first(), 3)
    assert "process 1 " in errors_of(results)
    results, _ = on_all(lambda p, c: feed_of(PerProcess(numbered()), p, c).first())
    assert "yields no batch" in errors_of(results)


def test_per_process_limit_reads_again_when_all_have_ended():
    data = [numbered([1], [2], [3]), numbered([11])]

    def run(process, channel):
        feed = feed_of(PerProcess(data[process]), process, channel, limit=2)
        return [[batch.own for batch in feed.epoch(epoch)] for epoch in range(3)]

    with pytest.warns(UserWarning, match="process 0: 3, process 1: 1") as caught:
        results = good(on_all(run)[0])
    assert results == [[[1, 1], [1, 1], [1, 1]], [[1, 0], [0, 1], [0, 0]]] and len(caught) == 1


def test_per_process_known_lengths_give_the_longest():
    def run(process, channel):
        x = np.arange([10, 4][process], dtype=np.float32)[:, None]
        feed = feed_of(PerProcess(x), process, channel, batch_size=4)
        return feed.source.num_batches, flat(rows for rows, *_ in rows_in(feed, feed.epoch(0)))

    with pytest.warns(UserWarning, match="process 0: 5, process 1: 2"):
        results = good(on_all(run)[0])
    assert results == [(5, list(range(10))), (5, list(range(4)))]


def test_per_process_start_behind_the_end_of_a_shorter_process():
    def run(process, channel):
        x = np.arange([10, 4][process], dtype=np.float32)[:, None]
        feed = feed_of(PerProcess(x), process, channel, limit=3, first_epoch=1, batch_size=4)
        feed.first()
        return [batch.own for batch in feed.epoch(1)]

    with pytest.warns(UserWarning, match="process 0: 5, process 1: 2"):
        assert good(on_all(run)[0]) == [[2, 2, 2], [0, 0, 2]]


class Table:
    """Twelve rows of one column, read by lists of row numbers, as a Hugging Face dataset."""

    column_names = ("a",)

    def with_format(self, kind):
        return self

    def __len__(self):
        return 12

    def __getitem__(self, rows):
        return {"a": np.array(rows, np.float32)[:, None]}


@pytest.mark.parametrize("data", [np.arange(12, dtype=np.float32)[:, None], Table()], ids=["arrays", "rows"])
def test_per_process_orders_are_keyed_by_process_and_cover_every_row(data):
    def run(process, channel):
        feed = feed_of(PerProcess(data), process, channel, batch_size=8, shuffle=True)
        return [[np.ravel(tree.leaves(b.x)[0])[: b.own].tolist() for b in feed.epoch(e)] for e in range(2)]

    first, second = good(on_all(run)[0])
    again = good(on_all(run)[0])
    assert again == [first, second] and first != second and first[0] != first[1]
    for epoch in (*first, *second):
        assert sorted(flat(epoch)) == list(range(12)) and [len(batch) for batch in epoch] == [4, 4, 4]


def test_per_process_batch_size_is_the_global_one():
    place = Placement(0, 3, 3)
    x = np.zeros((9, 1), np.float32)
    with pytest.raises(ArgumentError, match=r"batch_size is 8 .* multiple of 3"):
        make_source(PerProcess(x), batch_size=8, placement=place)
    with pytest.raises(ArgumentError, match=r"32 \(the default\)"):
        make_source(PerProcess(x), placement=place)
    with pytest.raises(ArgumentError, match="batch_size=6 was given with a list_iterator"):
        make_source(PerProcess(iter([x])), batch_size=6, placement=place)
    with pytest.raises(ArgumentError, match=r"PerProcess\(x, y"):
        make_source(PerProcess(x), x, placement=place)
    assert make_source(PerProcess(iter([x])), placement=place).batch_size is None
    assert next(make_source(PerProcess(x), batch_size=6, placement=place).epoch(0, 0, None)).own == 2


@needs_torch
def test_per_process_torch_dataset_takes_its_part_of_the_batch_size():
    import torch
    import torch.utils.data as data

    rows = data.TensorDataset(torch.arange(8.0)[:, None])
    place = Placement(1, 2, 2)
    read = make_source(PerProcess(rows), batch_size=4, placement=place).epoch(0, 0, None)
    assert [batch.own for batch in read] == [2] * 4
    loader = data.DataLoader(rows, batch_size=3)
    assert [b.own for b in make_source(PerProcess(loader), placement=place).epoch(0, 0, None)] == [3, 3, 2]


def test_per_process_in_one_process_is_the_data_itself():
    x = np.arange(5.0)[:, None]
    batches = list(make_source(PerProcess(x, x[:, 0]), batch_size=2).epoch(0, 0, lambda rows: slice(0, rows)))
    assert [batch.own for batch in batches] == [2, 2, 1] and batches[0].y.tolist() == [0, 1]
    source = validation_source(PerProcess(x), None, 2, Placement(0, 2, 2))
    assert next(source.epoch(0, 0, None)).own == 1


def test_per_process_other_shapes_on_another_process_are_refused():
    def run(process, channel):
        x = np.ones((4, 2 + process), np.float32)
        return feed_of(PerProcess(x), process, channel, batch_size=4).first()

    assert "(2,)" in errors_of(on_all(run)[0], ShapeError)


@pytest.mark.parametrize("seed", range(20))
def test_per_process_rows_count_once_whatever_ends_when(seed):
    draw = np.random.default_rng(seed)
    processes, k, m = int(draw.integers(2, 5)), int(draw.integers(1, 4)), int(draw.integers(1, 4))
    numbers, data = itertools.count(), []
    for _ in range(processes):
        sizes = draw.integers(1, 6, draw.integers(1, 5))
        data.append([[next(numbers) for _ in range(size)] for size in sizes])

    def run(process, channel):
        feed = feed_of(PerProcess(numbered(*data[process])), process, channel, local=2)
        feed.first()
        feed.slicer.microbatch_size = m
        return rows_in(feed, feed.epoch(0), k)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = good(on_all(run, processes)[0])
    for own, found in zip(data, results, strict=True):
        assert sorted(flat(rows for rows, *_ in found)) == flat(own)
    assert len({tuple(window[1:] for window in found) for found in results}) == 1


# The same data on all processes


def test_global_stream_is_read_in_step():
    x = [list(range(5)), [5, 6], [7]]

    def run(process, channel):
        feed = feed_of(numbered(*x), process, channel)
        feed.first()
        return rows_in(feed, feed.epoch(0), 2)

    (first, second), hub = on_all(run)
    assert first == [([0, 1, 2, 5, 6], (2, 3), 2, False), ([7], (2, 3), 1, False)]
    assert second == [([3, 4], (2, 3), 2, False), ([], (2, 3), 1, False)]
    assert hub.rounds == 1 + 3 + 1


def test_global_stream_that_ends_early_on_one_process_is_refused_on_all():
    data = [numbered([1, 2], [3, 4]), numbered([1, 2])]
    results, _ = on_all(lambda p, c: list(feed_of(data[p], p, c).epoch(0)))
    message = errors_of(results)
    assert "process 1 of the job ended after 1 batches" in message and "process 0 has more" in message
    assert "uf.data.PerProcess" in message


def test_global_stream_of_other_row_counts_or_shapes_is_refused_on_all():
    data = [numbered([1, 2]), numbered([1, 2, 3])]
    message = errors_of(on_all(lambda p, c: feed_of(data[p], p, c).first())[0])
    assert "rows: 2 on process 0, 3 on process 1" in message and "uf.data.PerProcess" in message
    data = [lambda: iter([np.ones((2, 3))]), lambda: iter([np.ones((2, 4))])]
    assert "LengthBuckets" in errors_of(on_all(lambda p, c: feed_of(data[p], p, c).first())[0], ShapeError)


def test_global_stream_in_another_order_is_refused_on_all():
    data = [numbered([1, 2], [3, 4]), numbered([3, 4], [1, 2])]
    message = errors_of(on_all(lambda p, c: feed_of(data[p], p, c).first())[0])
    assert "batch 0 of an epoch differs (checksum" in message and "shuffle needs a seed" in message


def test_arrays_need_no_exchange_but_the_first_and_equal_lengths():
    x = np.arange(12, dtype=np.float32)[:, None]

    def run(process, channel):
        feed = feed_of(x, process, channel, batch_size=4)
        return flat(rows for rows, *_ in rows_in(feed, feed.epoch(0)))

    results, hub = on_all(run)
    assert sorted(flat(good(results))) == list(range(12)) and hub.rounds == 1
    results, _ = on_all(lambda p, c: feed_of(x[: 12 - 4 * p], p, c, batch_size=4))
    assert "num_batches: 3 on process 0, 2 on process 1" in errors_of(results)
    results, _ = on_all(lambda p, c: feed_of([x, numbered([1])][p], p, c))
    assert "kinds of data" in errors_of(results)


def test_s_di_03_shuffle_covers_every_row_once_over_processes():
    x = np.arange(8, dtype=np.float32)[:, None]

    def run(process, channel):
        feed = feed_of(x, process, channel, batch_size=2, shuffle=True)
        return [flat(rows for rows, *_ in rows_in(feed, feed.epoch(epoch))) for epoch in range(3)]

    first, second = good(on_all(run)[0])
    assert all(sorted(a + b) == list(range(8)) for a, b in zip(first, second, strict=True))
    assert len({tuple(order) for order in first}) > 1 and good(on_all(run)[0]) == [first, second]


# Lengths


@needs_torch
def test_length_buckets_are_the_same_on_all_processes():
    import torch
    import torch.utils.data as torch_data

    lengths = [3, 9, 2, 4, 5, 5, 12, 1]

    class Rows(torch_data.Dataset):
        def __len__(self):
            return len(lengths)

        def __getitem__(self, row):
            return torch.full((lengths[row],), float(row))

    def run(process, channel):
        loader = torch_data.DataLoader(Rows(), 4, collate_fn=lambda rows: torch.nn.utils.rnn.pad_sequence(rows, True))
        feed = feed_of(LengthBuckets(loader, [4, 8, 16]), process, channel)
        return [padded_batch(batch, feed.slicer).x.shape for batch in feed.epoch(0)]

    assert good(on_all(run)[0]) == [[(2, 16), (2, 16)]] * 2


@pytest.mark.parametrize("outside", [True, False])
def test_length_buckets_of_processes_with_rows_of_their_own(outside):
    shapes = [[(2, 3), (2, 9)], [(2, 6)]]

    def run(process, channel):
        data = lambda: iter([np.ones(shape, np.float32) for shape in shapes[process]])  # noqa: E731
        wrapped = PerProcess(LengthBuckets(data, [4, 8])) if outside else LengthBuckets(PerProcess(data), [4, 8])
        shapes[0][1] = (2, 4)
        feed = feed_of(wrapped, process, channel)
        return [(padded_batch(batch, feed.slicer).x.shape, batch.own) for batch in feed.epoch(0)]

    with pytest.warns(UserWarning, match="different numbers"):
        results = good(on_all(run)[0])
    # The ended process pads with a row of length 6, cut to the others' length.
    assert results == [[((2, 8), 2), ((2, 4), 2)], [((2, 8), 2), ((2, 4), 0)]]


# Fingerprints


def test_fingerprint_tells_arrays_apart_by_a_few_rows(tmp_path):
    x = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    other = x.copy()
    other[-1] += 1
    facts = [fingerprint(make_source(a, np.arange(len(a)), batch_size=8)) for a in (x, x.copy(), other, x[:999])]
    assert facts[0] == facts[1] and facts[0] != facts[2] and facts[0]["rows"] != facts[3]["rows"]
    assert json.loads(json.dumps(facts[0])) == facts[0]
    np.save(tmp_path / "x.npy", x)
    mapped = make_source(np.load(tmp_path / "x.npy", mmap_mode="r"), np.arange(1000), batch_size=8)
    assert fingerprint(mapped) == facts[0]


def test_fingerprint_of_other_sources_is_what_they_know():
    assert fingerprint(make_source(numbered([1])))["num_batches"] is None
    wrapped = fingerprint(make_source(LengthBuckets(numbered([1]), [3])))
    assert wrapped["boundaries"] == [3] and wrapped["loader"] == "Stream"
    place = Placement(0, 2, 2)
    own = [fingerprint(make_source(PerProcess(np.ones((n, 1))), batch_size=2, placement=place)) for n in (3, 7)]
    assert own[0] == own[1]


def test_batch_fingerprint_tells_contents_apart():
    first, same, other = (next(make_source(numbered(rows)).epoch(0, 0, lambda n: slice(0, n))) for rows in
                          ([1, 2], [1, 2], [2, 1]))  # fmt: skip
    assert batch_fingerprint(first) == batch_fingerprint(same) != batch_fingerprint(other)


def test_data_exports_its_wrappers():
    assert unifit.data.PerProcess is PerProcess and unifit.data.LengthBuckets is LengthBuckets
