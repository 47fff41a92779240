"""Layer: the base of every layer and model. It inherits the backend's Module, so that a model is native there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import unifit.initializers as initializers
import unifit.ops as ops
import unifit.regularizers as regularizers
import unifit.symbol as symbol
from unifit.abstract import infer, spec_of
from unifit.backend import backend
from unifit.compute_dtype import ComputeDtype
from unifit.config import Configurable
from unifit.context import CallContext, context
from unifit.contract import tree
from unifit.contract.module import RESERVED
from unifit.errors import ArgumentError, UnifitError
from unifit.names import snake_case
from unifit.precision import compute_dtype as own_compute_dtype
from unifit.registry import Registry
from unifit.seed import get_seed
from unifit.weight_access import WeightAccess
from unifit.weights import Weight, layers_of, make_weights, note_trainable_change

if TYPE_CHECKING:
    from unifit.contract.module import Module
else:
    Module = backend.module.Module

layers_registry = Registry("layer")


class Layer(WeightAccess, ComputeDtype, Configurable, Module):
    """A function with weights.

    Subclass it, make sub-layers in `__init__`, weights in `build`, and write `call` in `uf.ops`.

    Args:
        name: Shown in summaries, and the layer's key in a functional model; by default the class' name in snake case.
        trainable: Whether training may change the layer's weights and those below it.
        dtype: The dtype in which the layer computes: a float dtype or a policy's name. None leaves it to the model's
            `precision`. Its variables are float32 in any case, and it does not hold for layers below it.
        input_shape: Shape of a row of its input; in a Sequential's first layer it stands for a leading `uf.Input`.

    Example:
        >>> class Scale(Layer):
        ...     def build(self, input_shape):
        ...         self.scale = self.add_weight((input_shape[-1],), "ones")
        ...
        ...     def call(self, x):
        ...         return x * self.scale
    """

    supports_masking = False
    """Whether a mask on the first argument holds for the output as it stands."""

    makes_mask = False
    """Whether `compute_mask` makes a mask out of an input that carries none, as Embedding(mask_zero=True) does."""

    shared_in_configs = True  # a layer that occurs twice in one config is one layer

    built: bool
    _ready: bool
    _records: dict[str, Weight]

    _takes_training = False
    _takes_mask = False
    _first_parameter = ""

    def __init__(
        self,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: Any = None,
        input_shape: tuple[int | None, ...] | None = None,
    ):
        super().__init__()
        self.__dict__.update(_records={}, built=False, _ready=False, _name=name or snake_case(type(self).__name__))
        self.__dict__.update(_trainable=trainable, _row_shape=input_shape, _compute_dtype=own_compute_dtype(dtype))

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "call" in cls.__dict__:
            names = inspect.signature(cls.call).parameters
            cls._takes_training = "training" in names
            cls._takes_mask = "mask" in names
            cls._first_parameter = list(names)[1] if len(names) > 1 else ""
        if "build" in cls.__dict__:
            cls.build = _marking_built(cls.__dict__["build"])  # type: ignore[method-assign]  # wraps the class' own

    # What users write and read

    def build(self, input_shape: Any) -> None:
        """Records the weights. Override it; `input_shape` is the first argument's shape (a tree of shapes for a tree).

        An override with several parameters gets the shapes of as many positional arguments.
        """
        self.__dict__["built"] = True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's function of its inputs, in `uf.ops`.

        It may declare `training` and `mask`, which are filled in.
        """
        raise UnifitError(f"{type(self).__name__} has no call method: define `def call(self, x)`.")

    def add_weight(
        self,
        shape: tuple[int, ...] = (),
        initializer: Any = None,
        *,
        dtype: str = "float32",
        trainable: bool = True,
        regularizer: Any = None,
        autocast: bool = True,
        name: str | None = None,
    ) -> Any:
        """Records a weight; assign the result to an attribute, whose name becomes the weight's: `self.kernel = ...`.

        Args:
            shape: Shape of the variable.
            initializer: Keras name, `uf.initializers` object, or a function (shape, dtype) -> array; None is
                "glorot_uniform" for floats and "zeros" for other dtypes.
            dtype: The variable's dtype.
            trainable: False for state that `assign` changes, such as moving statistics.
            regularizer: Name, object or scalar function of the variable, added to the loss once per update.
            autocast: Whether the weight reads in the layer's compute dtype under mixed precision, if it is a trainable
                float; False: always in its own dtype.
            name: Binds the weight under this attribute name at once.

        Raises:
            ArgumentError: When an axis is unknown or negative.
        """
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if any(not isinstance(size, (int, np.integer)) or size < 0 for size in shape):
            hint = "Is the last axis of the input fixed?"
            if any(isinstance(size, (tuple, list)) for size in shape):
                hint = (
                    "It was taken from a tuple or list of inputs, and the layer takes one: pass labels apart, as in "
                    "fit(x, y), and join several inputs first, as layers.Concatenate() does."
                )
            raise ArgumentError(
                f"{self.name}.add_weight got shape {shape}; every axis needs a known size of at least 0. {hint}"
            )
        if initializer is None:
            initializer = "glorot_uniform" if "float" in dtype else "zeros"
        regularizer = None if regularizer is None else regularizers.get(regularizer)
        start: Any = initializers.get(initializer)
        record = Weight(tuple(map(int, shape)), dtype, start, trainable, regularizer, autocast)
        if name is not None:
            setattr(self, name, record)
            return getattr(self, name)
        return record

    def add_loss(self, value: Any) -> None:
        """Adds a scalar to the loss of the running forward pass: an activity or weight penalty, a balance term.

        Over a window it counts once: each micro-batch's value is weighted by its share of the valid loss elements. On
        several devices or micro-batches the rows of a ragged end include padding, where `uf.context().valid`, a bool
        array (rows,), is False: leave it out of a mean over rows.
        """
        ambient = context()
        if ambient is None:
            raise UnifitError(f"{self.name}.add_loss was called outside a forward pass; call it in the layer's call.")
        ambient.losses.append(value if ambient.compute is None else ops.cast(value, "float32"))

    def assign(self, name: str, value: Any) -> None:
        """Sets a non-trainable weight in a forward pass; `self.moving_mean = value` does the same."""
        ambient = context()
        if ambient is None or not ambient.abstract:
            super().assign(name, value)

    def compute_mask(self, inputs: Any, mask: Any) -> Any:
        """The output's mask, given the first argument and its mask; None for no mask."""
        return mask if self.supports_masking else None

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.__dict__["_name"]

    @property
    def trainable(self) -> bool:
        """Whether training may change the weights. Setting it sets it on all layers below, as in Keras."""
        return self.__dict__["_trainable"]

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for _, module in layers_of(self):
            module.__dict__["_trainable"] = bool(value)
        note_trainable_change()

    # The call

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The body of a call: builds when needed, fills in `training` and `mask`.

        The backend's Module owns `__call__`.
        """
        ambient = context()
        if ambient is None:
            return self._call_alone(args, kwargs)
        if not self.built:
            self._build(ambient, args, kwargs)
        if "training" in kwargs:
            return self._call_in_mode(ambient, args, kwargs)
        if ambient.compute is not None and self.casts_inputs:
            args, kwargs = self.cast_inputs(ambient, args, kwargs)
        if self._takes_training:
            kwargs["training"] = ambient.training
        if not ambient.has_masks and not self.makes_mask:
            return self.call(*args, **kwargs)
        return self._call_masked(ambient, args, kwargs)

    def _call_in_mode(self, ambient: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An explicit training=True/False holds for this layer and for those that it calls."""
        kept, chosen = ambient.training, kwargs.pop("training")
        ambient.training = kept if chosen is None else bool(chosen)
        try:
            return self.run(*args, **kwargs)
        finally:
            ambient.training = kept

    def _call_masked(self, ambient: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = args[0] if args else kwargs.get(self._first_parameter)
        mask = tree.map(ambient.mask_of, inputs) if isinstance(inputs, (list, tuple, dict)) else ambient.mask_of(inputs)
        if self._takes_mask and kwargs.get("mask") is None:
            kwargs["mask"] = mask
        y = self.call(*args, **kwargs)
        if (
            (self.makes_mask or tree.leaves(mask))
            and not isinstance(y, (list, tuple, dict))
            and ambient.mask_of(y) is None
        ):
            after = self.compute_mask(inputs, mask)
            if after is not None:
                ambient.set_mask(y, after)
            elif type(self).compute_mask is Layer.compute_mask and not list(self.named_children()):
                self._warn_of_dropped_mask()
        return y

    def _warn_of_dropped_mask(self) -> None:
        warnings.warn(
            f"{type(self).__name__} '{self.name}' got an input with a mask and drops it: padded positions count as "
            "valid from here on. Set supports_masking = True where the mask holds for the output too.",
            stacklevel=4,
        )

    def _call_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An outermost call: on Symbols it is recorded, on arrays it runs at once, by default as inference."""
        if symbol.symbols_in(args, kwargs):
            return symbol.record(self, args, kwargs)
        args, kwargs = tree.map(_on_device, (args, kwargs))
        if not self._ready:
            self._make_ready(args, kwargs)
        ambient = CallContext(training=bool(kwargs.pop("training", False)), stream=eager_stream)
        with ambient.open():
            return self(*args, **kwargs)

    def _make_ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arrays = [leaf for leaf in tree.leaves((args, kwargs)) if hasattr(leaf, "shape")]

        def call(*given: Any) -> Any:
            abstract = {id(array): value for array, value in zip(arrays, given, strict=True)}
            arguments, named = tree.map(lambda leaf: abstract.get(id(leaf), leaf), (args, kwargs))
            return self(*arguments, **named)

        infer(self, call, *map(spec_of, arrays))
        make_weights(self, get_seed())
        self.__dict__["_ready"] = True

    def _build(self, ambient: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not ambient.abstract and type(self).build is not Layer.build:
            raise UnifitError(
                f"Layer '{self.name}' runs for the first time in the middle of training, so it has no weights: it was "
                "not called when the model was built. Call model.build(shape) on data that reaches it, or build it "
                "yourself."
            )
        self._track_containers()
        parameters = inspect.signature(self.build).parameters.values()
        room = len(args) if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(parameters)
        # Arguments that were given by name count at the place of their parameter.
        names = list(inspect.signature(self.call).parameters)[len(args) : room]
        given = [*args[:room], *(kwargs.get(name) for name in names)]
        self.build(*(tree.map(lambda array: tuple(array.shape), argument) for argument in given))
        self._track_containers()

    def _track_containers(self) -> None:
        """Takes up lists and dicts that were empty when they were assigned, and have got layers since."""
        for name, value in list(self.__dict__.items()):
            if isinstance(value, (list, dict)) and not name.startswith("_") and _holds_layers(value):
                setattr(self, name, value)

    # Attributes

    def __setattr__(self, name: str, value: Any) -> None:
        records = self.__dict__.get("_records")
        if records is None:
            if isinstance(value, (Layer, Weight)) or not name.startswith("_"):
                raise UnifitError(
                    f"{type(self).__name__}.__init__ must call super().__init__() before it sets '{name}'."
                )
        elif name in RESERVED:
            raise ArgumentError(
                f"'{name}' cannot be an attribute of {type(self).__name__}: a backend's modules use that name. "
                f"Rename it, for instance to '{name}_'."
            )
        elif isinstance(value, Weight):
            self._bind(name, value)
            return
        elif name in records:
            if not isinstance(value, np.ndarray) or context() is not None:
                self.assign(name, value)
            else:
                self.write_parameter(name, value)
            return
        elif isinstance(getattr(type(self), name, None), property) and getattr(type(self), name).fset is None:
            raise ArgumentError(
                f"'{name}' cannot be an attribute of {type(self).__name__}: it is a read-only property of every "
                f"{_owner_of(type(self), name)}. Rename it, for instance to '{name}_'."
            )
        super().__setattr__(name, _tracked(value))

    def _bind(self, name: str, record: Weight) -> None:
        self._records[name] = record
        ambient = context()
        if ambient is not None and ambient.abstract:
            self.__dict__[name] = backend.arrays.zeros(record.shape, record.read_dtype(self.reads_in(ambient.compute)))
        else:
            self.__dict__[name] = record


def _holds_layers(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_layers(entry) for entry in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_layers(entry) for entry in value)
    return isinstance(value, Layer)


def _tracked(value: Any) -> Any:
    """A list, tuple or dict with layers in it as a container that is a layer itself; anything else as it is."""
    if not isinstance(value, (list, tuple, dict)) or not _holds_layers(value):
        return value
    return LayerDict(value) if isinstance(value, dict) else LayerList(value)


def _owner_of(cls: type, name: str) -> str:
    return next(base.__name__ for base in cls.__mro__ if name in base.__dict__)


class LayerList(Layer):
    """A list of layers that its owner tracks: children are named by position. Other items may stand among them."""

    is_container = True

    _items: list[Any]

    def __init__(self, layers: Any = ()):
        super().__init__()
        self.__dict__.update(built=True, _items=[])
        for layer in layers:
            self.append(layer)

    def append(self, layer: Any) -> None:
        """Adds a layer, or a list or dict of layers, at the end."""
        layer = _tracked(layer)
        if isinstance(layer, Layer):
            self.add_module(str(len(self._items)), layer)
        self._items.append(layer)

    def extend(self, layers: Any) -> None:
        """Adds several at the end."""
        for layer in layers:
            self.append(layer)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __getitem__(self, index: int | slice) -> Any:
        return self._items[index]


class LayerDict(Layer):
    """A dict of layers that its owner tracks: children are named by key. Other values may stand among them."""

    is_container = True

    _items: dict[str, Any]

    def __init__(self, layers: dict[str, Any]):
        super().__init__()
        self.__dict__.update(built=True, _items={})
        for key, layer in layers.items():
            self[key] = layer

    def __setitem__(self, key: str, layer: Any) -> None:
        self._items[key] = _tracked(layer)
        if isinstance(self._items[key], Layer):
            self.add_module(str(key), self._items[key])

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> Any:
        """(key, layer) pairs."""
        return self._items.items()


_eager_calls = 0


def eager_stream() -> Any:
    """The random stream of an outermost call outside fit: keyed by the seed and the number of such calls so far."""
    global _eager_calls
    _eager_calls += 1
    return backend.random.stream(get_seed(), -_eager_calls)


def _on_device(argument: Any) -> Any:
    return backend.arrays.convert_to_tensor(argument) if isinstance(argument, np.ndarray) else argument


def _marking_built(build: Callable[..., None]) -> Callable[..., None]:
    def build_and_mark(self: Any, *shapes: Any, **named: Any) -> None:
        build(self, *shapes, **named)
        self.__dict__["built"] = True

    build_and_mark.__doc__ = build.__doc__
    build_and_mark.__wrapped__ = build  # type: ignore[attr-defined]  # inspect.signature follows it
    return build_and_mark
