"""`python -m unifit`: the command line."""

import sys

from unifit.launch.command_line import main

if __name__ == "__main__":
    sys.exit(main())
