"""The endpoint of a run: what it answers, where it listens, and that it frees its port."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from persistent_state.errors import InvalidInputError
from persistent_state.metrics import measures, server
from persistent_state.metrics.exposition import Samples
from persistent_state.metrics.server import Server, address
from tests.waiting import PATIENCE, seconds_open, until


def ask(url: str, accept: str = "") -> tuple[int, str, str]:
    """The status, the type and the text of an answer."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


class World:
    """A server with one sample; `why` says why it is not ready."""

    def __init__(self) -> None:
        self.why = ""
        collector = Samples(lambda: [measures.STARTS.at(3, "app")])
        self.server = Server("app", *address(0), [collector], lambda: self.why)
        self.server.serve()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.server.close()


def test_metrics_come_in_the_format_that_is_asked_for(world: World) -> None:
    status, kind, text = ask(f"{world.server.url}/metrics", "application/openmetrics-text")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    (family,) = text_string_to_metric_families(text)
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("persistent_state_starts_total", {"application": "app"}, 3)
    ]
    status, kind, text = ask(f"{world.server.url}/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert 'persistent_state_starts_total{application="app"} 3.0\n' in text


def test_it_says_whether_it_is_alive_and_ready(world: World) -> None:
    text = "text/plain; charset=utf-8"
    assert ask(f"{world.server.url}/health") == (200, text, "application=app runs.\n")
    assert ask(f"{world.server.url}/ready") == (200, text, "application=app is ready.\n")
    world.why = "application=app is starting."
    assert ask(f"{world.server.url}/ready") == (503, text, "application=app is starting.\n")
    status, _, said = ask(f"{world.server.url}/other")
    assert (status, said) == (404, "There is nothing here; look at /metrics, /health, /ready.\n")


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_never_ends_is_closed(world: World, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(server, "REQUEST", 0.6)
    with connect(world) as client:
        assert seconds_open(client, begun) > 0.5
    assert ask(f"{world.server.url}/health")[0] == 200


def test_half_requests_hold_few_threads_and_those_who_ask_are_answered(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 4)
    before, idle = threading.active_count(), []
    # Who connects while too many others wait to be accepted tries again after a second: they are few.
    for _ in range(20):
        idle.append(connect(world))
        idle[-1].sendall(b"GET /health HTTP/1.1\r\n")
    assert ask(f"{world.server.url}/health")[0] == 200
    until(lambda: threading.active_count() <= before + server.CONNECTIONS, "the end of the threads")
    # The newest of those that wait were not closed.
    idle[-1].sendall(b"\r\n")
    assert idle[-1].recv(100).startswith(b"HTTP/1.0 200 ")
    for client in idle:
        client.close()
    for garbage in (b"\x16\x03\x01 hello\r\n\r\n", b"GET\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"\xff" * 70_000):
        with connect(world) as client:
            client.sendall(garbage)
            with suppress(ConnectionError):
                while client.recv(1 << 16):
                    pass
    assert ask(f"{world.server.url}/health")[0] == 200
    assert capfd.readouterr() == ("", "")


def connect(world: World) -> socket.socket:
    host, _, port = world.server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def test_an_answer_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST", 3)
    world = World()
    monkeypatch.setattr(type(world), "why", property(lambda self: time.sleep(4) or ""), raising=False)
    try:
        assert ask(f"{world.server.url}/ready")[0] == 200
    finally:
        world.server.close()


def test_it_frees_its_port_and_refuses_one_that_is_in_use() -> None:
    world = World()
    port = int(world.server.url.rpartition(":")[2])
    with pytest.raises(
        InvalidInputError, match=rf"^metrics at 127\.0\.0\.1:{port} can't be served: Address already in use; "
    ):
        Server("app", *address(port), [], str)
    world.server.close()
    world.server.close()
    again = Server("app", *address(port), [], str)
    assert again.url == world.server.url
    again.close()


def test_it_listens_on_this_machine_only_unless_it_is_told() -> None:
    assert address(9108) == ("127.0.0.1", 9108)
    assert address("0.0.0.0:9108") == ("0.0.0.0", 9108)
    assert address("[::1]:9108") == ("::1", 9108)
    if socket.has_ipv6:
        server = Server("app", *address("[::1]:0"), [], str)
        server.serve()
        assert server.url.startswith("http://[::1]:")
        assert ask(f"{server.url}/health")[0] == 200
        server.close()


@pytest.mark.parametrize("wrong", [True, -1, 65536, "9108", ":9108", "host", "host:", 1.5, None])
def test_what_is_no_port_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidInputError, match="is not a port; give one, such as metrics=9108"):
        address(wrong)  # type: ignore[arg-type]


def test_a_host_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(InvalidInputError, match=r"^metrics at nowhere\.invalid:0 can't be served: "):
        Server("app", *address("nowhere.invalid:0"), [], str)
