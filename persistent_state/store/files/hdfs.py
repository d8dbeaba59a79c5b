"""Files of HDFS, over HTTP: written aside, and renamed to their name unless it is taken."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import fsspec
import pyarrow as pa

from persistent_state.store.files.base import TEMPORARY, Ages, Buffers, BytesLike, Names
from persistent_state.store.files.remote import RemoteFiles

_PATIENCE = (10, 120)
"""Seconds to wait for a connection, and for an answer."""

_RAISED: dict[str, type[OSError]] = {
    "AccessControlException": PermissionError,
    "FileNotFoundException": FileNotFoundError,
    "SecurityException": PermissionError,
}
"""The answers of a data node that mean something to us."""


class HdfsFiles(RemoteFiles):
    """Files below a folder of HDFS, by its name node's HTTP port; as safe as its replication makes a closed file."""

    form: ClassVar[str] = "{}://host:port/folder"

    def create(self, path: str, data: BytesLike) -> None:
        folder, slash, _ = self._checked_new(path).rpartition("/")
        with self._asking("PUT", path):
            client, place = self._reach(path)
            _, temporary = self._reach(f"{folder}{slash}{TEMPORARY}{secrets.token_hex(8)}")
            won = False
            try:
                _write(client, temporary, data)
                won = _rename(client, temporary, place)
            finally:
                if not won:
                    with suppress(Exception):
                        client.rm_file(temporary)
        if not won:
            raise self._taken(path)

    def read(self, path: str) -> pa.Buffer:
        return self._open(path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Buffers:
        return [self._open(path, offset=begin, length=end - begin) for begin, end in ranges]

    def _open(self, path: str, **part: int) -> pa.Buffer:
        self._checked(path)
        with self._asking("GET", path, may_be_absent=True):
            client, place = self._reach(path)
            answer = client._call("OPEN", path=place, redirect=False, **part)
            if "Location" in answer.headers:
                answer = _answered(client.session.get(client._apply_proxy(answer.headers["Location"])))
            return pa.py_buffer(answer.content)

    def list(self, folder: str) -> Names:
        return sorted(name for name, _ in self._found(folder) if not name.startswith(TEMPORARY))

    def leftovers(self, folder: str, now_us: int) -> Ages:
        return [(name, now_us / 1e6 - made) for name, made in self._found(folder) if name.startswith(TEMPORARY)]

    def modified(self, path: str) -> float:
        self._checked(path)
        with self._asking("HEAD", path, may_be_absent=True):
            client, place = self._reach(path)
            made: float = client.info(place)["modificationTime"] / 1e3
            return made

    def _found(self, folder: str) -> Ages:
        """Name and time of change, in seconds, of what is directly in a folder."""
        if folder:
            self._checked(folder)
        with self._asking("LIST", folder), suppress(FileNotFoundError):
            client, place = self._reach(folder)
            # The name is empty when the folder is a file.
            return [
                (found["pathSuffix"], found["modificationTime"] / 1e3)
                for found in client.ls(place or "/", detail=True)
                if found["pathSuffix"]
            ]
        return []

    def _reach(self, path: str) -> tuple[fsspec.AbstractFileSystem, str]:
        client, place = super()._reach(path)
        # It would wait for ever.
        if not isinstance(client.session.request, partial):
            client.session.request = partial(client.session.request, timeout=_PATIENCE)
        return client, place


def _write(client: Any, place: str, data: BytesLike) -> None:
    """Make a new file of these bytes; who asks the name node is sent on to a data node."""
    sent = client._call("CREATE", "PUT", place, redirect=False, overwrite="false")
    place = client._apply_proxy(sent.headers["Location"])
    _answered(client.session.put(place, data=bytes(data), headers={"content-type": "application/octet-stream"}))


def _answered(answer: Any) -> Any:
    """Return the answer of a data node, or raise the error that it reports."""
    if not answer.ok:
        try:
            failure = answer.json()["RemoteException"]
        except (ValueError, KeyError):
            answer.raise_for_status()
        raise _RAISED.get(failure["exception"], OSError)(failure["message"])
    return answer


def _rename(client: Any, temporary: str, place: str) -> bool:
    """Give the name to the file, unless it is taken."""
    refused: Exception = OSError("it was not renamed")
    try:
        # Without this option a file is renamed into the folder that has the name.
        answer = client._call("RENAME", "PUT", temporary, destination=place, renameoptions="NONE")
        # A gateway that knows no options says by a word whether it happened.
        if not answer.content or answer.json().get("boolean", True):
            return True
    except RuntimeError as error:
        # The client keeps only the text of "already exists".
        refused = error
    if client.exists(place):
        return False
    raise refused
