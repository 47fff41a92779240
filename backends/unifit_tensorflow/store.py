"""The store of a job on TensorFlow: the key-value service that its coordination service keeps in process 0.

The service has no way to ask whether a key is there: it waits for it, and each wait that runs out leaves some 20 kB
behind, in the process that waited and in process 0. So a key that was waited for in vain gets a mark that says "nothing
here yet"; from then on it can be read at once, as often as anybody likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import tensorflow as tf

# Private: TensorFlow has no public way to the key-value service of a job. Nothing else in this file needs it.
from tensorflow.python.eager import context

NOTHING_YET = ""
TEXT = "="
"""What stands before every text, which tells it from NOTHING_YET."""

FIRST_WAIT_S = 0.2
"""How long the service itself waits for a key that this process has not seen; it answers without delay."""

POLL_S = 0.02
"""How often a key is read while it has the mark."""

READ_S = 1.0
"""How long the service may take to answer for a key that is there."""

REMEMBERED_KEYS = 1000


class CoordinationStore:
    """unifit.contract.job.Store over the coordination service that MultiWorkerMirroredStrategy has started."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def put(self, key: str, value: str) -> None:
        # The service refuses to overwrite: the old value goes first, and who looks in between finds nothing. He may
        # then set the mark, so that it takes another round.
        while not self._insert(key, TEXT + value):
            self.delete(key)

    def get(self, key: str, timeout_s: float) -> str | None:
        end = time.monotonic() + timeout_s
        text = None
        if timeout_s > 0 and key not in self._seen:
            text = self._read(key, min(timeout_s, FIRST_WAIT_S))
        while not text:
            text = self._look(key)
            if text == NOTHING_YET:
                left = end - time.monotonic()
                if left <= 0:
                    return None
                time.sleep(min(POLL_S, left))
        self._remember(key)
        return text.removeprefix(TEXT)

    def delete(self, key: str) -> None:
        call(context.context().delete_config_key_value, service_key(key))

    def _look(self, key: str) -> str | None:
        """What stands under a key, NOTHING_YET included; sets that mark where nothing does. None: it has just gone."""
        if key not in self._seen and self._insert(key, NOTHING_YET):
            self._remember(key)
            return NOTHING_YET
        text = self._read(key, READ_S)
        if text is None:
            self._seen.discard(key)
        return text

    def _insert(self, key: str, text: str) -> bool:
        """Whether the key was free, and has the text now."""
        try:
            call(context.context().set_config_key_value, service_key(key), text)
        except tf.errors.AlreadyExistsError:
            return False
        return True

    def _read(self, key: str, timeout_s: float) -> str | None:
        milliseconds = max(1, int(1000 * timeout_s))  # 0 would wait for ever
        try:
            text: str = call(context.context().get_config_key_value, service_key(key), milliseconds)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return None
        return text

    def _remember(self, key: str) -> None:
        if len(self._seen) >= REMEMBERED_KEYS:
            self._seen.clear()
        self._seen.add(key)


def service_key(key: str) -> str:
    """The key at the service, where a slash makes directories and deleting one deletes what lies below."""
    return "unifit/" + quote(key, safe="")


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A call of the service.

    Raises:
        ConnectionError: When it cannot be reached.
    """
    try:
        return function(*arguments)
    except (tf.errors.AlreadyExistsError, tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
        raise
    except tf.errors.OpError as error:
        raise ConnectionError(
            f"The store of this job, which process 0 keeps, cannot be reached: {type(error).__name__}: {error.message}"
        ) from error
