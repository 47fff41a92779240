"""LambdaCallback: hooks as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unifit.callbacks.base import HOOKS, Callback
from unifit.errors import ArgumentError, unknown_name

Hook = Callable[..., Any] | None


class LambdaCallback(Callback):
    """A callback made of functions.

    Args:
        on_epoch_begin, on_epoch_end: Functions (epoch, logs).
        on_train_begin, on_train_end: Functions (logs).
        on_train_batch_begin, on_train_batch_end: Functions (batch, logs).
        hooks: Any other hook of Callback.

    Example:
        >>> shown = LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["loss"]))
    """

    def __init__(
        self,
        on_epoch_begin: Hook = None,
        on_epoch_end: Hook = None,
        on_train_begin: Hook = None,
        on_train_end: Hook = None,
        on_train_batch_begin: Hook = None,
        on_train_batch_end: Hook = None,
        **hooks: Hook,
    ):
        hooks |= {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            "on_train_batch_begin": on_train_batch_begin,
            "on_train_batch_end": on_train_batch_end,
        }
        for name, function in hooks.items():
            if name not in HOOKS:
                raise unknown_name("hook", name, HOOKS)
            if function is None:
                continue
            if not callable(function):
                raise ArgumentError(f"LambdaCallback got {name}={function!r}; it needs a function.")
            vars(self)[name] = function
