"""Sequential: layers one after the other."""

from __future__ import annotations

from typing import Any, Self

from unifit.config import deserialize
from unifit.errors import ArgumentError
from unifit.graph_config import layer_forms
from unifit.input_specs import specs_from_json, specs_to_json
from unifit.layer import Layer
from unifit.model import Model
from unifit.names import register_serializable
from unifit.sharing import reading, write
from unifit.symbol import Input, Symbol


@register_serializable(package="unifit")
class Sequential(Model):
    """A model that calls its layers in order; their paths are positions: `0.kernel`, `1.gamma`.

    Args:
        layers: The layers. A leading `uf.Input`, or `input_shape` in the first layer, builds the model at once; else it
            is built by the first data, or by `build`.
        name: Shown in summaries.

    Example:
        >>> model = Sequential([Dense(4, activation="relu"), Dense(1)])
    """

    _modules: dict[str, Any]  # every backend's Module holds its children there
    _layers: list[Layer]
    _symbols: list[Symbol]

    def __init__(self, layers: Any = (), *, name: str | None = None, trainable: bool = True):
        super().__init__(name=name, trainable=trainable)
        # _symbols: of the input and of each layer's output, where there is an input
        self.__dict__.update(_layers=[], _symbols=[])
        for layer in [layers] if isinstance(layers, (Layer, Symbol)) else layers:
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Adds a layer at the end; the first may be a `uf.Input`.

        Raises:
            ArgumentError: When it is neither, or an Input that does not come first.
        """
        if isinstance(layer, Symbol):
            self._add_input(layer)
            return
        if not isinstance(layer, Layer):
            raise ArgumentError(f"Sequential.add got {layer!r}; it needs a Layer, or uf.Input(shape) as the first.")
        if not self._layers and not self._symbols and layer.__dict__.get("_row_shape") is not None:
            self._add_input(Input(tuple(layer.__dict__["_row_shape"])))
        if self._symbols:
            output = layer(self._symbols[-1])
            if not isinstance(output, Symbol):
                raise ArgumentError(f"Layer '{layer.name}' returns several arrays; in a Sequential each returns one.")
            self._symbols.append(output)
        self.add_module(str(len(self._layers)), layer)
        self._layers.append(layer)
        self._changed()

    def pop(self) -> Layer:
        """Removes the last layer and returns it.

        Raises:
            ArgumentError: When there is none.
        """
        if not self._layers:
            raise ArgumentError(f"{self.name}.pop was called on a Sequential without layers.")
        key = str(len(self._layers) - 1)
        super().__setattr__(key, None)  # each backend lets go of a module that is assigned over
        self.__dict__.pop(key, None)
        self._modules.pop(key, None)
        if self._symbols:
            self._symbols.pop()
        layer = self._layers.pop()
        self._changed()
        return layer

    def _add_input(self, symbol: Symbol) -> None:
        if self._layers or self._symbols or symbol.node is not None:
            raise ArgumentError("A Sequential takes one uf.Input, as its first entry, and no layer's output.")
        self._symbols.append(symbol)

    def _changed(self) -> None:
        """Built where the input is known; else the next call builds what was added. The trainer is made anew."""
        known = len(self._symbols) > 1
        self.__dict__.update(built=known, _ready=False)
        self._binding.outdate()
        self.__dict__["_arguments"] = (self._symbols[0],) if known else None

    @property
    def layers(self) -> list[Layer]:
        """The layers in order."""
        return list(self._layers)

    @property
    def inputs(self) -> list[Symbol] | None:
        """The input's Symbol; None without a leading `uf.Input`."""
        return self._symbols[:1] or None

    @property
    def outputs(self) -> list[Symbol] | None:
        """The last layer's output; None without a leading `uf.Input`."""
        return self._symbols[-1:] or None

    def call(self, x: Any) -> Any:
        for layer in self._layers:
            x = layer(x)
        return x

    def get_config(self) -> dict[str, Any]:
        """The layers as they are now; a subclass with a constructor of its own gives that one's arguments."""
        if type(self).__init__ is not Sequential.__init__:
            return super().get_config()
        config = {"name": self.name, "trainable": self.trainable}
        if self._symbols:
            config["input"] = specs_to_json(self._symbols[0])
        return config | {"layers": write(lambda: layer_forms(self._layers))}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The inverse of `get_config`."""
        if cls.__init__ is not Sequential.__init__:
            return super().from_config(config, custom_objects)
        with reading():
            values = {name: deserialize(value, custom_objects) for name, value in config.items()}
        if "input" in values:
            values["layers"] = [specs_from_json(values.pop("input")), *values["layers"]]
        return cls(**values)
