"""Waits of the tests: each is for a condition, and bounded in minutes, so that a slow machine fails no test."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 600.0
"""The seconds after which what a test waits for will never come, however slow the machine is."""


def until(
    condition: Callable[[], T],
    what: str,
    alive: subprocess.Popen[Any] | Callable[[], object] = lambda: True,
    log: Path | None = None,
) -> T:
    """Wait until a condition holds, and return what it returned.

    Args:
        condition: Asked again and again, until it returns something true.
        what: What is awaited, for the message of a failure.
        alive: The process that makes the condition hold, or whether that still runs. Once it has ended, the condition is
            asked a last time.
        log: A file whose end explains a failure.

    Raises:
        AssertionError: The condition does not hold after `PATIENCE`, or can't any more.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        # Before the condition: what holds when a process ends is seen.
        lives = alive.poll() is None if isinstance(alive, subprocess.Popen) else alive()
        is_late = time.monotonic() > deadline
        if found := condition():
            return found
        if is_late or not lives:
            why = f"did not come within {PATIENCE:g} s" if lives else "can't come, as what was to bring it has ended"
            said = f": {log.read_text(errors='replace')[-4000:]}" if log is not None and log.exists() else ""
            raise AssertionError(f"{what} {why}{said}")
        time.sleep(0.02)


def seconds_open(client: socket.socket, begun: bytes) -> float:
    """Begin a request that never ends, and return the seconds after which the server closes its connection.

    What has begun goes on, byte by byte: a server that gives each byte more time would not close the connection.

    Raises:
        AssertionError: The connection is still open after `PATIENCE`.
    """
    begin = time.monotonic()
    client.settimeout(0.1)
    with suppress(ConnectionError):
        client.sendall(begun)
        while True:
            assert time.monotonic() < begin + PATIENCE, "the connection is open"
            try:
                if not client.recv(1 << 16):
                    break
            except TimeoutError:
                client.sendall(b"x" if begun else b"")
    return time.monotonic() - begin
