"""Write tables, facts and graphs as HTML, for notebooks and for the page of a store. All of it is escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from persistent_state.show import graph
from persistent_state.show.tables import Table


def table(table: Table, caption: str = "", classes: Mapping[int, str] | None = None) -> str:
    """Return a table. The first column names the rows.

    Args:
        table: The table.
        caption: Its caption; "" for none.
        classes: Classes of columns, by their numbers, beside `right` for those that are aligned right.
    """
    of_column = {**dict.fromkeys(table.right, "right"), **(classes or {})}

    def attribute(column: int) -> str:
        return f' class="{of_column[column]}"' if column in of_column else ""

    def row(cells: Iterable[str]) -> str:
        first, *rest = (escape(cell) for cell in cells)
        others = "".join(f"<td{attribute(column)}>{cell}</td>" for column, cell in enumerate(rest, 1))
        return f'<tr><th scope="row"{attribute(0)}>{first}</th>{others}</tr>'

    heads = "".join(
        f'<th scope="col"{attribute(column)}>{escape(head)}</th>' for column, head in enumerate(table.heads)
    )
    body = "".join(map(row, table.rows))
    return f"<table>{_caption(caption)}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def facts(facts: Mapping[str, str | Sequence[str]], caption: str = "") -> str:
    """Return a table of names and values. A value may have several lines."""

    def lines(value: str | Sequence[str]) -> str:
        return "<br>".join(map(escape, [value] if isinstance(value, str) else value))

    rows = (f'<tr><th scope="row">{escape(name)}</th><td>{lines(value)}</td></tr>' for name, value in facts.items())
    return f'<table class="facts">{_caption(caption)}<tbody>{"".join(rows)}</tbody></table>'


def graph_image(summary: Mapping[str, Any], more: str = "") -> str:
    """Return the graph of an application's tasks as an image of its own, whose style does not reach the page that it is in.

    Args:
        summary: The summary of the application.
        more: The end of the text that is there instead of the image.
    """
    drawn = "\n".join(graph.as_svg(graph.graph(summary))).encode()
    label = escape(f"The graph of the tasks of {summary['application']}{more}")
    return f'<img class="drawn" alt="{label}" src="data:image/svg+xml;base64,{b64encode(drawn).decode()}">'


def _caption(caption: str) -> str:
    return f"<caption>{escape(caption)}</caption>" if caption else ""
