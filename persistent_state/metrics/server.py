"""Answer `/metrics`, `/health` and `/ready` over HTTP while a run lasts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from persistent_state.errors import InvalidInputError
from persistent_state.metrics.exposition import library

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOOPBACK = "127.0.0.1"


def address(metrics: int | str) -> tuple[str, int]:
    """Return the host and the port that a user names: a port of this machine only, or a text "host:port".

    Raises:
        InvalidInputError: It is neither.
    """
    host, _, port = (LOOPBACK, "", str(metrics)) if isinstance(metrics, int) else str(metrics).rpartition(":")
    is_port = port.isdecimal() and len(port) < 6 and int(port) < 1 << 16 and not isinstance(metrics, bool)
    if not (is_port and host and isinstance(metrics, (int, str))):
        raise InvalidInputError(
            f'metrics={metrics!r} is not a port; give one, such as metrics=9108, or "0.0.0.0:9108" to be asked from elsewhere.'
        )
    return host.strip("[]"), int(port)


class Server:
    """An HTTP server of an application. It answers from `serve` to `close`, which frees the port.

    `not_ready` returns why the run is not ready, as a sentence; "" if it is.

    Raises:
        InvalidInputError: The port is in use, or the host is not of this machine; or prometheus-client is not installed.
    """

    def __init__(
        self, application: str, host: str, port: int, collectors: Sequence[Any], not_ready: Callable[[], str]
    ) -> None:
        registry = library().CollectorRegistry()
        for collector in collectors:
            registry.register(collector)
        metrics = library().make_wsgi_app(registry)

        def health(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            return _say(start_response, f"application={application} runs.", is_right=True)

        def ready(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            why = not_ready()
            return _say(start_response, why or f"application={application} is ready.", is_right=not why)

        pages = {"/metrics": metrics, "/health": health, "/ready": ready}

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            page = pages.get(environ["PATH_INFO"])
            if page is None:
                start_response("404 Not Found", [_PLAIN])
                return [f"There is nothing here; look at {', '.join(pages)}.\n".encode()]
            answer: Iterable[bytes] = page(environ, start_response)
            return answer

        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            kind = type("_Server", (_Server,), {"address_family": family})
            self._server: WSGIServer = make_server(host, port, app, kind, _Handler)
        except OSError as error:
            raise InvalidInputError(
                f"metrics at {host}:{port} can't be served: {error.strerror}; name a port of this machine that is free."
            ) from None
        shown_host = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown_host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name=f"persistent-state {application} metrics", daemon=True
        )

    def serve(self) -> None:
        """Answer from now on, in threads of its own."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more, and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


REQUEST = 10.0
"""The most seconds until the head of a request has come, and for which a client may not read on."""

CONNECTIONS = 16
"""The most connections at a time, of which each has a thread."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers in threads.

    If there are too many connections, the one that has kept its thread waiting for the longest time is closed: who asks is
    answered.
    """

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._waiting: dict[Any, float] = {}
        self._open: set[Any] = set()
        self._lock = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            self._waiting[request] = time.monotonic()
            if len(self._open) > CONNECTIONS:
                longest = next(iter(self._waiting))
                del self._waiting[longest]
                self._open.discard(longest)
                _end(longest)
        super().process_request(request, client_address)

    def has_come(self, request: Any) -> None:
        """Let a request whose head has come take the time that its answer needs."""
        with self._lock:
            self._waiting.pop(request, None)

    def service_actions(self) -> None:
        with self._lock:
            for request in [each for each, since in self._waiting.items() if time.monotonic() - since > REQUEST]:
                _end(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            self._waiting.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client has gone, or was too slow."""


def _end(request: Any) -> None:
    """Let the thread of a connection read its end."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST

    def parse_request(self) -> bool:
        is_good = super().parse_request()
        assert isinstance(self.server, _Server)
        self.server.has_come(self.request)
        return is_good

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests come every few seconds."""


_PLAIN = ("Content-Type", "text/plain; charset=utf-8")


def _say(start_response: StartResponse, sentence: str, is_right: bool) -> Iterable[bytes]:
    start_response("200 OK" if is_right else "503 Service Unavailable", [_PLAIN])
    return [f"{sentence}\n".encode()]
