"""Keep clocks of an application by name, for as long as the name stands, and branch an application from a kept clock."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from persistent_state.errors import InvalidInputError
from persistent_state.formatting import Clock
from persistent_state.protocol import branch, naming
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

_logger = logging.getLogger("persistent_state")


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
        clock: One of the kept clocks, or a name of it; by default the newest, which is the global clock.
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
        persistent_state.errors.InvalidInputError: app keeps no clock yet; start it once, and it keeps its newest.
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"name={name!r} is not a text; give one by which to release the clock.")
    log = Log(open_files(store, storage_options), application)
    at = None if clock is None else naming.clock_named(log, clock)
    return naming.keep(log, at, name, _now_us())


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
        persistent_state.errors.InvalidInputError: name='before the sale' is the name of no kept clock of app; there is none.
    """
    return naming.release(Log(open_files(store, storage_options), application), name, _now_us())


def branch_application(
    store: str,
    application: str,
    new: str,
    clock: Clock | None = None,
    *,
    to: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    to_storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Make another application of one as it was at a kept clock: with its state and its positions, and without its outputs.

    The new one has files of its own, and each is verified. The old one may run meanwhile. A call that is interrupted leaves no
    new application, and the next call goes on. A warning names each task that was left out at the clock, and one says what the
    outputs of windows and of emitted rows begin with.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        new: The name of the new application.
        clock: One of the kept clocks, or a name of it; by default the newest, which is the global clock.
        to: The folder or URL of the store for the new application, by default the same.
        on_progress: Called after each file with the number of bytes that are copied, and of those that are to be.
        storage_options: What fsspec needs to open the store.
        to_storage_options: What fsspec needs to open `to`.

    Returns:
        The clock, in microseconds UTC.

    Raises:
        InvalidInputError: There is no such application, the clock is not kept, or is released meanwhile, or the new name can't
            be used, or is that of an application.
        DamagedError: A file is not what was written.
        StoreUnavailableError: A store does not answer. Do it again.
        CommitUnknownError: The store did not answer. Look whether the new application is there, and else do it again.

    Example:
        >>> branch_application("tests/fixtures/store-v1", "app", "app-green", 160)
        Traceback (most recent call last):
        ...
        persistent_state.errors.InvalidInputError: app keeps no clock yet; start it once, and it keeps its newest.
    """
    files = open_files(store, storage_options)
    there = files if to is None else open_files(to, to_storage_options)
    log = Log(files, application)
    at = None if clock is None else naming.clock_named(log, clock)
    entry = branch.branch(
        log,
        Log(there, new),
        at,
        now=_now_us(),
        new_id=lambda: uuid.uuid4().hex[:16],
        tell=on_progress or (lambda done, size: None),
    )
    for note in branch.notes(entry, new):
        _logger.warning("%s", note)
    return entry.clock


def _now_us() -> int:
    return time.time_ns() // 1000  # noqa: TID251 - people call this, on no machine of a world that is played
