"""From environment variables to the job that this process is one of: pure functions, one for each launcher."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping

from unifit.backend import backend
from unifit.contract.job import Job
from unifit.errors import ArgumentError
from unifit.launch.slurm import of_slurm

Environment = Mapping[str, str]

LOOPBACK = "127.0.0.1"


def current_job() -> Job | None:
    """The job that this process is one of; None when it is alone."""
    return detect(os.environ, backend.name)


def detect(environment: Environment, backend_name: str = "torch") -> Job | None:
    """The job that the variables describe, by the first launcher that left its mark; None where there is none.

    A job of one process is no job, but for torchrun's on torch, whose variables say that it is one.

    Raises:
        ArgumentError: When a launcher's variables are incomplete or contradict each other.
    """
    for find in LAUNCHERS:
        job = find(environment, backend_name)
        if job is not None:
            _check(job)
            return job if job.processes != 1 or (job.launcher, backend_name) == ("torchrun", "torch") else None
    return None


def of_unifit(environment: Environment, backend_name: str) -> Job | None:
    """The processes that `unifit run` and `uf.launch` started."""
    if "UNIFIT_PROCESS" not in environment:
        return None
    return Job(
        "unifit",
        _number(environment, "UNIFIT_PROCESS"),
        _number(environment, "UNIFIT_PROCESSES"),
        _number(environment, "UNIFIT_LOCAL_PROCESS"),
        _number(environment, "UNIFIT_LOCAL_PROCESSES"),
        environment.get("UNIFIT_COORDINATOR"),
        tuple(filter(None, environment.get("UNIFIT_ADDRESSES", "").split(","))),
    )


def of_torchrun(environment: Environment, backend_name: str) -> Job | None:
    """torchrun's processes, and those of everything that sets its variables."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if not environment.get(name)]
    # One of them alone is no mark: schedulers set RANK, and MASTER_ADDR serves Open MPI's processes too.
    if "RANK" in missing and "WORLD_SIZE" in missing or len(missing) == len(needed) - 1:
        return None
    if missing:
        present = ", ".join(f"{name}={environment[name]}" for name in needed if name not in missing)
        raise ArgumentError(
            f"The environment has torchrun's {present}, but not {', '.join(missing)}. Start the script with torchrun "
            "or `unifit run`, set what is missing, or unset them all."
        )
    processes, port = _number(environment, "WORLD_SIZE"), _port(environment, "MASTER_PORT")
    # Without LOCAL_RANK there is one process a machine, as in Kubeflow's pods.
    local_processes = processes if "LOCAL_RANK" in environment else 1
    if "LOCAL_WORLD_SIZE" in environment:
        local_processes = _number(environment, "LOCAL_WORLD_SIZE")
    host, local_process = environment["MASTER_ADDR"], _number(environment, "LOCAL_RANK", 0)
    addresses: tuple[str, ...] = ()
    if backend_name != "torch":
        # torchrun's own store listens at MASTER_PORT, and only torch can share it.
        port += 1
        if local_processes == processes:
            addresses = _addresses(host, port, processes)
    process = _number(environment, "RANK")
    return Job("torchrun", process, processes, local_process, local_processes, f"{host}:{port}", addresses)


def of_openmpi(environment: Environment, backend_name: str) -> Job | None:
    """mpirun's processes."""
    if "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    process, processes, local_process, local_processes = (
        _number(environment, f"OMPI_COMM_WORLD_{name}") for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    )
    local = local_processes == processes
    host = environment.get("MASTER_ADDR") or (LOOPBACK if local else None)
    if host is None:
        raise ArgumentError(
            f"mpirun started {processes} processes on several machines, and nothing says where they meet: "
            "set MASTER_ADDR to the host of process 0 (mpirun -x MASTER_ADDR=host ...), and MASTER_PORT to a free port."
        )
    port = _port(environment, "MASTER_PORT") if environment.get("MASTER_PORT") else _port_of_openmpi(environment)
    addresses = _addresses(host, port, processes) if local else ()
    return Job("openmpi", process, processes, local_process, local_processes, f"{host}:{port}", addresses)


def of_tf_config(environment: Environment, backend_name: str) -> Job | None:
    """The workers of TensorFlow's TF_CONFIG; the chief, where there is one, is process 0."""
    text = environment.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster = {role: [str(address) for address in config["cluster"][role]] for role in config["cluster"]}
        role, index = str(config["task"]["type"]), int(config["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"TF_CONFIG={text!r} cannot be read ({type(error).__name__}: {error}); expected "
            '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}.'
        ) from error
    strange = sorted(({role} | {name for name in cluster if cluster[name]}) - {"chief", "worker"})
    if strange:
        raise ArgumentError(
            f"TF_CONFIG names the role {', '.join(map(repr, strange))}; unifit trains on 'chief' and 'worker' only. "
            "Leave parameter servers and evaluators out of the cluster."
        )
    addresses = (*cluster.get("chief", ()), *cluster.get("worker", ()))
    if not 0 <= index < len(cluster.get(role, ())):
        raise ArgumentError(f"TF_CONFIG says that this is {role!r} number {index}; its cluster is {cluster}.")
    process = index + (len(cluster.get("chief", ())) if role == "worker" else 0)
    hosts = [address.rpartition(":")[0] for address in addresses]
    same = [number for number, host in enumerate(hosts) if host == hosts[process]]
    return Job("tf_config", process, len(addresses), same.index(process), len(same), addresses[0], addresses)


def of_cloud_tpu(environment: Environment, backend_name: str) -> Job | None:
    """The hosts of a Cloud TPU slice, or of several slices; the framework finds the coordinator by itself.

    Kubernetes Engine names the hosts in the environment. On plain TPU VMs only the metadata server knows them, which
    JAX asks: there `processes` is 0, not known before the framework has joined. JAX leaves its mark when it is imported
    on a TPU VM, and TPU_SKIP_MDS_QUERY where there is no metadata server or no TPU.
    """
    slices = _number(environment, "MEGASCALE_NUM_SLICES", 1)
    names = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if names:
        hosts = len(names.split(","))
        if hosts * slices == 1:
            return None
        worker = _number(environment, "TPU_WORKER_ID") + hosts * _number(environment, "MEGASCALE_SLICE_ID", 0)
        return Job("cloud-tpu", worker, hosts * slices, 0, 1)
    by_metadata = environment.get("TPU_ML_PLATFORM") == "JAX" and "TPU_SKIP_MDS_QUERY" not in environment
    return Job("cloud-tpu", 0, 0, 0, 1) if by_metadata and backend_name == "jax" else None


LAUNCHERS: tuple[Callable[[Environment, str], Job | None], ...] = (
    of_unifit,
    of_torchrun,
    lambda environment, backend_name: of_slurm(environment),
    of_openmpi,
    of_tf_config,
    of_cloud_tpu,
)


def _check(job: Job) -> None:
    if job.processes == 0:
        return
    if not (job.process < job.processes and job.local_process < job.local_processes <= job.processes):
        raise ArgumentError(
            f"The environment's variables of {job.launcher} contradict each other: process {job.process} of "
            f"{job.processes}, on its machine {job.local_process} of {job.local_processes}."
        )
    if job.addresses and len(job.addresses) != job.processes:
        raise ArgumentError(
            f"The environment's variables of {job.launcher} contradict each other: {job.processes} processes at "
            f"{len(job.addresses)} addresses, {', '.join(job.addresses)}."
        )


def _number(environment: Environment, name: str, default: int | None = None) -> int:
    value = environment.get(name, "")
    if not value and default is not None:
        return default
    if not (value.isascii() and value.isdigit()):
        raise ArgumentError(f"The environment has {name}={value!r}; its launcher should have set a whole number.")
    return int(value)


def _port(environment: Environment, name: str) -> int:
    port = _number(environment, name)
    if not 0 < port < 2**16:
        raise ArgumentError(f"The environment has {name}={port}; a port is a number from 1 to 65535.")
    return port


def _addresses(host: str, port: int, processes: int) -> tuple[str, ...]:
    return tuple(f"{host}:{port + process}" for process in range(processes))


def _port_of_openmpi(environment: Environment) -> int:
    """A port that mpirun's processes have in common and two mpiruns hardly ever."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid", "PMIX_SERVER_URI4")
    identity = next((environment[name] for name in names if environment.get(name)), None)
    if identity is None:
        raise ArgumentError(
            "mpirun left no job number in the environment to derive a port from: set MASTER_PORT to a free port of "
            "the host of process 0 (mpirun -x MASTER_PORT=29500 ...)."
        )
    # Below the ports that systems give to outgoing connections (32768 and up), 64 apart: processes follow each other.
    return 12000 + 64 * (zlib.crc32(identity.encode()) % 300)
