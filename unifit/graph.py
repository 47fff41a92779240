"""The graph of a functional model: the calls between its inputs and outputs, planned once and run on every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from unifit.context import context
from unifit.contract import tree
from unifit.errors import ArgumentError, ShapeError
from unifit.symbol import Node, Symbol, symbols_in


class Step(NamedTuple):
    """One call of the plan: from slots of the values list into slots.

    Attributes:
        layer: What is called.
        slot: The slot of its only argument, where that is all; else `arguments` makes the arguments of the values.
        out: The slot of its only output, where that is all; else `store` puts the outputs into the values.
    """

    layer: Any
    slot: int
    arguments: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None
    out: int
    store: Callable[[list[Any], Any], None] | None


class Graph:
    """The calls between given inputs and outputs, in an order in which they can run.

    Raises:
        ArgumentError: When an output does not depend on the inputs alone, or an input is given twice.
    """

    def __init__(self, inputs: Any, outputs: Any):
        self.inputs = inputs
        self.outputs = outputs
        self._symbols = symbols_in(inputs)
        if len({id(symbol) for symbol in self._symbols}) < len(self._symbols):
            raise ArgumentError("Model(inputs, outputs) got one Symbol twice among its inputs; give each input once.")
        self.input_names = unique_names([symbol.name or "input" for symbol in self._symbols])
        self.nodes = _sorted_nodes(self._symbols, symbols_in(outputs))
        self._plan()

    @property
    def layers(self) -> list[Any]:
        """The graph's layers in the order of their first call, each once."""
        return list({id(node.layer): node.layer for node in self.nodes}.values())

    def run(self, arrays: Any) -> Any:
        """Calls the layers on real arrays: a tree like `inputs` in, a tree like `outputs` out."""
        values = self._empty.copy()
        if self._lone and not isinstance(arrays, (tuple, list, dict)):
            values[0] = arrays
        else:
            leaves = self.select(arrays)
            values[: len(leaves)] = leaves
        if context().abstract:  # type: ignore[union-attr]  # layers run it, and inside a context only
            self._check(values)
        for layer, slot, arguments, out, store in self._steps:
            if arguments is None:
                result = layer(values[slot])
            else:
                args, kwargs = arguments(values)
                result = layer(*args, **kwargs)
            if store is None:
                values[out] = result
            else:
                store(values, result)
        return values[self._result] if self._gather is None else self._gather(values)

    def select(self, arrays: Any) -> list[Any]:
        """The arrays for the inputs: by position; by key where a dict is given.

        Raises:
            ArgumentError: When there are more or fewer, or a key is missing.
        """
        if isinstance(arrays, dict):
            by_key = isinstance(self.inputs, dict)
            names = list(self.inputs) if by_key else self.input_names
            missing = [name for name in names if name not in arrays]
            if missing:
                raise ArgumentError(
                    f"The model's inputs are {names}; the data has {sorted(arrays)}, without {missing}."
                )
            if not by_key:
                return [arrays[name] for name in names]
            arrays = {name: arrays[name] for name in names}
        leaves = tree.leaves(arrays)
        if len(leaves) != len(self._symbols):
            raise ArgumentError(
                f"The model has {len(self._symbols)} inputs {self.input_names} and got {len(leaves)} arrays: pass a "
                "list of arrays in that order, or a dict by these names."
            )
        return leaves

    def _check(self, values: list[Any]) -> None:
        """Refuses arrays of other shapes than the inputs have; in abstract passes, so it costs no step anything."""
        for name, symbol, array in zip(self.input_names, self._symbols, values, strict=False):
            shape = tuple(array.shape)
            fits = len(shape) == len(symbol.shape) and all(
                n is None or m == n for m, n in zip(shape[1:], symbol.shape[1:], strict=True)
            )
            if not fits:
                raise ShapeError(
                    f"Input '{name}' has shape {symbol.shape} (None: any size); the model was called on an array of "
                    f"shape {shape}."
                )

    def _plan(self) -> None:
        """Gives every value a slot in a list. A slot is used again after the last use, so activations die in time."""
        last: dict[int, int] = {}
        for number, node in enumerate(self.nodes):
            for symbol in node.inputs:
                last[id(symbol)] = number
        kept = {id(symbol) for symbol in symbols_in(self.outputs)}
        slots = {id(symbol): number for number, symbol in enumerate(self._symbols)}
        count = len(slots)
        free: list[int] = []
        self._steps: list[Step] = []
        for number, node in enumerate(self.nodes):
            layer, slot, arguments = node.layer, *_arguments(node, slots)
            free.extend(
                {slots[id(symbol)] for symbol in node.inputs if last[id(symbol)] == number and id(symbol) not in kept}
            )
            outs: list[int | None] = []
            for symbol in symbols_in(node.outputs):
                if id(symbol) not in last and id(symbol) not in kept:
                    outs.append(None)
                    continue
                if not free:
                    free.append(count)
                    count += 1
                slots[id(symbol)] = free.pop()
                outs.append(slots[id(symbol)])
            self._steps.append(Step(layer, slot, arguments, *_outputs(node, outs)))
        self._empty: list[Any] = [None] * count
        self._lone = isinstance(self.inputs, Symbol)
        self._result, self._gather = -1, None
        if isinstance(self.outputs, Symbol):
            self._result = slots[id(self.outputs)]
        else:
            self._gather = _filler(self.outputs, slots)


def unique_names(names: list[str], fixed: frozenset[str] = frozenset()) -> list[str]:
    """dense, dense -> dense, dense_1. Names in `fixed`, which occur once, stay as they are and go to nobody else."""
    taken, result = set(fixed), []
    for name in names:
        candidate, number = name, 0
        while name not in fixed and candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        result.append(candidate)
    return result


def _sorted_nodes(inputs: list[Symbol], outputs: list[Symbol]) -> list[Node]:
    """The calls that the outputs need, each after those that it needs; without recursion, for graphs may be deep."""
    known, done, nodes = {id(symbol) for symbol in inputs}, set(), []
    stack = [(symbol, False) for symbol in reversed(outputs)]
    while stack:
        symbol, needs_are_done = stack.pop()
        node = symbol.node
        if id(symbol) in known or id(node) in done:
            continue
        if node is None:
            name = f" '{symbol.name}'" if symbol.name else ""
            raise ArgumentError(
                f"An output of Model(inputs, outputs) depends on the Input{name} of shape {symbol.shape}, which is not "
                "among the inputs; add it to `inputs`."
            )
        if needs_are_done:
            done.add(id(node))
            nodes.append(node)
        else:
            stack.append((symbol, True))
            stack.extend((source, False) for source in reversed(node.inputs))
    return nodes


def _arguments(node: Node, slots: dict[int, int]) -> tuple[int, Any]:
    """(slot, None) for one positional Symbol, (-1, function of the values) for anything else."""
    if len(node.args) == 1 and not node.kwargs and isinstance(node.args[0], Symbol):
        return slots[id(node.args[0])], None
    plain = not node.kwargs and all(isinstance(argument, Symbol) for argument in node.args)
    if plain:
        places = [slots[id(argument)] for argument in node.args]
        return -1, lambda values: ([values[place] for place in places], {})
    args, kwargs = _filler(node.args, slots), _filler(node.kwargs, slots)
    return -1, lambda values: (args(values), kwargs(values))


def _outputs(node: Node, outs: list[int | None]) -> tuple[int, Any]:
    """(slot, None) for one output that somebody needs, (-1, function that stores a result) for anything else."""
    if isinstance(node.outputs, Symbol) and outs[0] is not None:
        return outs[0], None
    is_symbol = [isinstance(leaf, Symbol) for leaf in tree.leaves(node.outputs)]

    def store(values: list[Any], result: Any) -> None:
        arrays = [leaf for leaf, wanted in zip(tree.leaves(result), is_symbol, strict=True) if wanted]
        for place, array in zip(outs, arrays, strict=True):
            if place is not None:
                values[place] = array

    return -1, store


def _filler(arguments: Any, slots: dict[int, int]) -> Callable[[list[Any]], Any]:
    """A function of the values that gives `arguments` with every Symbol replaced; constants are kept."""
    if isinstance(arguments, Symbol):
        place = slots[id(arguments)]
        return lambda values: values[place]
    if isinstance(arguments, dict):
        fields = {key: _filler(value, slots) for key, value in arguments.items()}
        return lambda values: {key: fill(values) for key, fill in fields.items()}
    if isinstance(arguments, (tuple, list)):
        items, kind = [_filler(value, slots) for value in arguments], type(arguments)
        if hasattr(arguments, "_fields"):
            return lambda values: kind(*[fill(values) for fill in items])
        return lambda values: kind([fill(values) for fill in items])
    return lambda values: arguments
