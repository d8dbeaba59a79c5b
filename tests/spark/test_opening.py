"""Sinks are opened beside the state: a start waits for none that does not answer, and refuses one that can't work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from monoids import Sum
from persistent_state import (
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    SqlSink,
    StateError,
    StoreUnavailableError,
    ValuesAtClock,
)
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.drive import backoff
from persistent_state.engine.run.spark_engine import SparkEngine
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.takeover import take_over
from persistent_state.run import deliveries
from persistent_state.run.deliveries import Deliveries, Delivery
from persistent_state.sinks import Origin, RecordingSink, Sink
from persistent_state.sinks.sql import CLOCKS
from persistent_state.store.log import Log
from tests import core
from tests.store.servers import Servers, needed
from tests.waiting import PATIENCE, until

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.string()), ("n", pa.int64())])


COLUMNS = pa.schema([("key", pa.string()), ("clock", pa.int64()), ("value", pa.int64())])
ORIGIN = Origin("app", "Total", ("key",), COLUMNS)


class Total(PersistentTask):
    key, value = "key", "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Place(RecordingSink):
    """A sink that answers when it may, and then with this."""

    def __init__(self, name: str, answer: int | Exception = BEGINNING) -> None:
        self._name = name
        self.answer = answer
        self.may_answer = threading.Event()
        self.opened = 0

    def __copy__(self) -> Place:
        return self

    @property
    def name(self) -> str:
        return self._name

    def open(self, origin: Origin) -> int | None:
        self.opened += 1
        self.may_answer.wait(PATIENCE)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def write_values(self, values: Any, clock: int) -> None:
        raise NotImplementedError


def plan_of(*sinks: Sink) -> Plan:
    plan = core.plan_of(Total(), SCHEMA)
    return Plan(**{**vars(plan), "outputs": tuple(sink.name for sink in sinks)})


def deliveries_of(plan: Plan, *sinks: Sink) -> Deliveries:
    spark: Any = None
    log = Log(plan.files, plan.application)
    return Deliveries([Delivery(SparkEngine(spark), plan, ValuesAtClock(sink), log, 0) for sink in sinks])


def recorded(plan: Plan) -> dict[str, int]:
    """How far each output has come, as the log has it."""
    newest = Log(plan.files, "app").newest()
    assert newest is not None
    return dict(newest.tasks["Total"].outputs.delivered)


def running(plan: Plan) -> int:
    """Take the application over; the number of the start."""
    entry = take_over(Log(plan.files, "app"), [FlowPlan((plan,))], interval=10, shards=1, writer="w", now=0)
    return entry.epoch


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "OPEN_SECONDS", 0.3)
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.05)


def test_a_sink_that_does_not_answer_holds_up_no_start_and_is_told_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow, quick = Place("slow"), Place("quick")
    quick.may_answer.set()
    plan = plan_of(slow, quick)
    every = deliveries_of(plan, slow, quick)
    every.open()
    (told,) = (message for message in caplog.messages if "'slow'" in message)
    assert told.startswith(
        "task=Total, sink='slow': the sink did not open within 0.3 s. The application starts without it; "
    )
    epoch = running(plan)
    every.start(lambda: epoch)
    until(lambda: quick.opened == 1, "the sink that answers")
    assert slow.opened == 1
    slow.may_answer.set()
    every.drain(threading.Event())
    # It was opened once, by the thread that had begun to.
    assert (slow.opened, quick.opened) == (1, 1)
    assert [message for message in caplog.messages if "'slow'" in message] == [told]


def test_a_stop_does_not_wait_for_a_sink_that_does_not_answer() -> None:
    slow = Place("slow")
    plan = plan_of(slow)
    every = deliveries_of(plan, slow)
    every.open()
    epoch = running(plan)
    every.start(lambda: epoch)
    every.stop(PATIENCE)
    assert not any(one.is_alive for one in every._all)
    assert not slow.may_answer.is_set()
    slow.may_answer.set()


def test_a_run_does_not_end_well_without_a_sink_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "END_SECONDS", 0.3)
    slow = Place("slow")
    plan = plan_of(slow)
    every = deliveries_of(plan, slow)
    every.open()
    epoch = running(plan)
    every.start(lambda: epoch)
    with pytest.raises(StoreUnavailableError, match="sink='slow': the sink did not open within"):
        every.drain(threading.Event())
    slow.may_answer.set()


def test_what_is_refused_at_once_refuses_the_start_though_another_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deliveries, "OPEN_SECONDS", PATIENCE)
    slow, wrong = Place("slow"), Place("wrong", InvalidInputError("other columns; name another."))
    wrong.may_answer.set()
    plan = plan_of(wrong, slow)
    with pytest.raises(InvalidInputError, match="sink='wrong': other columns"):
        deliveries_of(plan, wrong, slow).open()
    slow.may_answer.set()


def test_what_is_refused_late_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    late = Place("late", InvalidInputError("other columns; name another."))
    plan = plan_of(late)
    every = deliveries_of(plan, late)
    every.open()
    epoch = running(plan)
    every.start(lambda: epoch)
    late.may_answer.set()
    until(lambda: late.opened > 1, "the next try")
    every.stop(PATIENCE)
    assert "sink='late': other columns; name another. The delivery is tried again in" in caplog.text
    with pytest.raises(StateError, match="other columns"):
        every.drain(threading.Event())


@contextmanager
def locked(engine: sa.Engine) -> Iterator[None]:
    """While this lasts, another writer is in the middle of a transaction, as a driver that was paused is."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
        else:
            connection.exec_driver_sql(f"LOCK TABLE {CLOCKS} IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.stores)])
def test_a_lock_that_another_holds_on_a_database_holds_up_no_start(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "sqlite":
        url = str(tmp_path / "values.db")
        engine = sa.create_engine(f"sqlite:///{url}", poolclass=NullPool)
    else:
        servers: Servers = request.getfixturevalue("servers")
        with needed():
            server = servers["postgresql"]
        server.make("opening")
        url, _ = server.address("opening", server.ports)
        engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    tables = [SqlSink(url, "one"), SqlSink(url, "two")]
    plan = plan_of(*tables)
    for table in tables:
        table.open(ORIGIN)
    with locked(engine):
        every = deliveries_of(plan, *tables)
        every.open()
        assert len(caplog.messages) == 2
        assert all("the sink did not open within 0.3 s" in told for told in caplog.messages)
        epoch = running(plan)
        every.start(lambda: epoch)
        assert set(recorded(plan).values()) == {BEGINNING}
    # Now both are opened, by what was waiting for the lock.
    every.drain(threading.Event())
    assert len(caplog.messages) == 2


def test_a_database_that_is_locked_is_asked_once(tmp_path: Path) -> None:
    path = tmp_path / "values.db"
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    impatient = SqlSink(f"sqlite:///{path}?timeout=0.2", "one")
    tries: list[str] = []
    prepare = SqlSink._prepare

    def count(self: SqlSink, *given: Any) -> int:
        tries.append(self.table)
        return prepare(self, *given)

    with pytest.MonkeyPatch.context() as patch, locked(engine):
        patch.setattr(SqlSink, "_prepare", count)
        with pytest.raises(StateError, match="database is locked"):
            impatient.open(ORIGIN)
    assert tries == ["one"]
