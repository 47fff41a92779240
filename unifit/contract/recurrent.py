"""What a backend's `recurrent` has to provide: LSTM and GRU over whole sequences, fused where the framework can.

Equations, weight layouts and gate orders are Keras'. Rules that hold for both functions:

- Arrays are batch first: a sequence is (rows, steps, features), a state (rows, units). There is at least one step, and
  there may be no row. All floats are of one dtype.
- `reverse` takes the steps from the last to the first. Outputs stand in the order in which they were made, so that
  `outputs[:, 0]` is the one of the last step.
- `mask`, bool (rows, steps), may be False anywhere. A step that is False for a row leaves the row's states as they are,
  to the bit, and repeats its output; before the row's first True step the output is 0, whatever the initial state. What
  `x` holds there does not matter, not even NaN, and gets gradient 0.
- Everything is differentiable, needs no host read, runs under the backend's abstract evaluation, and has static shapes.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from types import FunctionType

from unifit.contract.ops import Array


def lstm(
    x: Array,
    h0: Array | None,
    c0: Array | None,
    kernel: Array,
    recurrent_kernel: Array,
    bias: Array | None,
    mask: Array | None = None,
    reverse: bool = False,
) -> tuple[Array, Array, Array]:
    """Long short-term memory.

        i, f, g, o = split(x_t @ kernel + h @ recurrent_kernel + bias)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)

    Reference: Hochreiter and Schmidhuber, 1997; Gers et al., 2000, for the forget gate.

    Args:
        x: Shape (rows, steps, features).
        h0: The state before the first step, shape (rows, units); None is zeros.
        c0: The cell before the first step, shape (rows, units); None is zeros.
        kernel: Shape (features, 4 * units), the gates in the order i, f, g, o.
        recurrent_kernel: Shape (units, 4 * units), likewise.
        bias: Shape (4 * units,), or None.
        mask: Which steps count, bool, shape (rows, steps); None is all.
        reverse: Whether to go from the last step to the first.

    Returns:
        Every step's h, shape (rows, steps, units), and the last h and c, shape (rows, units).
    """
    ...


def gru(
    x: Array,
    h0: Array | None,
    kernel: Array,
    recurrent_kernel: Array,
    bias: Array | None,
    mask: Array | None = None,
    reverse: bool = False,
) -> tuple[Array, Array]:
    """Gated recurrent unit, with the reset gate after the product (Keras' `reset_after=True`).

        xz, xr, xn = split(x_t @ kernel + bias[0])
        hz, hr, hn = split(h @ recurrent_kernel + bias[1])
        z = sigmoid(xz + hz)
        h = z * h + (1 - z) * tanh(xn + sigmoid(xr + hr) * hn)

    Reference: Cho et al., 2014, arXiv:1406.1078v1.

    Args:
        x: Shape (rows, steps, features).
        h0: The state before the first step, shape (rows, units); None is zeros.
        kernel: Shape (features, 3 * units), the gates in the order z, r, n.
        recurrent_kernel: Shape (units, 3 * units), likewise.
        bias: Shape (2, 3 * units), or None.
        mask: Which steps count, bool, shape (rows, steps); None is all.
        reverse: Whether to go from the last step to the first.

    Returns:
        Every step's h, shape (rows, steps, units), and the last h, shape (rows, units).
    """
    ...


RECURRENT: tuple[str, ...] = tuple(
    name for name, value in list(globals().items()) if isinstance(value, FunctionType) and not name.startswith("_")
)
