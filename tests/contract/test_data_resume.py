"""Going on in the frameworks' own data: torch's and torchdata's loaders, tf.data, Grain. Each under one backend."""

import contextlib
import itertools
import random
import warnings

import numpy as np
import pytest

import unifit as uf
from resume_tools import REPLAYED, feed_of, restored, run
from unifit.data.loaded import MARK_EVERY
from unifit.data.loader_state import decode, encode
from unifit.data.resuming import resumes
from unifit.errors import ArgumentError
from unifit.seed import set_seed

on_torch = pytest.mark.backends("torch", reason="torch's loaders are the same under every backend")
on_tensorflow = pytest.mark.backends("tensorflow", reason="tf.data is the same under every backend")
on_jax = pytest.mark.backends("jax", reason="Grain is the same under every backend")


@pytest.fixture(autouse=True)
def seed_of_the_case():
    set_seed(3)


def assert_goes_on(make, stops, limit=None, epochs=3, replayed=False, **options):
    """The rest of a run from each stop is the straight run's; returns the last position."""
    straight = run(feed_of(make(), limit, **options), epochs)
    assert len({str(straight.rows[start : start + 4]) for start in (0, straight.epochs[0])}) == 2  # orders differ
    for after in stops:
        stopped = run(feed_of(make(), limit, **options), epochs, after)
        first, look = stopped.stop.epoch, ("", "after")[after % 2]
        resumed = run(feed_of(make(), limit, first, **options), epochs, going_on=stopped.stop, look=look)
        assert stopped.rows + resumed.rows == straight.rows, (after, stopped.stop[:2])
        assert [REPLAYED in warning for warning in resumed.warnings] == [True] * replayed, resumed.warnings
    return restored(stopped.stop.position)


# torch


def torch_rows(reads=None):
    """Twenty rows, read by number, with something random in each."""
    import torch.utils.data

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, row):
            if reads is not None:
                reads.append(row)
            return torch.tensor([100.0 * row + random.randrange(50) + float(torch.randint(50, ()))])

    return Rows()


def torch_stream(state=False, count=20):
    """Rows in an order of its own numbers, with something from torch's global generator in each."""
    import torch.utils.data

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self):
            self.random, self.at, self.began, self.given = np.random.default_rng(3), 0, None, None

        def __iter__(self):
            begun, self.given = self.given, None
            self.at = 0 if begun is None else begun["at"]
            if begun is not None:
                self.random.bit_generator.state = begun["began"]
            self.began = self.random.bit_generator.state
            worker = torch.utils.data.get_worker_info()
            draws = 0 if worker is not None else 50
            rows = np.array_split(np.arange(count), 1 if worker is None else worker.num_workers)
            order = self.random.permutation(rows[0 if worker is None else worker.id])
            for row in order[self.at :]:
                self.at += 1
                yield torch.tensor([100.0 * row + (int(torch.randint(draws, ())) if draws else 0)])

    class WithState(Stream):
        def state_dict(self):
            return {"at": self.at, "began": self.began}

        def load_state_dict(self, state):
            self.given = state

    return WithState() if state else Stream()


@on_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loader_over_rows_goes_on_by_number(workers):
    from torch.utils.data import DataLoader

    def make():
        return DataLoader(torch_rows(), batch_size=2, shuffle=True, num_workers=workers)

    position = assert_goes_on(make, (14,) if workers else (1, 9, 10, 14, 20, 29))
    assert position.mark is None


@on_torch
def test_torch_loader_over_rows_reads_no_row_again_but_those_of_a_batch():
    from torch.utils.data import DataLoader

    stop = run(feed_of(DataLoader(torch_rows(), batch_size=2, shuffle=True)), 3, after=14).stop
    reads = []
    rest = run(feed_of(DataLoader(torch_rows(reads), batch_size=2, shuffle=True), None, 1), 3, going_on=stop)
    assert len(reads) == 2 * (len(rest.rows) + 1)


@on_torch
def test_torch_sampler_with_numbers_of_its_own_goes_on():
    """Its order of an epoch follows from those before, which are drawn again; no row is."""
    import torch
    from torch.utils.data import DataLoader, WeightedRandomSampler

    def make(reads=None):
        sampler = WeightedRandomSampler([1.0] * 20, 20, generator=torch.Generator().manual_seed(5))
        return DataLoader(torch_rows(reads), batch_size=2, sampler=sampler)

    assert_goes_on(make, (4, 14, 25))
    reads, stop = [], run(feed_of(make()), 3, after=25).stop
    run(feed_of(make(reads), None, 2), 3, going_on=stop)
    assert len(reads) == 12


@on_torch
def test_torch_iterable_data_set_is_read_again_with_its_random_numbers():
    from torch.utils.data import DataLoader

    assert_goes_on(lambda: DataLoader(torch_stream(), batch_size=2), (1, 10, 14, 29), replayed=True)
    assert_goes_on(lambda: DataLoader(torch_stream(), batch_size=2), (5, 14), limit=7, replayed=True)


@on_torch
def test_torch_iterable_data_set_in_workers_is_unsafe():
    from torch.utils.data import DataLoader

    feed = feed_of(DataLoader(torch_stream(), batch_size=2, num_workers=2))
    assert resumes(feed.source) == "unsafe"
    with pytest.raises(ArgumentError, match="StatefulDataLoader"):
        feed.require_exact()
    feed_of(DataLoader(torch_rows(), batch_size=2, num_workers=2)).require_exact()
    feed_of(DataLoader(torch_stream(), batch_size=2)).require_exact()


@on_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_loader_goes_on_by_its_state(workers):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make(count=100):
        return StatefulDataLoader(torch_stream(True, count), batch_size=1, num_workers=workers)

    if workers:
        position = assert_goes_on_in_workers(make)
    else:
        position = assert_goes_on(make, (1, 33, 34, 100, 140), epochs=2)
    assert (position.mark.epoch, position.mark.batch) == (1, MARK_EVERY + 1)
    feed = feed_of(make())
    assert resumes(feed.source) == "state"
    feed.require_exact()


def assert_goes_on_in_workers(make):
    """A worker's copy of the data set begins each epoch anew, so the epochs' orders are alike."""
    straight = run(feed_of(make()), 2)
    stopped = run(feed_of(make()), 2, after=140)
    resumed = run(feed_of(make(), None, 1), 2, going_on=stopped.stop)
    assert stopped.rows + resumed.rows == straight.rows and not resumed.warnings
    return restored(stopped.stop.position)


@on_torch
def test_torchdata_loader_without_a_state_of_the_data_is_read_again():
    from torchdata.stateful_dataloader import StatefulDataLoader

    assert_goes_on(lambda: StatefulDataLoader(torch_stream(), batch_size=2), (1, 14), replayed=True)


@on_torch
def test_torchdata_loader_over_rows_goes_on_by_number():
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make():
        return StatefulDataLoader(torch_rows(), batch_size=2, shuffle=True)

    assert resumes(feed_of(make()).source) == "position"
    assert_goes_on(make, (1, 14))
    from torch.utils.data import DataLoader

    plain = run(feed_of(DataLoader(torch_rows(), batch_size=2, shuffle=True)), 2)
    assert run(feed_of(make()), 2).rows == plain.rows


@on_torch
def test_torch_batch_sampler_of_the_users_is_read_again():
    from torch.utils.data import DataLoader

    class Pairs:
        def __init__(self):
            self.random = random.Random(3)

        def __len__(self):
            return 10

        def __iter__(self):
            starts = list(range(0, 20, 2))
            self.random.shuffle(starts)
            return iter([[start, start + 1] for start in starts])

    assert_goes_on(lambda: DataLoader(torch_rows(), batch_sampler=Pairs()), (1, 14), replayed=True)


@on_torch
def test_torch_tensors_in_states_come_back():
    import torch

    state = {"rng": torch.get_rng_state(), "half": torch.ones(2, dtype=torch.float16)}
    back = decode(encode(state))
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype
    with pytest.raises(TypeError, match="bfloat16"):
        encode(torch.ones(2, dtype=torch.bfloat16))


# tf.data


def tf_shuffled(count=20, reshuffled=True, **options):
    import tensorflow as tf

    def make():
        data = tf.data.Dataset.range(count).shuffle(count, seed=3, reshuffle_each_iteration=reshuffled)
        return data.map(lambda row: tf.cast(row, tf.float32)[None], **options).batch(2).prefetch(2)

    return make


@on_tensorflow
@pytest.mark.parametrize("limit", [None, 7])
def test_tf_data_reshuffled_in_each_epoch_goes_on_by_its_iterators_state(limit):
    position = assert_goes_on(tf_shuffled(), (1, 10, 14, 20), limit)
    assert position.mark is not None


@on_tensorflow
def test_tf_data_state_is_kept_now_and_then():
    position = assert_goes_on(tf_shuffled(100), (33, 34, 89), epochs=2)
    assert position.mark[:2] == (1, MARK_EVERY + 1)


@on_tensorflow
def test_tf_data_repeated_without_end_goes_on():
    import tensorflow as tf

    def make():
        return tf.data.Dataset.range(20).shuffle(20, seed=3).repeat().map(lambda row: [row]).batch(2)

    assert_goes_on(make, (1, 9, 13), limit=7)


@on_tensorflow
def test_tf_data_that_calls_python_is_read_again():
    """Its iterators have no state. The order of its second epoch follows from the first one."""
    import tensorflow as tf

    def make():
        order = np.random.default_rng(3)

        def rows():
            yield from order.permutation(20).astype(np.float32)[:, None]

        signature = tf.TensorSpec((1,), tf.float32)
        return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(2)

    position = assert_goes_on(make, (1, 14), replayed=True)
    assert position.mark is None


@on_tensorflow
def test_tensorflow_tensors_in_states_come_back():
    import tensorflow as tf

    back = decode(encode({"a": tf.constant([1, 2], tf.int64)}))["a"]
    assert back.dtype == tf.int64 and back.numpy().tolist() == [1, 2]


# Grain


class GrainRows:
    def __len__(self):
        return 20

    def __getitem__(self, row):
        return np.array([row], np.float32)

    def __repr__(self):  # Grain compares it
        return "GrainRows()"


@on_jax
@pytest.mark.parametrize("named", [True, False])
def test_grain_loader_goes_on_by_its_iterators_state(named):
    """Its order is the same in each epoch, so two epochs' worth of it is one epoch here."""
    import grain

    class Unnamed(GrainRows):
        __repr__ = object.__repr__

    def make():
        rows = GrainRows() if named else Unnamed()
        sampler = grain.samplers.IndexSampler(
            20, shuffle=True, seed=3, num_epochs=2, shard_options=grain.sharding.NoSharding()
        )
        return grain.DataLoader(data_source=rows, sampler=sampler, operations=[grain.transforms.Batch(2)])

    assert resumes(feed_of(make()).source) == "state"
    kept = []  # whose address is in the name of the one that gave the state

    def held():
        kept.append(make())
        return kept[-1]

    assert_goes_on(held, (1, 14, 19), limit=10, epochs=2, replayed=not named)


@on_jax
def test_grain_data_sets_go_on_by_state_or_by_number():
    import grain

    def mapped():
        return grain.MapDataset.range(40).seed(3).shuffle().map(lambda row: np.array([row], np.float32)).batch(2)

    assert resumes(feed_of(mapped()).source) == "position"
    assert resumes(feed_of(mapped().to_iter_dataset()).source) == "state"
    assert_goes_on(mapped, (1, 14), shuffle=True)
    assert_goes_on(lambda: mapped().to_iter_dataset(), (1, 14, 19), limit=10, epochs=2)
    # The next one goes on where the last one stopped, so it is looked at once.
    assert_goes_on(lambda: iter(mapped().to_iter_dataset()), (1, 14, 19), limit=10, epochs=2)


@on_jax
def test_grain_data_set_repeated_without_end_is_read_by_number():
    import grain

    def make():
        data = grain.MapDataset.range(20).seed(3).shuffle().repeat()
        return data.map(lambda row: np.array([row], np.float32)).batch(2)

    with pytest.raises(ArgumentError, match="never ends"):
        feed_of(make())
    assert_goes_on(make, (1, 14), limit=10)


@on_jax
def test_jax_arrays_in_states_come_back():
    import jax.numpy as jnp

    back = decode(encode({"a": jnp.arange(3, dtype=jnp.uint32)}))["a"]
    assert isinstance(back, jnp.ndarray) and back.dtype == jnp.uint32 and back.tolist() == [0, 1, 2]


# A whole fit


class Order:
    """Rows in an order that each reading draws anew, so that an epoch's order follows from all before it."""

    def __init__(self):
        self.random = np.random.default_rng(3)

    def __call__(self):
        for row in self.random.permutation(6):
            yield np.eye(6, dtype=np.float32)[row : row + 1], np.zeros((1, 1), np.float32)


def fitted(folder, data, epochs, until=None, **options):
    """The order of rows: unit vectors, the loss the prediction, the rate 1, so each update lowers its row's weight."""
    rows = []

    class Trace(uf.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.before = self.model.weights_by_path()["0.kernel"].ravel()

        def on_train_batch_end(self, batch, logs=None):
            now = self.model.weights_by_path()["0.kernel"].ravel()
            rows.extend(np.flatnonzero(now != self.before))
            self.before = now

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == until:
                raise EOFError

    model = uf.Sequential([uf.Input((6,)), uf.layers.Dense(1, use_bias=False)])
    model.compile(uf.optimizers.SGD(1.0), lambda y, y_pred: y_pred)
    with warnings.catch_warnings(), contextlib.nullcontext() if until is None else pytest.raises(EOFError):
        warnings.filterwarnings("ignore", f".*{REPLAYED}")
        model.fit(data, epochs=epochs, verbose=0, checkpoint_dir=folder, callbacks=[Trace()], **options)
    return rows


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("once", [False, True], ids=["function", "generator"])
def test_fit_goes_on_at_an_epochs_end_in_data_that_only_reading_knows(tmp_path, once, limit):
    """Interrupted at the start of epoch 2; ended with epoch 3, and asked for a fourth one."""
    if once and limit is None:
        limit = 3

    def data():
        order = Order()
        return itertools.chain.from_iterable(order() for _ in range(4)) if once else order

    options = {"steps_per_epoch": limit}
    straight = fitted(tmp_path / "straight", data(), 4, **options)
    assert len(straight) == 4 * (limit or 6)
    first = fitted(tmp_path / "run", data(), 3, until=1, **options)
    second = fitted(tmp_path / "run", data(), 3, **options)
    third = fitted(tmp_path / "more", data(), 4, resume=tmp_path / "run", **options)
    assert first + second + third == straight and len(first) == len(third) == (limit or 6)
