"""Joins by Arrow: they give what a loop over all pairs gives, in however many steps the clock moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistent_state.edges.joins import sides
from persistent_state.edges.joins.as_of import as_of, newest_rights
from persistent_state.edges.joins.interval import Bounds, interval
from persistent_state.edges.joins.pair import IS_RIGHT, Columns, is_moved, pair_of, waiting_rows
from persistent_state.edges.joins.sides import Joined
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import fold, keys
from persistent_state.partials.layout import Layout
from persistent_state.partials.newest import Newest
from persistent_state.partials.waiting import Rows, Waiting

TRADE = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("n", pa.int64()), ("note", pa.string())])
QUOTE = pa.schema([("symbol", pa.string()), ("ts", pa.int64()), ("bid", pa.float64()), ("note", pa.string())])
TRADES = Columns("trades", TRADE, ["k"], {"k": "key0"})
QUOTES = Columns("quotes", QUOTE, ["symbol"], {"symbol": "key0", "ts": "start"})
PAIR = pair_of(TRADES, QUOTES, ["k"])
LAYOUT = Layout((pa.string(),), Rows(PAIR.waiting), Waiting())

Row = tuple[str | None, int, bool, int]
"""A row: its key, its time, whether it is a quote, and its number. Those of a key and time are in the order of the numbers."""

some_keys = st.sampled_from(["a", None, "a longer key"])
some_rows = st.lists(st.tuples(some_keys, st.integers(0, 8), st.booleans()), min_size=4, max_size=30).map(
    lambda rows: [(*row, number) for number, row in enumerate(rows)]
)
some_clocks = st.lists(st.integers(0, 15), min_size=1, max_size=5)


def value(row: Row) -> dict[str, Any]:
    key, time, is_quote, number = row
    note = None if number % 3 else f"note {number}"
    if is_quote:
        return {"trades": None, "quotes": {"symbol": key, "ts": time, "bid": number / 4, "note": note}}
    return {"trades": {"k": key, "ts": time, "n": number, "note": note}, "quotes": None}


def waiting(row: Row) -> dict[str, Any]:
    input = "quotes" if row[2] else "trades"
    return {IS_RIGHT: row[2], **{PAIR.by_input[input].places[name]: of for name, of in value(row)[input].items()}}


def table(rows: Sequence[Row], **more: Any) -> pa.Table:
    """Rows as they come from runs: by hash and key, those of a key in order."""
    of = pa.array([row[0] for row in rows], pa.string())
    hashes = keys.hash_keys([of], len(rows))
    columns = {"hash": hashes, "key0": of, "start": pa.array([row[1] for row in rows], pa.int64())}
    numbers = pa.array([row[3] for row in rows], pa.int64())
    made = pa.table({**columns, "number": numbers, "value": pa.array(list(map(waiting, rows)), PAIR.waiting), **more})
    return made.sort_by([(name, "ascending") for name in ("hash", "key0", "start", "number")])


def kept_of(newest: dict[Any, Row]) -> pa.Table:
    """The newest quotes of keys, as the state has them."""
    rows = list(newest.values())
    type = Newest(pa.struct(list(QUOTE))).type
    states = [{"state": value(row)["quotes"], "timers": [], "newest": row[1]} for row in rows]
    return table(rows, value=pa.array(states, type))


def joined_row(left: Row, right: Row | None) -> dict[str, Any]:
    quote = {} if right is None else value(right)["quotes"]
    more = {"quotes_ts": quote.get("ts"), "bid": quote.get("bid"), "quotes_note": quote.get("note")}
    return {**value(left)["trades"], **more}


def shown(parts: Sequence[Joined], messages: pa.Table) -> list[Any]:
    """Joined rows with their keys and moments, by moment and key, those of one moment and key in their order."""
    found = []
    for part in parts:
        of = messages["key0"].take(pa.array(part.rows)).to_pylist()
        places = zip(part.moments.tolist(), of, part.numbers.tolist(), strict=True)
        found += [(place, row) for place, row in zip(places, part.values.to_pylist(), strict=True)]
    assert len({place for place, _ in found}) == len(found), "two rows have one place"
    found.sort(key=lambda each: (each[0][0], str(each[0][1]), each[0][2]))
    return [(moment, key, row) for (moment, key, _), row in found]


def in_order(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (row[0], str(row[1])))


def as_of_oracle(rows: Sequence[Row], tolerance: int | None) -> list[Any]:
    found = []
    for left in (row for row in rows if not row[2]):
        key, time, *_ = left
        quotes = [row for row in rows if row[2] and row[0] == key and row[1] <= time]
        newest = max(quotes, key=lambda row: (row[1], row[3]), default=None)
        if newest is not None and tolerance is not None and newest[1] < time - tolerance:
            newest = None
        found.append((time, key, joined_row(left, newest)))
    return in_order(found)


def interval_oracle(rows: Sequence[Row], bounds: Bounds, upto: int) -> list[Any]:
    found = []
    for left in sorted((row for row in rows if not row[2]), key=lambda row: (row[1], row[3])):
        key, time, *_ = left
        quotes = [row for row in rows if row[2] and row[0] == key]
        near = [row for row in quotes if time - bounds.before <= row[1] <= time + bounds.after]
        for right in sorted(near, key=lambda row: (row[1], row[3])):
            found.append((max(time, right[1]), key, joined_row(left, right)))
        if not near and bounds.has_all:
            found.append((time + bounds.after, key, joined_row(left, None)))
    return in_order(row for row in found if row[0] < upto)


def steps(clocks: Sequence[int], last: int) -> list[tuple[int, int]]:
    return list(pairwise([BEGINNING, *sorted({clock for clock in clocks if clock < last}), last]))


@settings(max_examples=200)
@given(some_rows, some_clocks, st.none() | st.integers(0, 4), st.integers(1, 6), st.booleans())
def test_as_of_is_the_newest_right_row_in_however_many_steps(
    rows: list[Row], clocks: list[int], tolerance: int | None, most: int, hashes_are_equal: bool
) -> None:
    newest: dict[Any, Row] = {}
    found = []
    with few_rows(most), equal_hashes(hashes_are_equal):
        for since, clock in steps(clocks, 9):
            messages = table([row for row in rows if since <= row[1] < clock])
            found += shown(list(as_of(messages, kept_of(newest), LAYOUT, PAIR, tolerance)), messages)
            for number in newest_rights(messages, LAYOUT, PAIR):
                row = messages.slice(number, 1).to_pylist()[0]
                newest[row["key0"]] = next(each for each in rows if each[3] == row["number"])
    assert found == as_of_oracle(rows, tolerance)
    assert newest == {row[0]: row for row in sorted(rows, key=lambda row: (row[1], row[3])) if row[2]}


@settings(max_examples=200)
@given(some_rows, some_clocks, st.integers(0, 3), st.integers(0, 3), st.booleans(), st.integers(1, 6), st.booleans())
def test_an_interval_join_gives_each_pair_once_in_however_many_steps(
    rows: list[Row], clocks: list[int], before: int, after: int, has_all: bool, most: int, is_wide: bool
) -> None:
    # Times so far apart that key and time don't fit into one number.
    by, ahead = (2**59, 2**61) if is_wide else (1, 0)
    bounds = Bounds(before * by, after * by, has_all)
    rows = [(key, time * by - ahead, is_right, number) for key, time, is_right, number in rows]
    found = []
    with few_rows(most):
        for since, clock in steps([clock * by - ahead for clock in clocks], 12 * by - ahead):
            messages = table([row for row in rows if since <= row[1] + bounds.back and row[1] < clock])
            parts = list(interval(messages, LAYOUT, PAIR, bounds, since, clock))
            assert all(len(part.values) <= most for part in parts)
            found += shown(parts, messages)
    assert found == interval_oracle(rows, bounds, 12 * by - ahead)


def few_rows(most: int) -> Any:
    """At most so many rows are joined at a time."""
    return mock.patch.object(sides, "MOST_ROWS", most)


def equal_hashes(are_equal: bool) -> Any:
    """All keys have one hash."""
    zeros = mock.patch.object(keys, "hash_keys", lambda columns, rows: np.zeros(rows, np.uint64))
    return zeros if are_equal else mock.MagicMock()


def test_rows_that_are_large_are_joined_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "SLICE_BYTES", 1000)
    quote: list[Row] = [("a", 0, True, 3)]
    rows: list[Row] = [("a", time, False, 7) for time in range(1, 50)]
    parts = list(as_of(table([*quote, *rows]), kept_of({}), LAYOUT, PAIR))
    assert len(parts) > 1
    assert all(len(part.values) * 40 <= 1100 for part in parts)
    assert sum(len(part.values) for part in parts) == 49


def test_a_column_whose_name_is_taken_gets_the_name_of_its_input() -> None:
    left = pa.schema([("id", pa.int64()), ("timestamp", pa.int64()), ("price", pa.int64()), ("clock", pa.string())])
    right = pa.schema([("key", pa.int64()), ("price", pa.float64()), ("timestamp", pa.int64()), ("id", pa.string())])
    found = pair_of(Columns("orders", left, ["id"]), Columns("rates", right, ["key"]), ["id"])
    assert found.type.names == [
        "id", "orders_timestamp", "price", "orders_clock", "rates_price", "rates_timestamp", "rates_id",
    ]  # fmt: skip
    assert found.type.field("rates_price").type == pa.float64()
    # Outputs show the key by its name in the task.
    other = pair_of(Columns("orders", left, ["price"]), Columns("rates", right, ["key"]), ["id"])
    assert other.type.names[0] == "orders_id"


def test_columns_of_one_type_wait_in_one_place() -> None:
    assert {field.name: field.type for field in PAIR.waiting} == {
        "is right": pa.bool_(),
        "trades.ts": pa.int64(),
        "trades.n": pa.int64(),
        "note|note": pa.string(),
        "quotes.bid": pa.float64(),
    }
    batch = pa.RecordBatch.from_pylist([value(("a", 5, True, 3))["quotes"]], QUOTE)
    assert waiting_rows(PAIR, "quotes", batch).to_pylist() == [
        {"is right": True, "trades.ts": None, "trades.n": None, "note|note": "note 3", "quotes.bid": 0.75}
    ]


def test_a_column_that_waits_in_another_place_now_is_told_from_one_that_is_gone() -> None:
    assert is_moved(PAIR, "quotes.note")
    assert is_moved(PAIR, "note|gone")
    assert is_moved(PAIR, "gone|bid")
    assert not is_moved(PAIR, "gone|gone")
    assert not is_moved(PAIR, "trades.gone")
    alone = pair_of(TRADES, QUOTES, ["k"], shares=False)
    assert alone.waiting.names == ["is right", "trades.ts", "trades.n", "trades.note", "quotes.bid", "quotes.note"]


def test_columns_of_one_name_are_refused() -> None:
    left = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("r_a", pa.int64())])
    right = pa.schema([("k", pa.int64()), ("a", pa.int64())])
    with pytest.raises(
        InvalidInputError, match=r"join l and r would have two columns 'r_a'; rename one in its source's"
    ):
        pair_of(Columns("l", left, ["k"]), Columns("r", right, ["k"]), ["k"])
