"""Open the kind of store that a url names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from persistent_state.errors import InvalidInputError, check_path
from persistent_state.store.files.base import Ages, BytesLike, Files, Names
from persistent_state.store.files.hdfs import HdfsFiles
from persistent_state.store.files.local import LocalFiles
from persistent_state.store.files.memory import MemoryFiles
from persistent_state.store.files.objects import ObjectFiles
from persistent_state.store.files.remote import LIBRARIES, RemoteFiles

__all__ = ["Ages", "BytesLike", "Files", "LocalFiles", "MemoryFiles", "Names", "open_files"]

_ALIASES = {"s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
_REMOTE: dict[str, type[RemoteFiles]] = {
    "s3": ObjectFiles,
    "gs": ObjectFiles,
    "abfs": ObjectFiles,
    "webhdfs": HdfsFiles,
}


def open_files(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Files:
    """Open the files below a url, as docs/stores.md says: a local path, or file:, memory:, s3:, abfs:, gs: and webhdfs:.

    Nothing is made or looked at, on a disk or on the network.

    Raises:
        InvalidInputError: another protocol, a url that is not as it must be, options for a local path, or a package is missing.
    """
    options = dict(storage_options or {})
    url = os.fspath(url)
    check_path("url", url)
    protocol, colon, path = url.partition("://")
    protocol = _ALIASES.get(protocol, protocol)
    if protocol == "memory":
        return MemoryFiles("memory://" + path.strip("/"), options)
    if protocol in _REMOTE and colon:
        return _open_remote(protocol, path, options)
    if url.startswith("file:"):
        path = path if colon else url[len("file:") :]
        if not path.startswith("/"):
            raise InvalidInputError(f"url={url!r} has no absolute path; write it as 'file:///a/b'.")
    elif colon or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", url):
        protocol = protocol if colon else url.partition(":")[0]
        # Not the url itself, which may hold a secret.
        way = (
            "it needs a native library; use webhdfs://host:port/path, with the HTTP port of the name node."
            if protocol in ("hdfs", "viewfs")
            else f"use a local path, {', '.join(f'{known}://' for known in _REMOTE)} or memory://."
        )
        raise InvalidInputError(f"the store's protocol={protocol!r} is not supported: {way}")
    elif not url:
        raise InvalidInputError("url='' names no folder; give a path.")
    else:
        path = os.path.expanduser(url)
    if options:
        raise InvalidInputError(f"storage options {sorted(options)} mean nothing for url={url!r}; leave them out.")
    return LocalFiles(os.path.abspath(path))


def _open_remote(protocol: str, rest: str, storage_options: dict[str, Any]) -> Files:
    place, *folders = rest.rstrip("/").split("/")
    user, at, host = place.rpartition("@")
    # A password may hold a slash. A port ends at one.
    if ":" in user or re.match(r"[^/@:]*:(?!\d+/).*@", rest) or any(mark in rest for mark in "?#"):
        raise InvalidInputError(
            f"the store's url with protocol={protocol!r} holds a password, a query or a fragment;"
            " give what is secret as a storage option."
        )
    url = f"{protocol}://{'/'.join([place, *folders])}"
    if not host or (at and not user) or any(part in ("", ".", "..") for part in folders):
        raise InvalidInputError(f"url={url!r} names no place; write it as {_REMOTE[protocol].form.format(protocol)!r}.")
    if protocol == "webhdfs" and not host.rpartition(":")[2].isdigit():
        raise InvalidInputError(f"url={url!r} has no port; add the HTTP port of the name node, usually 9870.")
    library = LIBRARIES[protocol]
    if find_spec(library.package) is None:
        raise library.missing()
    return _REMOTE[protocol](url, storage_options)
