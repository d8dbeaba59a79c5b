"""A run on real Spark shows how it fares where it is asked to, and else writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persistent_state import Application, FileSource
from persistent_state.run import lines
from tests.words import SCHEMA, Words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_run_shows_its_tasks_if_it_is_asked_to(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A block of lines comes with each look.
    monkeypatch.setattr(lines, "APART", 0.0)
    (tmp_path / "in").mkdir()
    rows = pa.table({"ts": [second * 1_000_000 for second in range(6)], "word": ["a"] * 6}, SCHEMA)
    pq.write_table(rows, tmp_path / "in" / "0.parquet")

    def written(store: str, show_progress: bool | None) -> str:
        app = Application("words", str(tmp_path / store), checkpoint_interval="10 seconds", shards=1)
        source = FileSource(tmp_path / "in", timestamp="ts", schema=SCHEMA)
        app.add(Words(), source).add(Words("Texts", "x"), source)
        app.run(spark, drain=True, show_progress=show_progress)
        return capsys.readouterr().err

    assert written("quiet", None) == ""
    shown = written("shown", True).splitlines()
    assert shown[0].split() == ["Words", "no", "commit", "yet"]
    place = next(place for place, line in enumerate(shown) if line.startswith("words: "))
    # The clock is that of the drain, which comes with no progress.
    assert shown[place].endswith(", clock 1970-01-01T00:00:10Z")
    heads, _, *tasks, waits = shown[place + 1 :]
    assert heads.split() == ["task", "messages", "a", "second", "clock", "late", "bad"]
    assert [[*line.split()[:2], *line.split()[3:]] for line in tasks] == [
        ["Words", "6", "1970-01-01T00:00:10Z", "0", "0"],
        ["Texts", "6", "1970-01-01T00:00:10Z", "0", "6"],
    ]
    assert waits.startswith("The global clock waits for ")
