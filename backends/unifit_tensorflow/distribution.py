"""From an intent to TensorFlow devices: logical CPU devices, the strategy, and the rows that this process loads."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unifit.contract.distribution import DataParallel
from unifit.contract.job import START_TIMEOUT_S, Job, Store
from unifit.contract.values import Placement
from unifit.errors import StartError, UnsupportedError
from unifit_tensorflow.cluster import join, local_devices
from unifit_tensorflow.store import CoordinationStore

GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
"""What collectives carry as it is."""

KEYS_OF_A_STRATEGY = 100_000

JOINS_FIRST = True
"""TensorFlow joins a job only before its first tensor, variable or data set: `import unifit` does it."""


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
        store: What the job's processes talk through; None for one process.
        strategy: The MirroredStrategy or MultiWorkerMirroredStrategy over the devices; None for one device.
        local: How many of the devices are this process' own.
    """

    def __init__(self, strategy: Any, placement: Placement, on_gpus: bool = False, store: Store | None = None):
        self.strategy, self.placement, self.on_gpus, self.store = strategy, placement, on_gpus, store
        self.local = placement.devices // placement.processes

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

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
        """A value that `run` returned: one entry for each device of this process, in order."""
        return (value,) if self.strategy is None else self.strategy.experimental_local_results(value)

    def number(self) -> int:
        """The number of the device that runs among those of all processes; for use inside `run`."""
        if self.strategy is None:
            return 0
        return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))

    def replica(self) -> int:
        """The number of the device that runs among those of this process; for use inside `run`."""
        return self.number() - self.placement.process * self.local

    def all_reduce(self, values: Any) -> Any:
        """Differentiable sums of a tensor or list of tensors over all devices, by one collective; used inside `run`."""
        if self.strategy is None:
            return values
        # The reduction goes where its inputs lie; a constant from outside the replica lies nowhere.
        values = tf.nest.map_structure(tf.identity, values)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

    def all_gather(self, values: list[Any]) -> list[Any]:
        """For each tensor the devices' own, one after the other on axis 0; used inside `run`, for several processes.

        A tensor has the same shape on all devices.
        """

        def gather(value: Any) -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)

        # Pieces arrive in TensorFlow's order of devices, which is that of their names: task:10 before task:2.
        order = tf.argsort(gather(tf.constant([self.number()])))

        def ordered(value: Any) -> Any:
            pieces = tf.reshape(gather(value), tf.concat([[self.placement.devices], tf.shape(value)], axis=0))
            return tf.reshape(tf.gather(pieces, order), tf.concat([[-1], tf.shape(value)[1:]], axis=0))

        return [received(ordered(sent(value)), value.dtype) for value in values]


def prepare(distribution: DataParallel | None, job: Job | None) -> Devices:
    """The devices for an intent; None is one device, and in a job of several processes all of the job's.

    Raises:
        UnsupportedError: When TensorFlow shows fewer devices, or the job has another number of them.
        StartError: When this process cannot join its job.
    """
    wished = None if distribution is None else distribution.devices
    if job is not None and job.processes > 1:
        return of_job(wished, job)
    gpus = len(tf.config.list_physical_devices("GPU"))
    kind = "GPU" if gpus else "CPU"
    if distribution is None:
        wished = 1
    elif wished is None:
        wished = gpus or int(os.environ.get("UNIFIT_CPU_DEVICES") or 1)
    if wished == 1:
        return Devices(None, Placement(0, 1, 1))
    if kind == "CPU":
        request_cpu_devices(wished)
    present = len(tf.config.list_logical_devices(kind))
    if wished > present:
        reason = "and hide the GPUs" if kind == "GPU" else "(TensorFlow was already in use when fit asked for them)"
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on tensorflow: this machine shows {present} {kind} device(s). For logical "
            f"CPU devices set UNIFIT_CPU_DEVICES={wished} before the script starts {reason}, or pass a smaller number."
        )
    return Devices(mirrored(kind, wished), Placement(0, 1, wished), on_gpus=kind == "GPU")


@functools.cache
def mirrored(kind: str, number: int) -> tf.distribute.MirroredStrategy:
    """The strategy over the first `number` devices: one for all who ask, so that fit and evaluate share variables."""
    # Collectives of two strategies would share their group keys, and fail where these differ in size. TensorFlow's own
    # tests tell them apart in this way; there is no public one.
    tf.distribute.MirroredStrategy._collective_key_base += KEYS_OF_A_STRATEGY
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(number)])


# Inside a job


def of_job(wished: int | None, job: Job) -> Devices:
    """All of the job's devices; `wished` may only confirm their number."""
    local = len(local_devices(job))
    if wished not in (None, job.processes * local):
        raise UnsupportedError(
            f"DataParallel(devices={wished}) on tensorflow: this job has {job.processes * local} devices, {local} in "
            f"each of its {job.processes} processes. Pass devices=None for all of them, or start a job of another size."
        )
    return joined(job, local)


@functools.cache
def joined(job: Job, local: int) -> Devices:
    """The one Devices of this process. On the first call it joins the others.

    Raises:
        StartError: When it cannot, or when processes have different numbers of devices.
    """
    strategy, store = join(job, local), CoordinationStore()
    if job.process == 0:
        store.put("devices of process 0", str(local))
    first = store.get("devices of process 0", START_TIMEOUT_S)
    if first != str(local):
        raise StartError(
            f"unifit on tensorflow: process 0 of this job has {first} device(s), process {job.process} has {local}; "
            "all need the same number. Start them on machines of one kind, or set UNIFIT_CPU_DEVICES or "
            "CUDA_VISIBLE_DEVICES for each."
        )
    placement = Placement(job.process, job.processes, job.processes * local)
    return Devices(strategy, placement, on_gpus=bool(tf.config.list_physical_devices("GPU")), store=store)


# What collectives do not carry


def sent(value: Any) -> Any:
    """The value in a dtype that collectives carry: truth values as numbers, other kinds byte by byte."""
    if value.dtype in GATHERED:
        return value
    return tf.cast(value if value.dtype == tf.bool else tf.bitcast(value, tf.uint8), tf.int32)


def received(value: Any, dtype: Any) -> Any:
    """The inverse of `sent`."""
    if dtype in GATHERED:
        return value
    return tf.cast(value, tf.bool) if dtype == tf.bool else tf.bitcast(tf.cast(value, tf.uint8), dtype)
