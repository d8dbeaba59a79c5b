"""A whole page of HTML, read strictly: for the tests of what the server answers."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "link", "input", "br", "img"}
"""The elements without an end."""

SHAPES = {"line", "circle", "path", "rect"}
"""The elements of SVG that end themselves."""


class Page(HTMLParser):
    """A page: its text, its tables as rows of cells, its headings, landmarks and forms. Every element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        assert text.startswith("<!DOCTYPE html>\n<html lang=")
        self.text, self.tables, self.captions = "", dict[str, list[list[str]]](), list[str]()
        self.ids, self.labelled, self.fields = list[str](), set[str](), list[dict[str, str]]()
        self.headings, self.landmarks, self.links, self.tags = (
            list[tuple[int, str]](),
            list[str](),
            list[str](),
            list[str](),
        )
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.styles, self.scripts, self._rows = "", "", list[list[str]]()
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SHAPES
        self._begin(tag, attrs)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._begin(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def _begin(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice"
        given = {name: value or "" for name, value in attrs}
        # The policy forbids what stands in attributes.
        assert "style" not in given
        assert not any(name.startswith("on") for name in given)
        self.tags.append(tag)
        self.attributes.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        if tag == "label" and "for" in given:
            self.labelled.add(given["for"])
        if tag in ("input", "select", "textarea") and given.get("type") != "hidden":
            self.fields.append({**given, "within label": "yes" if "label" in self._open else ""})
        if tag in ("header", "nav", "main", "footer"):
            self.landmarks.append(tag)
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            assert tag == "td" or given["scope"] in ("col", "row")
        elif tag == "caption":
            self.captions.append("")
        elif tag in ("h1", "h2", "h3", "h4"):
            self.headings.append((int(tag[1]), ""))
        elif tag == "img":
            assert given["alt"]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "table":
            self.tables[self.captions[-1]] = self._rows

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.styles += data
            return
        if self._open and self._open[-1] == "script":
            self.scripts += data
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self._rows[-1][-1] += data
        if "caption" in self._open:
            self.captions[-1] += data
        if self.headings and self._open and self._open[-1] in ("h1", "h2", "h3", "h4"):
            level, text = self.headings[-1]
            self.headings[-1] = level, text + data

    def check(self) -> None:
        """Check what a browser and a screen reader need."""
        assert len(set(self.ids)) == len(self.ids), "an id stands twice"
        assert self.tags.count("table") == len(self.captions) == len(self.tables), "a table has no caption of its own"
        for field in self.fields:
            assert field["within label"] or field["id"] in self.labelled, f"{field} has no label"
        levels = [level for level, _ in self.headings]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels)), "a level is left out"
        assert "main" in self.landmarks
        for _, given in self.attributes:
            for name in ("src", "href", "action"):
                assert "//" not in given.get(name, "").partition(",")[0], "something is loaded from elsewhere"
            if "aria-labelledby" in given:
                assert given["aria-labelledby"] in self.ids
