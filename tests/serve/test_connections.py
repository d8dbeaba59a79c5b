"""What is sent over real connections: no header goes past the token, and half a request costs little."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from unittest import mock

import pytest
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient

from persistent_state import open_store
from persistent_state.serve import app, connections
from persistent_state.serve.connections import OnceAMinute
from tests.processes import start_guarded
from tests.serve.worlds import ROOT, STORE, Served
from tests.waiting import PATIENCE, seconds_open, until

TOKEN = "a-long-secret"

LOOKUP = "/lookup?application=app&task=Totals&shop=Bergen&item=1"

HOSTS = [
    "db.example",
    "x/health?",
    "x/health#",
    "x/login?",
    "x/health?@db.example",
    "x:80/health?",
    "[::1]/health?",
    "\\/health?",
]


class Real:
    """A server on a port of this machine, as one that is reached from elsewhere answers."""

    def __init__(self, token: str | None = TOKEN) -> None:
        store = open_store(str(STORE))
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        is_up = threading.Event()
        self.server = connections.server(app.application(store, "0.0.0.0", token, time.monotonic, lambda: 0), is_up.set)
        self.thread = threading.Thread(target=self.server.run, args=([self.sock],), daemon=True)
        self.thread.start()
        assert is_up.wait(PATIENCE)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def ask(self, target: str, *headers: str, method: str = "GET") -> tuple[int, bytes]:
        """The status and all that is answered."""
        with self.connect() as client:
            lines = [f"{method} {target} HTTP/1.1", *headers, "Connection: close", "", ""]
            client.sendall("\r\n".join(lines).encode("latin-1"))
            return answer(client)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        self.sock.close()
        assert not self.thread.is_alive()


def answer(client: socket.socket) -> tuple[int, bytes]:
    data = b""
    while piece := client.recv(1 << 16):
        data += piece
    return int(data.split(b" ")[1]), data


@pytest.fixture
def real() -> Iterator[Real]:
    real = Real()
    yield real
    real.close()


@pytest.mark.parametrize("host", HOSTS)
def test_no_host_header_goes_past_the_token(real: Real, host: str) -> None:
    for target in (LOOKUP, "/metrics", "/", "/?token=wrong"):
        status, said = real.ask(target, f"Host: {host}")
        assert status in (400, 401), (target, said)
        assert b"631" not in said
        assert b"Totals" not in said
    assert real.ask("/", f"Host: {host}", method="DELETE")[0] in (400, 405)


def test_the_token_and_the_health_are_answered_over_the_same_connection(real: Real) -> None:
    assert real.ask("/health", "Host: db.example")[0] == 200
    status, said = real.ask(LOOKUP, "Host: db.example", f"Authorization: Bearer {TOKEN}")
    assert (status, json.loads(said.partition(b"\r\n\r\n")[2])["value"]["total"]) == (200, 631)


@pytest.mark.parametrize(
    "target",
    ["//health", "/health/", "/health%00", "http://x/health", "/lookup/../health", "/health;/lookup", "/Health", "*"],
)
def test_other_ways_to_write_the_path_need_the_token_too(real: Real, target: str) -> None:
    assert real.ask(target, "Host: db.example")[0] in (400, 401)
    status, said = real.ask(target, "Host: db.example", f"Authorization: Bearer {TOKEN}")
    # Nothing leads to the Host header.
    assert status in (400, 404)
    assert b"location" not in said.lower()


def test_no_answer_depends_on_the_url_that_is_made_of_the_host_header() -> None:
    served = Served(STORE, TOKEN)
    with mock.patch.object(HTTPConnection, "url", property(lambda _: pytest.fail("the Host header decides"))):
        for path in ("/", LOOKUP, "/metrics", "/nowhere", "/lookup/"):
            assert served.client.get(path).status_code == 401, path
        assert served.client.get("/health").status_code == 200
        assert served.client.post("/login", data={"token": TOKEN}).status_code == 303
        for path in ("/", LOOKUP, "/metrics", "/?token=" + TOKEN):
            assert served.client.get(path).status_code in (200, 303), path


def test_https_alone_makes_the_cookie_secure() -> None:
    for scheme, is_secure in (("http", False), ("https", True)):
        client = TestClient(Served(STORE, TOKEN).client.app, base_url=f"{scheme}://localhost", follow_redirects=False)
        cookie = client.post("/login", data={"token": TOKEN}).headers["set-cookie"]
        assert ("; Secure" in cookie) == is_secure


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: x\r\n",
        b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\ntoken=",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost:",
    ],
)
def test_a_request_that_never_ends_is_closed(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(connections, "REQUEST", 0.6)
    real = Real()
    try:
        with real.connect() as client:
            assert seconds_open(client, begun) > 0.5
        assert real.ask("/health", "Host: x")[0] == 200
    finally:
        real.close()


def test_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER", 0.6)

    async def endless(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        while await asyncio.sleep(0, True):
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})  # type: ignore[operator]

    with mock.patch.object(app, "application", return_value=endless):
        real = Real()
    try:
        with real.connect() as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            until(lambda: not real.server.server_state.connections, "the end of the connection")
    finally:
        real.close()


def test_of_too_many_connections_those_that_ask_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 8)
    real = Real()
    try:
        idle = []
        for _ in range(100):
            idle.append(real.connect())
            idle[-1].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
            assert len(real.server.server_state.connections) <= 9
        assert real.ask("/health", "Host: x")[0] == 200
        # The newest of those that wait were not closed.
        idle[-1].sendall(b"\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 200 ")
        for client in idle:
            client.close()
    finally:
        real.close()


def test_where_few_files_may_be_open_half_requests_neither_stop_health_nor_fill_the_log() -> None:
    command = f"ulimit -n 128; exec {sys.executable} -m persistent_state serve {STORE} --port 0"
    server = start_guarded(["sh", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stderr is not None
    assert server.stdin is not None
    idle: list[socket.socket] = []
    try:
        port = int(server.stdout.readline().decode().rpartition(":")[2].strip("/\n"))
        for _ in range(300):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            idle[-1].sendall(b"GET /health HTTP/1.1\r\n")
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert answer(client)[0] == 200
        # Nor do requests that are none.
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
                client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
                assert answer(client)[0] == 400
    finally:
        for client in idle:
            client.close()
        server.terminate()
        server.stdin.close()
        said = server.stderr.read().decode()
        server.wait(timeout=PATIENCE)
    assert len(said.splitlines()) < 10, said[:2000]


def test_the_same_line_is_logged_once_a_minute_with_how_often_it_came() -> None:
    now, logger, lines = 0.0, logging.getLogger("tests.once"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.addFilter(OnceAMinute(lambda: now))
    logger.propagate = False
    for _ in range(50):
        logger.warning("%s is away", "the store")
        logger.warning("another")
    assert lines == ["the store is away", "another"]
    now = 61.0
    logger.warning("%s is away", "the store")
    assert lines[2:] == ["the store is away (49 more such lines since the last one)"]
    lines.clear()
    # However many kinds there are.
    for number in range(1000):
        logger.warning("kind %d", number)
    assert len(lines) == connections.LINES - 1
