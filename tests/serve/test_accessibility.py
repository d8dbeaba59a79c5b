"""The page under the rules of axe-core, in Chromium: labels, roles, headings, contrasts and whatever else can be checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from persistent_state.serve import page
from tests.serve.browser import DARK, chromium, play, served
from tests.store.servers import command, installed, need, needed

AXE = "4.14.1"
PHONE = ("--window-size=500,900",)

RUN = """
addEventListener("load", () => axe.run(document, {resultTypes: ["violations"]}).then(result => {
  const found = result.violations.map(rule => [rule.id, rule.nodes.map(node => node.html)]);
  const bytes = new TextEncoder().encode(JSON.stringify([found, result.passes.length]));
  document.body.textContent = `axe:${btoa(String.fromCharCode(...bytes))}:`;
}));
"""
"""Puts what axe found in the place of the page, in letters that need no escape."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        shutil.which("chromium") is None and os.environ.get("CI") != "true",
        reason="chromium is not installed; .ci/run installs it",
    ),
]


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core, which npm fetches once."""

    def install(place: Path) -> None:
        command("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", place, f"axe-core@{AXE}")

    with needed():
        need("npm")
        return (installed(f"axe-core-{AXE}", install) / "node_modules/axe-core/axe.min.js").read_text("utf-8")


def violations(axe: str, folder: Path, html: str, options: Sequence[str] = ()) -> list[Any]:
    """The rules that a page breaks, with the elements that break them."""
    # From a file: the policy of the server lets no other script run.
    file = folder / "page.html"
    file.write_text(html.replace("</body>", f"<script>{axe}</script><script>{RUN}</script></body>"), "utf-8")
    dumped = chromium(folder / "profile", file.as_uri(), "--dump-dom", *options)
    found = re.search("axe:([A-Za-z0-9+/=]+):", dumped)
    assert found is not None, dumped[-2000:]
    broken, passed = json.loads(b64decode(found[1]))
    assert passed > 10
    return list(broken)


def test_the_page_breaks_no_rule_on_light_and_dark_screens_and_phones(axe: str, tmp_path: Path) -> None:
    store = f"memory://{tmp_path.name}-accessibility"
    last = play(store)
    with (
        served(store, now_us=lambda: last) as url,
        urllib.request.urlopen(f"{url}?application=app&task=A&key.word=a") as answer,
    ):
        html = answer.read().decode()
    opened = html.replace("<details ", "<details open ")
    assert opened.count("<details open ") > 3
    for options in ((), DARK, PHONE):
        assert violations(axe, tmp_path, opened, options) == [], options


def test_the_login_breaks_no_rule_and_one_without_a_label_does(axe: str, tmp_path: Path) -> None:
    html = page.login(is_wrong=True)
    assert violations(axe, tmp_path, html) == []
    assert [rule for rule, _ in violations(axe, tmp_path, html.replace("<label", "<b").replace("</label", "</b"))] == [
        "label"
    ]
