"""unifit's torch backend: one file per part of the contract, each imported by the door when it is first used."""

import os

START_FOLDER = os.getcwd()
"""Where the script began, as far as `import unifit` can tell: a restart as a job begins there again."""
