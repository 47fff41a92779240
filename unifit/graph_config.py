"""The graph of a functional model as a config: its inputs, its layers once each, and the calls between them."""

from __future__ import annotations

from typing import Any

from unifit.config import serialize
from unifit.errors import ArgumentError
from unifit.graph import Graph
from unifit.input_specs import specs_from_json, specs_to_json
from unifit.symbol import Symbol, symbols_in


def graph_config(graph: Graph) -> dict[str, Any]:
    """A JSON value. Arrays are numbered: the inputs first, then every call's outputs; {"symbol": n} means one."""
    layers = graph.layers
    places = {id(layer): number for number, layer in enumerate(layers)}
    numbers = {id(symbol): number for number, symbol in enumerate(symbols_in(graph.inputs))}
    calls = []
    for node in graph.nodes:
        arguments = {"args": _encode(list(node.args), numbers), "kwargs": _encode(node.kwargs, numbers)}
        calls.append({"layer": places[id(node.layer)], **serialize(arguments)})
        for symbol in symbols_in(node.outputs):
            numbers[id(symbol)] = len(numbers)
    return {
        "inputs": serialize(specs_to_json(graph.inputs)),
        "layers": layer_forms(layers),
        "calls": calls,
        "outputs": serialize(_encode(graph.outputs, numbers)),
    }


def graph_from_config(config: dict[str, Any]) -> tuple[Any, Any]:
    """The inputs and outputs, by calling the config's layers (objects already) on Symbols.

    Raises:
        ArgumentError: When the config does not hang together.
    """
    inputs = specs_from_json(config["inputs"])
    symbols = symbols_in(inputs)
    for call in config["calls"]:
        args, kwargs = (_decode(call[part], symbols) for part in ("args", "kwargs"))
        symbols.extend(symbols_in(config["layers"][call["layer"]](*args, **kwargs)))
    return inputs, _decode(config["outputs"], symbols)


def layer_forms(layers: list[Any]) -> list[Any]:
    """The layers' configs.

    Raises:
        ArgumentError: When one has none, by the layer's name.
    """
    forms = []
    for layer in layers:
        try:
            forms.append(serialize(layer))
        except ArgumentError as error:
            raise ArgumentError(f"Layer '{layer.name}' cannot be saved: {error}") from error
    return forms


def _encode(value: Any, numbers: dict[int, int]) -> Any:
    if isinstance(value, Symbol):
        return {"symbol": numbers[id(value)]}
    if isinstance(value, dict):
        return {key: _encode(entry, numbers) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_encode(entry, numbers) for entry in value)
    return value


def _decode(value: Any, symbols: list[Symbol]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"symbol"} and isinstance(value["symbol"], int):
            if not 0 <= value["symbol"] < len(symbols):
                raise ArgumentError(f"A graph's config uses array {value['symbol']} before it is made.")
            return symbols[value["symbol"]]
        return {key: _decode(entry, symbols) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_decode(entry, symbols) for entry in value)
    return value
