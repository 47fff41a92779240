"""From an intent and a job to JAX devices: virtual CPU devices, the mesh, and the rows that this process loads."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import unifit_jax.membership as membership
from unifit.contract.distribution import DataParallel
from unifit.contract.job import Job, Store
from unifit.contract.values import Placement
from unifit.errors import StartError, UnsupportedError

DATA_AXIS = "data"

JOINS_FIRST = True
"""JAX joins a job only before its first use of a device: `import unifit` does it."""


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

    Args:
        devices: All of them, in the order of their rows: those of process 0, those of process 1, ...
        store: What the job's processes talk through; None for one process.

    Attributes:
        placement: Which rows this process loads.
        store: The argument.
        mesh: One axis, `data`, over the devices; None for one device.
        asynchronous: Whether steps may be dispatched without bound.
    """

    def __init__(self, devices: list[Any], store: Store | None = None):
        processes = sorted({device.process_index for device in devices})
        self.store = store
        self.placement = Placement(processes.index(jax.process_index()), len(processes), len(devices))
        self.device = devices[0]
        self.mesh = Mesh(np.array(devices), (DATA_AXIS,)) if len(devices) > 1 else None
        self.asynchronous = devices[0].platform != "cpu" or self.mesh is None

    def sharding(self, *axes: str | None) -> Any:
        """The layout of an array by its axes' mesh axes; no axes: replicated."""
        if self.mesh is None:
            return jax.sharding.SingleDeviceSharding(self.device)
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def replicated(self, arrays: Any) -> Any:
        """A tree of arrays, the same on every process, on every device."""
        whole = self.sharding()
        if self.placement.processes == 1:
            return jax.device_put(arrays, whole)
        return jax.tree.map(lambda array: replicated(array, whole), arrays)

    def rows(self, arrays: Any, row_axis: int = 0) -> Any:
        """A tree of this process' rows as a compiled program takes it, which splits the row axis over the devices."""
        if self.placement.processes == 1:
            return arrays  # jit takes NumPy arrays with its in_shardings in far fewer calls than device_put would need
        return self.spread(arrays, row_axis)

    def spread(self, arrays: Any, row_axis: int = 0) -> Any:
        """A tree of this process' rows on the devices, which split the row axis."""
        processes = self.placement.processes
        split = self.sharding(*[None] * row_axis, DATA_AXIS)

        def on_devices(array: Any) -> Any:
            shape = list(array.shape)
            shape[row_axis] *= processes
            return jax.make_array_from_process_local_data(split, array, tuple(shape))

        return jax.tree.map(on_devices, arrays)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


def replicated(array: Any, sharding: Any) -> Any:
    """An array that every process has, under a replicated sharding; without a transfer between processes.

    `jax.device_put` would compare the values over all processes, which hangs when only one of them calls it.
    """
    if isinstance(array, jax.Array) and array.sharding == sharding:
        return array
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    array = np.array(array)  # a copy: what is donated later must share its memory with nobody
    return jax.make_array_from_process_local_data(sharding, array, array.shape)


def prepare(distribution: DataParallel | None, job: Job | None) -> Devices:
    """The devices for an intent; None is one device, in a job of several processes all of them.

    Raises:
        UnsupportedError: When there are fewer devices, or in a job of several processes when not all are wanted.
        StartError: When the processes of the job do not find each other.
    """
    membership.join(job)
    # process_count touches the devices, after which their number stands.
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        return _of_job(distribution)
    wished = 1 if distribution is None else distribution.devices
    if wished is not None and wished > int(os.environ.get("UNIFIT_CPU_DEVICES", "1")):
        request_cpu_devices(wished)
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


def _of_job(distribution: DataParallel | None) -> Devices:
    """All devices of a job of several processes, in the order of the processes."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    wished = None if distribution is None else distribution.devices
    if wished is not None and wished != len(devices):
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on jax: this job of {jax.process_count()} processes has {len(devices)} "
            "devices, and a job trains on all of them. Pass DataParallel() or devices=None, or start the job with "
            "other processes (UNIFIT_CPU_DEVICES sets how many CPU devices each has)."
        )
    shares = Counter(device.process_index for device in devices)
    if len(set(shares.values())) > 1:
        raise UnsupportedError(
            f"The processes of this job have {[shares[process] for process in sorted(shares)]} devices; all need the "
            "same number (CUDA_VISIBLE_DEVICES, TPU_VISIBLE_CHIPS and UNIFIT_CPU_DEVICES choose them)."
        )
    if membership.store is None:
        raise StartError(
            f"JAX shows {jax.process_count()} processes but no coordination service, through which they agree. Call "
            "jax.distributed.initialize() at the top of the script."
        )
    return Devices(devices, membership.store)
