"""The door of a whole task: files of others go through a source and a task, and each of their records is counted or aside."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from monoids import Count, Struct, Sum
from persistent_state import Application, FileSource, Message, NonWindowState, PersistentState, PersistentTask
from persistent_state.store.state_at import read_sides
from tests import core
from tests.hostile.texts import JSON_TEXTS, NUMBERS, TEXTS, TIMES
from tests.local_application import LocalApplication, compiled

COLUMNS = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int32()), ("at", pa.timestamp("ns", "UTC"))]
)
NOW = 1_800_000_000_000_000

Line = tuple[str, dict[str, str]]
"""A line as it is written, and the text of the JSON of its key and number, as far as these are known."""


class Totals(PersistentTask):
    """How many rows a key has, and the sum of their numbers."""

    key = "k"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(rows=Count(), total=Sum(pa.int64())))


class ByMessage(Totals):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        # Its code is odd, too: this update does not fit.
        state.update(message.timestamp, {"rows": 1, "total": "seven" if message["n"] == 7 else message["n"] or 0})


class ByBatch(Totals):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        totals = pc.fill_null(batch["n"], 0).cast(pa.int64())
        return pa.StructArray.from_arrays([pa.repeat(1, len(totals)), totals], names=["rows", "total"])


class ByTime(ByBatch):
    """It has a key that does not fit: times may be finer than microseconds."""

    key = "at"


def _csv_line(time: str, key: str | None, number: str, at: str) -> Line:
    """A line whose key is quoted, so that it is this text, and whose number is what stands there."""
    key = None if key is None else re.sub("[\r\n]", " ", key)
    quoted = "" if key is None else '"' + key.replace('"', '""') + '"'
    return f"{time},{quoted},{number},{at}", {"k": json.dumps(key), "n": number or "null"}


def _json_line(time: str, key: str, number: str, at: str) -> Line:
    return f'{{"ts":{json.dumps(time)},"k":{key},"n":{number},"at":{json.dumps(at)}}}', {"k": key, "n": number}


STAMPS = st.integers(2000, 2020).map("{}-01-01T00:00:00Z".format) | st.builds(str, TIMES)
SMALL = st.sampled_from(["7", "1", "-9"])
AT = st.sampled_from(["2013-01-01", "2013-01-01 00:00:00.123456789", "2013-01-01T00:00:00.1Z"]) | st.builds(str, TIMES)
CSV_KEYS, CSV_NUMBERS = st.sampled_from(["a", "b", None]) | st.builds(str, TEXTS), st.just("") | SMALL | NUMBERS
CSV_LINES = st.builds(_csv_line, STAMPS, CSV_KEYS, CSV_NUMBERS, AT)
ODD = st.builds(str, JSON_TEXTS)
JSON_LINES = st.builds(_json_line, STAMPS, st.sampled_from(['"a"', '"b"', "null"]) | ODD, SMALL | NUMBERS | ODD, AT)
# Built, and not mapped: each text of many kinds would be as likely as a line with columns.
ANY_LINE = st.builds(lambda text: (text, dict[str, str]()), TEXTS)

FILES = st.lists(
    st.tuples(st.just("csv"), st.lists(CSV_LINES | ANY_LINE, max_size=8))
    | st.tuples(st.just("json"), st.lists(JSON_LINES | ANY_LINE, max_size=8)),
    max_size=3,
)
GIVEN = st.tuples(st.sampled_from([ByMessage, ByBatch, ByTime]), FILES)


def play(task: type[Totals], files: Sequence[tuple[str, Sequence[Line]]]) -> None:
    """Let a task read one file after the other, each by a start, and compare what it counts with the lines that are not aside."""
    with tempfile.TemporaryDirectory() as folder:
        app = Application("app", "memory://none", checkpoint_interval="1 minute", allowed_delay="1 day")
        app.add(task(), FileSource(folder, timestamp="ts", schema=COLUMNS))
        world = LocalApplication(*compiled(app, core.memory()))
        world.now = NOW
        lines = dict[tuple[str, int], dict[str, str]]()
        for number, (ending, written) in enumerate(files):
            name = f"{number}.{ending}"
            text = "".join(f"{line}\n" for line in ["ts,k,n,at"] * (ending == "csv") + [line for line, _ in written])
            Path(folder, name).write_bytes(text.encode("utf-8", "surrogatepass"))
            lines.update(_lines_of(name, ending, written))
            world.start()
            world.drain()
            _compare(world, task, lines)


def _lines_of(name: str, ending: str, written: Sequence[Line]) -> dict[tuple[str, int], dict[str, str]]:
    """The lines of a file that hold a record, by their numbers, with what is known of each."""
    records, number = {}, 1 + (ending == "csv")
    for line, known in written:
        # A text of others may be several lines.
        for part in line.split("\n"):
            # A file may begin with a byte order mark.
            if (part.removeprefix("\ufeff") if number == 1 else part).removesuffix("\r"):
                records[name, number] = known
            number += 1
    return records


def _compare(world: LocalApplication, task: type[Totals], lines: dict[tuple[str, int], dict[str, str]]) -> None:
    rows = [row for table in read_sides(world.files, "app", task.__name__) for row in table.to_pylist()]
    assert all(row["reason"] for row in rows)
    aside = [(row["origin"]["file"], row["origin"]["line"]) for row in rows]
    assert len({*aside}) == len(aside), "a row is aside twice"
    assert {*aside} <= lines.keys(), "what is aside was in no file"
    state = {key: value for (key,), value in world.state(task.__name__).items()}
    counted = [known for place, known in lines.items() if place not in aside]
    assert sum(value["rows"] for value in state.values()) == len(counted), "a row is nowhere, or counts twice"
    if task is not ByTime and all(counted):
        wanted: defaultdict[Any, dict[str, int]] = defaultdict(lambda: {"rows": 0, "total": 0})
        for known in counted:
            # A text may hold control characters as they are.
            of_key = wanted[json.loads(known["k"], strict=False)]
            of_key["rows"] += 1
            of_key["total"] += int(Decimal(known["n"])) if known["n"].strip() != "null" else 0
        assert state == dict(wanted)
