"""The command: where it listens, whom it refuses, and that a signal ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from persistent_state.cli.commands import main
from persistent_state.errors import InvalidInputError
from persistent_state.serve.access import is_loopback
from persistent_state.serve.server import TOKEN, _listen, check
from tests.processes import start_guarded
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
STORE = "tests/fixtures/store-v1"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_url_answers_and_ends_by_a_signal(end: signal.Signals) -> None:
    command = [sys.executable, "-m", "persistent_state", "serve", STORE, "--port", "0"]
    server = start_guarded(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert server.stdout is not None
        told = re.fullmatch(
            rf"serving {ROOT / STORE} at (http://127\.0\.0\.1:\d+/)\n", server.stdout.readline().decode()
        )
        assert told is not None
        with urllib.request.urlopen(
            f"{told[1]}lookup?application=app&task=Notes&shop=Oslo", timeout=PATIENCE
        ) as answer:
            assert json.load(answer)["value"] is None
        server.send_signal(end)
        assert server.wait(PATIENCE) == (0 if end == signal.SIGTERM else 130)
        assert server.stderr is not None
        assert server.stdin is not None
        # What guards the server holds its output open as long as this.
        server.stdin.close()
        assert (server.stdout.read(), server.stderr.read()) == (b"", b"")
    finally:
        server.kill()
        server.wait()


def test_the_body_of_an_answer_does_not_wait_until_its_head_is_confirmed() -> None:
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(ROOT / STORE), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"persistent-state: 127.0.0.1:{port} can't be listened on: Address already in use; ")


def test_to_be_reached_from_elsewhere_takes_a_token_or_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert main(["serve", STORE, "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err.startswith(
        "persistent-state: host=0.0.0.0 can be reached from elsewhere, and no token is given; "
    )
    check("0.0.0.0", "secret", no_token=False)
    check("0.0.0.0", None, no_token=True)
    check("localhost", None, no_token=False)
    monkeypatch.setenv(TOKEN, "secret")
    assert main(["serve", STORE, "--no-token"]) == 2
    assert "and --no-token too" in capsys.readouterr().err
    for wrong in ("", " ", "a ", "ä"):
        with pytest.raises(InvalidInputError, match=r"^the token of --token=.* is empty, or has blanks"):
            check("127.0.0.1", wrong, no_token=False)


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.9.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org")))


def test_a_package_that_is_missing_is_one_sentence() -> None:
    program = (
        "import sys\nsys.modules['uvicorn'] = None\nfrom persistent_state.cli.commands import main\n"
        f"assert main(['serve', {STORE!r}, '--port', '0']) == 2\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.stderr.decode() == (
        "persistent-state: package='uvicorn' is missing to serve a store; pip install 'persistent-state[serve]', "
        "in a checkout '.[serve]'.\n"
    )
