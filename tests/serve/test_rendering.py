"""Templates escape all that they are given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from persistent_state.serve import rendering
from tests.serve.html import Page

TEMPLATES = sorted((Path(rendering.__file__).parent / "templates").iterdir())


def test_a_text_is_escaped_and_the_style_is_not() -> None:
    text = "<b title='\">&amp;"
    status = {"applications": [], "error": text, "at": None}
    values = {"store": text, "status": status, "chosen": None, "summary": None}
    page = Page(rendering.render("page.html", **values))
    assert page.tags.count("b") == 0
    assert f"Store {text}" in page.text
    assert f"The store can't be read: {text}" in page.text
    assert "\n:root{" in page.styles


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_no_template_lets_a_text_through_as_it_is(template: Path) -> None:
    assert not re.search(r"\bsafe\b|autoescape", template.read_text("utf-8"))
