"""One process of `uf.launch`, as a program: `python -m unifit.launch.call FOLDER PROCESS` calls the function."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

WORK = "work.pickle"
RESULT = "result.pickle"


def main(folder: Path, process: int) -> int:
    """Calls the function that is in the folder; process 0 leaves there what it returned."""
    function, args, kwargs = pickle.loads((folder / WORK).read_bytes())
    result = function(*args, **kwargs)
    if process == 0:
        (folder / RESULT).write_bytes(_packed(result))
    return 0


def _packed(result: object) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception as error:
        error.add_note(
            f"uf.launch could not send back what the function returned, {type(result)}; return plain values."
        )
        raise


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
