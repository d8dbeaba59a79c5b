"""A proxy before a server that loses requests or answers, is slow, fails, or answers from yesterday, as a test says."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["none", "lost request", "lost answer", "reset", "unavailable", "slow", "yesterday"]
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
SLOW_S = 0.3


@dataclass(frozen=True)
class Asked:
    """A request as it came to the proxy."""

    method: str
    path: str


@dataclass
class Proxy:
    """A proxy with a port for each port of a server, used in a `with`. `decide` says of each request what happens to it."""

    targets: Sequence[int]
    decide: Callable[[Asked], Fault] = lambda asked: "none"
    seen: list[tuple[Asked, Fault]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._answers: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self._servers = [self._listen(target) for target in self.targets]
        self.ports = [server.server_address[1] for server in self._servers]

    def __enter__(self) -> Proxy:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def faults(self) -> list[Fault]:
        return [fault for _, fault in self.seen if fault != "none"]

    def _listen(self, target: int) -> ThreadingHTTPServer:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True

            def do(self) -> None:
                body = self._body()
                asked = Asked(self.command, self.path)
                fault = proxy.decide(asked)
                proxy.seen.append((asked, fault))
                if fault == "slow":
                    time.sleep(SLOW_S)
                if fault in ("lost request", "reset"):
                    return self._hang_up(reset=fault == "reset")
                if fault == "unavailable":
                    return self._answer(503, [("content-type", "text/plain")], b"busy")
                if fault == "yesterday" and self.path in proxy._answers:
                    return self._answer(*proxy._answers[self.path])
                answer = self._forward(body)
                if self.command == "GET":
                    proxy._answers[self.path] = answer
                if fault == "lost answer":
                    return self._hang_up(reset=False)
                self._answer(*answer)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

            def _body(self) -> bytes:
                if "chunked" not in self.headers.get("transfer-encoding", ""):
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                found = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                there = http.client.HTTPConnection("127.0.0.1", target, timeout=30)
                there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in HOP_BY_HOP | {"expect"}:
                        there.putheader(name, value)
                there.putheader("content-length", str(len(body)))
                there.putheader("connection", "close")
                there.endheaders(body)
                answer = there.getresponse()
                headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP]
                if self.command == "HEAD":
                    headers.append(("content-length", answer.getheader("content-length", "0")))
                content = answer.read()
                there.close()
                return answer.status, headers, content

            def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("content-length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _hang_up(self, *, reset: bool) -> None:
                if reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None: ...

        return Server(("127.0.0.1", 0), Handler)
