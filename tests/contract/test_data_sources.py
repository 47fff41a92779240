"""torch's and TensorFlow's sources and every framework's tensors, read on the host under any active backend."""

import importlib.util
import random

import numpy as np
import pytest

from data_tools import DrawingRows, flat, own_rows, slicer_of
from unifit.contract.data import ENDLESS
from unifit.data.adapt import make_source
from unifit.errors import ArgumentError, ShapeError

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")

X = np.arange(10, dtype=np.float32)[:, None]
Y = np.arange(10)


def xs(source, **options):
    return own_rows(source, **options)


# Tensors


@needs_torch
def test_torch_tensors_are_arrays():
    import torch

    parameter = torch.nn.Parameter(torch.from_numpy(X.copy()))
    source = make_source(
        {"a": parameter, "b": torch.ones(10, 2, dtype=torch.bfloat16)}, torch.from_numpy(Y), batch_size=4
    )
    batch = next(source.epoch(0, 0, slicer_of(source).own))
    assert batch.x["a"].tolist() == X[:4].tolist() and batch.x["b"].dtype == np.float32 and batch.y.dtype == np.int32
    assert np.shares_memory(batch.x["a"], parameter.detach().numpy())
    with pytest.raises(ArgumentError, match="to_dense"):
        make_source(torch.ones(3, 3).to_sparse())


@needs_tensorflow
def test_tensorflow_tensors_are_arrays():
    import tensorflow as tf

    source = make_source((tf.constant(X), tf.Variable(X)), tf.constant(Y), batch_size=4)
    batch = next(source.epoch(0, 0, slicer_of(source).own))
    assert batch.x[0].tolist() == batch.x[1].tolist() == X[:4].tolist() and batch.y.dtype == np.int32
    with pytest.raises(ArgumentError, match="to_tensor"):
        make_source([tf.ragged.constant([[1], [2, 3]])])


@needs_jax
def test_jax_arrays_are_arrays():
    import jax.numpy as jnp

    source = make_source(jnp.asarray(X), jnp.ones(10, jnp.bfloat16), batch_size=4)
    batch = next(source.epoch(0, 0, slicer_of(source).own))
    assert batch.x.tolist() == X[:4].tolist() and batch.y.dtype.name == "bfloat16"


# torch's sources


def loader(dataset=None, **options):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)) if dataset is None else dataset
    return DataLoader(dataset, **options)


def recording(reads=None):
    """A map-style dataset that records what is read."""
    from torch.utils.data import Dataset

    class Recording(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, row):
            if reads is not None:
                reads.append(row)
            return X[row], Y[row]

    return Recording()


@needs_torch
@pytest.mark.parametrize("plain", [True, False], ids=["TensorDataset", "Dataset"])
def test_torch_loader_batches_come_as_loaded(plain):
    source = make_source(loader(None if plain else recording(), batch_size=4))
    batches = list(source.epoch(0, 0, slicer_of(source).own))
    assert [b.x.ravel().tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [b.y.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (source.num_batches, source.batch_size) == (3, 4)
    assert make_source(loader(batch_size=4, drop_last=True)).num_batches == 2
    assert xs(make_source(loader(batch_size=4, drop_last=True))) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@needs_torch
@pytest.mark.parametrize("plain", [True, False], ids=["TensorDataset", "Dataset"])
def test_torch_loader_random_order_is_replaced_and_the_global_generators_are_left_alone(plain):
    import torch

    def order(epoch, seed, processes=1):
        source = make_source(loader(None if plain else recording(), batch_size=4, shuffle=True))
        parts = [xs(source, epoch=epoch, seed=seed, process=p, processes=processes) for p in range(processes)]
        return [flat(rows) for rows in zip(*parts, strict=True)]

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = order(0, 1)
    torch.manual_seed(77)
    assert order(0, 1) == order(0, 1, processes=2) == order(0, 1, processes=3) == first
    assert order(1, 1) != first and order(0, 2) != first and sorted(flat(first)) == list(range(10))
    assert first == xs(make_source(X, batch_size=4, shuffle=True), seed=1)  # the order of arrays
    torch.set_rng_state(before[0])
    order(0, 1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


@needs_torch
def test_torch_loader_process_reads_its_own_rows_alone():
    reads = []
    source = make_source(loader(recording(reads), batch_size=4, shuffle=True))
    other = make_source(loader(recording(), batch_size=4, shuffle=True))
    own = flat(xs(source, process=1, processes=2))
    assert reads[:4] == own[:4] and len(reads) == len(own) + (len(own) < 5)
    assert sorted(own + flat(xs(other, process=0, processes=2))) == list(range(10))


@needs_torch
def test_torch_dataset_is_batched_here():
    source = make_source(recording(), batch_size=3, shuffle=True)
    assert (source.num_batches, source.batch_size) == (4, 3)
    assert xs(source, epoch=2) == xs(make_source(X, batch_size=3, shuffle=True), epoch=2)
    assert make_source(recording()).batch_size == 10
    assert xs(make_source(recording(), batch_size=4), first=1) == [[4, 5, 6, 7], [8, 9]]


@needs_torch
def test_torch_dataset_random_rows_follow_seed_epoch_and_row():
    def draws(epoch=0, seed=0, **options):
        source = make_source(loader(DrawingRows(), **options))
        return [row for b in source.epoch(epoch, seed, slicer_of(source).own) for row in b.x.tolist()]

    rows = draws(batch_size=4)
    assert len(set(map(tuple, rows))) == 10 and all(len(set(row)) == 3 for row in rows)
    assert draws(batch_size=3) == rows and draws(batch_size=None) != rows
    assert sorted(draws(batch_size=4, shuffle=True)) == sorted(rows)
    assert draws(1, batch_size=4) != rows and draws(0, 1, batch_size=4) != rows


@needs_torch
@pytest.mark.backends("torch", reason="two spawned workers import the active backend, which takes seconds")
def test_s_di_06_torch_workers_draw_what_the_rows_say():
    data = DrawingRows()
    alone = make_source(loader(data, batch_size=2))
    settings = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"}
    shared = make_source(loader(data, batch_size=2, **settings))
    assert shared.read_ahead and not alone.read_ahead
    for epoch in range(2):
        expected = [b.x.tolist() for b in alone.epoch(epoch, 0, slicer_of(alone).own)]
        assert len({tuple(row) for batch in expected for row in batch}) == 10
        assert [b.x.tolist() for b in shared.epoch(epoch, 0, slicer_of(shared).own)] == expected


@needs_torch
def test_torch_loader_collate_function_makes_the_batch():
    def collate(rows):
        return {"x": np.stack([x for x, _ in rows])}, [int(y) for _, y in rows], np.ones(len(rows))

    source = make_source(loader(recording(), batch_size=4, collate_fn=collate))
    batch = next(source.epoch(0, 0, slicer_of(source).own))
    assert batch.x["x"].shape == (4, 1) and batch.y.tolist() == [0, 1, 2, 3] and batch.sample_weight.tolist() == [1] * 4


@needs_torch
def test_torch_sampler_of_ones_own_keeps_its_choice_and_is_keyed():
    import torch
    from torch.utils.data import RandomSampler, WeightedRandomSampler

    for sampler in (
        WeightedRandomSampler([0.0] * 5 + [1.0] * 5, 8),
        RandomSampler(Y[5:], replacement=True, num_samples=8),
    ):
        source = make_source(loader(batch_size=4, sampler=sampler))
        rows = xs(source, epoch=1)
        torch.manual_seed(5)
        assert source.num_batches == 2 and xs(source, epoch=1) == rows != xs(source, epoch=2)
    assert xs(make_source(loader(batch_size=2, sampler=[7, 3, 1]))) == [[7, 3], [1]]
    weighted = make_source(loader(batch_size=4, sampler=WeightedRandomSampler([0.0] * 5 + [1.0] * 5, 8)))
    assert min(flat(xs(weighted))) >= 5


@needs_torch
def test_torch_distributed_sampler_is_refused():
    from torch.utils.data import DistributedSampler

    with pytest.raises(ArgumentError, match="shuffle=True and the global batch_size"):
        make_source(loader(batch_size=2, sampler=DistributedSampler(Y, num_replicas=2, rank=0)))


@needs_torch
def test_torch_batch_sampler_of_ones_own_is_used_as_it_is():
    source = make_source(loader(batch_sampler=[[9, 0], [4], [1, 2, 3]]))
    assert xs(source) == [[9, 0], [4], [1, 2, 3]] and source.num_batches == 3
    assert xs(source, first=2) == [[1, 2, 3]]


@needs_torch
def test_torch_unbatched_loader_takes_items_as_batches():
    from torch.utils.data import Dataset

    class Batches(Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return X[2 * index : 2 * index + 2]

    assert xs(make_source(loader(Batches(), batch_size=None))) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    shuffled = make_source(loader(Batches(), batch_size=None, shuffle=True))
    assert sorted(flat(xs(shuffled))) == list(range(10)) and len({str(xs(shuffled, epoch=e)) for e in range(5)}) > 1


@needs_torch
def test_torch_iterable_dataset_is_read_in_its_own_order_and_its_draws_are_keyed():
    import torch
    from torch.utils.data import IterableDataset

    class Lines(IterableDataset):
        def __iter__(self):
            for row in range(5):
                yield np.array([row, int(torch.randint(10**6, ()))])

    source = make_source(loader(Lines(), batch_size=2))
    before = torch.get_rng_state()
    first = xs(source)
    assert [batch[0] for batch in first] == [0, 2, 4] and source.num_batches is None
    assert xs(source) == first != xs(source, epoch=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert [len(batch) for batch in xs(make_source(Lines(), batch_size=4))] == [8, 2]


@needs_torch
def test_s_da_05_torch_loader_that_is_wrong_is_refused():
    with pytest.raises(ArgumentError, match="3 rows, batch_size is 4, and drop_last"):
        make_source(loader(X[:3], batch_size=4, drop_last=True))
    with pytest.raises(ArgumentError, match="0 rows"):
        make_source(loader(X[:0], batch_size=4))
    for extra in ({"batch_size": 4}, {"y": Y}, {"sample_weight": Y}):
        with pytest.raises(ArgumentError, match=next(iter(extra))):
            make_source(loader(batch_size=4), **extra)
    with pytest.raises(ArgumentError, match="batch_size is 0"):
        make_source(recording(), batch_size=0)


# TensorFlow's


@needs_tensorflow
def test_tensorflow_dataset_is_read_again_each_epoch():
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(10))).batch(4)
    source = make_source(data)
    for epoch in range(2):
        batches = list(source.epoch(epoch, 0, slicer_of(source).own))
        assert [b.x.ravel().tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert batches[0].y.dtype == np.int32 and batches[0].sample_weight.shape == (4,)
    parts = [xs(source, process=process, processes=2) for process in range(2)]
    assert [flat(rows) for rows in zip(*parts, strict=True)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert source.num_batches == 3 and source.restartable and source.read_ahead


@needs_tensorflow
def test_tensorflow_dataset_length_may_be_unknown_or_endless():
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices({"a": X})
    unknown = make_source(rows.filter(lambda row: row["a"][0] < 7).batch(4))
    assert unknown.num_batches is None and unknown.restartable
    assert [b.x["a"].shape[0] for b in unknown.epoch(0, 0, slicer_of(unknown).own)] == [4, 3]
    assert make_source(rows.repeat().batch(4)).num_batches == ENDLESS


@needs_tensorflow
def test_tensorflow_dataset_that_is_wrong_is_refused():
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    with pytest.raises(ShapeError, match="batch"):
        make_source(rows)
    with pytest.raises(ArgumentError, match="batch_size=4"):
        make_source(rows.batch(2), batch_size=4)
    with pytest.raises(ArgumentError, match="drop_remainder"):
        make_source(rows.take(3).batch(4, drop_remainder=True))
    with pytest.raises(ArgumentError, match="y was given"):
        make_source(rows.batch(2), Y)


@needs_tensorflow
def test_keras_py_dataset_is_indexed_batches():
    import keras

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return X[index : index + 1], Y[index : index + 1]

    assert xs(make_source(Data())) == [[0], [1], [2]]
