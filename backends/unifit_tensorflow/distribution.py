"""From an intent to TensorFlow devices: logical CPU devices, the strategy, and the rows that this process loads."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unifit.contract.distribution import DataParallel
from unifit.contract.job import Job
from unifit.contract.values import Placement
from unifit.errors import UnsupportedError


def configure_from_environment() -> None:
    """Asks for UNIFIT_CPU_DEVICES logical devices; TensorFlow takes the wish only before its first use of a device."""
    wished = os.environ.get("UNIFIT_CPU_DEVICES")
    if wished:
        request_cpu_devices(int(wished))


def request_cpu_devices(number: int) -> None:
    """Sets up logical CPU devices where TensorFlow has not touched its devices yet; an earlier, larger wish stands."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if number > len(tf.config.get_logical_device_configuration(cpu) or [None]):
        with contextlib.suppress(RuntimeError):
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)


class Devices:
    """The devices of one run. One device needs no strategy: then all of this costs nothing.

    Attributes:
        placement: Which rows this process loads.
        strategy: The MirroredStrategy over the devices; None for one device.
    """

    def __init__(self, strategy: Any, number: int, on_gpus: bool = False):
        self.store = None
        self.placement = Placement(process=0, processes=1, devices=number)
        self.strategy = strategy
        self.on_gpus = on_gpus

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def wait(self) -> None:
        """Nothing to wait for: the job is this process."""

    def host(self) -> contextlib.AbstractContextManager[Any]:
        """Where batches are placed: for several GPUs on the host, so that a row travels to its own GPU only."""
        return contextlib.nullcontext() if self.strategy is None or not self.on_gpus else tf.device("CPU:0")

    def owns(self, variable: tf.Variable) -> bool:
        """Whether the variable was made for these devices: one that was not would be shared by all replicas."""
        if self.strategy is None:
            return not isinstance(variable, tf.distribute.DistributedValues)
        return self.strategy.extended.variable_created_in_scope(variable)

    def run(self, function: Callable[[], Any]) -> Any:
        """Runs `function` once on each device; what it returns goes to `results`, leaf by leaf."""
        return function() if self.strategy is None else self.strategy.run(function)

    def results(self, value: Any) -> tuple[Any, ...]:
        """A value that `run` returned: one entry for each device, in order."""
        return (value,) if self.strategy is None else self.strategy.experimental_local_results(value)

    def replica(self) -> int:
        """The number of the device that runs; for use inside `run`."""
        if self.strategy is None:
            return 0
        return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))

    def all_reduce(self, values: Any) -> Any:
        """Differentiable sums of a tensor or list of tensors over all devices, by one collective; used inside `run`."""
        if self.strategy is None:
            return values
        # The reduction goes where its inputs lie; a constant from outside the replica lies nowhere.
        values = tf.nest.map_structure(tf.identity, values)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def prepare(distribution: DataParallel | None, job: Job | None) -> Devices:
    """The devices for an intent; None is one device.

    Raises:
        UnsupportedError: When TensorFlow shows fewer devices, or the job has several processes.
    """
    refuse_several_processes()
    wished = 1 if distribution is None else distribution.devices
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if wished is None:
        wished = len(tf.config.list_physical_devices("GPU")) or int(os.environ.get("UNIFIT_CPU_DEVICES") or 1)
    if wished == 1:
        return Devices(None, 1)
    if kind == "CPU":
        request_cpu_devices(wished)
    present = len(tf.config.list_logical_devices(kind))
    if wished > present:
        reason = "and hide the GPUs" if kind == "GPU" else "(TensorFlow was already in use when fit asked for them)"
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on tensorflow: this machine shows {present} {kind} device(s). For logical "
            f"CPU devices set UNIFIT_CPU_DEVICES={wished} before the script starts {reason}, or pass a smaller number."
        )
    return Devices(mirrored(kind, wished), wished, on_gpus=kind == "GPU")


@functools.cache
def mirrored(kind: str, number: int) -> tf.distribute.MirroredStrategy:
    """The strategy over the first `number` devices: one for all who ask, so that fit and evaluate share variables."""
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(number)])


def refuse_several_processes() -> None:
    """Raises for a job of several workers, as TF_CONFIG describes it."""
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    workers = sum(len(cluster.get(role, ())) for role in ("chief", "worker"))
    if workers > 1:
        raise UnsupportedError(
            f"unifit on tensorflow: TF_CONFIG names {workers} workers; training over several processes is not there "
            "yet. Start one process without TF_CONFIG; DataParallel uses all of its local devices."
        )
