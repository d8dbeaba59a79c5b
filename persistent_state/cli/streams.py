"""Print to stdout and stderr so that neither changes the exit status of the process, even if no one reads them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def say(text: str) -> None:
    """Print a line to stderr, if it can be written."""
    # A closed file raises ValueError.
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def settle() -> None:
    """Flush stdout and stderr. What can't be written is lost.

    Python flushes both again when it ends. If that failed, it would end with status 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except ValueError:
            continue
        except OSError:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def open_missing() -> None:
    """Let what is printed go nowhere if the process was started without stdout or stderr, as by `2>&-`."""
    # A file that is opened later would get the free number, and what others print to it.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lasts
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
