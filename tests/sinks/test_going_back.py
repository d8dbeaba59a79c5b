"""After any clocks and rewinds, each sink holds what its state holds. No Spark is needed."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import deltalake
import hypothesis
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import example, settings
from hypothesis import strategies as st
from sqlalchemy.pool import NullPool

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask, ValuesAtClock
from persistent_state.drive.output_sink import OutputSink
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol import rewind
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.rewind_plan import RETRACT
from persistent_state.sinks.base import Origin, RecordingSink
from persistent_state.sinks.delta import DeltaSink
from persistent_state.sinks.parquet import ParquetSink
from persistent_state.sinks.sql import SqlSink
from persistent_state.sinks.values import LocalValues
from persistent_state.store.log import Log
from tests import core
from tests.page_code import run
from tests.soak import soak_or

SCHEMA = pa.schema([("word", pa.string()), ("clock", pa.timestamp("us", "UTC")), ("value", pa.int64())])
ORIGIN = Origin("app", "Words", ("word",), SCHEMA)
PAGE = Path(__file__).parents[2] / "docs" / "write-a-sink.md"

State = Mapping[str | None, int]
Row = tuple[int, str | None, int]

EXAMPLES = soak_or(ci=15, soak=500)


@dataclass(frozen=True)
class Clock:
    """The application comes to its next clock: these keys have these values there, and keys that have none are forgotten."""

    changes: dict[str | None, int | None]
    is_up: bool = True


@dataclass(frozen=True)
class Back:
    """The application goes back to one of its clocks, or to the beginning."""

    place: int
    is_up: bool = True


KEYS = st.sampled_from(["ann", "Ann", "bob", None])
STEPS = st.lists(
    st.one_of(
        st.builds(Clock, st.dictionaries(KEYS, st.one_of(st.none(), st.integers(1, 9)), max_size=3), st.booleans()),
        st.builds(Back, st.integers(0, 5), st.booleans()),
    ),
    max_size=14,
)


def given(clock: int, values: Mapping[str | None, int]) -> LocalValues:
    """Rows at a clock, one a batch, and a batch without rows."""
    rows = [{"word": word, "clock": clock, "value": value} for word, value in values.items()]
    whole = SCHEMA.set(1, pa.field("clock", pa.int64()))
    batches = [pa.RecordBatch.from_pylist(some, whole).cast(SCHEMA) for some in ([], *([row] for row in rows))]
    return LocalValues(SCHEMA, (lambda: batches,))


@dataclass
class Played:
    """A sink that is given the clocks of an application and goes back with it, and what it must hold."""

    make: Callable[[], RecordingSink]
    rows_in: Callable[[], list[Row]]
    has_history: bool
    has_null: bool = True
    states: dict[int, State] = field(default_factory=dict)
    given: list[Row] = field(default_factory=list)
    last: int = BEGINNING
    timeline: int = 0
    owed: int | None = None

    def play(self, step: Clock | Back) -> None:
        if isinstance(step, Clock):
            newest = max(self.states, default=0)
            changed = {**self.states.get(newest, {}), **step.changes}
            is_there = {key: value for key, value in changed.items() if key is not None or self.has_null}
            self.states[newest + 10] = {key: value for key, value in is_there.items() if value is not None}
        else:
            clocks = [BEGINNING, *self.states]
            to = clocks[step.place % len(clocks)]
            self.timeline += 1
            self.states = {clock: state for clock, state in self.states.items() if clock <= to}
            self.owed = to if self.owed is None else min(self.owed, to)
        if step.is_up:
            self.follow(isinstance(step, Clock))
            self.check()

    def follow(self, is_given: bool) -> None:
        """Let the sink go back as it owes, and give it the clocks that it lacks."""
        sink = self.make()
        known = sink.open(replace(ORIGIN, timeline=self.timeline))
        if self.owed is not None:
            owed = self.owed
            sink.rewind(owed, given(owed, self.states[owed] if owed != BEGINNING else {}))
            self.given = [row for row in self.given if row[0] <= owed]
            self.last, self.owed = min(self.last, owed), None
        else:
            assert known == (None if self.last == BEGINNING else self.last)
        for clock in [each for each in self.states if each > self.last] if is_given else ():
            before, now = self.states.get(self.last, {}), self.states[clock]
            # A key that is gone is given once more, with the value of none.
            changed = {
                **dict.fromkeys(before.keys() - now, 0),
                **{k: v for k, v in now.items() if before.get(k) != v},
            }
            sink.write_values(given(clock, changed), clock)
            self.given += [(clock, key, value) for key, value in changed.items()]
            self.last = clock

    def check(self) -> None:
        rows = self.rows_in()
        if self.has_history:
            assert sorted(rows, key=repr) == sorted(self.given, key=repr)
        newest = {word: value for _, word, value in sorted(rows, key=lambda row: row[0])}
        assert self.has_history or len(newest) == len(rows)
        assert {word: value for word, value in newest.items() if value} == self.states.get(self.last, {})


def as_rows(table: pa.Table) -> list[Row]:
    clocks = table["clock"].cast(pa.int64()).to_pylist()
    return list(zip(clocks, table["word"].to_pylist(), table["value"].to_pylist(), strict=True))


def in_sql(folder: str, history: bool) -> Played:
    path = os.path.join(folder, "values.db")

    def rows() -> list[Row]:
        with sa.create_engine(f"sqlite:///{path}", poolclass=NullPool).connect() as connection:
            found = connection.execute(sa.select(sa.Table("words", sa.MetaData(), autoload_with=connection)))
            return as_rows(pa.Table.from_pylist([row._asdict() for row in found], SCHEMA))

    return Played(lambda: SqlSink(path, "words", history=history), rows, history)


def in_delta(folder: str) -> Played:
    return Played(
        lambda: DeltaSink(folder), lambda: as_rows(pa.table(deltalake.DeltaTable(folder).to_pyarrow_table())), True
    )


def in_parquet(folder: str) -> Played:
    return Played(lambda: ParquetSink(folder), lambda: as_rows(ParquetSink(folder).dataset().to_table()), True)


def in_the_page(folder: str) -> Played:
    """The sink of `docs/write-a-sink.md` that can go back."""
    names: dict[str, Any] = {}
    run(PAGE.read_text(encoding="utf-8").partition("## Test it")[0], names)
    path = os.path.join(folder, "words.db")

    def rows() -> list[Row]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT clock, word, value FROM words").fetchall()

    return Played(lambda: names["Newest"](path), rows, has_history=False, has_null=False)


PLACES: dict[str, Callable[[str], Played]] = {
    "newest rows in SQL": lambda folder: in_sql(folder, False),
    "history in SQL": lambda folder: in_sql(folder, True),
    "Delta": in_delta,
    "Parquet": in_parquet,
    "a sink of one's own": in_the_page,
}

GONE_AND_BACK = [Clock({"bob": 7}), Clock({"bob": None}), Clock({"bob": 9}), Back(2), Back(1)]
"""A key that the first rewind takes away was there at the clock of the second."""


@pytest.mark.parametrize("place", PLACES)
def test_a_sink_holds_what_its_state_holds_after_any_rewinds(place: str) -> None:
    @settings(max_examples=EXAMPLES)
    @hypothesis.given(STEPS)
    @example(GONE_AND_BACK)
    @example([*GONE_AND_BACK[:3], Back(3), Back(2), Back(1)])
    def play(steps: list[Clock | Back]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            played = PLACES[place](folder)
            for step in steps:
                played.play(step)

    play()


class Words(PersistentTask):
    """The sum of each word, until it has had no message for longer than 12 microseconds."""

    key, value, name = "word", "n", "words"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum(), ttl=core.us(12))


def test_a_key_that_expired_and_came_again_is_in_the_table_after_two_rewinds(tmp_path: Path) -> None:
    """A table of newest values follows an application that is taken back, and then further back."""
    sink = SqlSink(tmp_path / "values.db", "words")
    schema = pa.schema([("ts", pa.int64()), ("word", pa.string()), ("n", pa.int64())])
    plan = replace(core.plan_of(Words(), schema, shards=2), outputs=(sink.name,))
    log, place = Log(plan.files, plan.application), OutputSink(plan, ValuesAtClock(sink))

    def rows() -> dict[str, int]:
        with closing(sqlite3.connect(tmp_path / "values.db")) as database:
            return {word: value for word, value in database.execute("SELECT word, value FROM words") if value}

    core.start(log, [plan])
    for time in range(5, 75, 10):
        words = ["ann", "bob"] if time in (5, 45) else ["ann"]
        messages = [{"ts": time, "word": word, "n": time} for word in words]
        core.play(log, plan, pa.RecordBatch.from_pylist(messages, schema), keeping=Keeping(20))
    giver = place.giver(log, place.write_here, lambda: 0)
    while giver.give_next(core.newest(log).epoch):
        pass
    assert rows() == {"ann": 5 + 15 + 25 + 35 + 45 + 55}
    for to, there in ((30, {"ann": 45}), (10, {"ann": 5, "bob": 5})):
        rewind.rewind(log, core.plan_rewind(log, to, RETRACT), writer=f"back to {to}", now=0)
        place.giver(log, place.write_here, lambda: 0).follow(core.newest(log).epoch)
        assert rows() == there == {word: value for (word,), value in core.state_at(core.newest(log), plan, to).items()}
