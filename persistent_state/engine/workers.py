"""What a Python worker of Spark does once for all its tasks."""

from __future__ import annotations

import gc

_is_settled = False


def settle() -> None:
    """Take what the worker has imported out of the search for garbage that Spark has it do after each task: some 30 ms."""
    global _is_settled
    if not _is_settled:
        gc.freeze()
        _is_settled = True
