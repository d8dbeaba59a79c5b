"""Check that a store can be reached, that of several creators of a file one wins, and that its clock is right."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from persistent_state.cli.doctor.check import FAIL, OK, WARN, Check
from persistent_state.errors import ExistsError, StateError
from persistent_state.redact import shown
from persistent_state.store.files import Files, LocalFiles, open_files

WRITERS, ROUNDS = 8, 5
"""The number of threads that create a file at once, and of the files that they create."""

MOST_APART = 5.0
"""Seconds by which the clocks of a store and of this machine may differ."""

NOT_APART = "two drivers can't be told apart there:"

STORE, CREATE, CLOCK = "store", "exclusive create", "clock"


def check_store(url: str, options: Mapping[str, Any], now: Callable[[], float]) -> Iterator[Check]:
    """Yield checks of a store. What they write there is deleted.

    Args:
        url: The store's folder or url.
        options: Its options.
        now: Returns the time of this machine, in seconds since 1970.
    """
    try:
        with _left_as_it_was(open_files(url, options)) as (files, names):
            there = len(files.list(""))
            clock = check_clock(files, names(), now)
            yield Check(STORE, OK, f"{shown(files.url)} can be listed, written and read: {there:,} names are there")
            yield check_create(files, [names() for _ in range(ROUNDS)])
            yield clock
    except (StateError, OSError) as error:
        yield Check(STORE, FAIL, str(error))


def check_create(files: Files, names: list[str]) -> Check:
    """Check that of several writers of this machine at once one makes a file, and that no one replaces it.

    This can't find out what another machine would see of a synchronised folder or a mount.
    """
    for name in names:
        if problem := _problem(files, name):
            return Check(CREATE, FAIL, f"{problem} take a store that docs/stores.md lists.")
    times = f"{len(names)} times out of {len(names)}"
    return Check(CREATE, OK, f"of {WRITERS} writers of this machine at once one wins, {times}")


def _problem(files: Files, name: str) -> str | None:
    """Let several writers create a file, and return what is wrong and why another store is needed; None if nothing is."""
    offers = [f"{name} of writer {writer}".encode() for writer in range(WRITERS)]
    together = threading.Barrier(WRITERS)

    def creates(data: bytes) -> bool:
        together.wait()
        return _creates(files, name, data)

    with ThreadPoolExecutor(WRITERS) as pool:
        won = [offer for offer, has_won in zip(offers, pool.map(creates, offers), strict=True) if has_won]
    there = files.read(name).to_pybytes()
    if there not in offers:
        return f"a file of {WRITERS} writers at once holds what none of them wrote; {NOT_APART}"
    if not won:
        # A client that lost an answer has asked again, and met its own file. Or the store never says who has won.
        return f"none of {WRITERS} writers at once was told that it made a file that is there; check again, and if it stays so"
    if won != [there]:
        return f"{len(won)} of {WRITERS} writers at once were told that they made one file; {NOT_APART}"
    if _creates(files, name, b"later") or files.read(name).to_pybytes() != there:
        return f"a file was replaced by a later one of its name; {NOT_APART}"
    return None


def _creates(files: Files, name: str, data: bytes) -> bool:
    try:
        files.create(name, data)
    except ExistsError:
        return False
    return True


def check_clock(files: Files, name: str, now: Callable[[], float]) -> Check:
    """Write a file, and compare the time that the store gives to it with the clock of this machine."""
    before = now()
    files.ensure(name, name.encode())
    after = now()
    made = files.modified(name)
    if made is None:
        return Check(CLOCK, OK, "this store has none of its own")
    # Some stores have only whole seconds.
    behind, ahead = before - 1 - made, made - after
    apart = max(behind, ahead)
    if apart > MOST_APART:
        way = "behind" if behind > ahead else "ahead of"
        return Check(
            CLOCK, WARN, f"the store's clock is {apart:.0f} s {way} this machine's; let NTP set both, and look again."
        )
    return Check(CLOCK, OK, f"the store's and this machine's are within {MOST_APART:.0f} seconds")


@contextmanager
def _left_as_it_was(files: Files) -> Iterator[tuple[Files, Callable[[], str]]]:
    """Give a function that returns names of files that are not there, and delete these files at the end."""
    names: list[str] = []

    def new() -> str:
        names.append(f"doctor-{secrets.token_hex(8)}")
        return names[-1]

    missing = list(_missing_folders(files.url)) if isinstance(files, LocalFiles) else []
    try:
        yield files, new
    finally:
        for name in names:
            files.delete(name)
        for folder in missing:
            with suppress(OSError):
                os.rmdir(folder)


def _missing_folders(folder: str) -> Iterator[str]:
    """Yield the folders that have to be made for this one, the innermost first."""
    while not os.path.exists(folder):
        yield folder
        folder = os.path.dirname(folder)
