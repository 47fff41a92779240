"""microbatch_size: every row once, in its device's run; live pieces first; shapes that never change."""

import numpy as np
import pytest

from unifit.contract.data import Batch
from unifit.contract.values import Placement
from unifit.data.slicer import Slicer, valid_rows
from unifit.data.windows import padded_batch, windows


def batches_of(sizes, slicer, owns=None):
    """Batches of rows numbered from 1, as a source would yield them to this process; y is minus x."""
    start = 1
    for number, rows in enumerate(sizes):
        if owns is None:
            part = slicer.own(rows)
            own, first, shares = part.stop - part.start, start + part.start, None
        else:
            shares = owns[number]
            slicer.grow(max(shares) * len(shares))
            own, first = shares[slicer.placement.process], start + sum(shares[: slicer.placement.process])
        x = np.arange(first, first + max(own, 1), dtype=np.float32)[:, None]
        yield Batch(x, {"a": -x}, None, rows, own, shares)
        start += rows


def windows_on_all(sizes, processes, local, k, m, owns=None, batch_size=None):
    """For each process: its windows; and its slicer."""
    found = []
    for process in range(processes):
        slicer = Slicer(Placement(process, processes, processes * local), batch_size, microbatch_size=m)
        found.append(([w for w, _ in windows(batches_of(sizes, slicer, owns), slicer, k)], slicer))
    return found


def check(sizes, processes, local, k, m, owns=None, batch_size=None):
    found = windows_on_all(sizes, processes, local, k, m, owns, batch_size)
    pieces = found[0][1].pieces
    assert all(slicer.pieces == pieces for _, slicer in found)
    rows_seen = []
    for number in range(len(found[0][0])):
        here = [per_process[0][number] for per_process in found]
        count = len(sizes[number * k : (number + 1) * k])
        shape = here[0].batch.x.shape
        assert shape[0] == k * pieces and all(window.batch.x.shape == shape for window in here)
        assert shape[1] % local == 0
        assert len({(window.live, window.full, window.step) for window in here}) == 1
        live, full = here[0].live, here[0].full
        valid = np.stack([window.batch.valid for window in here])  # process, piece, row
        assert valid.any(axis=(0, 2)).tolist() == [True] * live + [False] * (k * pieces - live)
        assert full == valid[:, :live].all()
        assert count <= live <= count * pieces
        for window in here:
            x = window.batch.x[..., 0]
            assert (x > 0).all() and np.array_equal(window.batch.y["a"][..., 0], -x)
            assert window.batch.x.flags.writeable and window.batch.x.dtype == np.float32
        for piece in range(live):  # within a device, rows keep their order
            for process in range(processes):
                x = here[process].batch.x[piece, :, 0].reshape(local, -1)
                mine = valid[process, piece].reshape(local, -1)
                for device in range(local):
                    row = x[device][mine[device]]
                    assert (np.diff(row) == 1).all() and mine[device, : len(row)].all()
        rows_seen += [window.batch.x[..., 0][window.batch.valid].tolist() for window in here]
    assert sorted(sum(rows_seen, [])) == list(range(1, sum(sizes) + 1))
    return found


def test_window_cut_into_pieces_by_hand():
    ((window,), slicer), = windows_on_all([5], 1, 2, 1, 2)  # fmt: skip
    # Padded to 6: device 0 has rows 1 to 3, device 1 rows 4 and 5; two pieces of 2 rows a device.
    assert slicer.pieces == 2 and (window.live, window.full) == (2, False)
    assert window.batch.x[..., 0].tolist() == [[1, 2, 4, 5], [3, 1, 1, 1]]
    assert window.batch.valid.tolist() == [[True] * 4, [True, False, False, False]]


def test_window_pieces_of_all_batches_come_before_padding():
    ((window,), _), = windows_on_all([4, 1], 1, 1, 3, 2)  # fmt: skip
    assert (window.live, window.full) == (3, False)
    assert window.batch.valid.tolist() == [[True, True], [True, True], [True, False], *[[False, False]] * 3]
    assert window.batch.x[:3, :, 0].tolist() == [[1, 2], [3, 4], [5, 5]]


def test_window_full_with_fewer_live_pieces():
    _, ((_, last), _) = 0, windows_on_all([4, 2], 1, 1, 1, 2)[0]
    assert (last.live, last.full) == (1, True) and last.batch.valid.tolist() == [[True, True], [False, False]]


def test_window_later_larger_batch_is_cut_into_as_many_larger_pieces():
    ((first, second), slicer), = windows_on_all([4, 7], 1, 1, 1, 2)  # fmt: skip
    assert first.batch.x.shape == (2, 2, 1) and second.batch.x.shape == (2, 4, 1) and slicer.pieces == 2
    assert second.batch.valid.sum() == 7


def test_window_one_device_full_batch_in_pieces_is_a_view():
    slicer = Slicer(Placement(0, 1, 1), 4, microbatch_size=2)
    batch = next(batches_of([4], slicer))
    ((window, _),) = windows([batch], slicer)
    assert np.shares_memory(window.batch.x, batch.x) and window.batch.x[..., 0].tolist() == [[1, 2], [3, 4]]
    batch.x.flags.writeable = False
    ((window, _),) = windows([batch], slicer)
    assert window.batch.x.flags.writeable


def test_microbatch_size_leaves_evaluation_whole():
    slicer = Slicer(Placement(0, 1, 1), 4, microbatch_size=1)
    assert padded_batch(next(batches_of([3], slicer)), slicer).x.shape == (4, 1)


def test_microbatch_size_may_be_set_when_the_first_batch_is_known():
    slicer = Slicer(Placement(0, 1, 2), None)
    running = batches_of([8, 8], slicer)
    first = next(running)
    assert (slicer.pieces, slicer.share) == (1, 4)
    slicer.microbatch_size = 3
    ((window, _),) = windows([first], slicer)
    assert slicer.pieces == 2 and window.batch.x.shape == (2, 4, 1)


@pytest.mark.parametrize("seed", range(150))
def test_windows_hold_every_row_once(seed):
    draw = np.random.default_rng(seed)
    processes, local, k = (int(draw.integers(1, high)) for high in (4, 4, 5))
    m = [None, int(draw.integers(1, 8))][int(draw.random() < 0.8)]
    size, last = int(draw.integers(1, 40)), int(draw.integers(1, 40))
    sizes = [size] * int(draw.integers(1, 7)) + [min(last, size)]
    check(sizes, processes, local, k, m, batch_size=[None, size][seed % 2])


@pytest.mark.parametrize("seed", range(100))
def test_windows_of_processes_with_rows_of_their_own_hold_every_row_once(seed):
    draw = np.random.default_rng(1000 + seed)
    processes, local, k = int(draw.integers(2, 4)), int(draw.integers(1, 4)), int(draw.integers(1, 4))
    m = [None, int(draw.integers(1, 6))][int(draw.random() < 0.8)]
    owns = [[int(n) for n in draw.integers(0, 12, processes)] for _ in range(int(draw.integers(1, 6)))]
    owns = [tuple(own) if any(own) else (1,) * processes for own in owns]
    owns.sort(key=max, reverse=True)  # the first batch is the largest: shapes stay
    found = check([sum(own) for own in owns], processes, local, k, m, owns)
    slicer = found[0][1]
    for batch in batches_of([sum(own) for own in owns], slicer, owns):
        share = slicer.local
        padded = np.concatenate([np.r_[np.ones(own), np.zeros(share - own)] for own in batch.owns])
        index = valid_rows(batch, len(padded))
        assert padded[index].all() and len(index) == batch.rows


def test_valid_rows_of_a_global_batch_are_its_first():
    assert valid_rows(Batch(None, None, None, 5, 2), 8) == slice(0, 5)
