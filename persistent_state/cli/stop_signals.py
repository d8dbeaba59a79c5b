"""Hear the signals that ask this process to end, and end it when it takes too long."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 60.0
"""The time that a process has to end after the first signal."""


@contextmanager
def heard(end: Callable[[int | None], object]) -> Iterator[threading.Event]:
    """Let SIGTERM do in this block what SIGINT does, and return an event that either of them sets.

    A run handles both signals itself while it lasts, so that it ends cleanly. Outside of it they raise KeyboardInterrupt in the
    main thread. The event is set in both cases: Python writes each signal to a pipe, which a thread of this block reads.

    Args:
        end: Called in that thread, with None if the block lasts `SECONDS` longer, or with its number when another signal comes.
            It is to end the process.
    """
    asked = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def read() -> None:
        if not os.read(reading, 1):
            return
        asked.set()
        is_there, _, _ = select.select([reading], [], [], SECONDS)
        again = os.read(reading, 1) if is_there else None
        # An empty answer means that the block has ended.
        if again != b"":
            end(again[0] if again else None)

    thread = threading.Thread(target=read, name="persistent-state signals", daemon=True)
    thread.start()
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(pipe_before)
        os.close(writing)
        thread.join()
        os.close(reading)
