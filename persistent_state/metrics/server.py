"""Answer `/metrics`, `/health` and `/ready` over HTTP while a run lasts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
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
    is_port = port.isdecimal() and int(port) < 1 << 16 and not isinstance(metrics, bool)
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


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: somebody asks every few seconds."""


_PLAIN = ("Content-Type", "text/plain; charset=utf-8")


def _say(start_response: StartResponse, sentence: str, is_right: bool) -> Iterable[bytes]:
    start_response("200 OK" if is_right else "503 Service Unavailable", [_PLAIN])
    return [f"{sentence}\n".encode()]
