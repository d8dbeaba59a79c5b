"""Refuse to start an application where its module is only loaded: by a command, or by a worker of Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from persistent_state.errors import at_caller

_loads: list[str] = []
"""The names that commands load at the moment."""


@contextmanager
def loading(named: str) -> Iterator[None]:
    """Refuse the starts of applications in this block, which loads the application that `named` names."""
    _loads.append(named)
    try:
        yield
    finally:
        _loads.pop()


def of_place(application: str, what: str) -> Iterator[str]:
    """Refuse `what` a module does to an application while the module is only loaded.

    A command runs the application itself. In a worker of Spark the module would start a run that fences the one it works for.
    """
    if _loads or _is_worker():
        loads = f"a command loads {_loads[-1]}" if _loads else "a worker of Spark loads its module"
        yield f'application={application} is {what}{at_caller()} while {loads}; put that below `if __name__ == "__main__":`.'


def _is_worker() -> bool:
    """Return whether this process is one that Spark has started for the functions of a session elsewhere."""
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program is not None and program.name.startswith("pyspark.")
