"""Reading ahead: order, bounds, exceptions, and threads that end."""

import threading
import time
import traceback

import numpy as np
import pytest

from unifit.data.prefetch import DEPTH, ahead

NAME = "unifit-read-ahead"
WAIT_S = 5.0


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    deadline = time.monotonic() + WAIT_S
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def read_all(items, make=lambda item: item, threaded=True):
    with ahead(items, make, threaded=threaded) as made:
        return list(made)


@pytest.mark.parametrize("threaded", [False, True])
def test_ahead_keeps_the_order(threaded):
    assert read_all(range(1000), str, threaded) == [str(number) for number in range(1000)]
    assert read_all([], str, threaded) == []


def test_ahead_works_in_one_other_thread():
    makers = set(read_all(range(10), lambda item: threading.get_ident()))
    assert len(makers) == 1 and threading.get_ident() not in makers
    assert set(read_all(range(10), lambda item: threading.get_ident(), False)) == {threading.get_ident()}


def test_ahead_is_bounded():
    made = []
    with ahead(range(100), made.append, threaded=True) as results:
        next(results)
        deadline = time.monotonic() + WAIT_S
        while len(made) < 1 + DEPTH and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert len(made) == 1 + DEPTH


@pytest.mark.parametrize("where", ["items", "make"])
def test_ahead_exception_comes_in_its_turn_with_its_traceback(where):
    def broken_here(number):
        if number == 3:
            raise ValueError("bad sample 3")
        return number

    items = map(broken_here, range(9)) if where == "items" else range(9)
    got = []
    with pytest.raises(ValueError, match="bad sample 3") as caught:
        with ahead(items, broken_here, threaded=True) as made:
            for item in made:
                got.append(item)
    assert got == [0, 1, 2]
    assert "broken_here" in "".join(traceback.format_tb(caught.value.__traceback__))


def test_ahead_stop_iteration_of_user_code_is_no_end():
    def stop(number):
        raise StopIteration

    with pytest.raises(RuntimeError):
        read_all(range(3), stop)


@pytest.mark.parametrize("ending", ["break", "raise"])
def test_ahead_stops_and_closes_when_the_loop_ends_early(ending):
    closed = []

    def items():
        try:
            yield from range(10**9)
        finally:
            closed.append(threading.current_thread().name)

    started = time.monotonic()
    with pytest.raises(KeyError) if ending == "raise" else pytest.MonkeyPatch.context():
        with ahead(items(), str, threaded=True) as made:
            next(made)
            if ending == "raise":
                raise KeyError
    assert time.monotonic() - started < 1.0
    assert closed == [NAME] and not threads()


def test_ahead_does_not_wait_forever_for_a_stuck_read(monkeypatch):
    monkeypatch.setattr("unifit.data.prefetch.PATIENCE_S", 0.05)
    release = threading.Event()

    def items():
        yield 1
        release.wait(WAIT_S)

    with ahead(items(), str, threaded=True) as made:
        next(made)
    assert threads()[0].daemon
    release.set()


def test_ahead_keeps_numpy_error_state():
    with np.errstate(divide="raise"):
        with pytest.raises(FloatingPointError):
            read_all([0.0], lambda item: np.float64(1) / np.float64(item))


def test_ahead_in_step_makes_as_many_wherever_its_block_ends():
    for taken in (1, 2, 4):
        made = []
        with ahead(range(20), made.append, threaded=True, in_step=True) as running:
            for _ in range(taken):
                next(running)
        assert made == list(range(taken + DEPTH))
