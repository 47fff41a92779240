"""Windows: padding, validity, accumulation; and what one costs in Python calls."""

import sys

import numpy as np
import pytest

from data_tools import slicer_of
from unifit.contract.values import Placement
from unifit.data.adapt import make_source
from unifit.data.windows import Slicer, padded_batch, windows
from unifit.errors import ShapeError

MAX_PYTHON_CALLS = 25


def windows_of(x, y=None, weight=None, batch_size=4, accumulation=1, devices=1):
    source = make_source(x, y, weight, batch_size=batch_size)
    slicer = slicer_of(source, devices=devices)
    return [window for window, _ in windows(source.epoch(0, 0, slicer.own), slicer, accumulation)]


X = np.arange(1.0, 11.0)[:, None]


def test_window_short_batch_is_padded_with_its_first_row():
    last = windows_of(X, X[:, 0])[-1]
    assert last.batch.x[0, :, 0].tolist() == last.batch.y[0].tolist() == [9, 10, 9, 9]
    assert last.batch.valid.tolist() == [[True, True, False, False]]
    assert (last.live, last.full, last.step) == (1, False, 2)


def test_window_is_padded_to_a_multiple_of_the_devices():
    first = windows_of(X, batch_size=5, devices=4)[0]
    assert first.batch.x.shape == (1, 8, 1) and first.batch.valid.sum() == 5 and not first.full


def test_window_accumulation_stacks_and_fills_up():
    first, last = windows_of(X, {"a": X}, X[:, 0], accumulation=2)
    assert (first.live, first.full, last.live, last.full) == (2, True, 1, False)
    assert first.batch.x[..., 0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert last.batch.y["a"][..., 0].tolist() == [[9, 10, 9, 9], [9, 10, 9, 9]]
    assert last.batch.valid.tolist() == [[True, True, False, False], [False] * 4]
    assert last.batch.sample_weight.shape == (2, 4)


def test_window_batches_of_growing_size_take_the_largest():
    source = make_source(lambda: iter([X[:2], X[:3], X[:1]]))
    slicer = slicer_of(source)
    (window, count), (rest, _) = windows(source.epoch(0, 0, slicer.own), slicer, 2)
    assert (window.batch.x.shape, count, window.full) == ((2, 3, 1), 2, False)
    assert window.batch.valid.sum() == 5 and rest.batch.x.shape == (2, 3, 1)


def test_window_without_padding_takes_each_batch_as_it_is():
    source = make_source(X, batch_size=4)
    slicer = Slicer(Placement(0, 1, 1), source.batch_size, pad=False)
    found = [window for window, _ in windows(source.epoch(0, 0, slicer.own), slicer)]
    assert [window.batch.x.shape[1] for window in found] == [4, 4, 2] and all(window.full for window in found)
    (_, last) = (window for window, _ in windows(source.epoch(0, 0, slicer.own), slicer, 2))
    assert last.batch.x.shape == (2, 2, 1)


def test_window_process_without_rows_is_padding_throughout():
    source = make_source(X[:3], batch_size=3)
    slicer = slicer_of(source, 3, 4)
    micro = padded_batch(next(source.epoch(0, 0, slicer.own)), slicer)
    assert micro.x.shape == (1, 1) and not micro.valid.any()


def test_window_batches_of_other_shapes_in_one_window_are_refused():
    source = make_source(lambda: iter([np.ones((2, 3)), np.ones((2, 4))]))
    slicer = slicer_of(source)
    with pytest.raises(ShapeError, match=r"\(3,\), \(4,\)"):
        list(windows(source.epoch(0, 0, slicer.own), slicer, 2))


def test_window_full_batches_are_views_and_writable():
    x = np.ones((8, 3), np.float32)
    assert all(np.shares_memory(window.batch.x, x) for window in windows_of(x))
    x.flags.writeable = False
    assert all(window.batch.x.flags.writeable for window in windows_of(x))


@pytest.mark.parametrize("shuffle", [False, True])
def test_window_costs_few_python_calls(shuffle):
    x, y = np.ones((400, 8), np.float32), np.ones(400, np.int64)
    source = make_source(x, y, batch_size=4, shuffle=shuffle)
    slicer = slicer_of(source)
    running = windows(source.epoch(0, 0, slicer.own), slicer)
    next(running)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for _ in range(50):
            next(running)
    finally:
        sys.setprofile(None)
    assert calls / 50 < MAX_PYTHON_CALLS
