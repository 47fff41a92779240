"""The state of a run between two updates: everything that the numbers of its rest follow from, and going on from it."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

import unifit.checkpoint.format as format
from unifit.backend import backend
from unifit.checkpoint.reading import Checkpoint
from unifit.checkpoint.structure import layer_facts
from unifit.config import serialize
from unifit.contract.optimizers import Native
from unifit.data.feed import Feed
from unifit.data.position import Mark, Position
from unifit.errors import ArgumentError, CheckpointError
from unifit.processes import warn
from unifit.seed import get_seed
from unifit.training.trainer import Sums, Trainer
from unifit.weights import layers_of, records_of

LIBRARIES = ("numpy", "safetensors", "torch", "jax", "jaxlib", "optax", "tensorflow", "tensorflow-cpu")

_SCALING = ("scale", "good", "skipped", "in_a_row")


class Place(NamedTuple):
    """Where a run stands between two updates.

    Attributes:
        epoch: The epoch in which it goes on.
        batches: Batches of it that are done.
        steps: Updates of it that are done.
        position: Where the data goes on; None before any of it was read.
        sums: The epoch's sums so far; None at its start.
    """

    epoch: int
    batches: int = 0
    steps: int = 0
    position: Position | None = None
    sums: Sums | None = None


class Run(NamedTuple):
    """What makes up a fit: see Model.fit."""

    model: Any
    trainer: Trainer
    feed: Feed
    callbacks: Any
    epochs: int
    fit: int
    initial_rate: Any


# Writing


def facts_of_run(run: Run, place: Place, finished: bool, score: Any = None) -> tuple[dict[str, Any], Any, Any]:
    """The state without files, the groups of callbacks' and metrics' arrays, and those that this process alone has."""
    model, trainer, devices = run.model, run.trainer, run.trainer.engine.devices
    slicer = run.feed.slicer
    optimizer = model.optimizer
    groups: dict[str, dict[str, np.ndarray]] = {}
    own: dict[str, dict[str, np.ndarray]] = {}
    callbacks = states_of(run.callbacks, groups.setdefault(format.CALLBACKS, {}))
    sums = None if place.sums is None else place.sums.state()
    if sums is not None:
        folded = sums.pop("folded")
        groups[format.METRICS] = {"sums.totals": sums.pop("totals")}
        if folded is not None:
            groups[format.METRICS]["sums.folded"] = folded
    mark = None if place.position is None else place.position.mark
    if mark is not None:
        own[format.DATA] = {f"loader.{devices.placement.process}": np.frombuffer(mark.state, np.uint8)}
    state = {
        "format": format.FORMAT,
        "version": format.VERSION,
        "unifit": _versions().get("unifit", "0"),
        "backend": backend.name,
        "libraries": {name: found for name, found in _versions().items() if name != "unifit"},
        "fit": run.fit,
        "step": trainer.step,
        "epoch": place.epoch,
        "epochs": run.epochs,
        "finished": finished,
        "batches_done": place.batches,
        "steps_done": place.steps,
        "position": _position_facts(place.position),
        "data": run.feed.facts(),
        "devices": devices.placement.devices,
        "processes": devices.placement.processes,
        "seed": get_seed(),
        "optimizer": {
            "rule": rule_name(optimizer.rule),
            "learning_rate": rate_facts(optimizer),
            "initial_learning_rate": run.initial_rate,
        },
        "sums": sums,
        "callbacks": callbacks,
        "microbatch_sizes": [[*key, size] for key, size in model.chosen_microbatch_sizes.items()],
        "accumulation": trainer.spec.gradient_accumulation_steps,  # type: ignore[union-attr]
        "padded": slicer.padded,
        "first_padded": slicer.first_padded,
        "frozen": frozen(model),
        "score": score,
    }
    return state, {group: arrays for group, arrays in groups.items() if arrays}, own


def arrays_of_run(run: Run) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """The facts that come with the arrays, and the groups of weights, slots and averages: host copies."""
    model, trainer = run.model, run.trainer
    weights = model.weights_by_path()
    slots = trainer.slots()
    rule = rule_name(model.optimizer.rule)
    scaling = {name: slots.pop(f"loss_scale.{name}", None) for name in _SCALING}
    updates = slots.pop("ema.updates", None)
    facts = {
        "iterations": int(slots.pop("iterations")),
        "loss_scale": None
        if scaling["scale"] is None
        else {name: np.asarray(value).item() for name, value in scaling.items()},
        "ema": None if updates is None else {"updates": int(updates)},
        "weights": {
            path: {
                "layer": type(owner).__name__,
                "name": name,
                "shape": list(weights[path].shape),
                "dtype": record.lives_in or record.dtype,
                "trainable": path in trainer.trainable,
            }
            for path, owner, name, record in records_of(model)
        },
        "layers": layer_facts(model),
    }
    averages = {name.removeprefix("ema."): slots.pop(name) for name in list(slots) if name.startswith("ema.")}
    groups = {format.WEIGHTS: weights}
    groups[format.OPTIMIZER] = {format.slot_name(rule, name): value for name, value in slots.items()}
    if averages:
        groups[format.EMA] = averages
    return facts, groups


def states_of(callbacks: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The callbacks' states as JSON takes them; arrays in them go into `arrays`.

    Raises:
        ArgumentError: When a state cannot be written.
    """
    found = {}
    for name, state in callbacks.states().items():
        try:
            found[name] = format.plain(state, name, arrays)
        except TypeError as error:
            raise ArgumentError(
                f"The state of the callback {name} cannot be written to a checkpoint: it holds {error}. A callback's "
                "state() needs to give numbers, strings, NumPy arrays, and lists and dicts of them."
            ) from error
    return found


def rule_name(rule: Any) -> str:
    """The name under which a rule's slots are stored."""
    return "native" if isinstance(rule, Native) else type(rule).__name__.lower()


def rate_facts(optimizer: Any) -> Any:
    """The learning rate: a float, or a schedule's config; a function of the user's by its name."""
    rate = optimizer.learning_rate
    if isinstance(rate, float):
        return rate
    try:
        return serialize(rate)
    except ArgumentError:
        return {"function": str(getattr(rate, "name", type(rate).__name__))}


def frozen(model: Any) -> list[str]:
    """Path prefixes of the layers that are not trained."""
    return [prefix for prefix, layer in layers_of(model) if not getattr(layer, "trainable", True)]


def _position_facts(position: Position | None) -> Any:
    if position is None:
        return None
    mark = position.mark
    facts: dict[str, Any] = {"epoch": position.epoch, "batch": position.batch, "begun": position.begun}
    return facts | ({} if mark is None else {"mark": {"epoch": mark.epoch, "batch": mark.batch}})


@functools.lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {}
    for name in ("unifit", *LIBRARIES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# Going on


def require_same_data(checkpoint: Checkpoint, feed: Feed, accumulation: int) -> None:
    """Refuses to go on where the rest of the run would not be the rest of the one that was interrupted.

    Raises:
        CheckpointError: When the seed differs; in the middle of an epoch, when its batches would be others.
    """
    state = checkpoint.state
    if state["seed"] != get_seed():
        raise CheckpointError(
            f"'{checkpoint.path}' is of a run with the seed {state['seed']}, and the seed is {get_seed()} now: orders "
            f"and random streams would be others. Call uf.set_seed({state['seed']}), or start afresh with another "
            "checkpoint_dir."
        )
    middle = state["batches_done"] > 0
    processes = feed.slicer.placement.processes
    if middle and getattr(feed.source, "per_process", False) and state["processes"] != processes:
        raise CheckpointError(
            f"'{checkpoint.path}' lies in the middle of epoch {state['epoch'] + 1}, of a job with {state['processes']} "
            f"processes that had rows of their own (uf.data.PerProcess); now there are {processes}. Go on with as "
            "many, or from a checkpoint at an epoch's end."
        )
    if middle and state["accumulation"] != accumulation:
        raise CheckpointError(
            f"'{checkpoint.path}' lies in the middle of epoch {state['epoch'] + 1}, of a run with "
            f"gradient_accumulation_steps={state['accumulation']}; now it is {accumulation}. Go on with the same "
            "number, or from a checkpoint at an epoch's end."
        )
    feed.require_facts(state["data"], middle, str(checkpoint.path))


def prepare_model(checkpoint: Checkpoint, model: Any) -> None:
    """Sets what the making of an engine depends on: which layers are frozen, and sizes that were found by trial."""
    state = checkpoint.state
    held = set(state["frozen"])
    for prefix, layer in layers_of(model):
        if hasattr(layer, "trainable") and layer.trainable == (prefix in held):
            layer.__dict__["_trainable"] = prefix not in held
    for share, devices, size in state["microbatch_sizes"]:
        model.chosen_microbatch_sizes[int(share), int(devices)] = int(size)


def is_data_of(checkpoint: Checkpoint, feed: Feed) -> bool:
    """Whether a position of the checkpoint means anything in the data: at an epoch's end it may be of another kind."""
    state, now = checkpoint.state, feed.facts()
    same_kind = all(state["data"].get(name) == now.get(name) for name in ("kind", "loader"))
    own_rows = getattr(feed.source, "per_process", False)
    return same_kind and not (own_rows and state["processes"] != feed.slicer.placement.processes)


def position_of(checkpoint: Checkpoint, process: int) -> Position | None:
    """Where the data goes on; None where none of it was read."""
    facts = checkpoint.state["position"]
    if facts is None:
        return None
    data = checkpoint.arrays(format.DATA)
    stored = data.get(f"loader.{process}", data.get("loader.0"))
    mark = None
    if "mark" in facts and stored is not None:
        mark = Mark(facts["mark"]["epoch"], facts["mark"]["batch"], stored.tobytes())
    return Position(facts["epoch"], facts["batch"], mark, facts.get("begun", 0))


def restore(checkpoint: Checkpoint, model: Any, trainer: Trainer) -> None:
    """Gives the model its weights, and the engine its slots and counters.

    Raises:
        CheckpointError: When they do not fit; the model is as it was then.
    """
    state = checkpoint.state
    where = f"'{checkpoint.path}'"
    rule = rule_name(model.optimizer.rule)
    if state["optimizer"]["rule"] != rule:
        raise CheckpointError(
            f"{where} holds the state of the optimizer rule '{state['optimizer']['rule']}', and the model is compiled "
            f"with '{rule}'. Compile with the same one; or start afresh from the weights alone: "
            f"model.load_weights('{checkpoint.path}'), and another checkpoint_dir."
        )
    stored = checkpoint.arrays(format.OPTIMIZER)
    slots = {name: stored[key] for key, name in format.engine_slots(rule, stored).items()}
    own = trainer.engine.read_slots()
    trained = {path for path, facts in state["weights"].items() if facts["trainable"]}
    missing = [
        name
        for name in own.keys() - slots.keys()
        if not name.startswith(("ema.", "loss_scale.")) and name.partition(".")[2] in trained
    ]
    if missing:
        raise CheckpointError(f"{where} has no optimizer state '{sorted(missing)[0]}'.")
    other = sorted(name for name in own.keys() & slots.keys() if own[name].shape != slots[name].shape)
    if other:
        raise CheckpointError(
            f"{where} has '{other[0]}' of shape {slots[other[0]].shape}; the model needs {own[other[0]].shape}."
        )
    weights = checkpoint.arrays(format.WEIGHTS)
    try:
        model.load_weights_by_path(weights)
    except ArgumentError as error:
        raise CheckpointError(f"{where} does not fit the model. {error}") from error
    slots["iterations"] = np.asarray(state["iterations"], np.int64)
    if state["loss_scale"] is not None:
        for name, value in state["loss_scale"].items():
            slot = f"loss_scale.{name}"
            slots[slot] = np.asarray(value, own[slot].dtype if slot in own else None)
    if state["ema"] is not None:
        slots |= {f"ema.{path}": value for path, value in checkpoint.arrays(format.EMA).items()}
        slots["ema.updates"] = np.asarray(state["ema"]["updates"], np.int64)
    elif "ema.updates" in own:
        slots |= {name: weights[name.removeprefix("ema.")] for name in own if name.removeprefix("ema.") in weights}
        warn(f"{where} has no running averages (compile(ema=...)): they start from its weights.", stacklevel=2)
    trainer.restore(slots, state["step"])


def restore_rate(checkpoint: Checkpoint, optimizer: Any) -> None:
    """Sets the learning rate that was in force, unless the script has changed it since: then the script's holds."""
    saved, now = checkpoint.state["optimizer"], rate_facts(optimizer)
    if now != saved["initial_learning_rate"]:
        warn(
            f"The learning rate was {_shown(saved['initial_learning_rate'])} when '{checkpoint.path}' was written, and "
            f"the script has {_shown(now)} now: it holds from here on, at update {checkpoint.state['iterations']}.",
            stacklevel=2,
        )
    elif isinstance(saved["learning_rate"], float) and saved["learning_rate"] != now:
        optimizer.learning_rate = saved["learning_rate"]


def sums_of(checkpoint: Checkpoint, engine: Any) -> Sums | None:
    """The running epoch's sums; None at its start.

    Raises:
        CheckpointError: When they are of other losses or metrics.
    """
    facts = checkpoint.state["sums"]
    if facts is None:
        return None
    arrays = checkpoint.arrays(format.METRICS)
    totals = arrays["sums.totals"]
    expected = engine.read(engine.zeros(False), False).shape
    if totals.shape != expected:
        raise CheckpointError(
            f"'{checkpoint.path}' lies in the middle of an epoch with {totals.size} sums of losses and metrics; the "
            f"model is compiled with others ({expected[0]} sums). Compile with the same ones, or go on from a "
            "checkpoint at an epoch's end."
        )
    return Sums.resumed(engine, facts | {"folded": arrays.get("sums.folded"), "totals": totals})


def callback_states(checkpoint: Checkpoint) -> dict[str, Any]:
    """The callbacks' states by name."""
    arrays = checkpoint.arrays(format.CALLBACKS)
    return {name: format.restored(state, arrays) for name, state in checkpoint.state["callbacks"].items()}


def _shown(rate: Any) -> str:
    if not isinstance(rate, dict):
        return repr(rate)
    if "function" in rate:
        return f"the function {rate['function']}"
    return f"{str(rate.get('class', '')).rpartition('>')[2]}({rate.get('config')})"
