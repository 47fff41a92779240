"""The one ambient value: what a forward pass needs besides its arguments. An objective or outermost call opens it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

# A context variable, not a global: tensorflow's strategies run each replica's function in a thread of its own.
_ambient: ContextVar[CallContext | None] = ContextVar("unifit_call", default=None)

context = _ambient.get
"""The CallContext of the running forward pass, or None outside any. Layers and user code read it as `uf.context()`."""


class CallContext:
    """One forward pass of a model.

    Attributes:
        training: Whether layers act as in training.
        compute: The dtype in which layers compute that name none of their own; None where all is float32 and nothing
            needs a cast.
        abstract: Whether only shapes are inferred; layers may record weights then, and buffers are not written.
        losses: Scalars that layers added by `add_loss`.
        looked_at_valid: Whether `valid` was read since this was last set to False.
    """

    __slots__ = (
        "training", "compute", "abstract", "losses", "looked_at_valid",
        "_valid", "_masks", "_make_stream", "_stream", "_sum_over_devices",
    )  # fmt: skip

    def __init__(
        self,
        *,
        training: bool,
        stream: Callable[[], Any],
        valid: Any = None,
        abstract: bool = False,
        compute: str | None = None,
        sum_over_devices: Callable[[Any], Any] | None = None,
    ):
        self.training = training
        self.compute = compute
        self._valid = valid
        self.looked_at_valid = False
        self.abstract = abstract
        self.losses: list[Any] = []
        self._masks: dict[int, tuple[Any, Any]] = {}
        self._make_stream = stream
        self._stream: Any = None
        self._sum_over_devices = sum_over_devices

    @property
    def valid(self) -> Any:
        """bool, shape (rows,): False for padding rows. None when every row is valid."""
        self.looked_at_valid = True
        return self._valid

    @valid.setter
    def valid(self, value: Any) -> None:
        self._valid = value

    @property
    def stream(self) -> Any:
        """The pass' random stream; `uf.random` draws from it where no seed is given."""
        if self._stream is None:
            self._stream = self._make_stream()
        return self._stream

    @property
    def spans_devices(self) -> bool:
        """Whether other devices share this micro-batch, so that `sum_over_devices` communicates."""
        return self._sum_over_devices is not None

    def sum_over_devices(self, x: Any) -> Any:
        """Differentiable sum of `x` over the devices that share this micro-batch; `x` itself on one device."""
        return x if self._sum_over_devices is None else self._sum_over_devices(x)

    @property
    def has_masks(self) -> bool:
        """Whether any array of this pass carries a mask."""
        return bool(self._masks)

    def mask_of(self, value: Any) -> Any:
        """The mask attached to this very array (bool, a prefix of its shape), or None."""
        entry = self._masks.get(id(value))
        return None if entry is None else entry[1]

    def set_mask(self, value: Any, mask: Any) -> None:
        """Attaches a mask to an array; the array is kept alive, so that its identity cannot be reused."""
        self._masks[id(value)] = (value, mask)

    @contextlib.contextmanager
    def open(self) -> Iterator[CallContext]:
        """Makes this the ambient context."""
        token = _ambient.set(self)
        try:
            yield self
        finally:
            _ambient.reset(token)
