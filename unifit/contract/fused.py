"""What the front end asks of a backend in one call, because a framework may have one kernel for it."""

from __future__ import annotations

from typing import Any, Protocol


class FusedModule(Protocol):
    """`unifit_<framework>/fused.py`."""

    def affine(self, x: Any, kernel: Any, bias: Any) -> Any:
        """`x @ kernel + bias`, arrays of one dtype.

        Args:
            x: Shape (..., in).
            kernel: Shape (in, out).
            bias: Shape (out,).

        Returns:
            Shape (..., out).
        """
        ...
