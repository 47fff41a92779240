"""One call of fit, evaluate or predict, as all processes of a job make it: its data, and that all make the same."""

from __future__ import annotations

from typing import Any

from unifit.contract.data import Source
from unifit.contract.optimizers import Native
from unifit.data.feed import Feed
from unifit.data.fingerprint import fingerprint
from unifit.data.windows import Slicer
from unifit.peers import Peers, peers_of
from unifit.training.spec import TrainingSpec
from unifit.training.start_check import require_equal

FIRST_RATES = 8

COMPARED = (
    "gradient_accumulation_steps microbatch_size clip_norm clip_value clip_parameter_norm precision skip_nonfinite ema "
    "reduction_dtype matmul_precision"
).split()
"""What compile was given and is compared over the processes, besides the optimizer."""


def make_feed(source: Source, devices: Any, limit: int | None = None, first_epoch: int = 0) -> Feed:
    """The feed of a source for this process."""
    peers = peers_of(devices)
    channel = None if peers.alone else peers.channel()
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
        rule = spec.optimizer.rule  # a frozen value, but for a framework's own, whose text has addresses
        facts["the optimizer"] = type(rule).__name__ if isinstance(rule, Native) else str(rule)
        facts["the first learning rates"] = spec.optimizer.rates(0, FIRST_RATES).tolist()
        facts |= {f"compile's {name}": str(getattr(spec, name)) for name in COMPARED}
    for name, feed in feeds.items():
        found = None if feed is None else fingerprint(feed.source) | {"limit": feed.limit}
        facts |= {f"{name}: {key}": value for key, value in (found or {"given": False}).items()}
    require_equal(peers, "run", lambda: facts)
