"""SIGINT and SIGTERM, as a request to stop cleanly."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """While this lasts, SIGINT and SIGTERM set an event instead of ending the process in the middle of things.

    A second one does what it would do without this. In a thread that is not the main one nothing is changed.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        asked.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
