"""Agreement, failure and stopping between the processes of a job; threads over one store stand for processes here."""

import contextlib
import threading
import time

import pytest

import unifit.peers as peers_module
from unifit.contract.values import Placement
from unifit.errors import ArgumentError, PeerError
from unifit.peers import Peers
from unifit.training.stopping import StepAgreement

TIME_LIMIT_S = 20.0


class SharedStore:
    """unifit.contract.job.Store in one process."""

    def __init__(self):
        self.texts, self.changed, self.lost = {}, threading.Condition(), False

    def put(self, key, value):
        self._reach()
        with self.changed:
            self.texts[key] = value
            self.changed.notify_all()

    def get(self, key, timeout_s):
        self._reach()
        with self.changed:
            self.changed.wait_for(lambda: key in self.texts, timeout_s)
            return self.texts.get(key)

    def delete(self, key):
        self._reach()
        with self.changed:
            self.texts.pop(key, None)

    def _reach(self):
        if self.lost:
            raise ConnectionError("gone")


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(peers_module.sys, "excepthook", peers_module.sys.excepthook)
    monkeypatch.setattr(peers_module.atexit, "register", lambda function: None)
    shared = SharedStore()
    yield shared
    shared.lost = True  # ends the watching threads


def together(store, processes, *bodies):
    """Runs body(peers) for each process in a thread of its own; returns what each returned or raised."""
    outcomes = [None] * processes
    bodies = bodies * processes if len(bodies) == 1 else bodies

    def run(process, peers, body):
        try:
            outcomes[process] = body(peers)
        except Exception as error:
            outcomes[process] = error

    threads = [
        threading.Thread(target=run, args=(p, Peers(Placement(p, processes, processes), store), bodies[p]), daemon=True)
        for p in range(processes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIME_LIMIT_S)
        assert not thread.is_alive(), "a process hangs"
    return outcomes


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_agreement_gives_every_process_what_process_0_made_of_all_values(store, processes):
    def body(peers):
        return [peers.agree("x", [peers.process, turn], lambda given: given[::-1]) for turn in range(3)]

    expected = [[[p, turn] for p in range(processes)][::-1] for turn in range(3)]
    assert together(store, processes, body) == [expected] * processes


def test_agreements_of_several_threads_do_not_mix(store):
    def body(peers):
        results, channels = {}, {name: peers.channel() for name in "ab"}

        def speak(name):
            channel = channels[name]
            results[name] = [channel.agree(f"{name}{turn}", list) for turn in range(20)]

        threads = [threading.Thread(target=speak, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIME_LIMIT_S)
        return results

    for results in together(store, 3, body):
        for name in "ab":
            assert results[name] == [[f"{name}{turn}"] * 3 for turn in range(20)]


def test_agreement_leaves_little_behind(store):
    def body(peers):
        for _ in range(50):
            peers.agree("x", 1, sum)

    together(store, 3, body)
    assert len([key for key in store.texts if "/x/" in key]) <= 2 * 4


def test_exception_of_combine_is_raised_on_every_process(store):
    def refuse(given):
        raise ArgumentError("these do not fit")

    for outcome in together(store, 3, lambda peers: peers.agree("x", 1, refuse)):
        assert isinstance(outcome, ArgumentError) and "do not fit" in str(outcome)


def test_failure_of_one_process_is_raised_where_others_wait(store):
    def fails(peers):
        with peers.guard():
            raise ValueError("bad sample 17")

    def waits(peers):
        with peers.guard():
            peers.wait("x")

    first, second, third = together(store, 3, waits, fails, waits)
    assert isinstance(second, ValueError)
    for outcome in (first, third):
        assert isinstance(outcome, PeerError)
        assert "Process 1" in str(outcome) and "bad sample 17" in str(outcome) and "Traceback" in str(outcome)


def test_error_that_anothers_failure_caused_names_that_failure(store):
    def fails(peers):
        with peers.guard():
            raise ValueError("bad sample 17")

    def breaks(peers):
        with peers.guard():
            while store.get(peers_module.FAILURE, 0.1) is None:
                pass
            raise RuntimeError("connection closed by peer")

    _, outcome = together(store, 2, fails, breaks)
    assert isinstance(outcome, PeerError) and "bad sample 17" in str(outcome)
    assert isinstance(outcome.__cause__, RuntimeError)


def test_work_on_the_main_process_raises_everywhere(store):
    def body(peers):
        peers.on_main("save", lambda: (_ for _ in ()).throw(OSError("disk full")))

    first, *others = together(store, 3, body)
    assert isinstance(first, OSError)
    assert all(isinstance(other, PeerError) and "disk full" in str(other) for other in others)


def test_failure_before_an_agreement_does_not_shift_later_ones(store):
    """One process fails before the agreement that the others are in; all catch it, and go on with the next call."""

    def body(peers):
        with contextlib.suppress(ValueError, PeerError), peers.guard():
            if peers.process == 1:
                raise ValueError("no such file")
            peers.channel()
            peers.agree("same", "first", list)
        with peers.guard():
            return [peers.agree("same", "second", list), peers.channel().agree(peers.process, list)]

    assert together(store, 3, body) == [[["second"] * 3, [0, 1, 2]]] * 3


def test_agreements_of_many_runs_leave_little_behind(store):
    def body(peers):
        for _ in range(20):
            with peers.guard():
                peers.agree("same", 1, sum)
                peers.channel().agree(1, sum)

    together(store, 3, body)
    assert len([key for key in store.texts if "same" in key or "channel" in key]) <= 16


def test_process_that_has_left_the_script_is_named(store):
    def stays(peers):
        peers.wait("fit")

    outcome, _ = together(store, 2, stays, lambda peers: peers._leave())
    assert isinstance(outcome, PeerError) and "Process 1" in str(outcome) and "'fit'" in str(outcome)


def test_silent_process_is_taken_for_dead(store, monkeypatch):
    monkeypatch.setattr(peers_module, "SILENCE_S", 1.0)
    waiting = Peers(Placement(0, 2, 2), store)
    started = time.monotonic()
    with pytest.raises(PeerError, match="no sign of life"):
        waiting.wait("x")
    assert time.monotonic() - started < TIME_LIMIT_S


def test_lost_store_is_named(store):
    def waits(peers):
        peers.wait("x")

    threading.Timer(0.5, lambda: setattr(store, "lost", True)).start()
    outcome, _ = together(store, 2, waits, lambda peers: None)
    assert isinstance(outcome, PeerError) and "process 0" in str(outcome)


# Stopping


def run_steps(peers, steps, wish_after=None, delay_s=0.0):
    """A loop like fit's; returns the number of steps done."""
    with StepAgreement(peers, "stop", 0) as stopping:
        done = 0
        while done < steps:
            time.sleep(delay_s)
            done += 1
            if done == wish_after:
                stopping.wish()
            if stopping.due(done):
                break
        peers.wait("end")
        return done


def test_alone_a_wish_stops_at_once(store):
    assert run_steps(Peers(Placement(0, 1, 1), None), 10, wish_after=3) == 3


@pytest.mark.parametrize("wisher", [0, 2])
def test_all_stop_after_the_same_step(store, wisher):
    def body(peers):
        return run_steps(peers, 10_000, 30 if peers.process == wisher else None, 0.001 * (1 + peers.process))

    done = together(store, 3, body)
    assert len(set(done)) == 1 and 30 <= done[0] < 10_000


def test_no_process_is_kept_from_a_step_that_another_has_begun(store):
    """In lockstep, as collectives keep them: a step ends when all processes have begun it."""
    barrier = threading.Barrier(2)

    def body(peers):
        with StepAgreement(peers, "stop", 0) as stopping:
            for done in range(1, 5000):
                barrier.wait(TIME_LIMIT_S)
                if done == 50 and peers.process == 1:
                    stopping.wish()
                if stopping.due(done):
                    return done
        return None

    first, second = together(store, 2, body)
    assert first == second and 50 <= first < 5000


def test_wish_in_the_last_step_ends_the_run(store):
    def body(peers):
        return run_steps(peers, 40, 40 if peers.process == 0 else None, 0.001 * (1 + 3 * peers.process))

    assert together(store, 2, body) == [40, 40]


def test_several_wishes_are_one(store):
    def body(peers):
        return run_steps(peers, 10_000, 20 + peers.process, 0.001)

    done = together(store, 3, body)
    assert len(set(done)) == 1 and done[0] >= 20


def test_failure_ends_a_wait_for_the_verdict(store):
    def fails(peers):
        with StepAgreement(peers, "stop", 0) as stopping, peers.guard():
            stopping.due(1)
            raise ValueError("broken")

    def waits(peers):
        with StepAgreement(peers, "stop", 0) as stopping, peers.guard():
            done = 0
            while True:
                done += 1
                time.sleep(0.01)
                if stopping.due(done):
                    return done

    _, outcome = together(store, 2, fails, waits)
    assert isinstance(outcome, PeerError) and "broken" in str(outcome)
