"""Length buckets: few shapes, padding values, masks, and what is refused."""

import numpy as np
import pytest

from data_tools import slicer_of
from unifit.data.adapt import make_source
from unifit.data.length_buckets import LengthBuckets
from unifit.data.windows import padded_batch, windows
from unifit.errors import ArgumentError, ShapeError


def ids(rows, length):
    return np.arange(1, rows * length + 1).reshape(rows, length)


def padded(batches, boundaries=(4, 8), **options):
    source = make_source(LengthBuckets(lambda: iter(batches), boundaries, **options))
    slicer = slicer_of(source)
    return [padded_batch(batch, slicer) for batch in source.epoch(0, 0, slicer.own)]


def test_length_buckets_pad_to_the_smallest_boundary_that_fits():
    found = padded([ids(2, length) for length in (1, 3, 4, 5, 8)])
    assert [batch.x.shape for batch in found] == [(2, 4)] * 3 + [(2, 8)] * 2
    assert found[1].x.tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]] and found[2].x.tolist() == ids(2, 4).tolist()


def test_length_buckets_pad_every_part_with_its_value():
    x = {"ids": ids(2, 3), "age": np.ones(2), "image": np.ones((2, 3, 2))}
    (batch,) = padded([(x, ids(2, 3), np.ones((2, 3)))], padding_values=(9, -1, 0))
    assert batch.x["ids"][0].tolist() == [1, 2, 3, 9] and batch.x["image"][0, 3].tolist() == [9, 9]
    assert batch.x["age"].shape == (2,)
    assert batch.y[1].tolist() == [4, 5, 6, -1] and batch.sample_weight[0].tolist() == [1, 1, 1, 0]


def test_length_buckets_values_may_be_trees_and_None_leaves_an_array_alone():
    x = {"features": np.ones((2, 3)), "ids": ids(2, 3)}
    (batch,) = padded([(x, np.ones((2, 3)))], padding_values=({"ids": 5, "features": None}, None, 0))
    assert batch.x["ids"][0].tolist() == [1, 2, 3, 5] and batch.x["features"].shape == batch.y.shape == (2, 3)
    with pytest.raises(ArgumentError, match="nothing in it for 'features'"):
        padded([x], padding_values=({"ids": 5}, 0, 0))
    with pytest.raises(ArgumentError, match="one array"):
        padded([ids(2, 3)], padding_values=((0, 0), 0, 0))


def test_length_buckets_inputs_of_several_lengths_need_a_word():
    x = {"features": np.ones((2, 5)), "ids": ids(2, 3)}
    with pytest.raises(ShapeError, match=r"sizes \[3, 5\] on axis 1.*'features': None"):
        padded([x])
    (batch,) = padded([x], padding_values=({"ids": 0, "features": None}, 0, 0))
    assert batch.x["features"].shape == (2, 5) and batch.x["ids"].shape == (2, 4)


def test_length_buckets_on_another_axis():
    (batch,) = padded([np.ones((2, 5, 3))], axis=2)
    assert batch.x.shape == (2, 5, 4) and batch.x[0, 0].tolist() == [1, 1, 1, 0]


def test_length_buckets_mask_padding_and_short_batches():
    first, last = padded([(ids(3, 3), ids(3, 3)), (ids(1, 4), ids(1, 4))], mask_padding=True)
    assert first.sample_weight.dtype == bool and first.sample_weight.tolist() == [[True] * 3 + [False]] * 3
    assert last.sample_weight[0].all() and last.valid.tolist() == [True, False, False]


def test_length_buckets_mask_padding_joins_a_mask_of_the_data():
    positions = np.array([[True, False, True], [True, True, True]])
    (batch,) = padded([(ids(2, 3), ids(2, 3), positions)], mask_padding=True)
    assert batch.sample_weight.tolist() == [[True, False, True, False], [True, True, True, False]]
    (batch,) = padded([(ids(2, 3), ids(2, 3), np.array([True, False]))], mask_padding=True)
    assert batch.sample_weight.tolist() == [[True, True, True, False], [False] * 4]
    with pytest.raises(ArgumentError, match="ignore_class"):
        padded([(ids(2, 3), ids(2, 3), np.ones(2))], mask_padding=True)


def test_length_buckets_mask_padding_of_several_outputs():
    (batch,) = padded([(ids(2, 3), {"tags": ids(2, 3), "kind": np.ones(2)})], mask_padding=True)
    assert batch.sample_weight["tags"].tolist() == [[True, True, True, False]] * 2
    assert batch.sample_weight["kind"].tolist() == [True, True]
    (batch,) = padded([(ids(2, 3), np.ones(2))], mask_padding=True)  # labels without positions
    assert batch.sample_weight is None


def test_length_buckets_window_takes_its_largest():
    source = make_source(LengthBuckets(lambda: iter([ids(2, n) for n in (3, 7, 2)]), [4, 8]))
    slicer = slicer_of(source)
    first, last = (window for window, _ in windows(source.epoch(0, 0, slicer.own), slicer, 2))
    assert first.batch.x.shape == (2, 2, 8) and last.batch.x.shape == (2, 2, 4)
    assert first.batch.x[0, 0].tolist() == [1, 2, 3, 0, 0, 0, 0, 0] and first.full


def test_length_buckets_spare_the_warning_of_many_shapes(recwarn):
    assert len({batch.x.shape for batch in padded([ids(2, n) for n in range(1, 9)])}) == 2
    assert not recwarn.list


def test_length_buckets_longer_than_the_last_boundary_is_refused():
    with pytest.raises(ShapeError, match="length 9; the last of LengthBuckets' boundaries is 8"):
        padded([ids(2, 9)])


def test_length_buckets_array_that_has_the_length_by_chance_is_refused():
    one_hot = np.eye(3)[:2]
    with pytest.raises(ShapeError, match=r"array of y has shape \(2, 3\).*length 4.*padding_values"):
        padded([(ids(2, 3), one_hot), (ids(2, 4), one_hot)])
    assert padded([(ids(2, 3), one_hot)], padding_values=(0, None, 0))[0].y.shape == (2, 3)


def test_length_buckets_without_an_axis_to_pad_are_refused():
    with pytest.raises(ShapeError, match="no input"):
        padded([np.ones(3)])


@pytest.mark.parametrize(
    "arguments",
    [{"boundaries": []}, {"boundaries": [8, 4]}, {"boundaries": [0, 4]}, {"boundaries": [2.5]},
     {"boundaries": [4], "axis": 0}, {"boundaries": [4], "padding_values": 0}],
    ids=str,
)  # fmt: skip
def test_length_buckets_arguments_that_cannot_be_are_refused(arguments):
    with pytest.raises(ArgumentError):
        LengthBuckets([], **arguments)
