"""`uf.launch`: a function of a notebook, or of any program, as a job of its own."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from unifit.backend import backend
from unifit.errors import ArgumentError, PeerError
from unifit.launch.call import RESULT, WORK
from unifit.launch.children import Spec
from unifit.launch.command_line import OF_ANOTHER_JOB, cores
from unifit.launch.environment import LOOPBACK
from unifit.launch.interruption import ENDED_BY_SIGNAL, end_of
from unifit.launch.ports import free_ports, join_address
from unifit.launch.supervisor import Supervisor, signals_as_events

CALL = "import sys; from unifit.launch.call import main; sys.exit(main(sys.argv[1], int(sys.argv[2])))"
"""The program of a process: not `-m unifit.launch.call`, which unifit itself has imported already."""


def launch(
    function: Callable[..., Any],
    devices: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Calls a function in fresh processes that share `devices` devices of this machine.

    On torch there is one process a device, on jax and tensorflow one process; all of them run the function. What
    process 0 prints appears here while it runs, what the others print is dropped. Made for notebooks, which have no
    script that `unifit run` could start. An interrupt (SIGINT, SIGTERM) is passed on to the processes, whose fits end
    after a step, saved; a second one ends them at once.

    Args:
        function: Builds the model and trains it. A function of the notebook travels by value (with the package
            cloudpickle), with what it refers to.
        devices: How many devices; on a machine without accelerators they are virtual.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        What the function returned in process 0.

    Raises:
        PeerError: When a process fails, with its traceback.
        KeyboardInterrupt, SystemExit: When a signal has ended the processes.
        ArgumentError: When the function cannot be sent.
    """
    if not isinstance(devices, int) or devices < 1:
        raise ArgumentError(f"launch got devices={devices!r}; expected a number of devices, at least 1.")
    work = _packed((function, tuple(args), dict(kwargs or {})))
    with tempfile.TemporaryDirectory(prefix="unifit_launch_") as name:
        folder = Path(name)
        (folder / WORK).write_bytes(work)
        events: SimpleQueue[Any] = SimpleQueue()
        with signals_as_events(events):
            outcome = Supervisor(events, announced=False).run(_specs(folder, devices))
        if outcome.by_signal and outcome.status != 0:
            raise end_of(outcome.status - ENDED_BY_SIGNAL)
        if outcome.status != 0:
            raise PeerError(outcome.report.removeprefix("unifit: "))
        return pickle.loads((folder / RESULT).read_bytes())


def _specs(folder: Path, devices: int) -> list[Spec]:
    processes = devices if backend.name == "torch" else 1
    base = {key: value for key, value in os.environ.items() if key not in OF_ANOTHER_JOB}
    base |= {"UNIFIT_BACKEND": backend.name, "PYTHONUNBUFFERED": "1"}
    if backend.name != "torch":
        base["UNIFIT_CPU_DEVICES"] = str(devices)
    # The function's modules are looked up where this program finds them.
    base["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    *ports, coordinator = free_ports(processes + 1)
    addresses = ",".join(join_address(LOOPBACK, port) for port in ports)
    specs = []
    for process in range(processes):
        environment = dict(base)
        if processes > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
            environment |= {
                "UNIFIT_PROCESS": str(process),
                "UNIFIT_PROCESSES": str(processes),
                "UNIFIT_LOCAL_PROCESS": str(process),
                "UNIFIT_LOCAL_PROCESSES": str(processes),
                "UNIFIT_COORDINATOR": join_address(LOOPBACK, coordinator),
                "UNIFIT_ADDRESSES": addresses,
            }
        command = (sys.executable, "-P", "-c", CALL, str(folder), str(process))
        output, errors = (_print, _print_error) if process == 0 else (_drop, _drop)
        specs.append(Spec(process, command, environment, output, errors))
    return specs


def _packed(work: Any) -> bytes:
    if importlib.util.find_spec("cloudpickle") is not None:
        packed: bytes = importlib.import_module("cloudpickle").dumps(work)  # the extra `notebook`
        return packed
    function = work[0]
    try:
        # By name: what stands in the main program or inside another function cannot be found there.
        if getattr(function, "__module__", None) == "__main__":
            raise pickle.PicklingError(f"{function!r} is defined in the main program")
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ArgumentError(
            f"launch cannot send {function!r} to other processes ({error}). Install cloudpickle, which sends functions "
            'by value: pip install "unifit[notebook]"; or move the function to a module and import it.'
        ) from error


def _print(data: bytes) -> None:
    sys.stdout.write(data.decode(errors="replace"))
    sys.stdout.flush()


def _print_error(data: bytes) -> None:
    sys.stderr.write(data.decode(errors="replace"))
    sys.stderr.flush()


def _drop(data: bytes) -> None:
    """The last lines of what it wrote as errors are kept for the exception."""
