"""The control plane on PyTorch: unifit.contract.job.Store over the store that a process group was joined through."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.05
# Between a look and the read after it somebody may delete the key; the read waits this long then.
_READ_LIMIT = timedelta(seconds=1)


class Store:
    """Texts in one of torch's stores, each call of which lasts a moment: what waits, waits between calls.

    A client of torch's is one socket, and a read in one thread that waited in it would hold all the others up.

    Args:
        base: Where the texts lie. On a TCPStore this one has a connection of its own.
        prefix: What its keys begin with, so that they meet nobody else's.
    """

    def __init__(self, base: dist.Store, prefix: str):
        # Held on to: in the process that keeps the store it is the server, which ends with its last owner.
        self._base = base
        while isinstance(base, dist.PrefixStore):
            base = base.underlying_store
        if isinstance(base, dist.TCPStore):
            base = dist.TCPStore(base.host, base.port, is_master=False)
            base.set_timeout(_READ_LIMIT)
        self._store = dist.PrefixStore(prefix, base)
        self._lost: str | None = None

    def put(self, key: str, value: str) -> None:
        self._call(self._store.set, key, value)

    def get(self, key: str, timeout_s: float) -> str | None:
        if not self.wait([key], timeout_s):
            return None
        try:
            value: bytes = self._call(self._store.get, key)
        except dist.DistStoreError:
            return None
        return value.decode()

    def delete(self, key: str) -> None:
        self._call(self._store.delete_key, key)

    def wait(self, keys: list[str], timeout_s: float) -> bool:
        """Whether all of the keys were there within `timeout_s`. Raises as `get` does."""
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_WAIT_S
        while not self._call(self._store.check, keys):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_WAIT_S)
        return True

    def _call(self, function: Any, *arguments: Any) -> Any:
        """torch's answer; its complaints about the connection become ConnectionErrors."""
        # A lost connection stays lost, and torch would write a warning at every attempt to use it.
        if self._lost is not None:
            raise ConnectionError(self._lost)
        try:
            return function(*arguments)
        except dist.DistStoreError:
            raise
        except RuntimeError as error:
            self._lost = f"The store of this job cannot be reached; the process that keeps it is gone. torch: {error}"
            raise ConnectionError(self._lost) from error
