"""The control plane on JAX: small texts that jax.distributed's coordination service keeps for all processes."""

from __future__ import annotations

import atexit
import ctypes
import time
from collections.abc import Callable
from typing import Any

import jax

# JAX shows its coordination service and its clean-up nowhere else; this file is the only one that reaches for them.
from jax._src import xla_bridge
from jax._src.api import clean_up
from jax._src.dispatch import wait_for_tokens
from jax._src.distributed import global_state

PREFIX = "unifit/"

SLICE_S = 0.5
"""The longest single wait inside JAX: between two of them Python sees Ctrl-C and the end of the service."""


class Store:
    """unifit.contract.job.Store over jax.distributed. JAX gives the interpreter free while a call waits."""

    def put(self, key: str, value: str) -> None:
        _asked(lambda client: client.key_value_set(PREFIX + key, value, allow_overwrite=True))

    def get(self, key: str, timeout_s: float) -> str | None:
        if timeout_s <= 0:
            return _asked(lambda client: client.key_value_try_get(PREFIX + key))
        until = time.monotonic() + timeout_s
        while (rest := until - time.monotonic()) > 0:
            milliseconds = max(1, int(1000 * min(rest, SLICE_S)))
            value = _asked(lambda client: client.blocking_key_value_get(PREFIX + key, milliseconds))  # noqa: B023
            if value is not None:
                return value
        return None

    def delete(self, key: str) -> None:
        _asked(lambda client: client.key_value_delete(PREFIX + key))


def _asked(request: Callable[[Any], Any]) -> Any:
    """The service's answer; None where it has no such key, or none yet.

    Raises:
        ConnectionError: When it does not answer.
    """
    client = global_state.client
    if client is None:
        raise ConnectionError("This process has left its job: jax.distributed is shut down.")
    try:
        return request(client)
    except jax.errors.JaxRuntimeError as error:
        if str(error).startswith(("NOT_FOUND", "DEADLINE_EXCEEDED")):
            return None
        raise ConnectionError(f"The store of the job, which process 0 keeps, does not answer: {error}") from error


def already_used() -> bool:
    """Whether JAX has touched its devices: then it can join no job any more."""
    return bool(xla_bridge.backends_are_initialized())


def forget_service() -> None:
    """Undoes a start of jax.distributed that failed half-way, so that the next one does not find its remains."""
    service = global_state.service
    global_state.client = global_state.service = None
    if service is not None:
        service.shutdown()


def skip_clean_up() -> None:
    """Has the interpreter end without JAX's clean-up, which waits for computations in flight and for all processes.

    Without it the interpreter would take JAX's objects apart in some order: it would wait all the same, or the service
    would go before its client, which takes that for a death and aborts. So they get a reference that nobody gives back.
    """
    atexit.unregister(clean_up)
    atexit.unregister(wait_for_tokens)
    for kept in (global_state.client, global_state.service, *xla_bridge._backends.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
