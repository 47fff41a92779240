"""Launchers' variables become the job that they describe; incomplete and contradicting ones are told."""

import json

import pytest

from unifit.contract.job import Job
from unifit.errors import ArgumentError
from unifit.launch.environment import detect
from unifit.launch.slurm import expand_counts, expand_hosts

UNIFIT = {
    "UNIFIT_PROCESS": "1",
    "UNIFIT_PROCESSES": "2",
    "UNIFIT_LOCAL_PROCESS": "0",
    "UNIFIT_LOCAL_PROCESSES": "1",
    "UNIFIT_COORDINATOR": "a:1",
    "UNIFIT_ADDRESSES": "a:2,b:3",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_STEP_NODELIST": "gpu[08,10]",
    "SLURM_JOB_NODELIST": "gpu[08-12]",
}
SLURM_PORT = 12000 + 64 * 7
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_PORT": "1000",
}
REMOTE_OPENMPI = OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t0,t1,t2"}


def tf_config(cluster, role, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}


CHIEF = {"chief": ["a:1"], "worker": ["b:1", "b:2"]}
SLURM_CYCLIC = SLURM | {
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_LOCALID": "1",
}


def slurm_addresses(*places):
    return tuple(f"{host}:{SLURM_PORT + 1 + local}" for host, local in places)


JOBS = {
    "nothing": ({}, None),
    "unifit": (UNIFIT, Job("unifit", 1, 2, 0, 1, "a:1", ("a:2", "b:3"))),
    "unifit without addresses": (
        {name: UNIFIT[name] for name in UNIFIT if name != "UNIFIT_ADDRESSES"},
        Job("unifit", 1, 2, 0, 1, "a:1"),
    ),
    "unifit inside slurm": (SLURM | UNIFIT, Job("unifit", 1, 2, 0, 1, "a:1", ("a:2", "b:3"))),
    "torchrun": (TORCHRUN, Job("torchrun", 3, 4, 1, 2, "a:29500")),
    "torchrun inside slurm": (SLURM | TORCHRUN, Job("torchrun", 3, 4, 1, 2, "a:29500")),
    "torchrun's variables without local ones": (
        {name: TORCHRUN[name] for name in TORCHRUN if not name.startswith("LOCAL")},
        Job("torchrun", 3, 4, 0, 1, "a:29500"),
    ),
    "torchrun's variables without a local size": (
        {name: TORCHRUN[name] for name in TORCHRUN if name != "LOCAL_WORLD_SIZE"},
        Job("torchrun", 3, 4, 1, 4, "a:29500"),
    ),
    "torchrun of one process": (
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        Job("torchrun", 0, 1, 0, 1, "a:29500"),
    ),
    "a scheduler's RANK alone": ({"RANK": "5"}, None),
    "a master's address alone": ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, None),
    "slurm": (
        SLURM,
        Job("slurm", 2, 3, 0, 1, f"gpu08:{SLURM_PORT}", slurm_addresses(("gpu08", 0), ("gpu08", 1), ("gpu10", 0))),
    ),
    "slurm, cyclic": (
        SLURM_CYCLIC,
        Job(
            "slurm",
            2,
            4,
            1,
            2,
            f"gpu08:{SLURM_PORT}",
            slurm_addresses(("gpu08", 0), ("gpu10", 0), ("gpu08", 1), ("gpu10", 1)),
        ),
    ),
    "slurm's second step": (
        SLURM | {"SLURM_STEP_ID": "1"},
        Job(
            "slurm",
            2,
            3,
            0,
            1,
            f"gpu08:{SLURM_PORT + 64 * 17}",
            tuple(
                f"{host}:{SLURM_PORT + 64 * 17 + 1 + local}"
                for host, local in (("gpu08", 0), ("gpu08", 1), ("gpu10", 0))
            ),
        ),
    ),
    "slurm's batch script": ({name: SLURM[name] for name in SLURM if "STEP" not in name}, None),
    "slurm's interactive shell": (SLURM | {"SLURM_JOB_NAME": "bash"}, None),
    "slurm's interactive job": (SLURM | {"SLURM_JOB_NAME": "interactive"}, None),
    "slurm of one task": (SLURM | {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, None),
    "slurm without a step's host list": (
        {name: SLURM[name] for name in SLURM if name != "SLURM_STEP_NODELIST"} | {"SLURM_JOB_NODELIST": "a,b"},
        Job("slurm", 2, 3, 0, 1, f"a:{SLURM_PORT}", slurm_addresses(("a", 0), ("a", 1), ("b", 0))),
    ),
    "openmpi, one machine": (
        OPENMPI,
        Job("openmpi", 1, 2, 1, 2, "127.0.0.1:1000", ("127.0.0.1:1000", "127.0.0.1:1001")),
    ),
    "openmpi, two machines": (REMOTE_OPENMPI | {"MASTER_ADDR": "a"}, Job("openmpi", 1, 2, 0, 1, "a:1000")),
    "openmpi of one process": (
        OPENMPI
        | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
        | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        None,
    ),
    "tf_config": (
        tf_config({"worker": ["a:1", "b:1"]}, "worker", 1),
        Job("tf_config", 1, 2, 0, 1, "a:1", ("a:1", "b:1")),
    ),
    "tf_config's chief": (
        tf_config(CHIEF, "chief", 0),
        Job("tf_config", 0, 3, 0, 1, "a:1", ("a:1", "b:1", "b:2")),
    ),
    "tf_config's worker beside a chief": (
        tf_config(CHIEF, "worker", 1),
        Job("tf_config", 2, 3, 1, 2, "a:1", ("a:1", "b:1", "b:2")),
    ),
    "tf_config with an empty role": (
        tf_config({"ps": [], "worker": ["a:1", "b:1"]}, "worker", 0),
        Job("tf_config", 0, 2, 0, 1, "a:1", ("a:1", "b:1")),
    ),
    "tf_config of one worker": (tf_config({"worker": ["a:1"]}, "worker", 0), None),
    "cloud tpu": (TPU, Job("cloud-tpu", 1, 3, 0, 1)),
    "cloud tpu, addresses": (TPU | {"TPU_PROCESS_ADDRESSES": "t0:1,t1:1"}, Job("cloud-tpu", 1, 2, 0, 1)),
    "cloud tpu, two slices": (
        TPU | {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"},
        Job("cloud-tpu", 4, 6, 0, 1),
    ),
    "cloud tpu of one host": ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, None),
}


@pytest.mark.parametrize(("environment", "job"), JOBS.values(), ids=JOBS)
def test_environment_becomes_its_job(environment, job):
    assert detect(environment) == job


ELSEWHERE = {
    "torchrun's port is taken by its store": (TORCHRUN, Job("torchrun", 3, 4, 1, 2, "a:29501")),
    "torchrun on one machine": (
        TORCHRUN | {"RANK": "1", "WORLD_SIZE": "2"},
        Job("torchrun", 1, 2, 1, 2, "a:29501", ("a:29501", "a:29502")),
    ),
    "torchrun of one process": (
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        None,
    ),
}


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
@pytest.mark.parametrize(("environment", "job"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_torchrun_on_another_backend(environment, job, backend):
    assert detect(environment, backend) == job


def test_plain_tpu_machines_are_left_to_jax():
    mark = {"TPU_ML_PLATFORM": "JAX"}
    assert detect(mark, "jax") == Job("cloud-tpu", 0, 0, 0, 1)
    assert detect(mark, "tensorflow") is None
    assert detect(mark | {"TPU_SKIP_MDS_QUERY": "1"}, "jax") is None


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_orte_hnp_uri", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMIX_SERVER_URI4"]
)
def test_openmpi_derives_a_port_from_its_job(name):
    own = {key: value for key, value in OPENMPI.items() if key != "MASTER_PORT"}
    coordinators = {detect(own | {name: identity}).coordinator for identity in ("1531576320.0", "77.0", "1531576320.0")}
    assert len(coordinators) == 2
    assert all(12000 <= int(coordinator.split(":")[1]) < 32768 for coordinator in coordinators)


BROKEN = {
    "unifit's number": (UNIFIT | {"UNIFIT_PROCESS": "one"}, "UNIFIT_PROCESS='one'"),
    "unifit's incomplete": ({"UNIFIT_PROCESS": "0"}, "UNIFIT_PROCESSES=''"),
    "unifit's number too great": (UNIFIT | {"UNIFIT_PROCESS": "2"}, "process 2 of 2"),
    "unifit's addresses": (UNIFIT | {"UNIFIT_ADDRESSES": "a:2"}, "2 processes at 1 addresses"),
    "torchrun's RANK": ({name: TORCHRUN[name] for name in TORCHRUN if name != "RANK"}, "not RANK"),
    "torchrun's WORLD_SIZE": ({name: TORCHRUN[name] for name in TORCHRUN if name != "WORLD_SIZE"}, "not WORLD_SIZE"),
    "torchrun's master": ({"RANK": "0", "WORLD_SIZE": "2"}, "not MASTER_ADDR, MASTER_PORT"),
    "torchrun's size": (TORCHRUN | {"WORLD_SIZE": "-1"}, "WORLD_SIZE='-1'"),
    "torchrun's port": (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT=70000"),
    "torchrun's local number": (TORCHRUN | {"LOCAL_RANK": "2"}, "2 of 2"),
    "slurm's counts": (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "tasks per node '2(x'"),
    "slurm's hosts": (SLURM | {"SLURM_STEP_NODELIST": "gpu[08-"}, "host list 'gpu[08-'"),
    "slurm's lists of different lengths": (SLURM | {"SLURM_STEP_NODELIST": "a,b,c"}, "3 hosts"),
    "slurm's number of tasks": (SLURM | {"SLURM_STEP_NUM_TASKS": "4"}, "4 tasks"),
    "slurm's distribution": (SLURM | {"SLURM_PROCID": "1"}, "--distribution=block"),
    "slurm's task": (SLURM | {"SLURM_PROCID": "3"}, "task 3 of 3"),
    "slurm's job": (SLURM | {"SLURM_JOB_ID": ""}, "SLURM_JOB_ID=''"),
    "openmpi on two machines": (REMOTE_OPENMPI, "MASTER_ADDR"),
    "openmpi without a job": ({key: value for key, value in OPENMPI.items() if key != "MASTER_PORT"}, "MASTER_PORT"),
    "openmpi incomplete": ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE=''"),
    "tf_config is no JSON": ({"TF_CONFIG": "{"}, "cannot be read"),
    "tf_config without a task": ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "cannot be read"),
    "tf_config is a list": ({"TF_CONFIG": "[]"}, "cannot be read"),
    "tf_config's parameter server": (tf_config({"ps": ["p:1"], "worker": ["a:1", "b:1"]}, "worker", 0), "'ps'"),
    "tf_config's evaluator": (tf_config({"worker": ["a:1", "b:1"]}, "evaluator", 0), "'evaluator'"),
    "tf_config's index": (tf_config({"worker": ["a:1", "b:1"]}, "worker", 2), "'worker' number 2"),
    "cloud tpu's number": ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_ID=''"),
    "cloud tpu's number too great": (TPU | {"TPU_WORKER_ID": "3"}, "process 3 of 3"),
}


@pytest.mark.parametrize(("environment", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_environment_is_told(environment, said):
    with pytest.raises(ArgumentError) as caught:
        detect(environment)
    assert said in str(caught.value)


HOSTS = {
    "a": ["a"],
    "a,b-1.c": ["a", "b-1.c"],
    "a[1-3]": ["a1", "a2", "a3"],
    "a[8-11]": ["a8", "a9", "a10", "a11"],
    "host[001-003,007],other": ["host001", "host002", "host003", "host007", "other"],
    "r[1-2]n[01-02]x,y": ["r1n01x", "r1n02x", "r2n01x", "r2n02x", "y"],
}


@pytest.mark.parametrize(("text", "hosts"), HOSTS.items())
def test_host_list_is_expanded_in_order(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "a[", "a]", "a[]", "a[1-]", "a[x-y]", "a[3-1]", "a[1-2", "a[[1]]", "a[1,,2]"]
)
def test_malformed_host_list_is_told(text):
    with pytest.raises(ArgumentError, match="host list"):
        expand_hosts(text)


def test_counts_are_expanded():
    assert expand_counts("4") == [4]
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "1,,2", "(x3)"])
def test_malformed_counts_are_told(text):
    with pytest.raises(ArgumentError, match="tasks per node"):
        expand_counts(text)
