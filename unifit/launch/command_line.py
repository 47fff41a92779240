"""The command `unifit`. `unifit run` starts a script as a job, on this machine or on several."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from unifit.backend import backend, packages
from unifit.contract.job import START_TIMEOUT_S
from unifit.errors import ArgumentError, UnifitError, unknown_name
from unifit.launch.checkpoint_commands import add_commands
from unifit.launch.children import Spec
from unifit.launch.environment import LOOPBACK
from unifit.launch.ports import free_ports, join_address, split_address
from unifit.launch.rendezvous import Meeting, Node, meet
from unifit.launch.supervisor import Outcome, Supervisor, signals_as_events

USAGE_ERROR = 2
INTERRUPTED = 130

OF_ANOTHER_JOB = frozenset(
    f"UNIFIT_{name}"
    for name in ("PROCESS", "PROCESSES", "LOCAL_PROCESS", "LOCAL_PROCESSES", "COORDINATOR", "ADDRESSES")
)
"""Variables that a launcher that runs inside a job inherits, and its processes must not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `unifit`; returns its exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(options.command(options))
    except UnifitError as error:
        print(f"unifit: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(prog="unifit", description="Trains on PyTorch, JAX and TensorFlow.")
    commands = parser.add_subparsers(required=True, metavar="run|checkpoint")
    add_commands(commands)
    command = commands.add_parser(
        "run",
        help="start a script as a job of one or several processes",
        description="Starts a script as a job. On torch there is one process a device, under torch's elastic agent; on "
        "jax and tensorflow one process a machine. The job ends when one of its processes fails.",
        usage="unifit run [options] script.py ... | unifit run [options] -m module ...",
    )
    add = command.add_argument
    add("--backend", help="torch, jax or tensorflow (default: UNIFIT_BACKEND, else the first installed)")
    add("--devices", type=_whole(1), metavar="N", help="devices of this machine (default: all accelerators)")
    add("--nodes", type=_whole(1), default=1, metavar="M", help="number of machines")
    add("--node-rank", type=int, metavar="R", help="this machine's number, from 0")
    add("--rendezvous", metavar="HOST:PORT", help="where node 0 waits for the others")
    add(
        "--processes-per-node",
        type=_whole(1),
        metavar="P",
        help="processes of this machine (jax, tensorflow; default 1)",
    )
    add("--max-restarts", type=_whole(0), default=0, metavar="K", help="start again up to K times after a failure")
    add(
        "--start-timeout-s",
        type=float,
        metavar="S",
        help=f"how long to wait for others (default {START_TIMEOUT_S:.0f})",
    )
    add("--log-dir", type=Path, metavar="D", help="folder for the output of processes after the first")
    add("-m", dest="module", nargs=argparse.REMAINDER, metavar="module ...", help="a module in place of a script")
    add("script", nargs=argparse.REMAINDER, metavar="script.py ...", help="the script and its arguments")
    command.set_defaults(command=run)
    options = parser.parse_args(arguments)
    if options.command is not run:
        return options
    if not options.module and not options.script:
        command.error("which script? Give script.py or -m module at the end, after the options")
    if options.nodes > 1 and (options.node_rank is None or options.rendezvous is None):
        command.error(f"--nodes {options.nodes} needs --node-rank and --rendezvous HOST:PORT, node 0's address")
    if not 0 <= (options.node_rank or 0) < options.nodes:
        command.error(
            f"--node-rank {options.node_rank} with --nodes {options.nodes}: expected 0 to {options.nodes - 1}"
        )
    return options


def run(options: argparse.Namespace) -> int:
    """Runs the job; returns the exit status.

    Raises:
        UnifitError: When it cannot start.
    """
    name = options.backend or backend.name
    if name not in packages():
        raise unknown_name("backend (--backend)", name, packages())
    processes = _processes(options, name)
    if options.rendezvous is not None:
        split_address(options.rendezvous, "--rendezvous")
    if not options.module and not Path(options.script[0]).is_file():
        raise ArgumentError(f"there is no script '{options.script[0]}' (in {Path.cwd()}).")
    if name == "torch" and options.rendezvous is None:
        command = [sys.executable, *_torch_agent(options, _log_folder(options))]
        os.execve(sys.executable, command, _environment(options))
    if processes == 1 and options.nodes == 1:
        folder = Path()  # nothing is written
    else:
        folder = _log_folder(options)
        which = "processes after the first print" if not options.node_rank else "the processes of this node print"
        if name != "torch" or options.node_rank:
            print(f"unifit: {which} to files in {folder}", file=sys.stderr, flush=True)
    for attempt in range(options.max_restarts + 1):
        outcome = _attempt(options, name, processes, folder / f"attempt_{attempt}")
        if outcome.status == 0 or outcome.by_signal or attempt == options.max_restarts:
            break
        print(
            f"unifit: starting again, for the time {attempt + 1} of {options.max_restarts}", file=sys.stderr, flush=True
        )
    return outcome.status


def _attempt(options: argparse.Namespace, name: str, processes: int, folder: Path) -> Outcome:
    events: SimpleQueue[Any] = SimpleQueue()
    node = Node(
        options.node_rank or 0,
        options.nodes,
        name,
        _version(),
        options.max_restarts,
        processes,
        LOOPBACK,
        free_ports(processes + 1),
    )
    if options.rendezvous is None:
        with signals_as_events(events):
            return Supervisor(events).run(_specs(options, node, [node], folder))
    host, port = split_address(options.rendezvous, "--rendezvous")
    timeout_s = START_TIMEOUT_S if options.start_timeout_s is None else options.start_timeout_s
    meeting = meet(node, host, port, timeout_s, events)
    try:
        with signals_as_events(events):
            return Supervisor(events, meeting).run(_specs_of_meeting(options, node, meeting, folder))
    finally:
        meeting.close()


def _specs_of_meeting(options: argparse.Namespace, node: Node, meeting: Meeting, folder: Path) -> list[Spec]:
    if node.backend != "torch":
        return _specs(options, node, meeting.nodes, folder)
    first = meeting.nodes[0]
    agent = _torch_agent(options, folder, join_address(first.host, first.ports[0]))
    return [Spec(node.node, (sys.executable, *agent), _environment(options), report=folder / "failure.txt")]


def _specs(options: argparse.Namespace, node: Node, nodes: list[Node], folder: Path) -> list[Spec]:
    """This machine's processes, on jax and tensorflow."""
    counts = [other.processes for other in nodes]
    before, total = sum(counts[: node.node]), sum(counts)
    coordinator = join_address(nodes[0].host, nodes[0].ports[-1])
    addresses = [join_address(other.host, port) for other in nodes for port in other.ports[:-1]]
    specs = []
    for local in range(node.processes):
        process = before + local
        environment = _environment(options)
        if options.devices is not None:
            environment["UNIFIT_CPU_DEVICES"] = str(options.devices // node.processes)
        if node.processes > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // node.processes)))
        if total > 1:
            environment |= {
                "UNIFIT_PROCESS": str(process),
                "UNIFIT_PROCESSES": str(total),
                "UNIFIT_LOCAL_PROCESS": str(local),
                "UNIFIT_LOCAL_PROCESSES": str(node.processes),
                "UNIFIT_COORDINATOR": coordinator,
                "UNIFIT_ADDRESSES": ",".join(addresses),
            }
        logs = folder / str(process)
        shown = process == 0
        # On several machines the first one's errors go through the launcher: it tells the others.
        errors = (_write_error if len(nodes) > 1 else None) if shown else logs / "stderr.log"
        output = None if shown else logs / "stdout.log"
        specs.append(Spec(process, (sys.executable, *_script(options)), environment, output, errors))
    return specs


def _torch_agent(options: argparse.Namespace, folder: Path, master: str | None = None) -> list[str]:
    """Arguments for Python that run the script under torch's elastic agent, one process a device."""
    package = importlib.util.find_spec(packages()["torch"])
    assert package is not None and package.submodule_search_locations
    agent = Path(package.submodule_search_locations[0], "agent.py")
    arguments = ["-P", str(agent), f"--nproc-per-node={options.devices or 'all'}", f"--log-dir={folder}"]
    if master is None:
        arguments += ["--standalone", f"--max-restarts={options.max_restarts}"]
    else:
        host, port = split_address(master, "the master's address")
        folder.mkdir(parents=True, exist_ok=True)
        arguments += [f"--nnodes={options.nodes}", f"--node-rank={options.node_rank or 0}"]
        arguments += [f"--master-addr={host}", f"--master-port={port}"]
        if options.node_rank:
            arguments.append("--redirects=3")
    return [*arguments, "--no-python", sys.executable, *_script(options)]


def _script(options: argparse.Namespace) -> list[str]:
    return ["-m", *options.module] if options.module else list(options.script)


def _environment(options: argparse.Namespace) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_JOB}
    if options.backend:
        environment["UNIFIT_BACKEND"] = options.backend
    if options.start_timeout_s is not None:
        environment["UNIFIT_START_TIMEOUT_S"] = str(options.start_timeout_s)
    return environment


def _processes(options: argparse.Namespace, name: str) -> int:
    """How many processes this launcher starts on its machine; on torch it is the agent."""
    wished = options.processes_per_node
    if name == "torch":
        if wished not in (None, options.devices):
            raise ArgumentError(
                f"--processes-per-node {wished} on torch: there it has one process a device. Give --devices {wished}."
            )
        return 1
    if options.devices is not None and options.devices % (wished or 1):
        raise ArgumentError(
            f"--devices {options.devices} with --processes-per-node {wished}: each process has as many devices, so the "
            "first must be a multiple of the second."
        )
    return wished or 1


def _log_folder(options: argparse.Namespace) -> Path:
    if options.log_dir is None:
        return Path(tempfile.mkdtemp(prefix="unifit_logs_"))
    # A folder that the machines share must tell them apart.
    folder: Path = options.log_dir / f"node_{options.node_rank}" if options.nodes > 1 else options.log_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _write_error(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.flush()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version() -> str:
    try:
        return version("unifit")
    except PackageNotFoundError:
        return "0"


def _whole(least: int) -> Callable[[str], int]:
    """A parser of whole numbers of at least `least`."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return int(text)

    return parse
