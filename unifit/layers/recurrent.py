"""LSTM and GRU: layers that walk along a sequence and keep a state."""

from __future__ import annotations

from typing import Any

import numpy as np

import unifit.activations as activations
import unifit.initializers as initializers
import unifit.layers.arguments as arguments
import unifit.layers.precision as precision
import unifit.ops as ops
import unifit.random as random
from unifit.backend import backend
from unifit.context import context
from unifit.errors import ArgumentError, ShapeError, UnsupportedError
from unifit.layer import Layer, layers_registry


class _Recurrent(Layer):
    """What LSTM and GRU share: arguments, weights, mask, dropout, states. A subclass says `_num_gates` and `_sweep`."""

    supports_masking = True

    _num_gates = 0
    _state_names: tuple[str, ...] = ("h",)

    def __init__(
        self,
        units: int,
        activation: Any,
        recurrent_activation: Any,
        use_bias: bool,
        initializers: tuple[Any, Any, Any],
        regularizers: tuple[Any, Any, Any],
        dropout: float,
        recurrent_dropout: float,
        return_sequences: bool,
        return_state: bool,
        go_backwards: bool,
        stateful: bool,
        **kwargs: Any,
    ):
        if kwargs.pop("seed", None) is not None:
            raise ArgumentError(
                f"{type(self).__name__} got a seed for its dropout; unifit's random streams are keyed by uf.set_seed "
                "and the step, so that a resumed run goes on with the same numbers. Call uf.set_seed(seed), and leave "
                "this one out."
            )
        super().__init__(**kwargs)
        self.units = arguments.whole(self, "units", units)
        self._check_activation("activation", activation, "tanh")
        self._check_activation("recurrent_activation", recurrent_activation, "sigmoid")
        if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise ArgumentError(f"{type(self).__name__} got dropout={dropout!r}; it needs a number in [0, 1).")
        if recurrent_dropout:
            raise UnsupportedError(
                f"{type(self).__name__} got recurrent_dropout={recurrent_dropout!r}; the fused kernels cannot drop "
                "between steps. Use dropout, which drops features of the input for all steps alike, or Dropout on the "
                "output."
            )
        if stateful:
            raise UnsupportedError(
                f"{type(self).__name__} got stateful=True; a state that outlives a batch would depend on the order of "
                "batches and devices. Use return_state=True, and pass the states on as initial_state."
            )
        self.use_bias, self.dropout = use_bias, dropout
        self.kernel_initializer, self.recurrent_initializer, self.bias_initializer = initializers
        self.kernel_regularizer, self.recurrent_regularizer, self.bias_regularizer = regularizers
        self.return_sequences, self.return_state, self.go_backwards = return_sequences, return_state, go_backwards

    def _check_activation(self, name: str, given: Any, fused: str) -> None:
        if activations.get(given) is not activations.get(fused):
            raise UnsupportedError(
                f"{type(self).__name__} got {name}={given!r}; the fused kernels know {fused!r} alone. Write the cell "
                "as a layer of your own, whose call loops over the steps in uf.ops."
            )

    def build(self, input_shape: tuple[int, ...]) -> None:
        arguments.check_rank(self, input_shape, 3)
        columns = self._num_gates * self.units
        self.kernel = self.add_weight(
            (input_shape[-1], columns), self.kernel_initializer, regularizer=self.kernel_regularizer
        )
        self.recurrent_kernel = self.add_weight(
            (self.units, columns), self.recurrent_initializer, regularizer=self.recurrent_regularizer
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(*self._bias(columns), regularizer=self.bias_regularizer)

    def call(self, x: Any, initial_state: Any = None, mask: Any = None, training: bool = False) -> Any:
        arguments.check_rank(self, x.shape, 3)
        if x.shape[1] < 1:
            raise ShapeError(f"{type(self).__name__} '{self.name}' got an input of shape {tuple(x.shape)}: no steps.")
        x = precision.like(x, self.kernel)
        states = self._states(x, initial_state)
        if mask is not None:
            mask = self._checked_mask(x, mask)
        if training and self.dropout:
            x = random.dropout(x, self.dropout, noise_shape=(None, 1, None))
        outputs, *states = self._sweep(x, states, mask)
        if not self.return_sequences:
            outputs = outputs[:, -1]
        if not self.return_state:
            return outputs
        ambient = context()
        if mask is not None and self.return_sequences and ambient is not None:
            # Of several results a Layer cannot know which one the mask belongs to.
            ambient.set_mask(outputs, self.compute_mask(x, mask))
        return (outputs, *states)

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        """The mask of a returned sequence, whose steps stand in reverse with `go_backwards`; else None."""
        if not self.return_sequences or mask is None:
            return None
        return ops.flip(mask, axis=1) if self.go_backwards else mask

    def _states(self, x: Any, initial_state: Any) -> list[Any]:
        if initial_state is None:
            return [None] * len(self._state_names)
        shape = (x.shape[0], self.units)
        states = list(initial_state) if isinstance(initial_state, (list, tuple)) else [initial_state]
        if len(states) != len(self._state_names) or any(tuple(state.shape) != shape for state in states):
            raise ShapeError(
                f"{type(self).__name__} '{self.name}' got initial_state of shapes "
                f"{[tuple(state.shape) for state in states]}; it needs {list(self._state_names)} of shape {shape} each."
            )
        return [precision.like(state, self.kernel) for state in states]

    def _checked_mask(self, x: Any, mask: Any) -> Any:
        if tuple(mask.shape) != tuple(x.shape[:2]):
            raise ShapeError(
                f"{type(self).__name__} '{self.name}' got a mask of shape {tuple(mask.shape)} for an input of shape "
                f"{tuple(x.shape)}; it needs (rows, steps)."
            )
        return mask if ops.dtype(mask) == "bool" else ops.cast(mask, "bool")

    def _bias(self, columns: int) -> tuple[tuple[int, ...], Any]:
        """The bias' shape and initializer."""
        raise NotImplementedError

    def _sweep(self, x: Any, states: list[Any], mask: Any) -> tuple[Any, ...]:
        """The contract's function: every step's output, then the last states."""
        raise NotImplementedError


@layers_registry.register
class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), by the framework's fused kernel where it has one.

        i, f, g, o = split(x_t @ kernel + h @ recurrent_kernel + bias)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)

    Args:
        units: Size of the output and of both states, at least 1.
        activation: "tanh"; the fused kernels know no other.
        recurrent_activation: "sigmoid", likewise.
        use_bias: Whether there is a bias.
        kernel_initializer, recurrent_initializer, bias_initializer: Initial values, by Keras' names.
        unit_forget_bias: Whether the bias of the forget gate f starts at 1.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: Penalties added to the loss, or None.
        dropout: Probability with which a feature of the input is put to 0 in training, for all steps alike.
        recurrent_dropout: 0.
        return_sequences: Whether to return every step's output instead of the last one.
        return_state: Whether to return the last h and c as well.
        go_backwards: Whether to go from the last step to the first; a returned sequence stands in that order too.
        stateful: False; pass states on as `initial_state`.
        unroll: Accepted for Keras' sake; each backend has one way to go.

    Call:
        x: Array of floats or integers, shape (batch, steps, features), at least one step.
        initial_state: [h, c], each (batch, units); None is zeros.
        mask: Filled in: bool, shape (batch, steps). A masked step keeps the states and repeats the output, which is 0
            before the first unmasked step.
        training: Filled in.
        Returns: Array (batch, units), or (batch, steps, units), which carries the mask; with `return_state` a tuple of
            it, h and c.

    Raises:
        ArgumentError: When units is below 1, or dropout not in [0, 1). ShapeError: for an input, state or mask that
            does not fit. UnsupportedError: for other activations, recurrent dropout, or a state kept between batches.

    Example:
        >>> tuple(LSTM(4, return_sequences=True)(ops.ones((2, 5, 3))).shape)
        (2, 5, 4)
    """

    _num_gates = 4
    _state_names = ("h", "c")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        **kwargs: Any,
    ):
        super().__init__(
            units, activation, recurrent_activation, use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            (kernel_regularizer, recurrent_regularizer, bias_regularizer),
            dropout, recurrent_dropout, return_sequences, return_state, go_backwards, stateful, **kwargs,
        )  # fmt: skip
        self.unit_forget_bias = unit_forget_bias

    def _bias(self, columns: int) -> tuple[tuple[int, ...], Any]:
        initializer = initializers.get(self.bias_initializer)
        return (columns,), _ForgetBias(initializer, self.units) if self.unit_forget_bias else initializer

    def _sweep(self, x: Any, states: list[Any], mask: Any) -> tuple[Any, ...]:
        return backend.recurrent.lstm(
            x, *states, self.kernel, self.recurrent_kernel, self.bias, mask, self.go_backwards
        )


class _ForgetBias(initializers.Initializer):
    """Another initializer's values, with ones for the forget gate, which is the second of LSTM's four."""

    def __init__(self, others: Any, units: int):
        self.others, self.units = others, units

    def __call__(self, shape: Any, dtype: Any = "float32", rng: np.random.Generator | None = None) -> np.ndarray:
        values = np.array(self.others(shape, dtype, rng))
        values[self.units : 2 * self.units] = 1
        return values


@layers_registry.register
class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al., 2014, arXiv:1406.1078v1), by the framework's fused kernel where it has one.

        xz, xr, xn = split(x_t @ kernel + bias[0])
        hz, hr, hn = split(h @ recurrent_kernel + bias[1])
        z = sigmoid(xz + hz)
        h = z * h + (1 - z) * tanh(xn + sigmoid(xr + hr) * hn)

    Args:
        units: Size of the output and of the state, at least 1.
        activation: "tanh"; the fused kernels know no other.
        recurrent_activation: "sigmoid", likewise.
        use_bias: Whether there are biases.
        kernel_initializer, recurrent_initializer, bias_initializer: Initial values, by Keras' names.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: Penalties added to the loss, or None.
        dropout: Probability with which a feature of the input is put to 0 in training, for all steps alike.
        recurrent_dropout: 0.
        return_sequences: Whether to return every step's output instead of the last one.
        return_state: Whether to return the last h as well.
        go_backwards: Whether to go from the last step to the first; a returned sequence stands in that order too.
        stateful: False; pass states on as `initial_state`.
        unroll: Accepted for Keras' sake; each backend has one way to go.
        reset_after: True: the reset gate comes after the product with the recurrent kernel.

    Call:
        x: Array of floats or integers, shape (batch, steps, features), at least one step.
        initial_state: h, or [h], (batch, units); None is zeros.
        mask: Filled in: bool, shape (batch, steps). A masked step keeps the state and repeats the output, which is 0
            before the first unmasked step.
        training: Filled in.
        Returns: Array (batch, units), or (batch, steps, units), which carries the mask; with `return_state` a tuple of
            it and h.

    Raises:
        ArgumentError: When units is below 1, or dropout not in [0, 1). ShapeError: for an input, state or mask that
            does not fit. UnsupportedError: for other activations, recurrent dropout, a state kept between batches, or
            reset_after=False.

    Example:
        >>> tuple(GRU(4)(ops.ones((2, 5, 3))).shape)
        (2, 4)
    """

    _num_gates = 3

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        reset_after: bool = True,
        **kwargs: Any,
    ):
        super().__init__(
            units, activation, recurrent_activation, use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            (kernel_regularizer, recurrent_regularizer, bias_regularizer),
            dropout, recurrent_dropout, return_sequences, return_state, go_backwards, stateful, **kwargs,
        )  # fmt: skip
        if not reset_after:
            raise UnsupportedError(
                "GRU got reset_after=False; the fused kernels reset after the product with the recurrent kernel. Leave "
                "it True, Keras' default, or write the cell as a layer of your own, whose call loops over the steps."
            )

    def _bias(self, columns: int) -> tuple[tuple[int, ...], Any]:
        return (2, columns), initializers.get(self.bias_initializer)

    def _sweep(self, x: Any, states: list[Any], mask: Any) -> tuple[Any, ...]:
        return backend.recurrent.gru(x, *states, self.kernel, self.recurrent_kernel, self.bias, mask, self.go_backwards)
