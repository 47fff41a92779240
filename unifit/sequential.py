"""Sequential: layers one after the other."""

from __future__ import annotations

from typing import Any

from unifit.errors import ArgumentError
from unifit.layer import Layer
from unifit.model import Model


class Sequential(Model):
    """A model that calls its layers in order; their paths are positions: `0.kernel`, `1.gamma`.

    Args:
        layers: The layers.
        name: Shown in summaries.

    Example:
        >>> model = Sequential([Dense(4, activation="relu"), Dense(1)])
    """

    def __init__(self, layers: Any = (), *, name: str | None = None, trainable: bool = True):
        super().__init__(name=name, trainable=trainable)
        self.__dict__["_layers"] = []
        for layer in layers:
            self.add(layer)

    def add(self, layer: Layer) -> None:
        """Adds a layer at the end.

        Raises:
            ArgumentError: When it is no Layer.
        """
        if not isinstance(layer, Layer):
            raise ArgumentError(f"Sequential.add got {layer!r}; it needs a Layer.")
        self.add_module(str(len(self._layers)), layer)
        self._layers.append(layer)

    @property
    def layers(self) -> list[Layer]:
        """The layers in order."""
        return list(self._layers)

    def call(self, x: Any) -> Any:
        for layer in self._layers:
            x = layer(x)
        return x
