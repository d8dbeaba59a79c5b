"""README and docs lead nowhere that is not there: links to files and to their sections, paths of this repository, and names."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

import persistent_state
from persistent_state import Application
from tests.test_public import public

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for folder in ("docs", "benchmarks", "examples") for page in ROOT.glob(f"{folder}/**/*.md")),
        *ROOT.glob("docs/*.ipynb"),
    ]
)
assert ROOT / "README.md" in PAGES
PATHS = re.compile(r"`((?:docs|examples|benchmarks|tests|persistent_state|monoids)/[A-Za-z0-9_./-]*[A-Za-z0-9_-])`")


as_markdown = runpy.run_path(str(ROOT / "docs" / "site_notebooks.py"))["as_markdown"]


def source_of(page: Path) -> str:
    """A page as Markdown; a notebook as the site shows it."""
    return as_markdown(page) if page.suffix == ".ipynb" else page.read_text(encoding="utf-8")


def text_of(page: Path) -> str:
    """A page without its blocks of code, in which brackets are no links and hashes no headings."""
    return re.sub(r"^```.*?^```$", "", source_of(page), flags=re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """The names of a page's sections, as GitHub and what renders like it make them of the headings."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} +(.+?)[ #]*$", text_of(page), flags=re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def dead_links(page: Path, root: Path = ROOT) -> list[str]:
    """The links and paths of a page that lead nowhere below the root."""
    text, dead = text_of(page), []
    for link in re.findall(r"\]\(\s*<?([^)\s>]+)[^)]*\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        place, _, anchor = unquote(link).partition("#")
        target = (page.parent / place) if place else page
        is_there = target.exists() and target.resolve().is_relative_to(root.resolve())
        if not is_there or (anchor and anchor not in anchors_of(target)):
            dead.append(link)
    return dead + [path for path in PATHS.findall(text) if not (root / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_of_a_page_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n\n## Over, here\n\n[a](#one-two) [b](#over-here) [c](#there) [d](no.md) "
        "`docs/no.md`\n\n```\n[e](f.md)\n```\n"
    )
    assert anchors_of(page) == {"one-two", "over-here"}
    assert dead_links(page, tmp_path) == ["#there", "no.md", "docs/no.md"]


def wrong_names(code: str) -> list[str]:
    """What Python code takes from this package, or gives to what is public, that is not there."""
    by_full_name = {**public("persistent_state"), **public("monoids")}
    places = {name.rpartition(".")[0] for name in by_full_name}
    by_name = {name.rpartition(".")[2]: value for name, value in by_full_name.items()}
    wrong = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module in places:
            wrong += [alias.name for alias in node.names if f"{node.module}.{alias.name}" not in by_full_name]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "monoids":
            wrong += [node.attr] * (f"monoids.{node.attr}" not in by_full_name)
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "app":
                taken = getattr(Application, called.attr, None)
            else:
                name = getattr(called, "id", getattr(called, "attr", ""))
                taken = by_name.get(name)
                if taken is None or (isinstance(taken, type) and issubclass(taken, Exception)):
                    continue
            known = inspect.signature(taken).parameters if taken else {}
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
                wrong += [f"{ast.unparse(called)}({word.arg}=)" for word in node.keywords if word.arg not in known]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_names_what_is_there(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", source_of(page), re.DOTALL | re.MULTILINE):
        assert wrong_names(block) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_installs_what_there_is(page: Path) -> None:
    """No index has the package yet, so a page says a checkout or the wheel of this version."""
    source = source_of(page)
    assert re.findall(r"pip install [^`\n]*\bpersistent-state\b[^`\n]*", source) == []
    assert {*re.findall(r"\bpersistent_state-([\d.]+)-", source)} <= {persistent_state.__version__}


def test_the_tables_of_options_have_every_option_and_its_default() -> None:
    text = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    row = r"^\| (`\w+`(?:, `\w+`)*) \| (?:(`\w+`(?:, `\w+`)*) \| )?`([^`]*)` \| "
    said = {
        (owner, name, default)
        for names, of, default in re.findall(row, text, re.MULTILINE)
        for owner in re.findall(r"\w+", of or "Application")
        for name in re.findall(r"\w+", names)
    }
    taken = {"Application": Application, "add": Application.add, "run": Application.run, "start": Application.start}
    assert said - {("Application", "storage_options", "{}")} == {
        (owner, name, repr(option.default).replace("'", '"'))
        for owner, function in taken.items()
        for name, option in inspect.signature(function).parameters.items()
        if option.default is not option.empty and name != "storage_options"
    }


def test_a_notebook_is_shown_with_what_its_cells_gave(tmp_path: Path) -> None:
    page = tmp_path / "page.ipynb"
    given = [
        {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["<2>"]}},
        {"output_type": "display_data", "data": {"text/plain": ["x"], "text/html": ["<pre>a\n", "b</pre>"]}},
        {"output_type": "display_data", "data": {"text/plain": ["<Axes>"], "image/png": "QUJD\n"}},
    ]
    code = {"cell_type": "code", "source": ["1 + 1\n", "2"], "outputs": given}
    page.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# One\n", "[a](b.md)"]}, code]}))
    assert as_markdown(page).split("\n\n") == [
        "# One\n[a](b.md)",
        "```python\n1 + 1\n2\n```",
        '<pre style="white-space: pre-wrap"><code>one\ntwo</code></pre>',
        '<pre style="white-space: pre-wrap"><code>&lt;2&gt;</code></pre>',
        '<div style="overflow-x: auto">\n<pre>a\nb</pre>\n</div>',
        '<img alt="&lt;Axes&gt;" src="data:image/png;base64,QUJD">\n',
    ]
    assert dead_links(page, tmp_path) == ["b.md"]


def test_a_wrong_name_is_found() -> None:
    code = "from monoids import Sum, Summe\napp.add(Task(), sinks=[])\nmonoids.Maximum()\nSqlSink('url', table=1, at=2)"
    assert sorted(wrong_names(code)) == ["Maximum", "SqlSink(at=)", "Summe", "app.add(sinks=)"]
