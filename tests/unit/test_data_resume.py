"""Going on in the data: whatever the source and wherever it stopped, the rest comes as it would have."""

import contextlib
import json
import random

import numpy as np
import pytest

from process_threads import errors_of, good, on_all
from process_threads import feed_of as feed_of_process
from resume_tools import REPLAYED, Stop, feed_of, restored, rows_of, run, written
from unifit.data.adapt import make_source
from unifit.data.length_buckets import LengthBuckets
from unifit.data.loaded import MARK_EVERY
from unifit.data.loader_state import decode, encode
from unifit.data.per_process import PerProcess
from unifit.data.position import Position
from unifit.data.resuming import resumes
from unifit.data.same_data import require_same_data
from unifit.data.windows import windows
from unifit.errors import ArgumentError, CheckpointError
from unifit.seed import set_seed

X = np.arange(20, dtype=np.float32)[:, None]


def batches_of(numbers, size=2):
    return [np.array(numbers[start : start + size], np.float32)[:, None] for start in range(0, len(numbers), size)]


class Ordered:
    """Batches in an order that each reading draws anew: the third one's follows from two others before it."""

    def __init__(self, rows=20, size=2):
        self.rows, self.size, self.random, self.drawn = rows, size, np.random.default_rng(3), 0

    def __iter__(self):
        for batch in batches_of(self.random.permutation(self.rows), self.size):
            self.drawn += 1
            yield batch
        self.random.random()  # what comes at the end counts too


class OrderedWithLength(Ordered):
    def __len__(self):
        return -(-self.rows // self.size)


class WithEpoch(Ordered):
    """Whose order follows from the epoch's number."""

    def set_epoch(self, epoch):
        self.random = np.random.default_rng([3, epoch])


class OwnState(Ordered):
    """Keeps its state itself."""

    def __init__(self, rows=20, size=2):
        super().__init__(rows, size)
        self.at, self.began, self.given = 0, None, None

    def __iter__(self):
        begun, self.given = self.given, None
        self.at = 0 if begun is None else begun["at"]
        if begun is not None:
            self.random.bit_generator.state = begun["began"]
        self.began = self.random.bit_generator.state
        for batch in batches_of(self.random.permutation(self.rows), self.size)[self.at :]:
            self.at += 1
            self.drawn += 1
            yield batch

    def state_dict(self):
        return {"at": self.at, "began": self.began}

    def load_state_dict(self, state):
        self.given = state


class IteratorWithState:
    def __init__(self, data):
        self.data, self.at, self.began = data, 0, data.random.bit_generator.state
        self.batches = batches_of(data.random.permutation(data.rows), data.size)

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.batches):
            raise StopIteration
        self.at += 1
        self.data.drawn += 1
        return self.batches[self.at - 1]

    def get_state(self):
        return json.dumps([self.at, self.began]).encode()

    def set_state(self, state):
        at, began = json.loads(state)
        self.data.random.bit_generator.state = began
        self.__init__(self.data)
        self.at = at


class StateOfIterator(Ordered):
    """Whose iterators have a state."""

    def __iter__(self):
        return IteratorWithState(self)


class Indexed:
    """Keras' PyDataset: shuffles its own order between epochs, and draws at random in a batch."""

    def __init__(self, count=10):
        self.order, self.random, self.reads = list(range(count)), random.Random(3), []

    def __len__(self):
        return len(self.order)

    def __getitem__(self, number):
        self.reads.append(number)
        return np.array([[100 * self.order[number] + random.randrange(100)]], np.float32)

    def on_epoch_end(self):
        self.random.shuffle(self.order)


class Table:
    """Twenty rows of one column, read by lists of row numbers, as a Hugging Face dataset."""

    column_names = ("a",)

    def with_format(self, kind):
        return self

    def __len__(self):
        return 20

    def __getitem__(self, rows):
        return {"a": 100 * np.array(rows, np.float32)[:, None] + random.randrange(100)}


class Endless:
    num_batches = None

    def __init__(self):
        self.reads = []

    def __getitem__(self, number):
        self.reads.append(number)
        return np.array([[number]], np.float32)


def function():
    order = np.random.default_rng(3)

    def batches():
        yield from batches_of(order.permutation(20))

    return batches


def generator():
    return iter(batches_of(np.random.default_rng(3).permutation(100)))


SHUFFLED = {"shuffle": True}
SOURCES = {
    "arrays": (lambda: X, SHUFFLED | {"batch_size": 2}),
    "arrays-ragged": (lambda: X, SHUFFLED | {"batch_size": 3}),
    "rows": (Table, SHUFFLED | {"batch_size": 2}),
    "indexed": (Indexed, SHUFFLED),
    "iterable": (Ordered, {}),
    "iterable-length": (OrderedWithLength, {}),
    "function": (function, {}),
    "set_epoch": (WithEpoch, {}),
    "state": (OwnState, {}),
    "state-iterator": (StateOfIterator, {}),
    "buckets": (lambda: LengthBuckets(Ordered(), [1]), {}),
    "buckets-state": (lambda: LengthBuckets(OwnState(), [1]), {}),
    "generator": (generator, {}),
    "endless": (Endless, {}),
}
BY_NUMBER = ("arrays", "arrays-ragged", "rows", "indexed", "endless")
EPOCHS = 3
CASES = [
    (kind, limit)
    for kind in SOURCES
    for limit in (None, 4, 10, 13)
    if limit is not None or kind not in ("generator", "endless")
]


@pytest.fixture(autouse=True)
def seed_of_the_case():
    set_seed(3)


# S-CK-01


@pytest.mark.parametrize("kind, limit", CASES)
def test_s_ck_01_run_goes_on_as_the_straight_one_wherever_it_stopped(kind, limit):
    make, options = SOURCES[kind]
    straight = run(feed_of(make(), limit, **options), EPOCHS)
    assert straight.rows[:10] != straight.rows[10:20] and not straight.warnings
    for after in range(1, len(straight.rows) + 1):
        stopped = run(feed_of(make(), limit, **options), EPOCHS, after)
        look = ("", "after")[after % 2]
        resumed = run(feed_of(make(), limit, stopped.stop.epoch, **options), EPOCHS, going_on=stopped.stop, look=look)
        assert stopped.rows + resumed.rows == straight.rows, (after, stopped.stop)
        assert stopped.epochs[:-1] + [stopped.epochs[-1] + resumed.epochs[0], *resumed.epochs[1:]] == straight.epochs
        quiet = kind in BY_NUMBER or "state" in kind or (kind == "set_epoch" and not restored(stopped.stop[2]).batch)
        assert len(resumed.warnings) == (not quiet), (after, resumed.warnings)
        assert all(REPLAYED in warning for warning in resumed.warnings)


def test_s_ck_01_permutations_are_those_of_the_case():
    straight = run(feed_of(X, batch_size=2, shuffle=True), 3)
    first, second, third = (sorted(np.ravel(straight.rows[start : start + 10])) for start in (0, 10, 20))
    assert first == second == third == list(range(20))
    stopped = run(feed_of(X, batch_size=2, shuffle=True), 3, after=14)
    assert stopped.stop[:2] == (1, 4)
    resumed = run(feed_of(X, None, 1, batch_size=2, shuffle=True), 3, going_on=stopped.stop)
    assert resumed.rows == straight.rows[14:] and resumed.epochs == [6, 10]


@pytest.mark.parametrize("kind, limit", CASES)
def test_run_goes_on_from_an_epochs_end(kind, limit):
    """As a checkpoint there has it: the last batch's position, and no batch of the next epoch done."""
    make, options = SOURCES[kind]
    straight = run(feed_of(make(), limit, **options), EPOCHS)
    for epoch in range(1, EPOCHS):
        after = sum(straight.epochs[:epoch])
        stop = Stop(epoch, 0, run(feed_of(make(), limit, **options), EPOCHS, after).stop.position)
        for look in ("", "after"):
            resumed = run(feed_of(make(), limit, epoch, **options), EPOCHS, going_on=stop, look=look)
            assert resumed.rows == straight.rows[after:] and resumed.epochs == straight.epochs[epoch:]


@pytest.mark.parametrize("kind", SOURCES)
def test_run_that_went_on_goes_on_again(kind):
    make, options = SOURCES[kind]
    straight = run(feed_of(make(), 13, **options), EPOCHS)
    first = run(feed_of(make(), 13, **options), EPOCHS, after=5)
    second = run(feed_of(make(), 13, 0, **options), EPOCHS, after=11, going_on=first.stop)
    third = run(feed_of(make(), 13, 1, **options), EPOCHS, going_on=second.stop)
    assert first.rows + second.rows + third.rows == straight.rows
    assert second.stop[:2] == (1, 3)


@pytest.mark.parametrize("kind", SOURCES)
def test_look_before_going_on_loses_and_repeats_nothing(kind):
    make, options = SOURCES[kind]
    straight = run(feed_of(make(), 13, **options), EPOCHS)
    for after in (1, 12, 13, 14, 39):
        stopped = run(feed_of(make(), 13, **options), EPOCHS, after)
        # What is not keyed by its epoch has been opened once, so its first reading is gone on with.
        resumed = run(feed_of(make(), 13, 0, **options), EPOCHS, going_on=stopped.stop, look="before")
        assert stopped.rows + resumed.rows == straight.rows, after


@pytest.mark.parametrize("kind", ["iterable", "function", "state", "indexed", "arrays"])
def test_run_that_began_late_goes_on(kind):
    """initial_epoch: nothing before it was read, so nothing before it is read again."""
    make, options = SOURCES[kind]
    straight = run(feed_of(make(), None, 2, **options), 5, first=2)
    stopped = run(feed_of(make(), None, 2, **options), 5, first=2, after=14)
    resumed = run(feed_of(make(), None, 3, **options), 5, going_on=stopped.stop)
    assert stopped.rows + resumed.rows == straight.rows


# How a position is found


def test_position_counts_batches_of_the_source_that_were_handed_out():
    feed = feed_of(Ordered(8), 3)
    feed.first()
    assert feed.position == Position(0, 0)
    found = []
    for epoch in range(2):
        for _ in windows(feed.epoch(epoch), feed.slicer, 2):
            found.append(feed.position[:2])
            feed.ready(epoch + 1) if len(found) % 2 == 0 else None  # holding the next one moves nothing
    assert found == [(0, 2), (0, 3), (1, 1), (1, 2)]


def test_by_number_reads_nothing_again_but_a_batch_to_look_at():
    stop = run(feed_of(Indexed(), shuffle=True), 3, after=17).stop
    data = Indexed()
    resumed = run(feed_of(data, None, 1, shuffle=True), 3, going_on=stop)
    assert len(data.reads) == len(resumed.rows) + 1
    data = Endless()
    run(feed_of(data, 5, 2), 4, going_on=run(feed_of(Endless(), 5), 4, after=12).stop)
    assert data.reads == list(range(11, 20))


@pytest.mark.parametrize("kind", [OwnState, StateOfIterator])
@pytest.mark.parametrize("after", [1, 31, 32, 33, 34, 65, 66, 100, 101, 133, 200])
def test_state_is_kept_now_and_then_and_what_follows_it_is_dropped(kind, after):
    def feed(first_epoch, data):
        return feed_of(data, None, first_epoch)

    straight = run(feed(0, kind(100, 1)), 2)
    stopped = run(feed(0, kind(100, 1)), 2, after)
    mark = restored(stopped.stop.position).mark
    in_epoch = (after - 1) % 100 + 1
    assert (mark.epoch, mark.batch) == ((after - 1) // 100, (in_epoch - 1) // MARK_EVERY * MARK_EVERY + 1)
    data = kind(100, 1)
    resumed = run(feed(stopped.stop.epoch, data), 2, going_on=stopped.stop, look="after")
    assert stopped.rows + resumed.rows == straight.rows and not resumed.warnings
    assert data.drawn < len(resumed.rows) + MARK_EVERY + 1


def test_no_state_is_asked_for_without_checkpoints():
    class Untouchable(OwnState):
        def state_dict(self):
            raise AssertionError

    feed = feed_of(Untouchable())
    assert all(batch.mark is None for batch in feed.epoch(0)) and feed.position.mark is None


def test_set_epoch_spares_the_earlier_epochs():
    stop = run(feed_of(WithEpoch()), 3, after=24).stop
    data = WithEpoch()
    resumed = run(feed_of(data, None, 2), 3, going_on=stop)
    assert data.drawn == 4 + len(resumed.rows)
    assert "4 batches" in resumed.warnings[0] and "epoch" not in resumed.warnings[0].partition("must be")[0]


def test_replay_warns_once_and_says_how_much():
    stop = run(feed_of(Ordered()), 3, after=24).stop
    (warning,) = run(feed_of(Ordered(), None, 2), 3, going_on=stop).warnings
    assert "all batches of 2 epochs and 4 batches of the next must be read again" in warning
    assert "state_dict()" in warning and "order" not in warning
    stop = run(feed_of(Ordered()), 3, after=1).stop
    (warning,) = run(feed_of(Ordered()), 3, going_on=stop).warnings
    assert ": 1 batch must be read again" in warning


def test_state_that_cannot_be_written_is_told_of_once_and_read_again():
    class Odd(OwnState):
        def state_dict(self):
            return {"at": object()}

    straight = run(feed_of(Odd(100, 1)), 2)
    assert len(straight.warnings) == 1 and "TypeError" in straight.warnings[0] and "object" in straight.warnings[0]
    stopped = run(feed_of(Odd(100, 1)), 2, after=140)
    assert restored(stopped.stop.position).mark is None
    resumed = run(feed_of(Odd(100, 1), None, 1), 2, going_on=stopped.stop)
    assert stopped.rows + resumed.rows == straight.rows
    assert [REPLAYED in warning for warning in resumed.warnings] == [True, False]


def test_state_that_is_refused_is_read_again_and_the_warning_says_why():
    class Strict(OwnState):
        def load_state_dict(self, state):
            raise ValueError("another data source")

    straight = run(feed_of(Strict()), 3)
    stop = run(feed_of(Strict()), 3, after=14).stop
    resumed = run(feed_of(Strict(), None, 1), 3, going_on=stop)
    assert resumed.rows == straight.rows[14:]
    assert len(resumed.warnings) == 1 and "ValueError: another data source" in resumed.warnings[0]
    assert REPLAYED in resumed.warnings[0]


def test_sources_say_how_they_go_on():
    told = {kind: resumes(make_source(make(), **options)) for kind, (make, options) in SOURCES.items()}
    assert all(told[kind] == "position" for kind in BY_NUMBER)
    assert told["state"] == told["buckets-state"] == "state"
    assert told["function"] == "replay"


def test_generator_that_ends_before_the_position_is_refused():
    stop = run(feed_of(generator(), 4), 3, after=9).stop
    short = feed_of(iter(batches_of(list(range(10)))), 4, 2)
    with pytest.raises(CheckpointError, match=r"ends after 5 batches.* seen 9"), pytest.warns(UserWarning):
        short.resume(stop.epoch, stop.done, restored(stop.position))
    looked = feed_of(iter(batches_of(list(range(10)))), 4, 2)
    looked.first()
    with pytest.raises(CheckpointError, match=r"ends after 5 batches.* seen 9"), pytest.warns(UserWarning):
        looked.resume(stop.epoch, stop.done, restored(stop.position))


def test_generator_that_runs_dry_after_going_on_warns_as_the_straight_one():
    def short():
        return iter(batches_of(list(range(14))))

    straight = run(feed_of(short(), 4), 3)
    stopped = run(feed_of(short(), 4), 3, after=5)
    resumed = run(feed_of(short(), 4, 1), 3, going_on=stopped.stop)
    assert stopped.rows + resumed.rows == straight.rows
    assert straight.warnings == resumed.warnings[1:] and "after 3 of the 4" in straight.warnings[0]


@pytest.mark.parametrize("limit", [None, 10])
@pytest.mark.parametrize("kind", ["arrays", "iterable", "iterable-length", "state", "indexed"])
def test_epoch_with_all_its_batches_done_yields_nothing_and_warns_of_nothing_more(kind, limit):
    make, options = SOURCES[kind]
    stop = run(feed_of(make(), limit, **options), 3, after=10).stop
    assert stop[:2] == (0, 10)
    for look in (False, True):
        feed = feed_of(make(), limit, **options)
        feed.keep_marks()
        with pytest.warns(UserWarning) if kind.startswith("iterable") else contextlib.nullcontext():
            feed.resume(0, 10, restored(stop.position))
        if look:
            assert rows_of(feed.first())
        assert not feed.ready(0) and list(feed.epoch(0)) == []
        assert feed.ready(1) and len(list(feed.epoch(1))) == 10


def test_generator_with_nothing_left_still_shows_a_batch():
    def last():
        return iter(batches_of(list(range(8))))

    stop = run(feed_of(last(), 4), 1, after=4).stop
    for look in ("before", "after"):
        assert run(feed_of(last(), 4), 1, going_on=stop, look=look).rows == []


# Several processes

OWN = [[[1, 2], [3, 4], [5], [6]], [[11, 12], [13]], [[21], [22], [23]]]


class Shard(Ordered):
    """A process' own batches, in an order of their own."""

    def __init__(self, process):
        super().__init__()
        self.batches = [np.array(rows, np.float32)[:, None] for rows in OWN[process]]

    def __iter__(self):
        for number in self.random.permutation(len(self.batches)):
            self.drawn += 1
            yield self.batches[number]


class ShardWithState(OwnState):
    def __init__(self, process):
        super().__init__(rows=[8, 3, 5][process], size=1)


def on_processes(wrapped, limit, stops=None, after=None, epochs=3, processes=3, **options):
    def one(process, channel):
        first = 0 if stops is None else stops[process].epoch
        feed = feed_of_process(wrapped(process), process, channel, limit, first_epoch=first, **options)
        rows, stop = [], None
        feed.keep_marks()
        if stops is not None:
            feed.resume(stops[process].epoch, stops[process].done, restored(stops[process].position))
        for epoch in range(first, epochs):
            done = stops[process].done if stops is not None and epoch == first else 0
            for batch in feed.epoch(epoch):
                done += 1
                rows.append((rows_of(batch), batch.owns))
                if len(rows) == after:
                    return rows, Stop(epoch, done, written(feed.position))
        return rows, stop

    results = good(on_all(one, processes)[0])
    return [rows for rows, _ in results], [stop for _, stop in results]


@pytest.mark.filterwarnings("ignore:The processes' data have different numbers", f"ignore:.*{REPLAYED}")
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda process: PerProcess(Shard(process)),
        lambda process: PerProcess(ShardWithState(process)),
        lambda process: PerProcess(LengthBuckets(Shard(process), [1])),
        lambda process: Ordered(8),
        lambda process: OwnState(8),
        lambda process: PerProcess(np.arange([8, 3, 5][process], dtype=np.float32)[:, None]),
    ],
    ids=["own", "own-state", "own-buckets", "same", "same-state", "own-arrays"],
)
def test_processes_go_on_as_the_straight_run(wrapped, limit):
    """Processes' own data end at different batches: some have ended where the run goes on."""
    options = {"batch_size": 3, "shuffle": True} if isinstance(getattr(wrapped(0), "x", None), np.ndarray) else {}
    straight, _ = on_processes(wrapped, limit, **options)
    for after in (1, 2, 3, 4, 6, 7):
        stopped, stops = on_processes(wrapped, limit, after=after, **options)
        resumed, _ = on_processes(wrapped, limit, stops, **options)
        for process in range(3):
            assert stopped[process] + resumed[process] == straight[process], (after, process, stops[process])


# The data of the checkpoint


def facts(**changed):
    return {"kind": "ArraySource", "rows": 20, "batch_size": 2, "shuffle": True, "steps_per_epoch": None, **changed}


DECISIVE = {
    "kind": "LoadedSource",
    "rows": 21,
    "batch_size": 4,
    "shuffle": False,
    "steps_per_epoch": 5,
    "items": 7,
    "drop_last": True,
    "boundaries": [8],
    "num_batches": 3,
    "loader": "Rows",
}


@pytest.mark.parametrize("name", DECISIVE)
def test_other_data_is_refused_in_the_middle_of_an_epoch_and_told_of_at_its_start(name):
    now = facts(**{name: DECISIVE[name]})
    with pytest.raises(CheckpointError) as refused:
        require_same_data(facts(), now, True, "runs/step-00000014")
    message = str(refused.value)
    assert "'runs/step-00000014'" in message and "at an epoch's end" in message
    assert f"was {facts().get(name)!r} and is {DECISIVE[name]!r}" in message
    with pytest.warns(UserWarning, match=f"is {DECISIVE[name]!r}".replace("[", r"\[")) as warned:
        require_same_data(facts(), now, False, "runs/step-00000014")
    assert len(warned) == 1


@pytest.mark.parametrize("middle", [True, False])
def test_other_values_of_the_same_rows_are_told_of(middle):
    x = X.copy()
    x[3] += 1
    saved = json.loads(json.dumps(feed_of(X, batch_size=2).facts()))
    feed_of(X.copy(), batch_size=2).require_facts(saved, middle, "here")
    with pytest.warns(UserWarning, match="values of the arrays differ") as warned:
        feed_of(x, batch_size=2).require_facts(saved, middle, "here")
    assert len(warned) == 1
    with pytest.raises(CheckpointError, match="batch_size was 2 and is 4"):
        feed_of(x, batch_size=4).require_facts(saved, True, "here")
    with pytest.raises(CheckpointError, match="steps_per_epoch was None and is 4"):
        feed_of(x, 4, batch_size=2).require_facts(saved, True, "here")


def test_exactness_is_required_of_what_worker_processes_read_without_state():
    class Unsafe:
        num_batches, batch_size, restartable, read_ahead, resumes = 3, 1, True, False, "unsafe"

        def epoch(self, number, seed, own, first=0):
            return iter(())

    with pytest.raises(ArgumentError, match="resume='auto'"):
        feed_of(Unsafe()).require_exact()
    feed_of(Ordered()).require_exact()


# States


def test_state_comes_back_as_it_was():
    state = {
        "none": None,
        "flag": True,
        "int": 2**80,
        "floats": [0.1, float("inf"), -0.0],
        "text": "ä\0",
        "bytes": b"\x00\xff",
        "pair": (1, (2, [3])),
        "set": {3, "a", (1, 2)},
        "frozen": frozenset({b"x"}),
        5: {"__kind__": "tuple", (1, 2): "key"},
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "scalar": np.float32(0.1),
        "generator": np.random.default_rng(3).bit_generator.state,
        "random": random.Random(3).getstate(),
    }
    back = decode(encode(state))
    assert type(encode(state)) is bytes
    np.testing.assert_array_equal(back["array"], state["array"])
    assert back["array"].dtype == state["array"].dtype and back["array"].flags.writeable
    assert type(back["scalar"]) is np.float32
    for name in state.keys() - {"array"}:
        assert back[name] == state[name] and type(back[name]) is type(state[name]), name
    assert back.keys() == state.keys()
    assert np.isnan(decode(encode(float("nan"))))


@pytest.mark.parametrize(
    "value", [object(), np.array([None]), lambda: 0, 1j], ids=["object", "objects", "code", "complex"]
)
def test_state_without_such_a_form_is_refused(value):
    with pytest.raises(TypeError):
        encode({"a": [value]})


@pytest.mark.filterwarnings(f"ignore:.*{REPLAYED}")
def test_processes_whose_data_ends_before_the_position_are_refused():
    stop = Stop(0, 6, written(Position(0, 6)))

    def one(process, channel):
        feed = feed_of_process(Ordered(8), process, channel)
        feed.resume(stop.epoch, stop.done, restored(stop.position))

    assert "ends after 4 batches" in errors_of(on_all(one)[0], CheckpointError)
