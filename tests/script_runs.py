"""Runs of whole scripts on the active backend, each in a process of its own."""

import os
import subprocess
import sys

RUN_LIMIT_S = 110


def run_script(path, folder, *arguments, **environment):
    """Runs a script in `folder`; returns its output."""
    done = subprocess.run(
        [sys.executable, path, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
