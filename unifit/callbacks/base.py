"""The base of callbacks: Keras' hooks, the facts of a run, and a state that survives a restart."""

from __future__ import annotations

import sys
from typing import Any

HOOKS = tuple(
    f"on_{name}"
    for name in (
        "train_begin train_end epoch_begin epoch_end train_batch_begin train_batch_end test_begin test_end "
        "test_batch_begin test_batch_end predict_begin predict_end predict_batch_begin predict_batch_end"
    ).split()
)


class Callback:
    """Observer of a run; override the hooks you need. Hooks run on every process, in one order, with the same logs.

    A step (`batch`) is one optimizer update. At the end of an epoch `logs` is a dict of floats, shared by all
    callbacks; in batch hooks it is a mapping that is read from the device when it is looked at, and costs nothing until
    then. Look at it inside the hook: later it would show later figures. Setting `model.stop_training = True` in any
    hook ends training after the current step.

    Attributes:
        model: The model, set before the first hook.
        params: Facts about the run: "epochs", "steps" (updates an epoch, or batches of an evaluation or prediction;
            None when unknown), "verbose" (0, 1 or 2), "validation" (whether fit has validation data), "process" (the
            number of this process), "resumed_at" (epoch, and steps of it that are done, where a fit goes on in the
            middle of one).
        state_names: Attributes that make up the callback's state, for `state` and `load_state`.

    Example:
        >>> class Patience(Callback):
        ...     def on_epoch_end(self, epoch, logs=None):
        ...         if logs["loss"] < 0.1:
        ...             self.model.stop_training = True
    """

    model: Any = None
    params: dict[str, Any] = {}
    state_names: tuple[str, ...] = ()
    resumed = False
    """Whether a state was loaded that the next training goes on from; `on_train_begin` of such a callback starts afresh
    otherwise."""
    paused = False
    """Whether the callback has stopped training for a later run to go on (a time limit): it is not finished."""

    def set_model(self, model: Any) -> None:
        """Called once before the first hook."""
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        """Called once before the first hook."""
        self.params = params

    @property
    def on_main_process(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return self.params.get("process", 0) == 0

    def say(self, message: str) -> None:
        """Prints a line to standard output, on the main process only and above a live progress bar."""
        if self.on_main_process:
            from tqdm import tqdm  # here: 40 ms that only a run that prints has to pay

            tqdm.write(message, file=sys.stdout)
            sys.stdout.flush()

    def state(self) -> dict[str, Any]:
        """What has to outlive a restart: numbers, strings, NumPy arrays, and lists and dicts of them."""
        return {name: getattr(self, name) for name in self.state_names}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`; call it before training begins."""
        for name in self.state_names:
            if name in state:
                setattr(self, name, state[name])
        self.resumed = True

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
        """After it. With several processes reading `logs` communicates: read it on all of them or on none."""

    def on_predict_begin(self, logs: Any = None) -> None:
        """Before a prediction."""

    def on_predict_end(self, logs: Any = None) -> None:
        """After it."""

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before a prediction batch."""

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """After it."""
