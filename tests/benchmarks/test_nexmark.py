"""Nexmark's events are what they say, and on a short stream of them the queries give the windows that DuckDB finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.nexmark import events
from benchmarks.nexmark.queries import QUERIES, differences
from persistent_state import Message, run_local

STREAM = {"events": 3_000, "rate": 20, "seed": 1, "per_file": 500}
"""Two minutes and a half: few enough events a second that users come and go."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nexmark") / "events"
    events.write(folder, **STREAM)
    return folder


def given_out(name: str) -> tuple[pa.Table, int]:
    """The windows that a query gives out without Spark, and its last clock, which is not where a window ends."""
    task, timestamp = QUERIES[name].task, QUERIES[name].timestamp
    batches = [events.bids(batch) for table in events.tables(**STREAM) for batch in table.to_batches()]
    bids = pa.Table.from_batches(batches)
    stamps = bids[timestamp].cast(pa.int64()).to_pylist()
    messages = [Message(stamp, bid) for stamp, bid in zip(stamps, bids.to_pylist(), strict=True)]
    run = run_local(task, messages, checkpoint_interval="33 seconds", allowed_delay="1 second", batch_size=300)
    assert run.late == []
    names = (*task.key_columns, "window_start", "window_end", "value")
    rows = [
        dict(zip(names, (*key, value._asdict() if hasattr(value, "_asdict") else value), strict=True))
        for values in run.outputs.values()
        for key, value in values.items()
    ]
    return pa.Table.from_pylist(hottest(rows) if name == "q5" else rows), run.clocks[-1]


def hottest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the table of query 5 keeps of the counts, in Spark."""
    most: dict[int, int] = {}
    for row in rows:
        most[row["window_start"]] = max(row["value"], most.get(row["window_start"], 0))
    return [row for row in rows if row["value"] == most[row["window_start"]]]


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_the_windows_that_duckdb_finds(name: str, folder: Path) -> None:
    found, clock = given_out(name)
    assert found.num_rows > 10
    assert differences(name, folder, found, clock) == []
    # And it would be told of any that is missing or comes twice.
    first = found.slice(0, 1)
    (row,) = (tuple(each.values()) for each in first.to_pylist())
    assert differences(name, folder, found.slice(1), clock) == [("wanted", *row)]
    assert differences(name, folder, pa.concat_tables([found, first]), clock) == [("found", *row)]


def test_one_seed_is_one_stream_of_any_length() -> None:
    assert pa.concat_tables(events.tables(**STREAM)) == pa.concat_tables(events.tables(**STREAM))
    assert next(events.tables(**{**STREAM, "events": 500})) == next(events.tables(**STREAM))
    assert next(events.tables(**{**STREAM, "seed": 2})) != next(events.tables(**STREAM))


def test_events_are_in_nexmarks_proportions_and_out_of_order_within_bounds() -> None:
    made = pa.concat_tables(events.tables(**STREAM))
    assert np.bincount(made["kind"].to_numpy()).tolist() == [60, 180, 2_760]
    for kind, name in enumerate(("person", "auction", "bid")):
        assert [row is not None for row in made[name].to_pylist()] == [
            other == kind for other in made["kind"].to_pylist()
        ]
    happened, ingested = (made[name].cast(pa.int64()).to_numpy() for name in ("happened", "ingested"))
    behind = np.maximum.accumulate(happened) - happened
    assert (np.diff(ingested) > 0).all()
    assert (happened <= ingested).all()
    assert 0 < behind.max() <= events.DISORDER
    assert np.mean(behind > 0) > 0.5


def test_bids_are_of_auctions_and_users_that_are_there() -> None:
    made = pa.concat_tables(events.tables(**STREAM))
    people = auctions = 0
    for event in made.to_pylist():
        if event["person"]:
            assert event["person"]["id"] == people
            people += 1
        elif event["auction"]:
            assert event["auction"]["id"] == auctions
            assert 0 <= event["auction"]["seller"] < people
            auctions += 1
        else:
            assert 0 <= event["bid"]["auction"] < auctions
            assert 0 <= event["bid"]["bidder"] < people
            assert 100 <= event["bid"]["price"] <= 100_000_000
