"""A store that an older version of the library wrote is gone on from without Spark, as it is with it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from persistent_state import Application, FileSource, Local, ValuesAtClock, open_store
from persistent_state.sinks import Values
from persistent_state.store.files import open_files
from tests.fixtures.write_folder_store import APPLICATION, SCHEMA, Totals, Windows, add_files, rows
from tests.store.test_folder_store import STORES, check
from tests.store.test_upgrades import unpacked


@pytest.mark.parametrize("name", STORES)
def test_a_kept_store_is_gone_on_from_and_its_output_too(name: str, tmp_path: Path) -> None:
    files = unpacked(name, open_files(str(tmp_path / "store")))
    add_files(tmp_path / "events", rows(), 20)
    given: list[int] = []

    def note(values: Values, clock: int) -> None:
        given.append(clock)

    app = Application(
        APPLICATION,
        str(tmp_path / "store"),
        checkpoint_interval=timedelta(microseconds=20),
        allowed_delay=timedelta(microseconds=120),
        retained_checkpoints=3,
    )
    source = FileSource(tmp_path / "events", timestamp="ts", schema=SCHEMA, max_files_per_batch=1)
    app.add(Totals(), source, sink=ValuesAtClock(note, as_="arrow", name="sink")).add(Windows(), source)
    for _ in range(2):
        app.run(Local(2), drain=True)
        check(files, 100)
    assert given == sorted({*given})
    assert given[-1] == open_store(files.url).application(APPLICATION).clocks()[-1]
