"""SwapEMAWeights: evaluations during training score the running average of the weights."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from unifit.callbacks.base import Callback


class SwapEMAWeights(Callback):
    """Puts the averaged weights of `compile(ema=...)` in place for each evaluation, and the model's own back after it.

    With it validation scores, and what other callbacks choose by them, are those of the averages. It takes no argument,
    and costs a swap of references an evaluation.

    Example:
        >>> callback = SwapEMAWeights()  # model.fit(..., validation_data=..., callbacks=[callback])
    """

    def __init__(self) -> None:
        super().__init__()
        self._inside = ExitStack()

    def on_test_begin(self, logs: Any = None) -> None:
        self._inside.enter_context(self.model.trainer.weights("ema"))

    def on_test_end(self, logs: Any = None) -> None:
        self._inside.close()

    def on_train_end(self, logs: Any = None) -> None:
        self._inside.close()  # of an evaluation that an exception ended
