"""Keep clocks of an application by name, so that they can be read and gone back to for as long as the name stands."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from persistent_state.formatting import Clock, read_clock
from persistent_state.protocol import naming
from persistent_state.store.files import open_files
from persistent_state.store.log import Log


def keep_clock(
    store: str,
    application: str,
    name: str,
    clock: Clock | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Keep a clock of an application by a name, until it is released. The application may run meanwhile.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        name: The name. A clock may have several, and a name is that of one clock.
        clock: One of the kept clocks; by default the newest, which is the global clock.
        storage_options: What fsspec needs to open the store.

    Returns:
        The clock, in microseconds UTC.

    Raises:
        InvalidInputError: There is no such application, the clock is not kept, or another clock has the name.
        CommitUnknownError: The store did not answer. Do it again.

    Example:
        >>> keep_clock("tests/fixtures/store-v1", "app", "before the sale", 160)
        Traceback (most recent call last):
        ...
        persistent_state.errors.InvalidInputError: app keeps no clock yet; start it with this version.
    """
    at = None if clock is None else read_clock(clock)
    return naming.keep(Log(open_files(store, storage_options), application), at, name, _now_us())


def release_clock(store: str, application: str, name: str, *, storage_options: Mapping[str, Any] | None = None) -> int:
    """Keep a clock of an application no longer by this name. Its files go when nothing else keeps the clock.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        name: The name that it was given.
        storage_options: What fsspec needs to open the store.

    Returns:
        The clock, in microseconds UTC.

    Raises:
        InvalidInputError: There is no such application or name.
        CommitUnknownError: The store did not answer. Do it again.

    Example:
        >>> release_clock("tests/fixtures/store-v1", "app", "before the sale")
        Traceback (most recent call last):
        ...
        persistent_state.errors.InvalidInputError: name='before the sale' keeps no clock of app; the names are none.
    """
    return naming.release(Log(open_files(store, storage_options), application), name, _now_us())


def _now_us() -> int:
    return time.time_ns() // 1000  # noqa: TID251 - people call this, on no machine of a world that is played
