"""Two outputs with one place, however it is written, are refused: each would leave out rows of the other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from monoids import Sum
from persistent_state import (
    Application,
    ConsoleSink,
    DeltaSink,
    FileSource,
    InvalidInputError,
    KafkaSink,
    NonWindowState,
    ParquetSink,
    PersistentTask,
    SqlSink,
    ValuesAtClock,
)
from persistent_state.sinks import Sink
from tests.page_code import run

PAGE = Path(__file__).parents[1] / "docs" / "write-a-sink.md"
SOURCE = FileSource("in", timestamp="ts")


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class More(Total):
    pass


ONE_PLACE: list[tuple[Sink, Sink]] = [
    (ParquetSink("out"), ParquetSink(f"{Path.cwd()}/in/../out/", files=4)),
    (ParquetSink("out"), ParquetSink(f"file://{Path.cwd()}/out")),
    (ParquetSink("s3a://lake/out"), ParquetSink("s3://lake/out/")),
    (ParquetSink("out"), DeltaSink("out")),
    (DeltaSink("out"), DeltaSink(f"file://{Path.cwd()}/out/")),
    (SqlSink("a.db", "t"), SqlSink(f"sqlite:///{Path.cwd()}/a.db?timeout=5", "T", history=True)),
    (
        SqlSink("postgresql://me:a@b:c@h/d", "t"),
        SqlSink("postgresql+psycopg://me@H:5432/d", "t", history=True),
    ),
    (KafkaSink("t", "a:1,b:1"), KafkaSink("t", "b:1", partitions=2)),
]
APART: list[tuple[Sink, Sink]] = [
    (ParquetSink("out"), ParquetSink("out/more")),
    (
        ParquetSink("s3://lake/out", storage_options={"endpoint_url": "http://a"}),
        ParquetSink("s3://lake/out", storage_options={"endpoint_url": "http://b"}),
    ),
    (SqlSink("a.db", "t"), SqlSink("a.db", "u")),
    (SqlSink("a?1.db", "t"), SqlSink("a?2.db", "t")),
    (SqlSink("postgresql://h/d", "t"), SqlSink("postgresql://h/d", "T")),
    (SqlSink("postgresql://h/d", "t"), SqlSink("postgresql://h:5433/d", "t")),
    (SqlSink("postgresql://me:x@h/d", "t"), SqlSink("postgresql://you:x@h/d", "t")),
    (SqlSink("postgresql:///d?host=/a", "t"), SqlSink("postgresql:///d?host=/b", "t")),
    (KafkaSink("t", "a:1"), KafkaSink("t", "b:1")),
    (KafkaSink("t", "a:1"), KafkaSink("t", "a:1", bookkeeping="other")),
    (ConsoleSink(), ConsoleSink()),
]


@pytest.mark.parametrize(("one", "other"), ONE_PLACE, ids=str)
def test_outputs_of_one_place_are_refused(one: Sink, other: Sink) -> None:
    for first, second in ((one, other), (other, one)):
        named = [ValuesAtClock(first, name="a"), ValuesAtClock(second, all=True, name="b")]
        with pytest.raises(InvalidInputError) as caught:
            Application("app", "store").add(Total(), SOURCE, named)
        assert str(caught.value) == (
            f"task=Total, sink='b' writes to the place of task=Total, sink='a', {second.name}, where one record tells which "
            "clocks were written: each would leave out rows of the other; give each a place of its own."
        )
        app = Application("app", "store").add(Total(), SOURCE, ValuesAtClock(first, name="a"))
        add = partial(app.add, More(), SOURCE, ValuesAtClock(second, name="b"))
        if isinstance(one, KafkaSink):
            # Each task has records of its own, and may write to the topic of another.
            add()
        else:
            with pytest.raises(
                InvalidInputError, match=r"^task=More, sink='b' writes to the place of task=Total, sink='a', "
            ):
                add()


def test_a_place_is_named_once_where_outputs_have_no_names_of_their_own() -> None:
    sink = SqlSink("a.db", "t")
    with pytest.raises(
        InvalidInputError, match=f"^task=More writes to the place of task=Total, {sink.name}, where one record"
    ):
        Application("app", "store").add(Total(), SOURCE, sink).add(More(), SOURCE, sink)


@pytest.mark.parametrize(("one", "other"), APART, ids=str)
def test_outputs_of_two_places_are_taken(one: Sink, other: Sink) -> None:
    Application("app", "store").add(Total(), SOURCE, [ValuesAtClock(one, name="a"), ValuesAtClock(other, name="b")])


def test_a_place_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    named = [ValuesAtClock(ParquetSink(tmp_path / name), name=name) for name in ("real", "link")]
    with pytest.raises(InvalidInputError, match="sink='link' writes to the place of task=Total, sink='real'"):
        Application("app", "store").add(Total(), SOURCE, named)


@pytest.mark.parametrize("name", ["JsonLines", "Newest"])
def test_a_place_of_the_sinks_of_the_guide_is_refused_to_a_second_task(name: str) -> None:
    names: dict[str, Any] = {}
    run(PAGE.read_text(encoding="utf-8").partition("## Test it")[0], names)
    place = names[name]
    app = Application("app", "store").add(Total(), SOURCE, place("out"))
    with pytest.raises(
        InvalidInputError, match=r"^task=More writes to the place of task=Total, .*; give each a place of its own"
    ):
        app.add(More(), SOURCE, place(f"{Path.cwd()}/in/../out"))
    app.add(More(), SOURCE, place("other"))
