"""What a Python worker of Spark does once for all its tasks."""

from __future__ import annotations

import gc

_is_settled = False


def settle() -> None:
    """Spare the worker what its first task has left in memory when it looks for garbage after each task: some 30 ms.

    Nearly all of it are imports. What of the rest is garbage only as a cycle stays.
    """
    global _is_settled
    if not _is_settled:
        gc.freeze()
        _is_settled = True
