"""Write tables, facts and graphs as HTML, for notebooks. All of it is escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from persistent_state.show import graph
from persistent_state.show.tables import Table


def table(table: Table) -> str:
    """Return a table. The first column names the rows."""

    def attribute(column: int) -> str:
        return ' class="right"' if column in table.right else ""

    def row(cells: Iterable[str]) -> str:
        first, *rest = (escape(cell) for cell in cells)
        others = "".join(f"<td{attribute(column)}>{cell}</td>" for column, cell in enumerate(rest, 1))
        return f'<tr><th scope="row"{attribute(0)}>{first}</th>{others}</tr>'

    heads = "".join(
        f'<th scope="col"{attribute(column)}>{escape(head)}</th>' for column, head in enumerate(table.heads)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(map(row, table.rows))}</tbody></table>"


def facts(facts: Mapping[str, str | Sequence[str]]) -> str:
    """Return a table of names and values. A value may have several lines."""

    def lines(value: str | Sequence[str]) -> str:
        return "<br>".join(map(escape, [value] if isinstance(value, str) else value))

    rows = (f'<tr><th scope="row">{escape(name)}</th><td>{lines(value)}</td></tr>' for name, value in facts.items())
    return f'<table class="facts"><tbody>{"".join(rows)}</tbody></table>'


def graph_image(summary: Mapping[str, Any]) -> str:
    """Return the graph of an application's tasks as an image of its own, whose style does not reach the page that it is in."""
    label = escape(f"The graph of the tasks of {summary['application']}")
    return f'<img class="drawn" alt="{label}" src="{graph_data(summary)}">'


def graph_data(summary: Mapping[str, Any]) -> str:
    """Return the graph of an application's tasks as the address of an image, which has the whole image in it."""
    drawn = "\n".join(graph.as_svg(graph.graph(summary))).encode()
    return f"data:image/svg+xml;base64,{b64encode(drawn).decode()}"
