"""Each public name has a docstring and stands in the reference once; each page stands in the site's menu once."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

import monoids
import persistent_state
import persistent_state.sinks

ROOT = Path(persistent_state.__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PUBLIC = [
    f"{package.__name__}.{name}"
    for package in (persistent_state, persistent_state.sinks, monoids)
    for name in package.__all__
]


def documented() -> list[str]:
    """Return the names that the pages of the reference show."""
    return [
        name
        for page in sorted(REFERENCE.glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def test_each_public_name_stands_in_the_reference_once() -> None:
    assert Counter(documented()) == Counter(PUBLIC), "name it on a page of docs/reference"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(package), attribute)
    text = found.__dict__.get("__doc__") if inspect.isclass(found) else found.__doc__
    # A dataclass without one is given its signature.
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{attribute}("), f"{name} has no docstring"


def test_each_page_stands_in_the_menu_once() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    menu = Counter(re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", config[config.index("\nnav:") :], re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    pages |= {f"{notebook.stem}.md" for notebook in (ROOT / "docs").glob("*.ipynb")}
    outside = {"index.md", "contributing.md", "changelog.md", "benchmarks.md"}
    assert menu == Counter(pages | outside)


def test_the_architecture_names_what_is_there() -> None:
    text = re.sub(r"\s+", " ", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    named = re.findall(r"`(\w+)` \(`([\w/]+\.py)`\)|`(\w+)` in `([\w/]+\.py)`", text)
    assert len(named) > 20
    for *pair, other, place in named:
        name, path = (other, place) if other else tuple(pair)
        module = ast.parse((ROOT / "persistent_state" / path).read_text(encoding="utf-8"))
        assert name in {getattr(node, "name", "") for node in module.body}, f"{name} is not in {path}"
