"""What binds a model to devices: its last distribution, the trainer in use, and slots that wait for the next one."""

from __future__ import annotations

import sys
from typing import Any

from unifit.contract.distribution import DataParallel, checked_intent
from unifit.data.feed import Feed
from unifit.data.windows import padded_batch
from unifit.launch.joining import prepare
from unifit.peers import Peers, peers_of
from unifit.seed import get_seed
from unifit.training.microbatch import cut_in_words, is_auto, largest_that_fits
from unifit.training.prepare import make_engine, make_objective, specs_of
from unifit.training.spec import TrainingSpec
from unifit.training.start_check import model_facts, require_equal
from unifit.training.trainer import Trainer
from unifit.weights import trainable_paths


class Binding:
    """One model's.

    Attributes:
        trainer: Binds the model to an engine; None before the first fit, evaluate or predict.
        restored: Slots and the number of windows so far, for the next trainer; None where none wait.
        chosen_sizes: What microbatch_size="auto" found, by a device's rows of a batch and the number of devices; saved
            with the model, so that a run that goes on cuts its batches as before.
    """

    def __init__(self, model: Any):
        self.model = model
        self.trainer: Trainer | None = None
        self.restored: tuple[dict[str, Any], int] | None = None
        self._distribution: DataParallel | None = None
        self._fits = False
        self.chosen_sizes: dict[tuple[int, int], int] = {}

    def forget(self, slots: tuple[dict[str, Any], int] | None = None) -> None:
        """Drops the trainer: the model is compiled anew, or goes on from `slots`."""
        self.trainer, self.restored, self._fits = None, slots, False
        self.chosen_sizes = {}

    def outdate(self) -> None:
        """Has the next run make a new trainer, which takes over the slots: the model's structure changed."""
        self._fits = False

    def devices(self, distribution: Any) -> Any:
        """The devices of an intent; without one those of the last fit."""
        chosen = self._distribution if distribution is None else checked_intent(distribution)
        return prepare(chosen)

    def training_devices(self, distribution: Any) -> Any:
        """The devices of a fit's intent, which evaluate and predict use from then on."""
        devices = prepare(checked_intent(distribution))
        self._distribution = distribution
        return devices

    def trainer_for(
        self, spec: TrainingSpec | None, devices: Any, feed: Feed, trains: bool = False, told: bool = False
    ) -> Trainer:
        """The trainer in use where it fits, else a new one that takes over the optimizer's slots.

        Data of another structure than what was seen before is checked against model, losses and metrics first.

        Args:
            spec: What compile was given; None for a prediction.
            devices: Where to run.
            feed: The data; its first batch is looked at, and its slicer is told how to cut.
            trains: Whether it will train; else it only evaluates or predicts, and batches are not cut.
            told: Whether to print how batches are cut.
        """
        kept, peers, slicer = self.trainer, peers_of(devices), feed.slicer
        first = feed.first()
        if trains and spec is not None:
            slicer.microbatch_size = None if is_auto(spec.microbatch_size) else spec.microbatch_size
            if is_auto(spec.microbatch_size):
                slicer.microbatch_size = self.chosen_sizes.get((slicer.share, devices.placement.devices))
        padded = padded_batch(first, slicer)
        batch = specs_of(padded if spec is not None else padded._replace(y=None, sample_weight=None))
        fitting = kept if kept is not None and self._still_fits(kept, spec, devices, slicer.pieces, trains) else None
        if fitting is not None and fitting.knows(batch):
            slicer.pad = not fitting.objective.whole_rows
            return fitting
        if fitting is not None:
            objective = make_objective(self.model, spec, batch, self._passes(spec, devices, fitting.pieces), padded.y)
            slicer.pad = not objective.whole_rows
            fitting.learn(batch)
            return fitting

        def make() -> Trainer:
            pieces = slicer.pieces if trains else 1
            objective = make_objective(self.model, spec, batch, self._passes(spec, devices, pieces), padded.y)
            slicer.pad = not objective.whole_rows
            # Before the engine is made: torch's DDP would give all processes the weights of the first.
            require_equal(peers, "model", lambda: model_facts(self.model, trainable_paths(self.model), get_seed()))
            accumulation = 1 if spec is None else spec.gradient_accumulation_steps * pieces

            def engine(model: Any, objective: Any) -> Any:
                return make_engine(model, objective, spec, devices, accumulation)

            return Trainer(self.model, objective, spec, engine, devices.placement, pieces)

        chooses = trains and spec is not None and is_auto(spec.microbatch_size) and slicer.microbatch_size is None
        if chooses:
            size = largest_that_fits(make, first, slicer, peers)
            self.chosen_sizes[slicer.share, devices.placement.devices] = size
        trainer = make()
        if trains and told and slicer.microbatch_size is not None and peers.process == 0:
            print(cut_in_words(slicer, trainer), file=sys.stderr)
        trainer.learn(batch)
        if kept is not None and kept.spec is not None:
            self.restored = (kept.slots(), kept.step)
        if spec is not None and self.restored is not None:
            trainer.restore(*self.restored)
            self.restored = None
        self.trainer, self._fits = trainer, True
        return trainer

    def peers(self) -> Peers | None:
        """The processes that the trainer's devices belong to; None without a trainer."""
        return None if self.trainer is None else peers_of(self.trainer.engine.devices)

    def _still_fits(self, kept: Trainer, spec: Any, devices: Any, pieces: int, trains: bool) -> bool:
        return (
            self._fits
            and (spec is None or kept.spec is spec)
            and (not trains or kept.pieces == pieces)
            and kept.placement == devices.placement
            and kept.trainable == trainable_paths(self.model)
        )

    @staticmethod
    def _passes(spec: TrainingSpec | None, devices: Any, pieces: int) -> int:
        """Forward passes in a whole window over all devices."""
        return 1 if spec is None else spec.gradient_accumulation_steps * pieces * devices.placement.devices
