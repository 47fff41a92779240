"""The base of callbacks: Keras' hooks, and the list that calls them in one order."""

from __future__ import annotations

from typing import Any

HOOKS = tuple(
    f"on_{name}"
    for name in (
        "train_begin train_end epoch_begin epoch_end train_batch_begin train_batch_end test_begin test_end test_batch_begin "
        "test_batch_end predict_begin predict_end predict_batch_begin predict_batch_end"
    ).split()
)


class Callback:
    """Observer of a run; override the hooks you need. Hooks run on every process with the same logs.

    Attributes:
        model: The model, set before the first hook.
        params: Facts about the run: "epochs", "steps" (updates an epoch, None when unknown), "verbose".

    A step is one optimizer update. Logs of batch hooks are read from the device when they are looked at.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.params: dict[str, Any] = {}

    def set_model(self, model: Any) -> None:
        """Called once before the first hook."""
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        """Called once before the first hook."""
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Before the first epoch."""

    def on_train_end(self, logs: Any = None) -> None:
        """After the last epoch, also when training ends by an exception or an interrupt."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Before the epoch's first step."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """After the epoch and its validation; `logs` is a dict of floats, with `val_` keys."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before step number `batch` of the epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After it; `logs` holds the epoch's running figures."""

    def on_test_begin(self, logs: Any = None) -> None:
        """Before an evaluation, validation included."""

    def on_test_end(self, logs: Any = None) -> None:
        """After it."""

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before an evaluation batch."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """After it."""

    def on_predict_begin(self, logs: Any = None) -> None:
        """Before a prediction."""

    def on_predict_end(self, logs: Any = None) -> None:
        """After it."""

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before a prediction batch."""

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """After it."""


class CallbackList:
    """Calls the callbacks' hooks in their order; a hook that nobody overrides costs nothing.

    Each hook is an attribute: `callbacks.on_epoch_end(epoch, logs)`.
    """

    def __init__(self, callbacks: list[Any], model: Any, params: dict[str, Any]):
        self.callbacks = callbacks
        for callback in callbacks:
            callback.set_model(model)
            callback.set_params(params)
        for hook in HOOKS:
            bound = [getattr(callback, hook) for callback in callbacks if _overrides(callback, hook)]
            setattr(self, hook, bound[0] if len(bound) == 1 else _all_of(bound))
            setattr(self, f"has_{hook}", bool(bound))


def _overrides(callback: Any, hook: str) -> bool:
    return getattr(type(callback), hook, None) is not getattr(Callback, hook) or hook in vars(callback)


def _all_of(hooks: list[Any]) -> Any:
    def call_all(*args: Any) -> None:
        for hook in hooks:
            hook(*args)

    return call_all
