"""The page in Chromium: its style and its script are let through by the policy, and it looks again by itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.serve.browser import DARK, DOCS, PICTURES, chromium, picture, served
from tests.serve.html import Page
from tests.serve.worlds import copy

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        shutil.which("chromium") is None and os.environ.get("CI") != "true",
        reason="chromium is not installed; .ci/run installs it",
    ),
]


def test_the_page_looks_again_by_itself(tmp_path: Path) -> None:
    store, looks = copy(tmp_path), list[str]()

    def on_page(query: str) -> None:
        looks.append(query)
        if len(looks) == 1:
            shutil.copytree(store / "app", store / "other")

    asked = "application=app&task=Notes&key.shop=Bergen"
    with served(str(store), on_page) as url:
        dumped = chromium(tmp_path / "profile", f"{url}?{asked}#lookup", "--dump-dom")
    # The key is looked up once.
    assert looks[:2] == [asked, "application=app"]
    assert {*looks[1:]} == {"application=app"}
    assert "&quot;n1&quot;" in dumped or '"n1"' in dumped
    page = Page(dumped.replace("<!DOCTYPE html><html", "<!DOCTYPE html>\n<html", 1))
    page.check()
    assert [link for link in page.links if "application=" in link] == ["?application=app", "?application=other"]
    assert "can't be read: " not in page.text
    # The script, and only the script, shows how to stop it.
    assert [given for tag, given in page.attributes if tag == "p" and "hidden" in given] == []


def test_the_page_is_light_or_dark_as_the_reader_likes_and_no_wider_than_a_phone(tmp_path: Path) -> None:
    with served(str(copy(tmp_path))) as url:
        light = picture(tmp_path / "profile", url, tmp_path / "light.png", (500, 900))
        dark = picture(tmp_path / "profile", url, tmp_path / "dark.png", (500, 900), DARK)
    assert (light.getpixel((2, 2)), dark.getpixel((2, 2))) == ((255, 255, 255), (20, 23, 26))
    assert light.size == (500, 900)
    # Beside the text, where a page that is too wide would have some.
    assert {light.getpixel((498, y)) for y in range(900)} == {(255, 255, 255)}


def test_the_pictures_of_the_docs_are_small() -> None:
    for name in PICTURES:
        assert (DOCS / f"{name}.png").stat().st_size < 150_000
