"""SLURM's variables: which task of which step this process is, on which hosts the others are, and where they meet."""

from __future__ import annotations

import re
from collections.abc import Mapping

from unifit.contract.job import Job
from unifit.errors import ArgumentError

PORTS_FROM = 12000
PORTS_APART = 64
BLOCKS = 300
"""Ports stay below 32768, where systems begin to give them to outgoing connections; each step has a run of 64."""

INTERACTIVE = ("bash", "interactive")


def of_slurm(environment: Mapping[str, str]) -> Job | None:
    """srun's tasks. A batch script and an interactive shell run outside of any step of several tasks: no job.

    Raises:
        ArgumentError: When variables are malformed or contradict each other.
    """
    needed = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
    if any(name not in environment for name in needed) or environment.get("SLURM_JOB_NAME") in INTERACTIVE:
        return None
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS")
    if tasks == 1:
        return None
    task, local_task = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_LOCALID")
    counts = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    name = "SLURM_STEP_NODELIST" if environment.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    hosts = expand_hosts(environment.get(name, ""))
    if len(hosts) != len(counts) or sum(counts) != tasks:
        raise ArgumentError(
            f"SLURM's variables contradict each other: {tasks} tasks, {name}={environment.get(name)!r} "
            f"({len(hosts)} hosts), SLURM_STEP_TASKS_PER_NODE={environment['SLURM_STEP_TASKS_PER_NODE']!r}."
        )
    places = _places(counts, environment.get("SLURM_DISTRIBUTION", "block"))
    if not task < tasks or places[task][1] != local_task:
        raise ArgumentError(
            f"SLURM says that task {task} of {tasks} is number {local_task} of its host, which does not follow from "
            f"{environment['SLURM_STEP_TASKS_PER_NODE']} tasks a host: start the step with srun --distribution=block."
        )
    port = _port(_number(environment, "SLURM_JOB_ID"), environment.get("SLURM_STEP_ID", "0"))
    addresses = tuple(f"{hosts[node]}:{port + 1 + local}" for node, local in places)
    return Job("slurm", task, tasks, local_task, counts[places[task][0]], f"{hosts[0]}:{port}", addresses)


def expand_hosts(text: str) -> list[str]:
    """The host names of SLURM's short form, in order.

    Example:
        >>> expand_hosts("gpu[08-10,12],login")
        ['gpu08', 'gpu09', 'gpu10', 'gpu12', 'login']
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[\[\],]", text):
        if part == ",":
            continue
        hosts += _expand(part, text)
    if not hosts:
        raise _malformed("host list", text, "'node[001-003,007],other'")
    return hosts


def expand_counts(text: str) -> list[int]:
    """The numbers of SLURM's short form: '2(x3),1' is [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise _malformed("tasks per node", text, "'2(x3),1'")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _expand(part: str, text: str) -> list[str]:
    """One comma-separated part; it may have several pairs of brackets."""
    if part in "[]":
        raise _malformed("host list", text, "'node[001-003,007],other'")
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", part)
    if match is None:
        return [part]
    start, inside, rest = match.groups()
    numbers: list[str] = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        last = last if dash else first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise _malformed("host list", text, "'node[001-003,007],other'")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    tails = _expand(rest, text) if rest else [""]
    return [f"{start}{number}{tail}" for number in numbers for tail in tails]


def _places(counts: list[int], distribution: str) -> list[tuple[int, int]]:
    """(host, number on that host) of each task."""
    if distribution.startswith("cyclic"):
        rounds = [(local, node) for node, count in enumerate(counts) for local in range(count)]
        return [(node, local) for local, node in sorted(rounds)]
    return [(node, local) for node, count in enumerate(counts) for local in range(count)]


def _port(job: int, step: str) -> int:
    """The same for all tasks of a step; steps and jobs that run side by side differ."""
    number = 17 * int(step) if step.isdigit() else 0
    return PORTS_FROM + PORTS_APART * ((job + number) % BLOCKS)


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not (value.isascii() and value.isdigit()):
        raise ArgumentError(f"The environment has {name}={value!r}; SLURM should have set a whole number.")
    return int(value)


def _malformed(what: str, text: str, example: str) -> ArgumentError:
    return ArgumentError(f"SLURM's {what} {text!r} cannot be read; expected something like {example}.")
