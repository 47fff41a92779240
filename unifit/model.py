"""Model: a Layer that is compiled, fitted, evaluated, saved. Signatures, documentation, delegation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from unifit.callbacks import Callback, History
from unifit.callbacks.callback_list import CallbackList, run_callbacks
from unifit.callbacks.progress_bar import verbosity
from unifit.contract import tree
from unifit.contract.distribution import DataParallel
from unifit.contract.precision import EMA
from unifit.data.adapt import make_source
from unifit.data.class_weights import labels_are_sparse
from unifit.data.feed import Feed
from unifit.data.host import host_tree, row_count
from unifit.errors import UnifitError
from unifit.names import register_serializable
from unifit.network import Network
from unifit.peers import Peers, peers_of
from unifit.training.binding import Binding
from unifit.training.fitting import FitArguments, fit
from unifit.training.hooks import Hooks
from unifit.training.loop import run_evaluate, run_predict, train_batch
from unifit.training.run import make_feed, require_same_run
from unifit.training.spec import TrainingSpec, make_spec
from unifit.training.trainer import Trainer, naming_out_of_memory
from unifit.training.wishes import make_wishes


@register_serializable(package="unifit")
class Model(Network):
    """A trainable model: subclass it and write `call`, or give the inputs and outputs of a functional graph.

    Args:
        inputs, outputs: Trees of Symbols (`uf.Input` and what layers made of it), or None for a subclass.
        name: Shown in summaries.

    Example:
        >>> x = Input((5,))
        >>> model = Model(x, Dense(3)(x))
    """

    _spec: TrainingSpec | None
    _binding: Binding

    def __init__(self, inputs: Any = None, outputs: Any = None, *, name: str | None = None, trainable: bool = True):
        super().__init__(inputs, outputs, name=name, trainable=trainable)
        self.__dict__.update(_spec=None, _binding=Binding(self))
        self.stop_training = False

    # Training

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        *,
        precision: Any = None,
        gradient_accumulation_steps: int = 1,
        microbatch_size: int | str | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        clip_parameter_norm: float | None = None,
        skip_nonfinite: bool = False,
        ema: EMA | None = None,
        reduction_dtype: str = "float32",
        matmul_precision: str | None = None,
    ) -> None:
        """Fixes the recipe of an update.

        Args:
            optimizer: Name or `uf.optimizers` object.
            loss: Name, `uf.losses` object or function (y_true, y_pred) -> per-element losses; a list or dict of them
                for several outputs. None where `compute_loss` or add_loss give the loss.
            loss_weights: Floats, shaped as `loss`.
            metrics: List of names or `uf.metrics` objects; for several outputs a list of lists or a dict. They count
                each valid element once.
            weighted_metrics: The same, weighted by sample and class weights.
            precision: "float32", "mixed_bfloat16", "mixed_float16" (with a dynamic loss scale), or a `uf.Precision`;
                None for the default of `uf.set_precision`.
            gradient_accumulation_steps: Consecutive batches that make one update.
            microbatch_size: Rows that a device takes at a time: its share of each batch is cut into equal pieces of at
                most so many rows, whose gradients are summed. It changes the memory that training needs, not the
                numbers. "auto" finds the most that fit, by trial before the first update; None takes all at once.
            clip_norm: Clip the update's gradient to this global norm.
            clip_value: Clip its entries to [-clip_value, clip_value].
            clip_parameter_norm: Clip each parameter's gradient to this norm.
            skip_nonfinite: Skip updates with a gradient that is not finite, as a loss scale does anyway.
            ema: A `uf.EMA`: keep a running average of the weights, which `evaluate`, `predict` and `save` take on
            demand.
            reduction_dtype: "bfloat16" halves what gradients take on their way between devices, at 8 bits of mantissa.
            matmul_precision: Of float32 matrix products: "highest", "high" or "default"; None as the framework has it.

        Raises:
            ArgumentError, UnknownNameError, UnsupportedError: For values that cannot be; nothing has changed then.
        """
        spec = make_spec(
            optimizer=optimizer,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            gradient_accumulation_steps=gradient_accumulation_steps,
            microbatch_size=microbatch_size,
            clip_norm=clip_norm,
            clip_value=clip_value,
            clip_parameter_norm=clip_parameter_norm,
            precision=precision,
            skip_nonfinite=skip_nonfinite,
            ema=ema,
            reduction_dtype=reduction_dtype,
            matmul_precision=matmul_precision,
        )
        self.__dict__["_spec"] = spec
        self._binding.forget()

    @property
    def optimizer(self) -> Any:
        """The compiled optimizer, whose `learning_rate` callbacks may set."""
        return None if self._spec is None else self._spec.optimizer

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Callback | list[Callback] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        *,
        distribution: DataParallel | None = None,
        checkpoint_dir: Any = None,
        checkpoint_every: Any = "epoch",
        checkpoint_keep: int | None = 3,
        checkpoint_monitor: str | None = None,
        checkpoint_mode: str = "auto",
        resume: Any = "auto",
    ) -> History:
        """Trains until `epochs` epochs are done. Keras' arguments have Keras' meanings; the others:

        Args:
            distribution: A `uf.DataParallel`; None for one device, or for all of a job of several processes.
            checkpoint_dir: A folder for checkpoints, which all processes of a job see. A run that is started again goes
                on from the newest one, in the middle of an epoch too, as if it had not been interrupted.
            checkpoint_every: A number of steps, "epoch", or a `datetime.timedelta`. One more is written at the end, and
                when the run is interrupted (SIGINT, SIGTERM, `TimeLimit`).
            checkpoint_keep: So many of the newest stay; None for all.
            checkpoint_monitor: Name of a figure, such as "val_loss": the best checkpoint by it at an epoch's end stays
                too. NaN is never the best.
            checkpoint_mode: "min" or "max" of it; "auto" tells it from the name.
            resume: "auto": go on from the newest whole checkpoint of this fit in checkpoint_dir, else start. "must": an
                error where there is none. A path: go on from that checkpoint, or from the newest in that folder. None:
                start; refused where checkpoint_dir holds checkpoints.

        Raises:
            CheckpointError: When a checkpoint cannot be read or written, or is of another run; on every process.
            KeyboardInterrupt, SystemExit: After a SIGINT or SIGTERM, when the running step is done and saved.
        """
        arguments = FitArguments(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=shuffle,
            class_weight=class_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
            distribution=distribution,
            checkpoints=make_wishes(
                checkpoint_dir, checkpoint_every, checkpoint_keep, checkpoint_monitor, checkpoint_mode, resume
            ),
        )
        return fit(self, self._binding, self._compiled("fit"), arguments)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Callback | list[Callback] | None = None,
        return_dict: bool = False,
        *,
        weights: str = "own",
        distribution: DataParallel | None = None,
    ) -> Any:
        """Loss and metrics over all rows, each counted once; a float or list of floats, or a dict with return_dict.

        `weights="ema"` takes the running averages that `compile(ema=...)` keeps.
        """
        spec, observing = self._compiled("evaluate"), run_callbacks(callbacks, verbose)
        devices = self._binding.devices(distribution)
        with self._scoring("evaluate", spec, devices, (x, y, sample_weight, batch_size, steps), weights) as run:
            trainer, feed = run
            hooks = Hooks(CallbackList(observing, self, _run_params(feed, verbose, devices)), peers_of(devices))
            logs = run_evaluate(trainer, feed, hooks)
            hooks.meet("test_end")
        return _scores(logs, return_dict)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Callback | list[Callback] | None = None,
        *,
        main_process_only: bool = False,
        weights: str = "own",
        distribution: DataParallel | None = None,
    ) -> Any:
        """The outputs for every row, in order: NumPy arrays, on every process.

        With `main_process_only` the other processes get None, and keep nothing in memory. `weights="ema"` takes the
        running averages that `compile(ema=...)` keeps.
        """
        observing = run_callbacks(callbacks, verbose)
        devices = self._binding.devices(distribution)
        with self._scoring("predict", None, devices, (x, None, None, batch_size, steps), weights) as run:
            trainer, feed = run
            hooks = Hooks(CallbackList(observing, self, _run_params(feed, verbose, devices)), peers_of(devices))
            return run_predict(trainer, feed, hooks, keep=not main_process_only or devices.placement.process == 0)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
        *,
        distribution: DataParallel | None = None,
    ) -> Any:
        """One update on one batch, the same step as in `fit`: for training loops of your own.

        Returns:
            The batch's loss and metrics before the update: a float, a list of floats, or a dict with return_dict.
        """
        spec = self._compiled("train_on_batch")
        devices = self._binding.devices(distribution)
        with peers_of(devices).guard():
            source = make_source(
                x,
                y,
                sample_weight,
                batch_size=_rows(x),
                class_weight=class_weight,
                sparse_labels=labels_are_sparse(spec.loss),
                placement=devices.placement,
            )
            feed = make_feed(source, devices)
            trainer = self._binding.trainer_for(spec, devices, feed, trains=True)
            with naming_out_of_memory(feed.slicer):
                return _scores(train_batch(trainer, feed), return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """`evaluate` on one batch."""
        return self.evaluate(x, y, batch_size=_rows(x), verbose=0, sample_weight=sample_weight, return_dict=return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """`predict` on one batch."""
        return self.predict(x, batch_size=_rows(x), verbose=0)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool) -> Any:
        """Override it for a loss of your own, in `uf.ops`.

        Returns:
            Per-element losses (rows on axis 0; weighted by yourself; padding is masked and the sum divided for you),
            `uf.losses.Total(sum, count)`, or `uf.losses.MeanOverRows(scalar)`. On several devices or micro-batches the
            rows of a ragged end include padding: leave out of a Total the rows where `uf.context().valid`, a bool array
            (rows,), is False. A MeanOverRows is inexact there.
        """
        raise UnifitError(
            "Model.compute_loss stands for the compiled loss; override it to replace that loss as a whole. To add a "
            "term to the compiled loss, call self.add_loss(term) in call."
        )

    def compute_loss_override(self) -> Any:
        """The overridden `compute_loss`, or None."""
        return None if type(self).compute_loss is Model.compute_loss else self.compute_loss

    # Binding to an engine

    @property
    def training_spec(self) -> TrainingSpec | None:
        """What compile was given; None before."""
        return self._spec

    @property
    def trainer(self) -> Trainer | None:
        """What binds the model to an engine; None before the first fit, evaluate or predict."""
        return self._binding.trainer

    @property
    def peers(self) -> Peers | None:
        """The processes that the model was last run on; None before the first fit, evaluate or predict."""
        return self._binding.peers()

    @property
    def restored_optimizer(self) -> tuple[dict[str, Any], int] | None:
        """Optimizer slots and the number of windows so far that wait for the next engine; None where none do."""
        return self._binding.restored

    @property
    def chosen_microbatch_sizes(self) -> dict[tuple[int, int], int]:
        """What microbatch_size="auto" found, by a device's rows of a batch and the number of devices."""
        return self._binding.chosen_sizes

    def restore_optimizer(self, slots: dict[str, Any], step: int) -> None:
        """Hands slots under canonical names to the next fit's engine, which goes on from `step` windows."""
        self._binding.forget((slots, step))

    def _compiled(self, method: str) -> TrainingSpec:
        spec = self._spec
        if spec is None:
            raise UnifitError(f"model.{method} was called before model.compile(optimizer=..., loss=...).")
        return spec

    @contextlib.contextmanager
    def _scoring(
        self, method: str, spec: TrainingSpec | None, devices: Any, data: tuple[Any, ...], weights: str
    ) -> Iterator[tuple[Trainer, Feed]]:
        """The trainer and the feed of an evaluation or a prediction, for (x, y, sample_weight, batch_size, steps)."""
        x, y, sample_weight, batch_size, steps = data
        peers = peers_of(devices)
        with peers.guard():
            source = make_source(x, y, sample_weight, batch_size=batch_size, placement=devices.placement)
            feed = make_feed(source, devices, steps)
            require_same_run(peers, method, {}, spec, {"data": feed})
            trainer = self._binding.trainer_for(spec, devices, feed)
            with trainer.weights(weights):
                yield trainer, feed


def _run_params(feed: Feed, verbose: Any, devices: Any) -> dict[str, Any]:
    """Facts of an evaluation or a prediction, for callbacks."""
    steps = feed.source.num_batches if feed.limit is None else feed.limit
    return {"steps": steps, "verbose": verbosity(verbose), "process": devices.placement.process}


def _rows(x: Any) -> int:
    """Rows of a batch in memory."""
    return max(1, row_count(tree.leaves(host_tree(x, "x")), "x"))


def _scores(logs: dict[str, float], return_dict: bool) -> Any:
    """Keras' forms of an evaluation's result."""
    if return_dict:
        return logs
    return list(logs.values()) if len(logs) > 1 else logs["loss"]
