"""Open a source again that the driver has opened at its start: of what it has warned there, it need not warn once more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_checked: ContextVar[bool] = ContextVar("is_checked", default=False)


@contextmanager
def opened_again() -> Iterator[None]:
    """Let sources that are opened in this block, in this thread, warn of nothing that is there."""
    token = _is_checked.set(True)
    try:
        yield
    finally:
        _is_checked.reset(token)


def is_opened_again() -> bool:
    """Return whether the driver has opened a copy of the source before, at its start."""
    return _is_checked.get()
