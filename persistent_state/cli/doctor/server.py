"""Look whether the server of Spark Connect that the environment names takes connections."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

PORT = 15002
"""The port of a server of Spark Connect whose url has none."""

SECONDS = 5.0
"""Time that a server has to take a connection."""


def server_url() -> str | None:
    """Return the url of the server that SPARK_REMOTE names, without its token; None if Spark is to run here."""
    remote = os.environ.get("SPARK_REMOTE", "")
    return remote.partition(";")[0] if remote.startswith("sc://") else None


def server_problem(url: str) -> str | None:
    """Return why a server takes no connection, and what to do; None if it takes one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host, port = None, PORT
    if not host:
        return f"SPARK_REMOTE={url} is not an address; give one such as sc://host:{PORT}."
    try:
        socket.create_connection((host, port), SECONDS).close()
    except OSError as error:
        why = f"no answer within {SECONDS:.0f} seconds" if isinstance(error, TimeoutError) else error.strerror or error
        return (
            f"SPARK_REMOTE={url} takes no connection at {host}, port {port}: {why}; start the server, let this machine reach "
            "it, or name another."
        )
    return None
