"""Distribution intents: frozen values that state what is wanted. A backend turns one into devices and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unifit.errors import ArgumentError


@dataclass(frozen=True)
class DataParallel:
    """Every device holds the whole model and takes an equal share of each batch's rows.

    `batch_size` stays the number of rows over all devices: adding devices changes the speed, never the numbers.

    Args:
        devices: Number of devices over the whole job. None takes every device of the job; where there is no job, every
            accelerator of the machine, or one device (or the value of UNIFIT_CPU_DEVICES) on a machine without. On a
            machine with CPUs only, N devices are N processes (torch) or N virtual devices (jax, tensorflow).

    Raises:
        ArgumentError: When `devices` is not a whole number of at least 1.
    """

    devices: int | None = None

    def __post_init__(self) -> None:
        if self.devices is None:
            return
        if not isinstance(self.devices, int) or isinstance(self.devices, bool) or self.devices < 1:
            raise ArgumentError(
                f"DataParallel got devices={self.devices!r}; it needs a whole number of at least 1, or None."
            )


def checked_intent(distribution: Any) -> DataParallel | None:
    """The intent that a user passed as `distribution`.

    Raises:
        ArgumentError: When it is none.
    """
    if distribution is None or isinstance(distribution, DataParallel):
        return distribution
    raise ArgumentError(f"distribution is {distribution!r}; it needs an intent such as uf.DataParallel(devices=2).")
