"""A model bound to an engine: the steps, their learning rates, and the running sums. Loops drive it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from unifit.backend import backend
from unifit.callbacks.history import SKIPPED_UPDATES
from unifit.contract.tree import leaves
from unifit.contract.values import MicroBatch, Placement
from unifit.data.slicer import Slicer
from unifit.errors import ArgumentError, NonFiniteError, OutOfMemoryError
from unifit.optimizers import Optimizer
from unifit.symbol import map_specs
from unifit.training.logs import figures
from unifit.training.objective import Objective
from unifit.training.spec import TrainingSpec
from unifit.weights import trainable_changes, trainable_paths

RATES_AHEAD = 1024
"""Updates whose learning rates lie on the device; after as many windows the host fills the table again."""

EXACT_ELEMENTS = 2**20
"""Loss elements that are summed in float32 on the device before they are folded into float64 totals on the host."""

CHECK_EVERY = 50
"""Steps between two looks at how many updates in a row were skipped."""

PATIENCE = 50
"""So many skipped updates in a row end training with an error."""

NO_RECIPE = "a trainer without a spec only evaluates and predicts"


class Sums:
    """Running sums of an epoch or an evaluation: float32 on the device, folded into float64 at fixed step counts.

    Args:
        engine: The engine whose totals these are.
        evaluation: Which kind of totals.
        elements_per_step: Loss elements of a step; sets how often the sums are folded.
    """

    def __init__(self, engine: Any, evaluation: bool, elements_per_step: int):
        self.engine, self.evaluation = engine, evaluation
        self.totals = engine.zeros(evaluation)
        self.folded: np.ndarray | None = None
        self.steps = 0
        self._fold_every = max(1, EXACT_ELEMENTS // max(1, elements_per_step))

    def advanced(self, totals: Any) -> None:
        """Takes the totals of one more step."""
        self.totals = totals
        self.steps += 1
        if self.steps % self._fold_every == 0:
            self.move(self.engine)

    def move(self, engine: Any) -> None:
        """Folds what is on the device, and goes on with another engine's totals (or with fresh ones of the same)."""
        self.folded = self.read()
        self.engine, self.totals = engine, engine.zeros(self.evaluation)

    def state(self) -> dict[str, Any]:
        """What `resumed` goes on from to the last bit: what is folded, and what is on the device, float32.

        Only of an epoch's sums. A host read.
        """
        now = self.engine.read(self.totals, False).astype(np.float32)
        return {"steps": self.steps, "fold_every": self._fold_every, "folded": self.folded, "totals": now}

    @classmethod
    def resumed(cls, engine: Any, state: dict[str, Any]) -> Sums:
        """The inverse of `state`."""
        sums = cls(engine, False, 1)
        sums.steps, sums._fold_every, sums.folded = state["steps"], state["fold_every"], state["folded"]
        sums.totals = engine.totals_of(state["totals"])
        return sums

    def read(self) -> np.ndarray:
        """All sums so far, float64: a host read, and for evaluation a collective."""
        now = self.engine.read(self.totals, self.evaluation)
        return now if self.folded is None else self.folded + now


class Trainer:
    """What `fit`, `evaluate`, `predict` and `train_on_batch` share for one compiled model under one distribution.

    Args:
        model: The model.
        objective: What its engines run.
        spec: What compile was given; None for prediction alone.
        make: From (model, objective) to an engine for what is trainable now.
        placement: The devices that engines are made for.
        pieces: Micro-batches a batch.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        spec: TrainingSpec | None,
        make: Callable[[Any, Objective], Any],
        placement: Placement,
        pieces: int = 1,
    ):
        self.model, self.objective, self.spec, self.placement, self.pieces = model, objective, spec, placement, pieces
        self.accumulation = 1 if spec is None else spec.gradient_accumulation_steps
        self.step = 0
        self._make = make
        self._checked: list[Any] = []
        self._parked: dict[str, np.ndarray] = {}
        self._new_engine()

    def _new_engine(self) -> None:
        self._changes, self.trainable = trainable_changes(), trainable_paths(self.model)
        self.engine = self._make(self.model, self.objective)
        self._rates_version: Any = None
        self._rates_left = 0

    def knows(self, batch: MicroBatch) -> bool:
        """Whether data like these specs was checked before; the number of rows does not matter."""
        return _without_rows(batch) in self._checked

    def learn(self, batch: MicroBatch) -> None:
        """Remembers that data like these specs fits."""
        self._checked.append(_without_rows(batch))

    # Slots

    def slots(self) -> dict[str, np.ndarray]:
        """All slots: the engine's, and those of parameters that are frozen now and were trained before."""
        return self._parked | self.engine.read_slots()

    def restore(self, slots: dict[str, np.ndarray], step: int) -> None:
        """Goes on after `step` windows with these slots; those of parameters not trained now are kept aside."""
        self.step = step
        own = self.engine.read_slots()
        # A framework's own optimizer may make its slots as it goes: the engine does not have them yet.
        given = {name: value for name, value in slots.items() if name in own or name.startswith("native.")}
        self.engine.write_slots(own | given)
        taken = self.engine.read_slots() if given.keys() - own.keys() else own
        self._parked = {name: value for name, value in slots.items() if name not in taken}

    def follow(self, sums: Sums | None = None) -> None:
        """Makes the engine anew where what is trainable has changed; slots, counters and sums go on."""
        if self._changes == trainable_changes():
            return
        self._changes = trainable_changes()
        if trainable_paths(self.model) == self.trainable:
            return
        slots, old = self.slots(), self.engine
        self._new_engine()
        self.restore(slots, self.step)
        if sums is not None and sums.engine is old:
            sums.move(self.engine)

    def weights(self, which: str) -> AbstractContextManager[Any]:
        """Inside it the model has its "own" weights, or those that are averaged: "ema".

        Raises:
            ArgumentError: For another name, or where no average is kept.
        """
        if which == "own":
            return nullcontext()
        if which != "ema":
            raise ArgumentError(f"weights is {which!r}; it needs 'own' or 'ema'.")
        if self.spec is None or self.spec.ema is None:
            raise ArgumentError("weights='ema' needs a model that is compiled with ema=uf.EMA(...) and was trained so.")
        return self.engine.averaged()

    # Steps

    def sums(self, evaluation: bool, batch: MicroBatch) -> Sums:
        """Fresh running sums for batches like this one."""
        return Sums(self.engine, evaluation, elements_of(batch))

    def train(self, sums: Sums, placed: Any) -> None:
        """One update."""
        assert self.spec is not None, NO_RECIPE
        if self._rates_left == 0 or self._rates_version != self.spec.optimizer.learning_rate_version:
            self._fill_rates(self.spec.optimizer)
        self._rates_left -= 1
        sums.advanced(self.engine.train(sums.totals, placed))
        self.step += 1
        if self.spec.skips and self.step % CHECK_EVERY == 0:
            self._check_skips()

    def _check_skips(self) -> None:
        """Ends training that gets nowhere. A host read."""
        state = self.engine.scaling()
        if state.in_a_row >= PATIENCE:
            raise NonFiniteError(
                f"The last {state.in_a_row} updates were skipped, because gradients were not finite; the loss scale is "
                f"{state.scale:g}. Parameters with such gradients: {_first(self.engine.nonfinite())}. Try "
                "'mixed_bfloat16' (or float32), a smaller learning rate, clipping, or look for NaN in the data and "
                "for log or division of 0 in the loss."
            )

    def _fill_rates(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer.learning_rate, float):
            self.engine.set_rates(0, optimizer.rates(0, 1))
            self._rates_left = -1
        else:
            # Skipped updates do not count, so the device knows the number best; one read in RATES_AHEAD steps.
            start = self.engine.iterations()
            self.engine.set_rates(start, optimizer.rates(start, RATES_AHEAD))
            self._rates_left = RATES_AHEAD
        self._rates_version = optimizer.learning_rate_version

    def evaluate(self, sums: Sums, batch: MicroBatch) -> None:
        """Adds one batch in evaluation mode."""
        sums.advanced(self.engine.evaluate(sums.totals, batch))

    # Figures

    def training_logs(self, sums: Sums) -> dict[str, float]:
        """The epoch's figures so far. A host read."""
        return self.training_figures(sums)[0]

    def training_figures(self, sums: Sums) -> tuple[dict[str, float], int]:
        """The epoch's figures so far, and how many of its windows had no valid target. A host read."""
        assert self.spec is not None, NO_RECIPE
        vector = sums.read()
        own = dict(zip(self.engine.ENGINE_SUMS, vector[self.objective.num_sums :], strict=True))
        logs = figures(self.objective.layout, vector, own["updates"])
        if self.spec.clip_norm is not None:
            logs["grad_norm"] = float(own["grad_norm"] / own["updates"]) if own["updates"] else 0.0
        optimizer = self.spec.optimizer
        if not isinstance(optimizer.learning_rate, float):  # a schedule: the rate of the last update applied
            logs["learning_rate"] = float(optimizer.rates(max(self.engine.iterations() - 1, 0), 1)[0])
        if self.spec.precision.scaling is not None:
            state = self.engine.scaling()
            logs |= {"loss_scale": state.scale, "good_updates": float(state.good)}
        if own["updates"] < sums.steps:
            logs[SKIPPED_UPDATES] = sums.steps - float(own["updates"])
        return logs, int(own["empty"])

    def evaluation_logs(self, sums: Sums) -> dict[str, float]:
        """An evaluation's figures. A host read."""
        return figures(self.objective.layout, sums.read(), sums.steps)


@contextmanager
def naming_out_of_memory(slicer: Slicer) -> Iterator[None]:
    """Raises an OutOfMemoryError that says what to do, where the framework's own error says that memory ran out.

    Args:
        slicer: How the batches are cut that the block trains on.
    """
    try:
        yield
    except Exception as error:
        if not backend.engine.is_out_of_memory(error):
            raise
        rows = min(slicer.microbatch_size or slicer.share, slicer.share)
        raise OutOfMemoryError(f"{_too_large(rows, slicer.share)} The framework said: {str(error)[:300]}") from error


def _too_large(rows: int, share: int) -> str:
    """What to do where a device's memory ran out that takes `rows` of its `share` of a batch at a time."""
    if rows <= 1:
        return (
            "Memory ran out with one row a device at a time (microbatch_size=1): the model itself, or a single row, is "
            "too large for the device."
        )
    return (
        f"Memory ran out: each device takes {rows} of its {share} rows of a batch at a time. Try compile(..., "
        f"microbatch_size={-(-rows // 2)}), or 'auto': the numbers stay the same."
    )


def _first(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest


def _without_rows(specs: MicroBatch) -> Any:
    return map_specs(lambda spec: (spec.shape[1:], spec.dtype), specs)


def elements_of(batch: MicroBatch) -> int:
    """About how many loss elements a batch has: its largest label array."""
    sizes = [leaf.size for leaf in leaves(batch.y)] or [len(leaf) for leaf in leaves(batch.x)]
    return max(sizes)
