"""The code of a page, run statement by statement: what the comment behind an expression says is its value."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from typing import Any


def run(page: str, names: dict[str, Any]) -> int:
    """Run the Python blocks of a page with these names, and return how many values were compared."""
    compared = 0
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for statement in ast.parse(block).body:
            source = ast.get_source_segment(block, statement)
            assert source is not None
            said = block.splitlines()[(statement.end_lineno or 0) - 1].partition("  # ")[2]
            if not isinstance(statement, ast.Expr):
                exec(source, names)
                continue
            found = eval(source, names)
            with suppress(SyntaxError):
                assert found == ast.literal_eval(said), source
                compared += 1
    return compared
