"""The Python of README and of pages of docs runs as it stands, from the first block to the last, to what they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.sessions import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_code(page: str) -> tuple[str, dict[str, Any]]:
    """Run the Python of a page; its text, and the names that are there then."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    said = 0
    for block in blocks:
        exec(compile(block, page, "exec"), names)
        # What a line is said to be, it is.
        for line in block.splitlines():
            code, _, comment = line.partition("  # ")
            if comment[:1] in ("[", "{"):
                assert eval(code, names) == ast.literal_eval(comment)
                said += 1
    assert said >= 2
    return text, names


def test_the_code_of_readme_gives_what_readme_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, names = run_code("README.md")
    promised = re.findall(r"^\| (\w+) \| (\d+) \|$", text, flags=re.MULTILINE)
    assert len(promised) == 4
    for table in (names["counts"], names["ParquetSink"]("counts/").latest()):
        assert sorted((row["word"], str(row["value"])) for row in table.to_pylist()) == promised


@pytest.mark.parametrize("page", ["first-task", "files", "write-a-source", "delivery", "pipelines", "joins"])
def test_the_code_of_a_page_gives_what_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run_code(f"docs/{page}.md")
