"""`python -m persistent_state`: the command line."""

import sys

from persistent_state.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
