"""A sink of the former interface goes on: alone, above a sink of the library, or before one that it hands its DataFrame to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persistent_state import ConsoleSink, DeltaSink, KafkaSink, ParquetSink, SqlSink
from persistent_state.sinks.base import RecordingSink, Sink
from persistent_state.sinks.values import LocalValues, values_of
from tests.sentences import problem
from tests.sinks.test_going_back import ORIGIN, PLACES, given


@dataclass(frozen=True)
class Frame:
    """What stands for a DataFrame of Spark's."""

    table: pa.Table


class Framed(LocalValues):
    """Values that come as a DataFrame, too."""

    def to_spark(self) -> Any:
        return Frame(pa.Table.from_batches(self.batches(), self.schema))


values_of.register(Frame, lambda frame: LocalValues.of(frame.table))


def above(frame: Frame, least: int) -> Frame:
    return Frame(frame.table.filter(pc.field("value") > least))


def framed(clock: int, values: dict[str | None, int]) -> Framed:
    return Framed(ORIGIN.schema, given(clock, values).readers)


def deprecated() -> AbstractContextManager[Any]:
    return pytest.warns(DeprecationWarning, match=r"write\(\) is given a DataFrame, which is deprecated")


def test_a_sink_of_the_former_interface_warns_once_and_says_what_to_do() -> None:
    with deprecated() as warned:

        class Former(Sink):
            name = "former"

            def write(self, values: object, clock: int) -> None: ...

    (warning,) = warned
    assert str(warning.message) == (
        f"{Former.__qualname__}.write() is given a DataFrame, which is deprecated; define write_values(values, clock), which "
        "reads values.batches(), and rewind(clock, values) likewise."
    )
    assert warning.filename == __file__

    class Later(Former):
        """It gives no warning of its own."""

    assert Later.write_values is Former.write_values


def large_of(kind: type[Sink]) -> Any:
    """A subclass of a sink that leaves small values out, as people wrote it."""
    with deprecated():

        class Large(kind):  # type: ignore[misc, valid-type]
            def write(self, values: Frame, clock: int) -> None:
                super().write(above(values, 4), clock)

    return Large


SINKS: dict[str, tuple[type[Sink], Callable[[Any, str], Any]]] = {
    "newest rows in SQL": (SqlSink, lambda kind, folder: kind(f"{folder}/values.db", "words")),
    "history in SQL": (SqlSink, lambda kind, folder: kind(f"{folder}/values.db", "words", history=True)),
    "Delta": (DeltaSink, lambda kind, folder: kind(folder)),
    "Parquet": (ParquetSink, lambda kind, folder: kind(folder)),
}


@pytest.mark.parametrize("place", SINKS)
def test_a_subclass_of_a_sink_of_the_library_that_overrides_write_goes_on(place: str, tmp_path: Path) -> None:
    kind, make = SINKS[place]
    large, rows_in = large_of(kind), PLACES[place](str(tmp_path)).rows_in
    sink = make(large, str(tmp_path))
    assert sink.open(ORIGIN) is None
    sink.write_values(framed(10, {"ann": 3, "bob": 7}), 10)
    sink.write_values(framed(20, {"ann": 5, "bob": 2}), 20)
    sink.write_values(framed(20, {"ann": 9}), 20)
    newest = [(10, "bob", 7), (20, "ann", 5)]
    assert sorted(rows_in()) == newest
    sink = make(large, str(tmp_path))
    assert sink.open(replace(ORIGIN, timeline=1)) == 20
    sink.rewind(10, framed(10, {"ann": 3, "bob": 7}))
    assert [row for row in rows_in() if row[1] == "bob"] == [(10, "bob", 7)]
    assert [row[2] for row in rows_in() if row[1] == "ann"] == ([3] if place == "newest rows in SQL" else [])


def test_a_subclass_of_the_console_prints_what_it_hands_on(capsys: pytest.CaptureFixture[str]) -> None:
    sink = large_of(ConsoleSink)()
    sink.open(ORIGIN)
    sink.write_values(framed(10, {"ann": 3, "bob": 7}), 10)
    printed = capsys.readouterr().out
    assert ("ann" in printed, "bob" in printed) == (False, True)


class Kept(RecordingSink):
    """It keeps its rows in memory, and can't go back."""

    name = "kept"

    def __init__(self) -> None:
        self.rows: list[int] = []

    def open(self, origin: object) -> None: ...

    def write_values(self, values: Any, clock: int) -> None:
        self.rows += [value for batch in values.batches() for value in batch["value"].to_pylist()]


def test_a_sink_of_todays_interface_may_stand_above_one_of_the_former() -> None:
    large = large_of(Kept)

    class Doubled(large):  # type: ignore[misc, valid-type]
        def write_values(self, values: Any, clock: int) -> None:
            super().write_values(values, clock)
            super().write_values(values, clock)

    for kind, wanted in ((large, [5, 6]), (Doubled, [5, 6, 5, 6])):
        sink = kind()
        sink.write_values(framed(10, {"a": 4, "b": 5, "c": 6}), 10)
        assert sink.rows == wanted
    # A user's class is sent to workers by value.
    assert cloudpickle.loads(cloudpickle.dumps(sink)).rows == wanted


def test_a_sink_may_hand_its_data_frame_to_others() -> None:
    first, second = Kept(), Kept()
    with deprecated():

        class Both(Sink):
            name = "both"

            def write(self, values: Frame, clock: int) -> None:
                first.write(values, clock)  # type: ignore[attr-defined]
                second.write(above(values, 5), clock)  # type: ignore[attr-defined]

    Both().write_values(framed(10, {"b": 5, "c": 6}), 10)
    assert (first.rows, second.rows) == ([5, 6], [6])
    said = problem(lambda: first.write([5], 10))  # type: ignore[attr-defined]
    assert said == (
        "write() of a sink was given list, not a DataFrame that the library has made; call write_values(values, clock)."
    )


def test_a_sink_of_todays_interface_keeps_a_write_of_its_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Own(Kept):
            def write_values(self, values: Any, clock: int) -> None:
                self.write("written")

            def write(self, text: str) -> None:
                self.rows.append(len(text))

        class Later(Own):
            def write_values(self, values: Any, clock: int) -> None:
                self.write("later")

    for sink, wanted in ((Own(), 7), (Later(), 5)):
        sink.write_values(LocalValues.of(pa.table({"value": [1]})), 10)
        assert sink.rows == [wanted]


def test_a_rewind_of_the_former_interface_calls_its_values() -> None:
    values = given(10, {"ann": 3})
    with pytest.warns(DeprecationWarning, match=r"values\(\) is deprecated; read values\.batches\(\)"):
        rows = [row for batch in values() for row in batch.to_pylist()]
    assert [(row["word"], row["value"]) for row in rows] == [("ann", 3)]


def handing_on(kind: type[Sink]) -> Any:
    """A subclass of a sink that leaves small values out of those that it goes back to, as people wrote it."""

    class Large(kind):  # type: ignore[misc, valid-type]
        def rewind(self, clock: int, values: Any) -> None:
            super().rewind(clock, lambda: (batch.filter(pc.field("value") > 4) for batch in values.batches()))

    return Large


def handed_on() -> AbstractContextManager[Any]:
    sentence = r"was given a function, which is deprecated; give LocalValues\(values\.schema, \[function\]\)\.$"
    return pytest.warns(DeprecationWarning, match=rf"^rewind\(\) of a sink {sentence}")


def test_a_rewind_of_the_former_interface_hands_a_function_on_to_a_sql_sink(tmp_path: Path) -> None:
    sink = handing_on(SqlSink)(f"{tmp_path}/values.db", "words")
    sink.open(ORIGIN)
    sink.write_values(framed(20, {"bob": 9}), 20)
    sink.open(replace(ORIGIN, timeline=1))
    with handed_on() as warned:
        sink.rewind(10, framed(10, {"ann": 3, "bob": 7}))
    assert PLACES["newest rows in SQL"](str(tmp_path)).rows_in() == [(10, "bob", 7)]
    assert [warning.filename for warning in warned] == [__file__]


def test_a_rewind_of_the_former_interface_hands_a_function_on_to_a_kafka_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        def rewind(self, clock: int, parts: int, values: Callable[[], Any], encode: object) -> None:
            # It may read them again.
            self.rows = [[row["word"] for batch in values() for row in batch.to_pylist()] for _ in range(2)]

    writer = Writer()
    monkeypatch.setattr(KafkaSink, "_writer", lambda self: writer)
    sink = handing_on(KafkaSink)("words", "127.0.0.1:1")
    sink._origin = ORIGIN
    with handed_on() as warned:
        sink.rewind(10, framed(10, {"ann": 3, "bob": 7}))
    assert writer.rows == [["bob"], ["bob"]]
    assert [warning.filename for warning in warned] == [__file__]
