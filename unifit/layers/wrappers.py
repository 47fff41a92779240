"""Layers around a layer or function: TimeDistributed, Bidirectional, Lambda."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import unifit.layers.arguments as arguments
import unifit.ops as ops
from unifit.context import context
from unifit.contract import tree
from unifit.errors import ArgumentError, ShapeError
from unifit.layer import Layer, layers_registry


@layers_registry.register
class TimeDistributed(Layer):
    """Applies a layer to every step of a sequence.

    The steps are joined with the rows, so the layer runs once. BatchNormalization inside it sees all steps together,
    where Keras takes one step after the other.

    Args:
        layer: The layer for one step.

    Call:
        x: Array, shape (batch, steps, ...).
        mask: Filled in; handed to the layer if its call declares `mask`.
        Returns: Array, shape (batch, steps, ...). The mask stays.

    Raises:
        ArgumentError: When `layer` is no Layer. ShapeError: for an input with fewer than three axes.

    Example:
        >>> tuple(TimeDistributed(Dense(4))(ops.ones((2, 5, 3))).shape)
        (2, 5, 4)
    """

    supports_masking = True
    casts_inputs = False  # the layer inside does

    def __init__(self, layer: Layer, **kwargs: Any):
        super().__init__(**kwargs)
        if not isinstance(layer, Layer):
            raise ArgumentError(f"TimeDistributed got layer={layer!r}; it needs a Layer.")
        self.layer = layer

    def build(self, input_shape: tuple[int, ...]) -> None:
        if len(input_shape) < 3:
            raise ShapeError(
                f"TimeDistributed '{self.name}' got an input of shape {tuple(input_shape)}; it needs (rows, steps, "
                "...)."
            )

    def call(self, x: Any, mask: Any = None) -> Any:
        rows, steps = x.shape[:2]
        named = {}
        if mask is not None and self.layer._takes_mask:
            named["mask"] = ops.reshape(mask, (rows * steps, *mask.shape[2:]))
        y = self._per_step(steps, ops.reshape(x, (rows * steps, *x.shape[2:])), named)
        return tree.map(lambda leaf: ops.reshape(leaf, (rows, steps, *leaf.shape[1:])), y)

    def _per_step(self, steps: int, x: Any, named: dict[str, Any]) -> Any:
        """Calls the layer on rows that are steps, which are as valid as the rows they came from."""
        ambient = context()
        if ambient is None or ambient.valid is None:
            return self.layer(x, **named)
        kept = ambient.valid
        ambient.valid = ops.repeat(kept, steps, axis=0)
        try:
            return self.layer(x, **named)
        finally:
            ambient.valid = kept


_MERGES: dict[Any, Callable[[Any, Any], Any]] = {
    "concat": lambda forward, backward: ops.concatenate([forward, backward], axis=-1),
    "sum": ops.add,
    "mul": ops.multiply,
    "ave": lambda forward, backward: (forward + backward) * 0.5,
    None: lambda forward, backward: (forward, backward),
}


@layers_registry.register
class Bidirectional(Layer):
    """Runs a recurrent layer over a sequence in both directions and merges the results.

    Args:
        layer: A recurrent layer: one with `return_sequences` and `go_backwards`, such as LSTM and GRU.
        merge_mode: "concat", "sum", "mul", "ave", or None for both results.
        backward_layer: The layer for the other direction; None makes one from the config of `layer`.

    Call:
        x: Float array, shape (batch, steps, features).
        mask: Filled in: bool, shape (batch, steps).
        initial_state: List of the forward states, then the backward ones; None is zeros.
        Returns: The merged result, or both; then the states of both directions if the layer returns its state. At
            masked steps of a returned sequence it is 0 before merging.

    Raises:
        ArgumentError: For layers that are not recurrent or do not go together.

    Example:
        `Bidirectional(LSTM(4, return_sequences=True))` makes (batch, steps, 8) of (batch, steps, features).
    """

    supports_masking = True
    casts_inputs = False  # the layer inside does

    def __init__(self, layer: Any, merge_mode: str | None = "concat", backward_layer: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        for name, given in (("layer", layer), ("backward_layer", backward_layer)):
            if name == "layer" or given is not None:
                if not isinstance(given, Layer) or not all(hasattr(given, part) for part in _NEEDED):
                    raise ArgumentError(
                        f"Bidirectional got {name}={given!r}; it needs a recurrent layer, one with "
                        f"{' and '.join(_NEEDED)}."
                    )
        self.merge_mode = arguments.choice(self, "merge_mode", merge_mode, tuple(_MERGES))
        self.forward_layer = layer
        if backward_layer is None:
            backward_layer = type(layer).from_config({**layer.get_config(), "go_backwards": not layer.go_backwards})
        self.backward_layer = backward_layer
        if layer.go_backwards == backward_layer.go_backwards or any(
            getattr(layer, name, False) != getattr(backward_layer, name, False)
            for name in ("return_sequences", "return_state")
        ):
            raise ArgumentError(
                "Bidirectional got a layer and a backward_layer that do not go together: go_backwards must differ, "
                "return_sequences and return_state must not."
            )
        self.return_sequences = layer.return_sequences
        self.return_state = getattr(layer, "return_state", False)

    def call(self, x: Any, mask: Any = None, initial_state: Any = None) -> Any:
        states: list[Any] = []
        results = []
        for index, layer in enumerate((self.forward_layer, self.backward_layer)):
            named: dict[str, Any] = {}
            if mask is not None and layer._takes_mask:
                named["mask"] = mask
            if initial_state is not None:
                half = len(initial_state) // 2
                named["initial_state"] = list(initial_state[index * half : (index + 1) * half])
            y = layer(x, **named)
            if self.return_state:
                y, *own = y
                states += own
            results.append(self._in_order(layer, y, mask))
        merged = _MERGES[self.merge_mode](*results)
        if not self.return_state:
            return merged
        return (*merged, *states) if self.merge_mode is None else (merged, *states)

    def _in_order(self, layer: Any, y: Any, mask: Any) -> Any:
        """A returned sequence in the order of time, with 0 at masked steps."""
        if not self.return_sequences:
            return y
        y = ops.flip(y, axis=1) if layer is self.backward_layer else y
        return y if mask is None else ops.where(ops.expand_dims(mask, -1), y, 0.0)

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        return mask if self.return_sequences else None


_NEEDED = ("return_sequences", "go_backwards")


@layers_registry.register
class Lambda(Layer):
    """Applies a function of arrays, without weights.

    Args:
        function: Function of the input, in `uf.ops`. It may declare `mask` and `training`, which are filled in. To be
            saved it must be a registered function, not a lambda.
        mask: The output's mask, or a function (inputs, mask) that makes it; with None an input's mask is dropped, with
            a warning.
        arguments: Further arguments by name.

    Call:
        x: Array, or a tree of them.
        Returns: What the function returns.

    Raises:
        ArgumentError: When `function` cannot be called.

    Example:
        >>> tuple(Lambda(lambda x: x * 2)(ops.ones((2, 3))).shape)
        (2, 3)
    """

    def __init__(
        self, function: Callable[..., Any], mask: Any = None, arguments: dict[str, Any] | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        if not callable(function):
            raise ArgumentError(f"Lambda got function={function!r}; it needs a function of the input.")
        self.function, self.mask, self.arguments = function, mask, dict(arguments or {})
        self.makes_mask = mask is not None
        try:
            self._declared = frozenset(inspect.signature(function).parameters)
        except ValueError:  # a function of a framework, written in C
            self._declared = frozenset()

    def call(self, x: Any, mask: Any = None, training: bool = False) -> Any:
        given = {"mask": mask, "training": training}
        filled_in = {name: value for name, value in given.items() if name in self._declared}
        return self.function(x, **{**self.arguments, **filled_in})

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        if self.mask is None:
            self._warn_of_dropped_mask()
            return None
        return self.mask(inputs, mask) if callable(self.mask) else self.mask
