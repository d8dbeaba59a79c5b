"""The common base of stores behind a network: their clients, and errors without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import fsspec

from persistent_state.errors import InvalidInputError, StoreRefusedError, StoreUnavailableError, missing_package
from persistent_state.redact import without_secrets
from persistent_state.store.files.base import Files

_REFUSED = {
    "ClientAuthenticationError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "PermissionError",
}
"""Names of the errors that say, without a status, that there are no credentials or not the right ones."""


@dataclass(frozen=True)
class Library:
    """The client of a kind of store, and which extra of this package installs it."""

    extra: str
    package: str
    module: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the client that are not the user's to choose."""

    def missing(self) -> InvalidInputError:
        return missing_package(self.package, "this store", self.extra)


_UNCACHED = {"use_listings_cache": False}

LIBRARIES = {
    "s3": Library("s3", "s3fs", "s3fs", "S3FileSystem", _UNCACHED),
    "abfs": Library("azure", "adlfs", "adlfs", "AzureBlobFileSystem", _UNCACHED),
    # From the core, since the class that gcsfs registers asks the store for the kind of each bucket.
    "gs": Library("gcs", "gcsfs", "gcsfs.core", "GCSFileSystem", _UNCACHED),
    "webhdfs": Library("hdfs", "requests", "fsspec.implementations.webhdfs", "WebHDFS"),
}
"""By the protocol of a url."""


@dataclass(frozen=True)
class RemoteFiles(Files):
    """Files behind a network. Whatever a client library raises when its store fails becomes StoreUnavailableError.

    Credentials that the store refuses are StoreRefusedError. A bucket that is missing when a file is created is
    InvalidInputError. Neither a message nor the error behind it holds a storage option's value.
    """

    near: ClassVar[bool] = False
    _foreign: ClassVar[type[Exception]] = Exception
    form: ClassVar[str]

    def delete(self, path: str) -> None:
        self._checked(path)
        with self._asking("DELETE", path), suppress(FileNotFoundError):
            client, place = self._reach(path)
            client.rm_file(place)

    def modified(self, path: str) -> float:
        self._checked(path)
        with self._asking("HEAD", path, may_be_absent=True):
            client, place = self._reach(path)
            made: float = client.modified(place).timestamp()
            return made

    def _reach(self, path: str) -> tuple[fsspec.AbstractFileSystem, str]:
        """Return the client, and its name for a path.

        Looked up each time: fsspec keeps a client for its process only, since none works across a fork.
        """
        library = LIBRARIES[self.url.partition("://")[0]]
        try:
            made = getattr(import_module(library.module), library.name)
        except ImportError:
            raise library.missing() from None
        options = {**made._get_kwargs_from_urls(self.url), **_copied(self.options), **library.settings}
        try:
            client = made(**options)
        except ValueError as error:
            raise self._misused(error) from None
        root = made._strip_protocol(self.url).rstrip("/")
        return client, f"{root}/{path}" if path else root

    def _misused(self, error: Exception) -> InvalidInputError:
        return InvalidInputError(
            f"the client of store={self.url!r} does not take the storage options {sorted(self.options)}:"
            f" {without_secrets(error, self.options)}; docs/stores.md lists those that it takes."
        )

    def _as_ours(self, path: str, may_be_absent: bool, error: Exception) -> Exception:
        if may_be_absent and (isinstance(error, FileNotFoundError) or status(error) == 404):
            return FileNotFoundError(f"path={path!r} in store={self.url!r} is absent.")
        # Some clients look at their options only when they connect.
        if isinstance(error, TypeError):
            return self._misused(error)
        where, what = f"path={path!r} in store={self.url!r}", without_secrets(error, self.options)
        # gcsfs has nothing but a text for 403.
        if type(error).__name__ in _REFUSED or status(error) in (401, 403) or str(error).startswith("Forbidden:"):
            return StoreRefusedError(f"{where} is refused: {what}. Check the credentials and what they permit.")
        return StoreUnavailableError(f"{where}: {what}. Put it right, then try again.")


def _copied(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of options. Some clients write into those that they are given."""
    return {name: _copied(each) if isinstance(each, dict) else each for name, each in options.items()}


def status(error: BaseException) -> int | None:
    """Return the HTTP status in an error of any of the clients, or in its cause."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, Mapping):
            each, response = None, response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        for holder in (response, each):
            for found in (holder, *(getattr(holder, name, None) for name in ("status_code", "status", "code"))):
                if isinstance(found, int):
                    return found
    return None
