"""Feeds: limits, restarts, what is held back, what is refused, and how many batches are drawn."""

import numpy as np
import pytest

from data_tools import slicer_of
from unifit.data.adapt import make_source
from unifit.data.feed import Feed
from unifit.errors import ArgumentError


class Counted:
    """Batches 0, 1, ... of one row; counts what is drawn."""

    def __init__(self, count, known=False):
        self.count, self.drawn, self.starts = count, 0, 0
        if known:
            self.__class__ = CountedWithLength

    def __iter__(self):
        self.starts += 1
        for number in range(self.count):
            self.drawn += 1
            yield np.array([[number]], np.float32)


class CountedWithLength(Counted):
    def __len__(self):
        return self.count


def feed_of(data, limit=None, first_epoch=0, **options):
    source = make_source(data, **options)
    return Feed(source, slicer_of(source), limit, first_epoch)


def ids(batches):
    return [int(batch.x[0, 0]) for batch in batches]


@pytest.mark.parametrize("known", [False, True])
def test_feed_without_limit_reads_the_source_each_epoch(known):
    data = Counted(3, known)
    feed = feed_of(data)
    feed.first()
    assert data.drawn == 1
    assert [ids(feed.epoch(e)) for e in range(2)] == [[0, 1, 2], [0, 1, 2]]
    assert (data.drawn, data.starts) == (6, 2)


@pytest.mark.parametrize("known", [False, True])
def test_feed_limit_goes_on_across_epochs_and_starts_again(known):
    data = Counted(5, known)
    feed = feed_of(data, 2)
    feed.first()
    assert [ids(feed.epoch(e)) for e in range(4)] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert data.drawn == 8


@pytest.mark.parametrize("known", [False, True])
def test_feed_limit_at_the_end_of_the_source_starts_again(known):
    feed = feed_of(Counted(4, known), 2)
    assert [ids(feed.epoch(e)) for e in range(4)] == [[0, 1], [2, 3], [0, 1], [2, 3]]


def test_feed_limit_above_the_source_goes_round():
    assert [ids(feed_of(Counted(2), 5).epoch(0)), ids(feed_of(Counted(2, True), 5).epoch(0))] == [[0, 1, 0, 1, 0]] * 2


def test_feed_limit_reads_each_pass_in_its_own_order():
    x = np.arange(6.0)[:, None]
    feed = feed_of(x, 4, batch_size=1, shuffle=True)
    read = [row for epoch in range(3) for row in ids(feed.epoch(epoch))]
    free = feed_of(x, batch_size=1, shuffle=True)
    assert read == ids(free.epoch(0)) + ids(free.epoch(1))
    assert ids(free.epoch(0)) != ids(free.epoch(1))


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("peek", [False, True])
def test_feed_first_epoch_continues_where_a_run_from_0_would(limit, peek):
    x = np.arange(6.0)[:, None]
    whole, late = (feed_of(x, limit, first, batch_size=1, shuffle=True) for first in (0, 2))
    expected = [ids(whole.epoch(epoch)) for epoch in range(4)][2:]
    if peek:
        late.first()
    assert [ids(late.epoch(epoch)) for epoch in (2, 3)] == expected


def test_s_da_04_generator_loses_no_batch_to_a_look_ahead():
    for limit, epochs in ((4, 1), (2, 2), (None, 1)):
        data = Counted(4)
        feed = feed_of(iter(data), limit)
        feed.first()
        assert sum((ids(feed.epoch(e)) for e in range(epochs)), []) == [0, 1, 2, 3]


def test_feed_limit_draws_no_batch_more():
    data = Counted(9)
    feed = feed_of(iter(data), 2)
    feed.first()
    ids(feed.epoch(0)), ids(feed.epoch(1))
    assert data.drawn == 4


def test_feed_generator_that_runs_dry_warns_once_and_ends():
    feed = feed_of(iter(Counted(3)), 2)
    assert ids(feed.epoch(0)) == [0, 1]
    with pytest.warns(UserWarning, match="ran out after 1 of the 2 batches"):
        assert ids(feed.epoch(1)) == [2]
    assert not feed.ready(2)
    assert ids(feed.epoch(2)) == []  # and no second warning


def test_feed_generator_that_runs_dry_between_epochs_is_seen_before_the_next():
    feed = feed_of(iter(Counted(2)), 2)
    assert ids(feed.epoch(0)) == [0, 1]
    assert not feed.ready(1)


@pytest.mark.parametrize("known", [False, True])
def test_s_da_03_evaluation_sees_the_same_batches_and_draws_no_more(known):
    data = Counted(4, known)
    feed = feed_of(data, 2)
    for time in range(3):
        assert ids(feed.again()) == [0, 1]
        assert data.drawn == 2 * (time + 1)


def test_feed_look_ahead_is_part_of_the_first_evaluation():
    data = Counted(4)
    feed = feed_of(data, 2)
    feed.first()
    assert ids(feed.again()) == [0, 1] and data.drawn == 2


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "3"], ids=str)
def test_feed_limit_that_is_no_number_is_refused(limit):
    with pytest.raises(ArgumentError, match="limit"):
        feed_of(Counted(2), limit)


def test_s_da_05_feed_without_batches_is_refused():
    with pytest.raises(ArgumentError, match="yields no batch"):
        feed_of(Counted(0)).first()
    with pytest.raises(ArgumentError, match="yields no batch"):
        feed_of(Counted(0), 3).first()
    with pytest.raises(ArgumentError, match="no batch"):
        feed_of(Counted(0, True))
    used = iter(Counted(1))
    ids(feed_of(used).epoch(0))
    with pytest.raises(ArgumentError, match="read before"):
        feed_of(used).first()


def test_feed_endless_source_needs_a_limit():
    class Endless:
        num_batches = None

        def __getitem__(self, index):
            return np.array([[index]])

    with pytest.raises(ArgumentError, match="steps_per_epoch"):
        feed_of(Endless())
    feed = feed_of(Endless(), 2)
    assert [ids(feed.epoch(e)) for e in range(2)] == [[0, 1], [2, 3]]


def test_feed_generator_for_many_epochs_is_refused_before_it_is_read():
    data = Counted(3)
    feed = feed_of(iter(data))
    feed.require(1, "The training data")
    with pytest.raises(ArgumentError, match="The training data would be read 2 times"):
        feed.require(2, "The training data")
    feed_of(data).require(2, "The training data")
    assert data.drawn == 0
