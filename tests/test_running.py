"""What is refused before a start takes the application over, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from persistent_state import FileSource, InvalidInput
from persistent_state.engine.running import Part, check_parts
from persistent_state.store.log import Log
from tests import core
from tests.fixtures.write_store import SCHEMA, Totals


def part(folder: Path) -> Part:
    return Part(
        core.plan_of(Totals(), SCHEMA), FileSource(folder, timestamp="ts", schema=SCHEMA, format="parquet"), None
    )


def test_a_source_that_can_not_be_opened_is_refused_before_anything_changes(tmp_path: Path) -> None:
    missing = part(tmp_path / "missing")
    files = missing.plan.files
    with pytest.raises(InvalidInput, match="is not a folder; make it, or mend the path"):
        check_parts(files, [missing], {})
    assert Log(files, missing.plan.application).numbers() == []
    check_parts(files, [part(tmp_path)], {})


def test_a_journal_of_another_source_is_refused_before_the_working_driver_is_fenced(tmp_path: Path) -> None:
    plan = core.plan_of(Totals(), SCHEMA)
    log = Log(plan.files, plan.application)
    core.start(log, [plan])
    entry = core.play(log, plan, pa.RecordBatch.from_pylist([{"ts": 5, "shop": "a", "item": 1, "price": 1}], SCHEMA))
    source = FileSource(tmp_path, timestamp="ts", schema=SCHEMA, format="parquet")
    with pytest.raises(InvalidInput, match="its journal has only 0 files"):
        check_parts(plan.files, [Part(plan, source, None)], entry.tasks)
    newest = log.newest()
    assert newest is not None
    assert newest.epoch == entry.epoch
    check_parts(plan.files, [Part(plan, source, None)], {})
