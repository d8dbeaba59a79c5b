"""A chunk adds its updates, its rows aside, its counts and its span to the result of its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import List, Sum
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask, TaskFailedError
from persistent_state.batch.groups import Groups
from persistent_state.batch.lift import Lifted, Read, lift_chunk
from persistent_state.batch.packets import Basis
from persistent_state.batch.plan import AT_LEAST_ONCE, FAIL, FlowPlan, Plan
from persistent_state.batch.rows import MixedChunk
from persistent_state.event_time.clocks import BEGINNING, Bounds, Settings
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.protocol.commits import plan_batch
from persistent_state.sources import BadRecord
from persistent_state.sources.base import Chunk, Reach
from persistent_state.sources.files import FileSource
from persistent_state.store.log import Log
from tests import core

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.string()), ("n", pa.uint64())])
CLOCK, TOO_MUCH = 100, 2**63


class Sums(PersistentTask):
    key = "key"
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class Reads(Sums):
    reads_state = True
    value = None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        raise AssertionError("it is called after the shuffle")


class Lists(Sums):
    value = None

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.int64()))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        for n in range(message["n"]):
            state.update(message.timestamp, [n])


def planned(task: PersistentTask, position: Position | None = None) -> tuple[Plan, Basis]:
    plan = core.plan_of(task, SCHEMA, settings=Settings(10, ahead=2**62))
    basis = plan_batch(core.start(Log(plan.files, "app"), [plan]), core.alone(plan), Reach({}), 0)
    return plan, replace(basis, clock=CLOCK, positions={"p": position or Position()})


def chunk_of(rows: Sequence[tuple[Any, ...]], first: int = 0, **given: Any) -> Chunk:
    columns = zip(*rows, strict=True)
    batch = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    return Chunk("p", first, batch, **given)


def lifted(plan: Plan, basis: Basis, *chunks: Chunk) -> tuple[Read, Lifted]:
    """What is read for all tasks, and what for the only one."""
    read, found = Read(), Lifted()
    for chunk in chunks:
        lift_chunk(core.alone(plan), basis, chunk, read, [found])
    return read, found


def aside(tables: Sequence[pa.Table]) -> list[tuple[str, int | None]]:
    return [(row["reason"], row["position"]) for table in tables for row in table.to_pylist()]


ROWS = [(90, "a", 1), (110, "a", 2), (None, "b", 3), (120, "b", TOO_MUCH), (115, "b", 4)]


def test_accepted_rows_become_updates_and_the_others_step_aside() -> None:
    plan, basis = planned(Sums())
    read, found = lifted(plan, basis, chunk_of(ROWS))
    (table,) = found.tables
    assert table.select(["key0", "time", "value"]).to_pylist() == [
        {"key0": "a", "time": 110, "value": 2},
        {"key0": "b", "time": 115, "value": 4},
    ]
    assert aside(read.late) == [("no timestamp", 2), ("late", 0)]
    assert aside(found.sides) == [("value does not fit", 3)]
    assert +read.counts == {"messages": 5, "late": 1, "no timestamp": 1}
    assert read.spans == [("p", 1, 120)]


def test_a_row_whose_channel_is_named_as_one_of_another_input_steps_aside() -> None:
    plan = core.plan_of(Sums(), SCHEMA, settings=Settings(10, ahead=2**62), channel="key")
    plan = core.changed(plan, among=("", "history"))
    basis = plan_batch(core.start(Log(plan.files, "app"), [plan]), core.alone(plan), Reach({}), 0)
    read, found = lifted(plan, basis, chunk_of([(110, "a", 1), (120, "history:x", 2), (130, "b:c", 3)]))
    assert found.tables[0]["value"].to_pylist() == [1, 3]
    assert aside(read.late) == [("channel named as one of another input", 1)]
    assert [row["channel"] for row in read.late[0].to_pylist()] == ["history:x"]
    with pytest.raises(
        TaskFailedError, match="met a bad row \\(channel named as one of another input\\) at channel='history:x'"
    ):
        lifted(core.changed(plan, on_bad_row=FAIL), basis, chunk_of([(120, "history:x", 2)]))


@pytest.mark.parametrize(("lacks", "reasons"), [("n", [110, 120]), ("key", [110, 120]), ("other", [])])
def test_rows_that_lack_a_column_which_the_task_needs_step_aside_and_move_the_clock(
    lacks: str, reasons: list[int]
) -> None:
    plan, basis = planned(Sums())
    chunk = chunk_of([(110, None, 1), (90, "a", 2), (120, "a", None)], lacks=(lacks,), notes={lacks: "No."})
    read, found = lifted(plan, basis, chunk, replace(chunk, notes={lacks: "Again."}))
    assert [row["timestamp"] for table in found.sides for row in table.to_pylist()] == reasons * 2
    assert {reason for reason, _ in aside(found.sides)} <= {f"its file has no column {lacks!r}"}
    assert read.sightings.newest == {"p": 120}
    assert read.notes == {("", lacks): ["No.", "Again."]}


@pytest.mark.parametrize("files", [["ab"], ["a", "b"], ["b", "a"], ["aab", "b", "bb"]])
def test_a_record_of_json_without_its_value_makes_no_update_whatever_stands_beside_it(
    tmp_path: Path, files: list[str]
) -> None:
    lines = {"a": '{"ts": 110, "key": "a", "n": 1}\n', "b": '{"ts": 120, "key": "b"}\n'}
    for i, records in enumerate(files):
        (tmp_path / f"{i}.json").write_text("".join(lines[record] for record in records))
    source = FileSource(tmp_path, timestamp="ts", schema=SCHEMA)
    source.open([], {})
    (split,) = source.splits({}, source.reach({}, True).ends, 1)
    plan, basis = planned(Sums())
    read, found = lifted(plan, basis, *source.read(split))
    updates = [(row["key0"], row["value"]) for table in found.tables for row in table.to_pylist() if row["value"]]
    assert (updates, aside(read.late), aside(found.sides)) == ([("a", 1)] * "".join(files).count("a"), [], [])
    assert [*read.notes] == ([("", "n")] if any("a" not in records for records in files) else [])


def test_records_that_have_members_of_their_own_need_a_key_all_the_same() -> None:
    plan, basis = planned(Sums())
    chunk = chunk_of([(110, None, 1), (120, None, None)], lacks=("key", "n"), unseen=("key", "n"))
    _, found = lifted(plan, basis, chunk)
    assert aside(found.sides) == [("its file has no column 'key'", 0), ("its file has no column 'key'", 1)]


def test_the_first_rows_that_would_count_without_a_column_are_counted_by_what_no_record_of_theirs_has() -> None:
    plan, basis = planned(Sums())
    basis = replace(basis, clock=BEGINNING)
    rows = [(110, None, 1), (120, None, None), (None, None, 3)]
    for about, counted in (
        ({"unseen": ("key", "n", "other")}, {("Sums", "key"): 2, ("Sums", "n"): 2}),
        ({"lacks": ("key", "n"), "unseen": ("key", "n")}, {("Sums", "n"): 2}),
        ({"lacks": ("key", "n")}, {}),
    ):
        read, _ = lifted(plan, basis, chunk_of(rows, **about), chunk_of(rows))
        assert (read.sightings.firsts[""].rows, dict(read.sightings.firsts[""].unseen)) == (4, counted)
    # Later ones are not asked.
    later = replace(basis, begun=frozenset({""}))
    assert lifted(plan, later, chunk_of(rows, unseen=("key",)))[0].sightings.firsts == {}


def test_the_notes_of_a_chunk_without_rows_are_kept() -> None:
    plan, basis = planned(Sums())
    chunk = chunk_of([(110, "a", 1)], notes={"n": "No."})
    read, _ = lifted(plan, basis, replace(chunk, rows=chunk.rows.slice(0, 0)))
    assert read.notes == {("", "n"): ["No."]}


def test_rows_that_lack_the_channel_column_step_aside_and_are_of_no_channel() -> None:
    plan, basis = planned(Sums(), Position(1))
    plan = core.changed(plan, channel="key")
    chunk = chunk_of([(110, None, 1), (90, None, 2), (10**6, None, 3), (None, None, 4)], lacks=("key",))
    read, found = lifted(plan, basis, chunk, chunk_of([(120, "a", 5)], 4))
    assert aside(read.late) == [("its file has no column 'key'", i) for i in (1, 2, 3)]
    assert [row["row"]["n"] for row in read.late[0].to_pylist()] == [2, 3, 4]
    assert (read.sightings.newest, read.ends) == ({"a": 120}, {"p": 5})
    assert [row["value"] for table in found.tables for row in table.to_pylist()] == [5]
    with pytest.raises(TaskFailedError, match=r"met a bad row \(its file has no column 'key'\)"):
        lifted(core.changed(plan, on_bad_row=FAIL), basis, chunk)


class ByTime(Sums):
    """Sums by a time, of which one of nanoseconds can't be stored."""

    key = "at"


TIMES = pa.schema([*SCHEMA, ("at", pa.timestamp("ns"))])


def test_a_row_whose_key_does_not_fit_a_task_steps_aside_for_that_task_only() -> None:
    plans = [core.plan_of(task, TIMES, settings=Settings(10, ahead=2**62)) for task in (ByTime(), Sums())]
    flow = FlowPlan(tuple(plans))
    _, basis = planned(Sums())
    rows = [(110, "a", 1, 1000), (90, "a", 2, 1), (None, "a", 4, 1), (115, "b", 8, 1)]
    batch = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), TIMES, strict=True)], schema=TIMES
    )
    read, by_task = Read(), [Lifted(), Lifted()]
    lift_chunk(flow, basis, Chunk("p", 0, batch), read, by_task)
    # What is late or has no timestamp is that first, for both.
    assert aside(read.late) == [("no timestamp", 2), ("late", 1)]
    assert [aside(lifted.sides) for lifted in by_task] == [[("key does not fit: column at", 3)], []]
    assert [lifted.tables[0]["value"].to_pylist() for lifted in by_task] == [[1], [1, 8]]
    assert +read.counts == {"messages": 4, "late": 1, "no timestamp": 1}


def test_what_a_source_calls_unfit_for_a_task_is() -> None:
    plan, basis = planned(Sums())
    chunk = chunk_of([(110, "a", 1), (115, "b", 2), (90, "b", 4)])
    marked = chunk.rows.append_column(plan.only.unfit_column, pa.array([None, *["key does not fit: column key"] * 2]))
    read, found = lifted(plan, basis, replace(chunk, rows=marked))
    assert (aside(read.late), aside(found.sides)) == ([("late", 2)], [("key does not fit: column key", 1)])
    assert found.tables[0]["value"].to_pylist() == [1]
    # The column is not the user's.
    assert {name for table in (*read.late, *found.sides) for name in table["row"].type.names} == {*SCHEMA.names}


def test_what_was_read_before_is_counted_and_no_more() -> None:
    plan, basis = planned(Sums(), Position(next=2, accounted=((4, 112),)))
    bad = (BadRecord(1, "broken"), BadRecord(5, "broken"))
    rows = [(110, "a", 1), (111, "a", 2), (113, "b", 3), (114, "b", 4)]
    read, found = lifted(plan, basis, chunk_of(rows, bad=bad))
    # At 0 and 2 they are accounted for, at 3 one comes again that was cut back, and at 4 one is new.
    assert [table["value"].to_pylist() for table in found.tables] == [[3, 4]]
    assert +read.counts == {"messages": 2, "skipped": 2, "replayed": 1, "broken": 1}
    assert (aside(read.late), found.sides) == ([("broken", 5)], [])
    assert read.spans == [("p", 3, 114)]


def test_a_chunk_of_which_nothing_is_accepted_adds_no_update_and_no_span() -> None:
    plan, basis = planned(Sums())
    read, found = lifted(plan, basis, chunk_of([(90, "a", 1), (None, "a", 1)]))
    assert (found.tables, read.spans) == ([], [])
    assert read.ends == {"p": 2}


def test_a_replay_starts_where_the_chunk_says_but_not_before_what_is_accounted_for() -> None:
    plan, basis = planned(Sums(), Position(next=5))
    some = [(110, "a", 1)]
    nowhere = np.array([NO_POSITION])
    chunks = [
        chunk_of(some, 7),
        chunk_of(some, 8, replay=6),
        chunk_of(some, 9, replay=3),
        chunk_of(some, NO_POSITION, at=nowhere),
    ]
    assert [span for chunk in chunks for span in lifted(plan, basis, chunk)[0].spans] == [
        ("p", 7, 110),
        ("p", 6, 110),
        ("p", 5, 110),
        ("p", 5, 110),
    ]


def test_only_ends_that_nobody_planned_are_told() -> None:
    plan, basis = planned(Sums())
    chunks = [chunk_of([(110, "a", 1)] * 3, first) for first in (6, 2)]
    assert lifted(plan, basis, *chunks)[0].ends == {"p": 9}
    assert lifted(plan, replace(basis, ends={"p": 9}), *chunks)[0].ends == {}


def test_a_row_without_a_position_does_not_say_how_far_its_partition_goes() -> None:
    plan, basis = planned(Sums())
    rows = chunk_of([(110, "a", 1)] * 3, 3, at=np.array([3, NO_POSITION, 4]))
    assert lifted(plan, basis, rows)[0].ends == {"p": 5}


def test_rows_without_a_position_below_the_restored_clock_are_counted() -> None:
    plan, basis = planned(Sums())
    rows = chunk_of([(90, "a", 1), (110, "a", 2), (112, "a", 4)], NO_POSITION, at=np.array([NO_POSITION] * 3))
    read, found = lifted(plan, replace(basis, restored=111), rows)
    assert +read.counts == {"messages": 1, "replayed or late": 2}
    assert [table["value"].to_pylist() for table in found.tables] == [[4]]


def test_rows_outside_the_bounds_of_an_input_are_counted_when_they_are_first_read() -> None:
    plan, basis = planned(Sums(), Position(next=2, accounted=((5, 112),)))
    plan = core.changed(plan, settings=replace(plan.settings, bounds=Bounds(since=150)))
    read, _ = lifted(plan, basis, chunk_of([(120, "a", 1)] * 5, first=2))
    assert read.counts["outside"] == 2


def test_messages_taken_late_are_at_the_clock() -> None:
    plan, basis = planned(Sums())
    _, found = lifted(replace(plan, delivery=AT_LEAST_ONCE), basis, chunk_of([(90, "a", 1), (110, "a", 2)]))
    assert found.tables[0]["time"].to_pylist() == [CLOCK, 110]


def test_a_task_that_reads_its_state_gets_its_rows_whole_and_in_order() -> None:
    plan, basis = planned(Reads())
    (table,) = lifted(plan, basis, chunk_of(ROWS))[1].tables
    assert table["row"].to_pylist()[0] == {"ts": 110, "key": "a", "n": 2}
    assert table["position"].to_pylist() == [1, 3, 4]
    assert set(table["strand"].to_pylist()) == {"p"}


def test_updates_of_an_ordered_monoid_keep_their_order() -> None:
    plan, basis = planned(Lists())
    (table,) = lifted(plan, basis, chunk_of([(110, "a", 2), (110, "a", 0), (105, "b", 1)], first=4))[1].tables
    places = ["time", "channel", "position", "strand", "number"]
    assert [tuple(row.values()) for row in table.select(places).to_pylist()] == [
        (110, "p", 4, "p", 0),
        (110, "p", 4, "p", 1),
        (105, "p", 6, "p", 0),
    ]


@pytest.mark.parametrize(
    ("row", "bad", "reason"),
    [
        ((None, "a", 1), (), "no timestamp"),
        ((110, "a", TOO_MUCH), (), f"value does not fit, column 'n': Sum: value={TOO_MUCH} does not fit .*"),
        ((110, "a", 1), (1,), "broken"),
    ],
)
def test_bad_rows_fail_where_that_is_wanted_and_late_ones_do_not(
    row: tuple[Any, ...], bad: tuple[int, ...], reason: str
) -> None:
    plan, basis = planned(Sums())
    plan = core.changed(plan, on_bad_row=FAIL)
    lifted(plan, basis, chunk_of([(90, "a", 1)]))
    records = tuple(BadRecord(position, "broken") for position in bad)
    with pytest.raises(TaskFailedError, match=rf"met a bad row \({reason}\)"):
        lifted(plan, basis, chunk_of([row], bad=records))


PAIRS = st.tuples(st.integers(5, 9), st.integers(90, 200))


@given(
    st.lists(st.tuples(st.integers(90, 200), st.sampled_from("pqr"), st.integers(0, 9)), min_size=1, max_size=30),
    st.dictionaries(
        st.sampled_from("pqr"),
        st.builds(Position, st.integers(0, 5), st.lists(PAIRS, max_size=2).map(tuple)),
    ),
)
def test_a_chunk_of_many_partitions_adds_what_a_chunk_of_each_adds(
    rows: list[tuple[int, str, int]], positions: dict[str, Position]
) -> None:
    plan, basis = planned(Lists())
    basis = replace(basis, positions=positions)

    def chunk_with(some: list[tuple[int, str, int]], kind: type[Chunk], **given: Any) -> Chunk:
        columns = [[stamp for stamp, _, _ in some], [name for _, name, _ in some], [1] * len(some)]
        batch = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
        at = np.array([position for _, _, position in some])
        return kind(given.pop("partition", ""), int(at.min()), batch, at=at, **given)

    of = Groups.of_column(pa.array([name for _, name, _ in rows]))
    read, together = lifted(plan, basis, chunk_with(rows, MixedChunk, partitions=of, channels=of))
    names = sorted({name for _, name, _ in rows})
    read_apart, apart = lifted(
        plan, basis, *(chunk_with([r for r in rows if r[1] == name], Chunk, partition=name) for name in names)
    )

    def shown(tables: list[pa.Table]) -> list[str]:
        return sorted(str(row) for table in tables for row in table.to_pylist())

    assert (shown(together.tables), shown(read.late)) == (shown(apart.tables), shown(read_apart.late))
    assert (sorted(read.spans), read.ends) == (sorted(read_apart.spans), read_apart.ends)
    assert (+read.counts, read.sightings) == (+read_apart.counts, read_apart.sightings)
