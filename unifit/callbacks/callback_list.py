"""The callbacks of one run: which they are, and each hook called on them in their order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from unifit.callbacks.base import HOOKS, Callback
from unifit.callbacks.history import History
from unifit.callbacks.progress_bar import ProgressBar
from unifit.errors import ArgumentError

OLD_NAMES = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}
"""Keras' older names of two hooks, which many callbacks still define."""


class CallbackList:
    """Calls the callbacks' hooks in their order; a hook that nobody overrides costs nothing.

    Each hook is an attribute: `callbacks.on_epoch_end(epoch, logs)`; `callbacks.has_on_epoch_end` says whether anybody
    listens. `on_train_end` reaches every callback even when one of them raises.

    Args:
        callbacks: Callbacks, in the order of their calls.
        model: The model that they get.
        params: The facts of the run; see Callback.
    """

    def __init__(self, callbacks: list[Callback], model: Any, params: dict[str, Any]):
        self.callbacks = callbacks
        for callback in callbacks:
            callback.set_params(params)
            callback.set_model(model)
        for hook in HOOKS:
            bound = [found for callback in callbacks if (found := _overridden(callback, hook))]
            call_all = _all_of_even_so if hook == "on_train_end" else _all_of
            setattr(self, hook, bound[0] if len(bound) == 1 else call_all(bound))
            setattr(self, f"has_{hook}", bool(bound))

    if TYPE_CHECKING:

        def __getattr__(self, hook: str) -> Any: ...

    @property
    def paused(self) -> bool:
        """Whether one of them has stopped training to go on in a later run."""
        return any(callback.paused for callback in self.callbacks)

    def states(self) -> dict[str, dict[str, Any]]:
        """The callbacks' states that are not empty, by class name, numbered from the second of a class on."""
        return {name: state for name, callback in self._named() if (state := callback.state())}

    def load_states(self, states: dict[str, dict[str, Any]]) -> None:
        """The inverse of `states`. A callback without a state there starts afresh."""
        for name, callback in self._named():
            if name in states:
                callback.load_state(states[name])

    def _named(self) -> list[tuple[str, Callback]]:
        taken: dict[str, int] = {}
        named = []
        for callback in self.callbacks:
            name = type(callback).__name__
            number = taken[name] = taken.get(name, 0) + 1
            named.append((name if number == 1 else f"{name}_{number}", callback))
        return named


def fit_callbacks(given: Any, verbose: Any) -> tuple[list[Callback], History]:
    """A fit's callbacks: the user's, a progress bar, and last the history, which so gets what others put into the logs.

    A ProgressBar or History among the user's own is taken instead.

    Raises:
        ArgumentError: When `given` holds something that is no callback, or `verbose` has no meaning.
    """
    callbacks = run_callbacks(given, verbose)
    history = next((callback for callback in callbacks if isinstance(callback, History)), None)
    if history is None:
        history = History()
        callbacks.append(history)
    return callbacks, history


def run_callbacks(given: Any, verbose: Any) -> list[Callback]:
    """The callbacks of an evaluation or a prediction: the user's and a progress bar. Raises as `fit_callbacks`."""
    callbacks = _checked(given)
    bar = ProgressBar(verbose)
    if bar.verbose and not any(isinstance(callback, ProgressBar) for callback in callbacks):
        callbacks.append(bar)
    return callbacks


def _checked(given: Any) -> list[Callback]:
    if given is None:
        return []
    callbacks = [given] if isinstance(given, Callback) else given
    if not isinstance(callbacks, (list, tuple)):
        raise ArgumentError(
            f"callbacks={given!r} is of type {type(given).__name__}; pass a uf.callbacks.Callback or a list of them."
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ArgumentError(f"callbacks holds {callback!r}, which is no uf.callbacks.Callback. {_hint(callback)}")
    return list(callbacks)


def _hint(given: Any) -> str:
    if isinstance(given, type) and issubclass(given, Callback):
        return f"It is a class: write {given.__name__}(...)."
    if isinstance(given, str):
        return "There are no names for callbacks: pass an object such as uf.callbacks.EarlyStopping('val_loss')."
    if type(given).__module__.split(".")[0] == "keras":
        return "It is one of Keras: uf.callbacks has the same names."
    if callable(given):
        return "For a function use uf.callbacks.LambdaCallback(on_epoch_end=...)."
    return "Subclass uf.callbacks.Callback and override its hooks."


def _overridden(callback: Callback, hook: str) -> Callable[..., Any] | None:
    """The callback's method for this hook, or None where it has only the empty one."""
    if getattr(type(callback), hook) is not getattr(Callback, hook) or hook in vars(callback):
        return getattr(callback, hook)
    return getattr(callback, OLD_NAMES[hook], None) if hook in OLD_NAMES else None


def _all_of(hooks: list[Callable[..., Any]]) -> Callable[..., None]:
    def call_all(*args: Any) -> None:
        for hook in hooks:
            hook(*args)

    return call_all


def _all_of_even_so(hooks: list[Callable[..., Any]]) -> Callable[..., None]:
    """All of them, in their order, even when one raises; its exception goes on after the last."""

    def call_all(*args: Any) -> None:
        with ExitStack() as stack:
            for hook in reversed(hooks):
                stack.callback(hook, *args)

    return call_all
