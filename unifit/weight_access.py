"""A layer's weights from the host: reading, writing, by position or by path."""

from __future__ import annotations

import numpy as np

from unifit.errors import ArgumentError, UnifitError
from unifit.seed import get_seed
from unifit.weights import WeightView, make_weights, records_of


class WeightAccess:
    """What every Layer offers for its own weights and those below it."""

    built: bool

    @property
    def name(self) -> str:
        """The layer's name."""
        raise NotImplementedError

    @property
    def weights(self) -> list[WeightView]:
        """A view of each weight below, in the order of the tree: path, shape, value on the host, `assign`."""
        return [WeightView(*found) for found in records_of(self)]

    @property
    def trainable_weights(self) -> list[WeightView]:
        """The `weights` that training changes."""
        return [weight for weight in self.weights if weight.trainable]

    @property
    def non_trainable_weights(self) -> list[WeightView]:
        """The other `weights`: buffers, and those of frozen layers."""
        return [weight for weight in self.weights if not weight.trainable]

    def get_weights(self) -> list[np.ndarray]:
        """Host copies of all weights, in the order of the tree."""
        return list(self.weights_by_path().values())

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Replaces all weights; the order of `get_weights`.

        Raises:
            ArgumentError: When the number or a shape differs.
        """
        paths = [path for path, *_ in records_of(self)]
        if len(paths) != len(weights):
            raise ArgumentError(f"{self.name} has {len(paths)} weights; set_weights got {len(weights)} arrays.")
        self.load_weights_by_path(dict(zip(paths, weights, strict=True)))

    def weights_by_path(self) -> dict[str, np.ndarray]:
        """Host copies of all weights by path, such as `blocks.0.dense.kernel`. Makes them where they are not made yet.

        Raises:
            UnifitError: When the layer is not built.
        """
        if not self.built and not list(records_of(self)):
            raise UnifitError(
                f"{self.name} is not built, so it has no weights yet: call it, fit it, or call build(shape)."
            )
        make_weights(self, get_seed())
        return {path: owner.read_parameter(name) for path, owner, name, _ in records_of(self)}

    def load_weights_by_path(self, values: dict[str, np.ndarray]) -> None:
        """Replaces weights by path.

        Raises:
            ArgumentError: When paths are missing or unknown, or a shape differs; nothing has been changed then.
        """
        records = {path: (owner, name, record) for path, owner, name, record in records_of(self)}
        missing, unknown = sorted(records.keys() - values.keys()), sorted(values.keys() - records.keys())
        if missing or unknown:
            raise ArgumentError(f"The weights do not fit {self.name}: missing {missing}, unknown {unknown}.")
        for path, (_, _, record) in records.items():
            if tuple(np.shape(values[path])) != record.shape:
                raise ArgumentError(
                    f"Weight '{path}' has shape {record.shape}; the given one {np.shape(values[path])}."
                )
        for path, (owner, name, record) in records.items():
            if owner.__dict__.get(name) is record:
                record.value = np.array(values[path], record.dtype)
            else:
                owner.write_parameter(name, np.asarray(values[path], record.dtype))
