"""The process of a worker: it makes one call after the other that its driver sends, and ends with the driver."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from persistent_state.errors import InvalidInputError, StateError, raised
from persistent_state.local.messages import CallUnpickler, Channel, Message, to_answer
from persistent_state.local.pace import OPEN_SECONDS
from persistent_state.sources.base import TimeReplayableSource

_PR_SET_PDEATHSIG = 1

LOOK_SECONDS = 0.5
"""Time between two looks at whether the driver lives, while a call is under way."""


def main(descriptor: int, driver: int) -> None:
    """Make the calls that come through the socket with this descriptor, until the driver, a process of this id, is gone."""
    # Who ends the driver, as by Ctrl+C in a terminal, lets the driver end its workers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _die_with_thread_of_driver()
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    try:
        _answer(Channel(descriptor))
    except (EOFError, OSError):
        # The driver has closed its end, or is gone.
        os._exit(0)


def _die_with_thread_of_driver() -> None:
    """Let Linux kill this process when the thread that started it ends, as by the death of its process.

    A call that holds the lock of Python's interpreter, such as that of a regular expression, lets no thread here look.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def _answer(channel: Channel) -> None:
    sent = channel.receive()
    try:
        known: Sequence[Any] = pickle.loads(sent.data)
        for source in [each for each in known if isinstance(each, TimeReplayableSource)]:
            source.stay_open(OPEN_SECONDS)
    except Exception as error:
        refused = InvalidInputError(
            f"a worker can't load the application: {type(error).__name__}: {error}. Install what it imports, or let PYTHONPATH "
            "name the folder."
        )
        channel.send(to_answer((None, refused)))
        return
    # What was imported stays, and the garbage collector need not look at it after each call.
    gc.freeze()
    channel.send(to_answer((None, None)))
    while True:
        channel.send(_answer_next(channel, known))


def _answer_next(channel: Channel, known: Sequence[Any]) -> Message:
    try:
        message = channel.receive()
    except StateError as error:
        return to_answer((None, error))
    return _answer_to(message, known)


def _answer_to(message: Message, known: Sequence[Any]) -> Message:
    """Return what a call returns and None, or None and the error that it raises."""
    try:
        function, item = CallUnpickler(message, known).load()
        return to_answer((function(item), None))
    except StateError as error:
        return to_answer((None, _of_package(error)))
    except BaseException as error:
        # Any error: panics of libraries that are written in Rust are not Exceptions.
        return to_answer((None, StateError(f"a worker raised {raised(error)}; fix the cause, then start again.")))


def _of_package(error: StateError) -> StateError:
    """Return an error as one that the driver can load. One of a user's class becomes one of the class that this extends."""
    kind = next(each for each in type(error).__mro__ if each.__module__.startswith("persistent_state."))
    return error.with_traceback(None) if type(error) is kind else kind(str(error))
