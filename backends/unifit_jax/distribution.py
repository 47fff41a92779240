"""From an intent to JAX devices: virtual CPU devices, the mesh, and the rows that this process loads."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from unifit.contract.distribution import DataParallel
from unifit.contract.job import Job
from unifit.contract.values import Placement
from unifit.errors import UnsupportedError

DATA_AXIS = "data"


def configure_from_environment() -> None:
    """Asks for UNIFIT_CPU_DEVICES virtual devices; JAX takes the wish only before its first use of a device."""
    wished = os.environ.get("UNIFIT_CPU_DEVICES")
    if wished:
        request_cpu_devices(int(wished))


def request_cpu_devices(number: int) -> None:
    """Sets up virtual CPU devices where JAX has not touched its devices yet; harmless where accelerators exist."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)
    if number > 1:
        # XLA's CPU collectives starve when all threads of its pool wait in one rendezvous; the pool's size is NPROC.
        os.environ.setdefault("NPROC", str(max(32, 4 * number)))


class Devices:
    """The devices of one run.

    Attributes:
        placement: Which rows this process loads.
        mesh: One axis, `data`, over the devices; None for one device.
        asynchronous: Whether steps may be dispatched without bound.
    """

    def __init__(self, devices: list[Any]):
        self.store = None
        self.placement = Placement(process=0, processes=1, devices=len(devices))
        self.device = devices[0]
        self.mesh = Mesh(np.array(devices), (DATA_AXIS,)) if len(devices) > 1 else None
        self.asynchronous = devices[0].platform != "cpu" or self.mesh is None

    def sharding(self, *axes: str | None) -> Any:
        """The layout of an array by its axes' mesh axes; no axes: replicated."""
        if self.mesh is None:
            return jax.sharding.SingleDeviceSharding(self.device)
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self) -> None:
        """Nothing to wait for: the job is one process."""


def prepare(distribution: DataParallel | None, job: Job | None) -> Devices:
    """The devices for an intent; None is one device.

    Raises:
        UnsupportedError: When JAX shows fewer devices, or the job has several processes.
    """
    wished = 1 if distribution is None else distribution.devices
    if wished is not None and wished > int(os.environ.get("UNIFIT_CPU_DEVICES", "1")):
        request_cpu_devices(wished)
    if jax.process_count() > 1:
        raise UnsupportedError(
            f"unifit on jax: this job has {jax.process_count()} processes; training over several processes is not "
            "there yet. Start one process; DataParallel uses all of its local devices."
        )
    present = jax.local_devices()
    if wished is None:
        wished = len(present) if present[0].platform != "cpu" or "UNIFIT_CPU_DEVICES" in os.environ else 1
    if wished > len(present):
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on jax: this machine shows {len(present)} {present[0].platform} "
            f"device(s). For virtual CPU devices set UNIFIT_CPU_DEVICES={wished} before the script starts (JAX was "
            "already in use when fit asked for them), or pass a smaller number."
        )
    return Devices(present[:wished])
