"""Hear the signals that ask this process to end, and end it when it takes too long."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS = 60.0
"""The time that a process has to end after the first signal."""

REPEAT_SECONDS = 1.0
"""The time after the first signal in which others are the same request: `timeout` signals the process, and then its group."""

OF_LIBRARY = "persistent-state "
"""The names of this library's threads begin with this."""

_ENDING = (signal.SIGINT, signal.SIGTERM)
"""The signals that ask for an end. The pipe has all that Python handles, such as a SIGHUP for which a module has a handler."""

_CLOSED = 0
"""The number of no signal: the block has ended."""


def exit_within(seconds: float, status: int) -> None:
    """Let this process end with an exit status after some seconds, if it has not ended before, whatever it waits for then."""
    timer = threading.Timer(seconds, os._exit, [status])
    timer.daemon = True
    timer.start()


def exit_beside_threads(status: int) -> None:
    """End this process with an exit status, if threads of this library are left, which wait for a sink or a store.

    They may be within a library that is not written in Python. If Python took itself down first, such a thread would end the
    process by a signal as soon as it comes back. Threads that Python waits for have their time before.
    """
    if any(thread.daemon and thread.name.startswith(OF_LIBRARY) for thread in threading.enumerate()):
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        os._exit(status)


def _next_of(pipe: int, seconds: float | None) -> int | None:
    """Return the next signal in the pipe that asks for an end, `_CLOSED`, or None if the time has run out."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([pipe], [], [], left)[0]:
            return None
        number = next(iter(os.read(pipe, 1)), _CLOSED)
        if number == _CLOSED or number in _ENDING:
            return number


def _comes_from(frame: FrameType | None, function: str) -> bool:
    """Return whether a function of a run hands a signal on to the handler that was there before the run."""
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == ("persistent_state.run.running", function):
            return True
        frame = frame.f_back
    return False


@contextmanager
def heard(end: Callable[[int | None], object]) -> Iterator[threading.Event]:
    """Let SIGTERM do in this block what SIGINT does, and return an event that either of them sets.

    A run handles both signals itself while it lasts, so that it ends cleanly. Outside of it they raise KeyboardInterrupt in the
    main thread. The event is set in both cases: Python writes each signal to a pipe, which a thread of this block reads.

    Args:
        end: Called in that thread, with None if the block lasts `SECONDS` longer, or with its number when another signal comes
            `REPEAT_SECONDS` after the first or later. It is to end the process.
    """
    asked = threading.Event()
    first: list[float] = []
    """The time at which the thread read the first signal, once it has."""
    is_handled = False
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def read() -> None:
        if _next_of(reading, None) == _CLOSED:
            return
        first.append(time.monotonic())
        asked.set()
        again = _next_of(reading, SECONDS)
        while again in _ENDING and time.monotonic() < first[0] + REPEAT_SECONDS:
            again = _next_of(reading, SECONDS)
        if again != _CLOSED:
            end(again)

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_handled
        if _comes_from(frame, "hand_on"):
            # It has ended the run, which was this block's own wish, and the block goes on to say so.
            return
        # A run that has heard a signal hands a second one on.
        is_first, is_handled = not (is_handled or _comes_from(frame, "ask")), True
        # The thread may not have read the first yet.
        if is_first or (first and time.monotonic() >= first[0] + REPEAT_SECONDS):
            signal.default_int_handler(number, frame)

    thread = threading.Thread(target=read, name="persistent-state signals", daemon=True)
    thread.start()
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    # A shell lets what it starts in the background ignore SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe_before)
        os.close(writing)
        thread.join()
        os.close(reading)
