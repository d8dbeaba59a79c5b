"""Words that a stranger reads twice: what users read has none of them, and all else has fewer with time."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persistent_state.sources.formats import NO_FORMAT
from tests import deployed
from tests.docstrings import ROOT
from tests.test_public import public

WORDS = re.compile(r"\b((?i:tells?|told|telling|nobody|somebody|whoever|so\s+many)|is\s+none|Of)\b")
"""Better are: say, show, know, distinguish; no one, or the actor; the number; "there is no ..."; the subject before "of"."""

NAMES = ("found", "some")
"""Names in code that do not say what they hold."""

ELSEWHERE = {"benchmarks": 382, "examples": 0, "monoids": 0, "persistent_state": 825, "tests": 3301}
"""How many there are in the files of each folder. A change may lower a number, never raise it."""

PUBLIC = {**public("persistent_state"), **public("monoids")}


def words_of(text: str) -> list[str]:
    """The words in a text. An underscore separates words, as it does in the names of tests."""
    return [" ".join(word.lower().split()) for word in WORDS.findall(text.replace("_", " "))]


def names_of(code: str) -> list[str]:
    """The names in a Python file."""
    fields = ("id", "arg", "attr", "name", "asname")
    names = (getattr(node, field, None) for node in ast.walk(ast.parse(code)) for field in fields)
    return [name for name in names if name in NAMES]


def docstrings_of(value: Any) -> str:
    """The docstrings of what is public, of its methods and of its fields."""
    texts = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        members = [member for part, member in inspect.getmembers(value) if not part.startswith("_")]
        texts += [inspect.getdoc(each) or "" for each in members if callable(each) or isinstance(each, property)]
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
        assert isinstance(body, ast.ClassDef)
        lines = [each.value for each in body.body if isinstance(each, ast.Expr)]
        texts += [str(line.value) for line in lines if isinstance(line, ast.Constant)]
    return "\n".join(texts)


def pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each page, and of each file that is deployed.

    What is released no longer changes, and neither does a reason that stores hold.
    """
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "docs/tutorial.ipynb", *deployed.FILES]:
        text = file.read_text("utf-8")
        if file.name == "CHANGELOG.md":
            text = text.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
        yield str(file.relative_to(ROOT)), text.replace(NO_FORMAT, "")


class Example:
    """Nobody reads it."""

    field: int = 0
    """Whoever reads it."""

    @property
    def value(self) -> int:
        """Of no use."""
        return 1


def test_the_words_and_names_are_seen() -> None:
    text = (
        "Nobody tells whoever\nasks.  Of so\n many, there is none: None is known of tellers, or is None.\n_told(some)"
    )
    assert words_of(text) == ["nobody", "tells", "whoever", "of", "so many", "is none", "told"]
    assert sorted(names_of("found = found_in(some.found)  # some are found\nf'some {found}'\n")) == [
        *3 * ["found"],
        "some",
    ]
    assert sorted({*words_of(docstrings_of(Example))}) == ["nobody", "of", "whoever"]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_docstrings_have_none_of_the_words(name: str) -> None:
    assert words_of(docstrings_of(PUBLIC[name])) == []


@pytest.mark.parametrize(("name", "text"), [pytest.param(*each, id=each[0]) for each in pages()])
def test_pages_have_none_of_the_words(name: str, text: str) -> None:
    lines = [line for line in text.splitlines() if words_of(line)]
    assert not lines, f"{name}: say these in another way: {lines}"
    assert words_of(text) == []


@pytest.mark.parametrize(("folder", "number"), ELSEWHERE.items())
def test_elsewhere_there_are_fewer_with_time(folder: str, number: int) -> None:
    code = [file.read_text("utf-8") for file in (ROOT / folder).rglob("*.py") if file != Path(__file__)]
    texts = [file.read_text("utf-8") for file in (ROOT / folder).rglob("*.md")]
    count = sum(len(words_of(text)) for text in [*code, *texts]) + sum(map(len, map(names_of, code)))
    assert count <= number, (
        f"{folder} has {count - number} more of the words and names than before; say it in another way."
    )
    assert count == number, f"{folder} has fewer of the words and names than before: lower its number to {count}."
