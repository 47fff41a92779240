"""What SIGINT and SIGTERM do inside `Signals`, after it, and in processes that are forked meanwhile."""

import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import unifit.training.signals as signals
from unifit.launch.interruption import REPEATED_WITHIN_S, end_of, obeyed
from unifit.training.signals import Signals

LIMIT_S = 60.0


def earlier_handler(number, frame):
    raise AssertionError(f"signal {number} outside")


@pytest.fixture(autouse=True)
def handlers():
    """A handler of ours around each test, so that a signal that is not heard fails the test and not the session."""
    before = {number: signal.signal(number, earlier_handler) for number in signals.HEARD}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def clock(monkeypatch):
    """The time, which the test sets."""
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    return now


def send(number):
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:  # which would end the session
        raise AssertionError("it was taken for the second signal") from None


def test_first_signal_is_noted_and_told(capfd):
    with Signals(saves=True) as heard:
        assert heard.received is None
        send(signal.SIGTERM)
        assert heard.received == signal.SIGTERM
    told = capfd.readouterr().err
    assert told == "\nunifit: SIGTERM: saves a checkpoint and ends after this step; once more ends at once\n"
    assert [signal.getsignal(number) for number in signals.HEARD] == [earlier_handler] * 2


def test_second_signal_raises_and_brings_the_earlier_handlers_back(clock):
    with Signals() as heard:
        send(signal.SIGINT)
        clock[0] += REPEATED_WITHIN_S
        send(signal.SIGINT)  # the same one, on another way
        clock[0] += 0.01
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert heard.received == signal.SIGINT
        assert [signal.getsignal(number) for number in signals.HEARD] == [earlier_handler] * 2


def test_another_signal_is_a_second_one_however_soon(clock):
    with Signals():
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_ignored_signals_stay_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Signals() as heard:
        send(signal.SIGINT)
        assert heard.received is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_handler_that_was_set_meanwhile_stays():
    seen = []
    with Signals():
        signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    send(signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is earlier_handler


def test_handler_of_c_code_comes_back(tmp_path):
    with (tmp_path / "traces").open("w") as file:
        faulthandler.register(signal.SIGTERM, file=file)
        try:
            with Signals() as heard:
                send(signal.SIGTERM)
                assert heard.received == signal.SIGTERM and not (tmp_path / "traces").read_text()
            send(signal.SIGTERM)
            assert "test_handler_of_c_code" in (tmp_path / "traces").read_text()
        finally:
            faulthandler.unregister(signal.SIGTERM)


def test_nothing_changes_in_another_thread():
    seen = []

    def enter():
        with Signals() as heard:
            seen.extend([signal.getsignal(signal.SIGINT), heard.received])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [earlier_handler, None]


def test_inner_and_outer_share_what_they_hear():
    with Signals() as outer:
        with Signals() as inner:
            send(signal.SIGTERM)
            assert inner.received == outer.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == outer._hear
        with Signals() as late:
            assert late.received == signal.SIGTERM


PROGRAM = """
    import os, signal, sys, time
    from unifit.training.signals import Signals

    def forked(numbers):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for number in numbers:
                os.kill(os.getpid(), number)
            os.write(write, b"goes on")
            os._exit(0)
        os.close(write)
        said = os.read(read, 100)
        print(said.decode(), os.waitpid(child, 0)[1])

    with Signals() as heard:
        forked([signal.SIGINT, signal.SIGINT])
        forked([signal.SIGTERM])
        assert heard.received is None
        os.kill(os.getpid(), signal.SIGINT)
        print("heard", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print("not reached")
"""


def test_forked_processes_and_a_second_sigterm():
    """A loader's workers outlive Ctrl-C and obey SIGTERM; a second signal ends the process itself."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout.splitlines() == ["goes on 0", f" {int(signal.SIGTERM)}", "heard"]
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.count("unifit: ") == 1


def test_end_of_a_process_tells_whether_it_obeyed():
    assert type(end_of(signal.SIGINT)) is KeyboardInterrupt
    assert end_of(signal.SIGTERM).code == 143
    ends = {143: signal.SIGTERM, 130: signal.SIGINT, -2: signal.SIGINT, 129: signal.SIGHUP}
    for status in (0, 1, -9, -15, 137, 128, 2, *ends):
        assert obeyed(status) == ends.get(status)
