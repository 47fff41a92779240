"""Joining a job: who is in the cluster, how long to wait for it, and the one strategy over all of its devices."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Private: the public strategy takes neither time limits nor several CPU devices a worker.
from tensorflow.python.distribute import collective_all_reduce_strategy as private
from tensorflow.python.eager import context

from unifit.contract.job import START_TIMEOUT_S, Job
from unifit.errors import StartError
from unifit_tensorflow.meeting import meet

HEARTBEAT_TIMEOUT_S = 10
"""After so long without a sign of life a process counts as dead, and the others' collectives fail."""

ROLES = ("chief", "worker")
"""Those of TF_CONFIG that train, in the order in which their processes are numbered."""


def join(job: Job, local: int) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Waits for the job's other processes; returns the strategy over all devices, `local` of each. Once for a process.

    Raises:
        StartError: When the cluster is not known or does not fit the job, when TensorFlow was in use before, or when
            the processes do not meet.
    """
    cluster = cluster_of(job)
    members = [address for role in ROLES for address in cluster.get(role, ())]
    refuse_late_start(job)
    meet(job, members)
    limit_waits(cluster)
    gpus = tf.config.get_visible_devices("GPU")
    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.AUTO if gpus else kinds.RING)
    try:
        with contextlib.nullcontext() if gpus else taking(local), sigterm_kept():
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except tf.errors.OpError as error:
        raise StartError(
            f"unifit on tensorflow: process {job.process} of {job.processes} could not join its job at "
            f"{', '.join(members)}. TensorFlow says: {type(error).__name__}: {error.message}"
        ) from error


def local_devices(job: Job) -> list[Any]:
    """This process' devices. Where several processes share a machine's GPUs, each takes its part of those it sees.

    TensorFlow's devices are not touched by this.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) == len(tf.config.list_physical_devices("GPU")) and len(gpus) >= job.local_processes > 1:
        share = len(gpus) // job.local_processes
        gpus = gpus[job.local_process * share :][:share]
        tf.config.set_visible_devices(gpus, "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    return gpus or list(tf.config.get_logical_device_configuration(cpu) or [cpu])


def cluster_of(job: Job) -> dict[str, list[str]]:
    """The addresses of each role in TF_CONFIG, which is made from the job's addresses where nobody has set it."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config.get("cluster"):
        if len(job.addresses) != job.processes:
            raise StartError(
                f"unifit on tensorflow: process {job.process} of {job.processes} (started by {job.launcher}) knows "
                f"{len(job.addresses)} address(es) of its job; TensorFlow needs every process' host:port. `unifit run` "
                "gives them (UNIFIT_ADDRESSES), or set TF_CONFIG."
            )
        config = {"cluster": {"worker": list(job.addresses)}, "task": {"type": "worker", "index": job.process}}
        os.environ["TF_CONFIG"] = json.dumps(config)
    cluster: dict[str, list[str]] = config["cluster"]
    number = sum(len(cluster.get(role, ())) for role in ROLES)
    task = config.get("task", {})
    process = int(task.get("index", 0)) + (len(cluster.get("chief", ())) if task.get("type") == "worker" else 0)
    if (process, number) != (job.process, job.processes):
        raise StartError(
            f"unifit on tensorflow: TF_CONFIG makes this process number {process} of {number}, its launcher "
            f"({job.launcher}) number {job.process} of {job.processes}. Unset one of them."
        )
    return cluster


def refuse_late_start(job: Job) -> None:
    """Raises where TensorFlow has run an operation: it cannot join a cluster any more."""
    if context.context()._context_handle is not None:
        raise StartError(
            f"unifit on tensorflow: process {job.process} of {job.processes} used TensorFlow before it joined its job: "
            "tensors, variables and tf.data sets that were made before would be lost. Make them after that, or pass "
            "NumPy arrays, and build no model by calling it before."
        )


def limit_waits(cluster: dict[str, list[str]]) -> None:
    """Sets up the coordination service as the strategy would, but with limits on the waits."""
    jobs = [role for role in ROLES if cluster.get(role)]
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0]}/replica:0/task:0",
        cluster_register_timeout_in_ms=int(1000 * START_TIMEOUT_S),
        heartbeat_timeout_in_ms=1000 * HEARTBEAT_TIMEOUT_S,
        coordinated_jobs=[
            private.coordination_config_pb2.CoordinatedJob(name=role, num_tasks=len(cluster[role])) for role in jobs
        ],
    )


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Gives SIGTERM back to whom it belonged: the coordination service takes it, and no process would end by it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def taking(number: int) -> Iterator[None]:
    """Inside it a strategy takes so many logical CPU devices of each process, where it would take one by itself."""

    def devices(self: object, resolver: object, worker: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker}/device:CPU:{index}" for index in range(number)), "CPU"

    one = private.CollectiveAllReduceExtended._initialize_local_devices
    private.CollectiveAllReduceExtended._initialize_local_devices = devices
    try:
        yield
    finally:
        private.CollectiveAllReduceExtended._initialize_local_devices = one
