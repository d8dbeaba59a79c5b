"""Listen on a port, and serve a store until the process is asked to end."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

from persistent_state.errors import InvalidInputError
from persistent_state.open_state import OpenStore
from persistent_state.serve.access import is_loopback

HOST, PORT = "127.0.0.1", 8642

TOKEN = "PERSISTENT_STATE_TOKEN"
"""The environment variable that names the token."""


def check(host: str, token: str | None, no_token: bool) -> None:
    """Refuse to let everybody look who can reach this machine, unless that is wished.

    Raises:
        InvalidInputError: It is not wished, or the token is not valid.
    """
    if token is not None and no_token:
        raise InvalidInputError(f"a token is given, by --token or {TOKEN}, and --no-token too; leave one of them out.")
    if token is not None and (not token or not token.isascii() or token != token.strip()):
        raise InvalidInputError(
            f"the token of --token={'…' if token else ''} or {TOKEN} is empty, or has blanks at its ends or characters beyond "
            "ASCII; take a long random one, such as `openssl rand -hex 32` prints."
        )
    if token is None and not no_token and not is_loopback(host):
        raise InvalidInputError(
            f"host={host} can be reached from elsewhere, and no token is given; set {TOKEN} to a long random text, or add "
            "--no-token if everybody there may look."
        )


def serve(store: OpenStore, host: str, port: int, token: str | None, announce: Callable[[str], None]) -> None:
    """Serve a store until SIGTERM or SIGINT comes.

    Args:
        store: The store.
        host: The host to listen on.
        port: The port; 0 for a free one.
        token: What a user must know; None for nothing.
        announce: Is called with the URL as soon as the server answers.

    Raises:
        InvalidInputError: The packages are not installed, the port is in use, or the host is not of this machine.
    """
    try:
        from persistent_state.serve.app import application
        from persistent_state.serve.connections import few_lines, server
    except ImportError as error:
        raise InvalidInputError(
            f"package={error.name!r} is missing to serve a store; pip install 'persistent-state[serve]', in a checkout "
            "'.[serve]'."
        ) from error
    with _listen(host, port) as listening:
        name, bound, *_ = listening.getsockname()
        app = application(store, host, token, time.monotonic, _now_us)
        shown_host = f"[{name}]" if ":" in name else name
        # The library raises the signal again that has ended it. SIGTERM is how servers are ended, and no failure.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            with few_lines(time.monotonic):
                server(app, lambda: announce(f"http://{shown_host}:{bound}/")).run([listening])
        finally:
            signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family)
    except OSError as error:
        # Python adds the address, which stands there already.
        why = str(error.strerror).partition(" (")[0]
        raise InvalidInputError(
            f"{host}:{port} can't be listened on: {why}; name a host of this machine, and a port that is free."
        ) from None
    # Connections inherit it. Without it the body of an answer waits until the client has confirmed the head, for 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _now_us() -> int:
    return time.time_ns() // 1000  # noqa: TID251 - people look at this, on no machine of a world that is played
