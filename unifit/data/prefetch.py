"""Items made ahead of the loop: by a thread where that pays, else on demand. The order is the same either way."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

DEPTH = 2
"""Items that wait while the loop works on one: one hides an uneven step, a second an uneven read."""

PATIENCE_S = 5.0
"""How long a loop that stops early waits for a read under way; a longer one ends its thread when it returns."""

_END = object()


@contextlib.contextmanager
def ahead(
    items: Iterable[Item], make: Callable[[Item], Made], *, threaded: bool, depth: int = DEPTH, in_step: bool = False
) -> Iterator[Iterator[Made]]:
    """`make(item)` for each item, in order. With `threaded`, up to `depth` of them wait ready.

    An exception in `items` or `make` comes out of the iterator in its turn, with its traceback. When the block ends,
    early or not, the thread stops and `items` is closed.

    Args:
        items: What to make something of.
        make: What to make of an item.
        threaded: Whether a thread does it.
        depth: How many may wait.
        in_step: Whether processes read `items` in step, waiting for each other at each: after a block that ends early,
            the thread still makes all there is room for, as in every process that has taken as many.

    Example:
        >>> with ahead(range(3), float, threaded=True) as made:
        ...     list(made)
        [0.0, 1.0, 2.0]
    """
    if not threaded:
        yield map(make, items)
        return
    worker = _Worker(items, make, depth)
    try:
        yield worker.results()
    finally:
        worker.stop(at_once=not in_step)


class _Worker:
    """The thread. `ready` carries results; `room` carries True for each result that may still be made, then False."""

    def __init__(self, items: Iterable[Any], make: Callable[[Any], Any], depth: int):
        self.ready: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self.room: SimpleQueue[bool] = SimpleQueue()
        self.stopping = False
        for _ in range(depth):
            self.room.put(True)
        context = contextvars.copy_context()  # np.errstate and its like hold in the thread too
        self.thread = threading.Thread(
            target=context.run, args=(self._run, items, make), name="unifit-read-ahead", daemon=True
        )
        self.thread.start()

    def _run(self, items: Iterable[Any], make: Callable[[Any], Any]) -> None:
        iterator = iter(items)
        try:
            while True:
                if not self.room.get() or self.stopping:
                    break
                item = next(iterator, _END)
                if item is _END:
                    self.ready.put(("end", None))
                    break
                self.ready.put(("item", make(item)))
                del item
        except BaseException as error:
            self.ready.put(("error", error))
        finally:
            close = getattr(iterator, "close", None)  # a generator must be closed by the thread that runs it
            if close is not None:
                close()

    def results(self) -> Iterator[Any]:
        while True:
            kind, value = self.ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            self.room.put(True)
            yield value

    def stop(self, at_once: bool) -> None:
        self.stopping = at_once
        self.room.put(False)
        self.thread.join(PATIENCE_S)
