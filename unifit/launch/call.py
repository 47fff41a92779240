"""One process of `uf.launch`: calls the function, and leaves behind what it returned."""

from __future__ import annotations

import pickle
from pathlib import Path

WORK = "work.pickle"
RESULT = "result.pickle"


def main(path: str, process: int) -> int:
    """Calls the function that is in the folder `path`; process 0 leaves there what it returned."""
    folder = Path(path)
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
