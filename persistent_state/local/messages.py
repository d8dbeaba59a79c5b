"""The messages between the driver and a worker: pickles, which go through a socket, and blobs, which stay where they are.

The driver only hands a blob on, from the worker of a part to that of a shard. So the worker of the part writes its blobs to a
file in memory that has no name. What goes through the sockets is the descriptor of the file, and the place of each blob in it.
The worker of the shard maps the file, and copies nothing. The memory is free when no process has the file open any more,
however the processes end.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import select
import socket
import struct
import tempfile
from collections import ChainMap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from persistent_state.batch.packets import Blob
from persistent_state.errors import StateError

_HEAD = struct.Struct("=QQ")
"""The length of a pickle, and the number of files that come behind it."""

LOOK_SECONDS = 0.1
"""Time between two looks at whether what is waited for can still come."""


class BlobFile:
    """A file without a name, in memory where the system has such files. It is gone once no process has it open."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._size = 0

    def __del__(self) -> None:
        os.close(self.descriptor)

    def write(self, blob: Blob) -> tuple[int, int]:
        """Add a blob, and return where in the file it begins and ends."""
        start = self._size
        with open(self.descriptor, "wb", closefd=False) as file:
            self._size += sum(map(file.write, blob.to_buffers()))
        return start, self._size

    @cached_property
    def content(self) -> memoryview:
        """The bytes of the file, which are not copied."""
        return memoryview(mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ))


def new_file() -> BlobFile:
    """Return an empty file."""
    # Only Linux has such files, and a sandbox may refuse them.
    with suppress(AttributeError, OSError):
        return BlobFile(os.memfd_create("persistent-state blobs"))
    with tempfile.TemporaryFile() as file:
        return BlobFile(os.dup(file.fileno()))


@dataclass(frozen=True)
class BlobPlace:
    """The place of a blob in a file. It stands for the blob in the driver."""

    shard: int
    file: BlobFile
    start: int
    end: int


@dataclass(frozen=True)
class Message:
    """A pickle, and the files of the blobs that belong to it."""

    data: bytes
    files: Sequence[BlobFile] = ()


def _with_its_file(code: CodeType) -> tuple[Any, ...]:
    """Return how code is pickled by value. Errors name the file of it, which cloudpickle would leave out."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if each == "<dynamic-code>" else each for each in arguments)


class CallPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler of the driver. It writes the number of an object that the worker knows, and the place of a blob."""

    dispatch_table: ClassVar = ChainMap({CodeType: _with_its_file}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, data: io.BytesIO, known: Sequence[object]) -> None:
        super().__init__(data, protocol=5)
        self._numbers = {id(each): number for number, each in enumerate(known)}
        self.files: list[BlobFile] = []

    def persistent_id(self, obj: object) -> int | tuple[int, int, int] | None:
        if isinstance(obj, BlobPlace):
            if obj.file not in self.files:
                self.files.append(obj.file)
            return self.files.index(obj.file), obj.start, obj.end
        return self._numbers.get(id(obj))


class CallUnpickler(pickle.Unpickler):
    """A worker's reader of what a `CallPickler` has written. It knows the same objects."""

    def __init__(self, message: Message, known: Sequence[object]) -> None:
        super().__init__(io.BytesIO(message.data))
        self._files, self._known = message.files, known

    def persistent_load(self, id: int | tuple[int, int, int]) -> object:
        if isinstance(id, int):
            return self._known[id]
        number, start, end = id
        return Blob.from_bytes(self._files[number].content[start:end])


class AnswerPickler(pickle.Pickler):
    """A pickler of a worker. It writes blobs to a file."""

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data, protocol=5)
        self.files: list[BlobFile] = []

    def persistent_id(self, obj: object) -> tuple[int, int, int] | None:
        if not isinstance(obj, Blob):
            return None
        if not self.files:
            self.files.append(new_file())
        return obj.shard, *self.files[0].write(obj)


class AnswerUnpickler(pickle.Unpickler):
    """The driver's reader of what an `AnswerPickler` has written. In the place of each blob it reads a `BlobPlace`."""

    def __init__(self, message: Message) -> None:
        super().__init__(io.BytesIO(message.data))
        self._files = message.files

    def persistent_load(self, id: tuple[int, int, int]) -> BlobPlace:
        shard, start, end = id
        return BlobPlace(shard, self._files[0], start, end)


def to_call(value: object, known: Sequence[object]) -> Message:
    """Return the message of the driver to a worker that knows these objects."""
    pickler = CallPickler(data := io.BytesIO(), known)
    pickler.dump(value)
    return Message(data.getvalue(), pickler.files)


def to_answer(value: object) -> Message:
    """Return the message of a worker to the driver."""
    pickler = AnswerPickler(data := io.BytesIO())
    pickler.dump(value)
    return Message(data.getvalue(), pickler.files)


class Channel:
    """One end of a socket between the driver and a worker. It is closed by `close`."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # A program may have set another default, and a call takes as long as it takes.
        self._socket.settimeout(None)

    def send(self, message: Message, check: Callable[[], None] = lambda: None) -> None:
        """Send a message. While the other end takes nothing, `check` is called now and then, and may raise.

        Raises:
            OSError: The other end is closed.
        """
        for data in (_HEAD.pack(len(message.data), len(message.files)), message.data):
            left = memoryview(data)
            while left:
                if self._is_ready(select.POLLOUT, LOOK_SECONDS):
                    with suppress(BlockingIOError):
                        left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
                else:
                    check()
        for file in message.files:
            socket.send_fds(self._socket, [b"\0"], [file.descriptor])

    def has_news(self, seconds: float) -> bool:
        """Wait at most these seconds for something to receive, or for the other end to close, and return whether that came."""
        return self._is_ready(select.POLLIN, seconds)

    def receive(self) -> Message:
        """Wait for a message, and return it.

        Raises:
            EOFError, OSError: The other end is closed.
            StateError: This process may not open another file.
        """
        size, count = _HEAD.unpack(self._bytes(_HEAD.size))
        data, descriptors = self._bytes(size), [self._descriptor() for _ in range(count)]
        files = [BlobFile(descriptor) for descriptor in descriptors if descriptor is not None]
        if len(files) < count:
            # All of the message was read, so that the next one can be.
            raise StateError(
                f"process={os.getpid()} has too many open files; raise the limit (ulimit -n), then start again."
            )
        return Message(data, files)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _is_ready(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(1000 * seconds))

    def _bytes(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size:
            # A signal may cut it short.
            if not (piece := self._socket.recv(size, socket.MSG_WAITALL)):
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _descriptor(self) -> int | None:
        """Return the descriptor of a file that was sent, or None if the system could not open it here."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not data:
            raise EOFError
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return next(iter(descriptors), None)
