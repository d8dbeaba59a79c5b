"""The Python of a page, run statement by statement: what the comment behind an expression says is its value."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def text_of(page: str) -> str:
    """The text of a page, such as `docs/kafka.md`."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(text: str) -> list[str]:
    """The blocks of Python of a page's text."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(text: str, names: dict[str, Any], before: Mapping[str, Callable[[], None]] | None = None) -> int:
    """Run all blocks of Python of a page, one after the other, and return how many values were compared.

    Args:
        text: The page's text, in which a test may have put addresses of its own.
        names: What the page takes for granted. It gets what the page defines.
        before: What must have happened before a statement: a piece of its text, and a function that is called then.
    """
    # Spark's workers are sent what is defined here, as they are what a program defines that is started.
    names.setdefault("__name__", "__main__")
    compared, due = 0, dict(before or {})
    for block in blocks_of(text):
        for statement in ast.parse(block).body:
            source = ast.get_source_segment(block, statement) or ""
            for piece in [piece for piece in due if piece in source]:
                due.pop(piece)()
            if not isinstance(statement, ast.Expr):
                exec(compile(ast.Module([statement], []), "page", "exec"), names)
                continue
            found = eval(compile(ast.Expression(statement.value), "page", "eval"), names)
            said = block.splitlines()[(statement.end_lineno or 0) - 1].partition("  # ")[2]
            try:
                value = ast.literal_eval(said)
            except (SyntaxError, ValueError):
                continue
            assert found == value, source
            compared += 1
    assert not due, "no statement has these pieces"
    return compared
