"""TensorBoard: figures and histograms of weights in TensorBoard's event files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from unifit.callbacks.base import Callback
from unifit.errors import ArgumentError, UnifitError

_NOT_HERE = {
    "write_graph": "a model is no graph here; model.summary() shows its layers",
    "write_images": "weights as images are not written; histogram_freq writes histograms",
    "profile_batch": "use your framework's own profiler",
    "embeddings_freq": "embeddings are not written",
    "embeddings_metadata": "embeddings are not written",
}


class TensorBoardNotInstalledError(UnifitError, ImportError):
    """TensorBoard's files are written by tensorboardX, which is not installed."""


class TensorBoard(Callback):
    """Writes event files under `log_dir`, on the main process: `train/` and `validation/`, with Keras' names.

    `epoch_<figure>` over epochs (from 0), `batch_<figure>` over steps, `evaluation_<figure>_vs_iterations` for
    evaluations, over steps. Steps are counted on from one fit to the next.

    Args:
        log_dir: The folder.
        histogram_freq: Epochs between two histograms of all weights; 0 for none.
        write_steps_per_second: Whether to write `epoch_steps_per_second`.
        update_freq: "epoch", or steps between two writings of the epoch's running figures, each a host read; "batch"
            is 1.

    Raises:
        TensorBoardNotInstalledError: Without tensorboardX.
        ArgumentError: For Keras' other arguments, unless they ask for nothing.
    """

    state_names = ("steps",)

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_steps_per_second: bool = False,
        update_freq: str | int = "epoch",
        **keras_arguments: Any,
    ):
        for name, value in keras_arguments.items():
            if name not in _NOT_HERE:
                raise TypeError(f"TensorBoard has no argument '{name}'.")
            if value:
                raise ArgumentError(f"TensorBoard got {name}={value!r}: {_NOT_HERE[name]}.")
        if update_freq not in ("epoch", "batch") and not (isinstance(update_freq, int) and update_freq >= 1):
            raise ArgumentError(
                f"TensorBoard got update_freq={update_freq!r}; expected 'epoch', 'batch' or a number of steps."
            )
        self.log_dir = os.fspath(log_dir)
        self.histogram_freq, self.write_steps_per_second = histogram_freq, write_steps_per_second
        self.update_freq = 1 if update_freq == "batch" else update_freq
        self.steps = 0
        self._make_writer = _summary_writer()
        self._writers: dict[str, Any] = {}
        self._in_fit = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_fit = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_began, self._epoch_first = perf_counter(), self.steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if isinstance(self.update_freq, int) and self.steps % self.update_freq == 0 and self.on_main_process:
            self._write("train", logs, "batch_{}", self.steps)

    def on_test_end(self, logs: Any = None) -> None:
        self._write("validation", logs, "evaluation_{}_vs_iterations", self.steps)
        if not self._in_fit:
            self._close()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = logs or {}
        train = {name: value for name, value in logs.items() if not name.startswith("val_")}
        rate = getattr(self.model.optimizer, "learning_rate", None)
        if isinstance(rate, float):
            train.setdefault("learning_rate", rate)
        if self.write_steps_per_second:
            train["steps_per_second"] = (self.steps - self._epoch_first) / (perf_counter() - self._epoch_began)
        self._write("train", train, "epoch_{}", epoch)
        validation = {name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")}
        self._write("validation", validation, "epoch_{}", epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            self._write_histograms(epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        self._in_fit = False
        self._close()

    def _write(self, folder: str, figures: Mapping[str, float] | None, tag: str, step: int) -> None:
        if figures and self.on_main_process:
            writer = self._writer(folder)
            for name, value in figures.items():
                writer.add_scalar(tag.format(name), value, step)

    def _write_histograms(self, epoch: int) -> None:
        weights = self.model.weights_by_path()  # on every process: weights may lie on several
        if self.on_main_process:
            for path, array in weights.items():
                self._writer("train").add_histogram(f"{path}/histogram", array, epoch)

    def _writer(self, folder: str) -> Any:
        if folder not in self._writers:
            self._writers[folder] = self._make_writer(os.path.join(self.log_dir, folder))
        return self._writers[folder]

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _summary_writer() -> Any:
    try:
        from tensorboardX import SummaryWriter  # here: an optional dependency
    except ImportError:
        raise TensorBoardNotInstalledError(
            'The TensorBoard callback needs tensorboardX: pip install "unifit[tensorboard]"'
        ) from None
    return SummaryWriter
