"""One call of fit, evaluate or predict, as all processes of a job make it: its data, its name, and that all make it."""

from __future__ import annotations

import itertools
from typing import Any

from unifit.contract.data import Source
from unifit.data.feed import Feed
from unifit.data.fingerprint import fingerprint
from unifit.data.windows import Slicer
from unifit.peers import Peers, peers_of
from unifit.training.spec import TrainingSpec
from unifit.training.start_check import require_equal

_runs = itertools.count(1)
_feeds = itertools.count(1)


def next_run() -> str:
    """A name for the next run, the same on every process: they run the same script."""
    return f"run{next(_runs)}"


def make_feed(source: Source, devices: Any, limit: int | None = None, first_epoch: int = 0) -> Feed:
    """The feed of a source for this process."""
    peers = peers_of(devices)
    channel = None if peers.alone else peers.channel(f"feed{next(_feeds)}")
    return Feed(source, Slicer(devices.placement, source.batch_size), limit, first_epoch, channel=channel)


def require_same_run(
    peers: Peers, method: str, arguments: dict[str, Any], spec: TrainingSpec | None, feeds: dict[str, Feed | None]
) -> None:
    """Compares what the processes are about to do.

    Raises:
        PeerError: On all of them, where they do different things or read different data.
    """
    if peers.alone:
        return
    facts: dict[str, Any] = {"the method called": method, **{f"the argument {k}": v for k, v in arguments.items()}}
    if spec is not None:
        facts["the optimizer"] = spec.optimizer.get_config() | {"class": type(spec.optimizer).__name__}
        for name in ("gradient_accumulation_steps", "microbatch_size", "clip_norm", "clip_value"):
            facts[f"compile's {name}"] = getattr(spec, name)
    for name, feed in feeds.items():
        found = None if feed is None else fingerprint(feed.source) | {"limit": feed.limit}
        facts |= {f"{name}: {key}": value for key, value in (found or {"given": False}).items()}
    require_equal(peers, "run", lambda: facts)
