"""A model bound to an engine: the steps, their learning rates, and the running sums. Loops drive it."""

from __future__ import annotations

from typing import Any

import numpy as np

from unifit.callbacks.history import SKIPPED_UPDATES
from unifit.contract.tree import leaves
from unifit.contract.values import MicroBatch
from unifit.optimizers import Optimizer
from unifit.symbol import map_specs
from unifit.training.logs import figures
from unifit.training.objective import Objective
from unifit.training.spec import TrainingSpec

RATES_AHEAD = 1024
"""Updates whose learning rates lie on the device; after as many windows the host fills the table again."""

EXACT_ELEMENTS = 2**20
"""Loss elements that are summed in float32 on the device before they are folded into float64 totals on the host."""

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
            self.folded = self.read()
            self.totals = self.engine.zeros(self.evaluation)

    def read(self) -> np.ndarray:
        """All sums so far, float64: a host read, and for evaluation a collective."""
        now = self.engine.read(self.totals, self.evaluation)
        return now if self.folded is None else self.folded + now


class Trainer:
    """What `fit`, `evaluate`, `predict` and `train_on_batch` share for one compiled model under one distribution."""

    def __init__(self, engine: Any, objective: Objective, spec: TrainingSpec | None):
        self.engine, self.objective, self.spec = engine, objective, spec
        self.accumulation = 1 if spec is None else spec.gradient_accumulation_steps
        self.step = 0
        self._checked: list[Any] = []
        self._rates_version: Any = None
        self._rates_left = 0

    def knows(self, batch: MicroBatch) -> bool:
        """Whether data like these specs was checked before; the number of rows does not matter."""
        return _without_rows(batch) in self._checked

    def learn(self, batch: MicroBatch) -> None:
        """Remembers that data like these specs fits."""
        self._checked.append(_without_rows(batch))

    def restore(self, slots: dict[str, np.ndarray], step: int) -> None:
        """Goes on after `step` windows with these slots; those of parameters that it does not train are left out."""
        self.step = step
        own = self.engine.read_slots()
        self.engine.write_slots(own | {name: value for name, value in slots.items() if name in own})

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
        if own["updates"] < sums.steps:
            logs[SKIPPED_UPDATES] = sums.steps - float(own["updates"])
        return logs, int(own["empty"])

    def evaluation_logs(self, sums: Sums) -> dict[str, float]:
        """An evaluation's figures. A host read."""
        return figures(self.objective.layout, sums.read(), sums.steps)


def _without_rows(specs: MicroBatch) -> Any:
    return map_specs(lambda spec: (spec.shape[1:], spec.dtype), specs)


def elements_of(batch: MicroBatch) -> int:
    """About how many loss elements a batch has: its largest label array."""
    sizes = [leaf.size for leaf in leaves(batch.y)] or [len(leaf) for leaf in leaves(batch.x)]
    return max(sizes)
