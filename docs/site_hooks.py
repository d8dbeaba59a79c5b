"""Hooks of mkdocs: pages outside docs/, pages of notebooks, and a check that the built site loads nothing from elsewhere."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import site_notebooks
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""The page of the site that each file outside docs/ becomes."""

INSIDE = {page: path for path, page in OUTSIDE.items()}

LOADS = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)[^>]*>""")
PROSE_EXAMPLE = re.compile(r"<blockquote>\s*<blockquote>|<p>&gt;&gt;&gt;")
"""The prompt of an example, if Markdown takes it for a quotation."""

STYLE_LOADS = re.compile(r"""(?:url\(|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand outside docs/, and one for each notebook."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        files.append(File.generated(config, f"{path.stem}.md", content=site_notebooks.as_markdown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links between files of the repository as links between pages of the site."""
    place = page.file.src_uri
    folder = posixpath.dirname(INSIDE.get(place, f"docs/{place}"))

    def rewritten(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in OUTSIDE:
            found = OUTSIDE[path]
        elif path.startswith("docs/"):
            found = re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
        else:
            return link[0]
        return f"]({posixpath.relpath(found, posixpath.dirname(place) or '.')}{anchor})"

    return re.sub(r"\]\((?![a-z][a-z0-9+.-]*:|#)([^)#\s]+)(#[^)\s]*)?\)", rewritten, markdown)


def on_post_build(config: Any) -> None:
    """Raise PluginError if a built page would load something from another host, or shows an example as prose."""
    site = Path(config["site_dir"])
    found = [
        f"{file.relative_to(site)} loads {url}"
        for suffix, loads in ((".html", LOADS), (".css", STYLE_LOADS))
        for file in sorted(site.rglob(f"*{suffix}"))
        for url in loads.findall(file.read_text(encoding="utf-8"))
    ]
    found += [
        f"{file.relative_to(site)} shows an example of a docstring as prose"
        for file in sorted(site.rglob("*.html"))
        if PROSE_EXAMPLE.search(file.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("; ".join(found))
