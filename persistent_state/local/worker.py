"""The process of a worker: it makes one call after the other that its driver sends, and ends with the driver."""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import threading
import time
from collections import ChainMap
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from persistent_state.errors import InvalidInputError, StateError, raised
from persistent_state.sources.base import TimeReplayableSource

LOOK_SECONDS = 0.5
"""Time between two looks at whether the driver lives, while a call is under way."""


def _with_its_file(code: CodeType) -> tuple[Any, ...]:
    """Return how code is pickled by value. Errors name the file of it, which cloudpickle would leave out."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if each == "<dynamic-code>" else each for each in arguments)


class KnownPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that writes the number of an object in place of one that the reader knows: it has the same list."""

    dispatch_table: ClassVar = ChainMap({CodeType: _with_its_file}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: io.BytesIO, known: Sequence[object]) -> None:
        super().__init__(file, protocol=5)
        self._numbers = {id(each): number for number, each in enumerate(known)}

    def persistent_id(self, obj: object) -> int | None:
        return self._numbers.get(id(obj))


class KnownUnpickler(pickle.Unpickler):
    """The reader of what a `KnownPickler` has written."""

    def __init__(self, data: bytes, known: Sequence[object]) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known

    def persistent_load(self, number: int) -> object:
        return self._known[number]


def to_bytes(value: object, known: Sequence[object]) -> bytes:
    """Return a value as bytes for a reader that knows these objects."""
    file = io.BytesIO()
    KnownPickler(file, known).dump(value)
    return file.getvalue()


def main(descriptor: int, driver: int) -> None:
    """Make the calls that come through the socket with this descriptor, until the driver, a process of this id, is gone."""
    # Who ends the driver, as by Ctrl+C in a terminal, lets the driver end its workers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    connection = Connection(descriptor)
    try:
        _answer(connection)
    except (EOFError, OSError):
        # The driver has closed its end, or is gone.
        os._exit(0)


def _end_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def _answer(connection: Connection) -> None:
    try:
        known: Sequence[Any] = pickle.loads(connection.recv_bytes())
    except EOFError:
        raise
    except Exception as error:
        refused = InvalidInputError(
            f"a worker can't load the application: {type(error).__name__}: {error}. Install what it imports, or let PYTHONPATH "
            "name the folder."
        )
        connection.send_bytes(pickle.dumps((None, refused)))
        return
    for source in (each for each in known if isinstance(each, TimeReplayableSource)):
        source.stay_open()
    # What was imported stays, and the garbage collector need not look at it after each call.
    gc.freeze()
    connection.send_bytes(pickle.dumps((None, None)))
    while True:
        data = connection.recv_bytes()
        connection.send_bytes(_answer_to(data, known))


def _answer_to(data: bytes, known: Sequence[Any]) -> bytes:
    """Return what a call returns and None, or None and the error that it raises."""
    try:
        function, item = KnownUnpickler(data, known).load()
        return pickle.dumps((function(item), None), protocol=5)
    except StateError as error:
        return pickle.dumps((None, error.with_traceback(None)))
    except BaseException as error:
        # Any error: panics of libraries that are written in Rust are not Exceptions.
        return pickle.dumps((None, StateError(f"a worker raised {raised(error)}; fix the cause, then start again.")))
