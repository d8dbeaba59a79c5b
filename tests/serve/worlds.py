"""Stores that are served without a port: for the tests of what is answered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

from starlette.testclient import TestClient

from persistent_state import open_store
from persistent_state.open_state import OpenStore
from persistent_state.serve import app
from persistent_state.store.files.base import Files
from tests.serve.html import Page
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
STORE = ROOT / "tests/fixtures/store-v1"


class Served:
    """A store that is served, and a clock that goes on when a test says so."""

    def __init__(self, store: Files | str | Path, token: str | None = None, host: str = "127.0.0.1") -> None:
        self.now = 100.0
        opened = OpenStore(store) if isinstance(store, Files) else open_store(str(store))
        with mock.patch.object(app, "SECONDS", PATIENCE):
            served = app.application(opened, host, token, lambda: self.now, lambda: int(self.now * 1_000_000))
        self.client = TestClient(served, base_url="http://127.0.0.1:8642", follow_redirects=False)

    def page(self, status: int = 200, **asked: str) -> Page:
        """The page, which has this status, a moment later."""
        self.now += 10
        answer = self.client.get(f"/?{urlencode(asked)}")
        assert answer.status_code == status
        page = Page(answer.text)
        page.check()
        return page

    def lookup(self, status: int = 200, **asked: str) -> Any:
        """The answer of a look-up, which has this status."""
        answer = self.client.get("/lookup", params=asked)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        return answer.json()


def copy(folder: Path) -> Path:
    """A copy of the kept store, which a test may damage."""
    return Path(shutil.copytree(STORE, folder / "store"))
