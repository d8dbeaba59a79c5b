"""Late and bad rows are shown with their reason, where they stood, and what they hold, whatever their source says of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from persistent_state.show import late

SIDE = {
    "reason": "late",
    "timestamp": 0,
    "partition": "",
    "channel": "",
    "position": 7,
    "record": None,
    "row": {"k": "a"},
}
ORIGIN = pa.struct([("file", pa.string()), ("line", pa.int64()), ("value", pa.string())])


def cells(**changes: Any) -> list[str]:
    """The cells of a row that differs from one without an origin in this."""
    row = {**SIDE, **changes}
    types = {
        "timestamp": pa.int64(),
        "record": pa.large_binary(),
        "row": pa.struct([("k", pa.string())]),
        "origin": ORIGIN,
    }
    table = pa.table({name: pa.array([value], types.get(name)) for name, value in row.items()})
    (shown,) = late.rows_of([table])
    heads, _, line, _, count = late.lines([shown], 1)
    assert count == "1 row"
    begins = [heads.index(head) for head in heads.split()]
    return [line[begin:end].strip() for begin, end in zip(begins, [*begins[1:], None], strict=True)]


def test_a_row_without_an_origin_stands_at_its_position() -> None:
    assert cells() == ["late", "1970-01-01T00:00:00Z", "position 7", '{"k":"a"}']
    assert cells(partition="p1")[2] == "partition p1, position 7"
    assert cells(position=None, timestamp=None)[1:3] == ["-", "-"]


def test_a_row_stands_where_its_source_says() -> None:
    assert cells(origin={"file": "0.csv", "line": 3, "value": None})[2] == "file 0.csv, line 3"
    assert cells(origin={"file": "0.csv", "line": 3, "value": "1,5"})[2] == "file 0.csv, line 3, value 1,5"
    assert cells(origin=None)[2] == "position 7"


def test_a_record_that_was_not_decoded_is_shown_as_it_came() -> None:
    assert cells(row=None, record=b"a;\xff\x1b")[3] == '"a;\\ufffd\\u001b"'
    assert cells(row=None)[3] == ""


def test_tables_of_different_columns_have_their_rows_one_after_the_other_and_long_texts_are_cut() -> None:
    tables = [
        pa.table({**{name: [value] for name, value in SIDE.items()}, **more}) for more in ({}, {"row": ["b" * 99]})
    ]
    rows = [*late.rows_of(tables)]
    assert [row["row"].as_py() for row in rows] == [{"k": "a"}, "b" * 99]
    lines = [*late.lines(rows[1:], 2_000)]
    assert lines[2].endswith(f"{'b' * 57}...")
    assert lines[-1] == "1 of 2,000 rows"
