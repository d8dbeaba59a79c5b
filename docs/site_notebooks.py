"""Show a notebook as a page of the site: its text, its code, and what its cells gave."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any


def as_markdown(notebook: Path) -> str:
    """Return a notebook as Markdown."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *(_output(output) for output in cell["outputs"])]


def _output(output: dict[str, Any]) -> str:
    """Return what a cell gave in the best form that it has."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        picture = "".join(data["image/png"]).strip()
        alt = escape("".join(data["text/plain"]))
        return f'<img alt="{alt}" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        # Whatever stands in one block of HTML is not read as Markdown.
        return f'<div style="overflow-x: auto">\n{"".join(data["text/html"])}\n</div>'
    # In a block of Markdown, long lines would be out of sight.
    text = escape("".join(data["text/plain"]).rstrip())
    return f'<pre style="white-space: pre-wrap"><code>{text}</code></pre>'
