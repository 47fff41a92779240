"""Processes as threads, and their channels as queues: what the tests of several processes' data share."""

import json
import threading
from types import SimpleNamespace

from unifit.contract.values import Placement
from unifit.data.adapt import make_source
from unifit.data.feed import Feed
from unifit.data.slicer import Slicer
from unifit.errors import ArgumentError, UnifitError

WAIT_S = 20


class Hub:
    """Channels between threads: values travel as JSON, and what combine raises is raised everywhere."""

    def __init__(self, processes):
        self.processes, self.rounds = processes, 0
        self.given, self.answer = [None] * processes, None
        self.barrier = threading.Barrier(processes, timeout=WAIT_S)

    def channel(self, process):
        def agree(mine, combine):
            self.given[process] = json.loads(json.dumps(mine, allow_nan=False))
            self.barrier.wait()
            if process == 0:
                self.rounds += 1
                try:
                    self.answer = ("value", json.loads(json.dumps(combine(list(self.given)))))
                except UnifitError as error:
                    self.answer = ("raised", error)
            self.barrier.wait()
            kind, answer = self.answer
            self.barrier.wait()
            if kind == "raised":
                raise answer
            return answer

        return SimpleNamespace(process=process, processes=self.processes, agree=agree)


def on_all(function, processes=2):
    """`function(process, channel)` in as many threads; what each returned or raised."""
    hub, results = Hub(processes), [None] * processes

    def run(process):
        try:
            results[process] = function(process, hub.channel(process))
        except BaseException as error:
            results[process] = error
            if not isinstance(error, (UnifitError, threading.BrokenBarrierError)):
                hub.barrier.abort()

    threads = [threading.Thread(target=run, args=(process,), daemon=True) for process in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads), "a process waits for one that has left"
    return results, hub


def feed_of(data, process, channel, limit=None, local=1, first_epoch=0, **options):
    placement = Placement(process, channel.processes, channel.processes * local)
    source = make_source(data, placement=placement, **options)
    return Feed(source, Slicer(placement, source.batch_size), limit, first_epoch, channel=channel)


def good(results):
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def errors_of(results, kind=ArgumentError):
    assert all(type(result) is kind for result in results), results
    assert len({str(result) for result in results}) == 1
    return str(results[0])
