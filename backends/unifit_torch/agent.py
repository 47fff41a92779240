"""torch's elastic agent for one machine, as a program: `python -P agent.py <torchrun's arguments>`, run by relaunch.

It is torchrun with two differences: its exit status is that of the process that failed, and what a failing process
after the first wrote to its log as errors is shown. Only torch is imported: the script's own sys.path need not be set
up here, and `-P` keeps this folder, which has a `random.py`, off the path.
"""

import signal
import sys
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

SHOWN_LINES = 60
ENDED_BY_SIGNAL = 128

# How a process ends when another one of its job died: by an exception of a collective, or by the agent's signal.
USUAL_STATUSES = (1, -signal.SIGTERM, -signal.SIGKILL)


def main() -> int:
    """Runs the job; returns its exit status."""
    arguments = run.parse_args(sys.argv[1:])
    try:
        run.run(arguments)
    except ChildFailedError as error:
        return report(error.failures, Path(arguments.log_dir))
    except SignalException as error:
        return ENDED_BY_SIGNAL + error.sigval
    return 0


def report(failures: dict, log_folder: Path) -> int:
    """Shows the errors of processes whose output is in log files; returns the status of the one that failed first."""
    for rank, failure in sorted(failures.items()):
        logs = sorted(log_folder.glob(f"*/attempt_*/{failure.local_rank}/stderr.log"))
        lines = logs[-1].read_text(errors="replace").splitlines() if rank > 0 and logs else []
        shown = "".join(f"\n  {line}" for line in lines[-SHOWN_LINES:])
        where = f" Its errors, from {logs[-1]}:{shown}" if shown else ""
        print(f"unifit: process {rank} of the job ended with status {failure.exitcode}.{where}", file=sys.stderr)
    statuses = [failure.exitcode for _, failure in sorted(failures.items())]
    cause = next((status for status in statuses if status not in USUAL_STATUSES), max(statuses))
    return cause if cause > 0 else ENDED_BY_SIGNAL - cause


if __name__ == "__main__":
    sys.exit(main())
