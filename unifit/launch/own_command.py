"""Whether this process is the command `unifit` itself, which needs no framework and is a member of no job."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

COMMANDS = ("run", "checkpoint", "-h", "--help")


def is_own_command() -> bool:
    """Whether it is `unifit run ...` or the like, or `python -m unifit`.

    A user's program that happens to be called `unifit` is not, unless its first argument is one of the command's too.
    """
    program, arguments = sys.argv[0] if sys.argv else "", sys.argv[1:2]
    if program == "-m":  # Python is looking for the module, and imports its package for that
        return ("-m", "unifit") in pairwise(sys.orig_argv)
    if Path(program).parts[-2:] == ("unifit", "__main__.py"):
        return True
    return Path(program).name in ("unifit", "unifit.exe") and (not arguments or arguments[0] in COMMANDS)
