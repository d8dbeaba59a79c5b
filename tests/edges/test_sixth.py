"""A sixth way in which one task feeds another, made in this file alone: the values of all keys at each hour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from monoids import List, Sum
from persistent_state import (
    Application,
    Changes,
    FileSource,
    InvalidInputError,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    run_local,
)
from persistent_state.batch.plan import Plan
from persistent_state.edges.base import Edge, Span
from persistent_state.edges.values import chunk_of, fields_of, presented, schema_of
from persistent_state.partials.layout import one_chunk
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Chunk
from persistent_state.store.state_at import seen_below
from tests import core
from tests.local_application import LocalApplication

HOUR = 3_600_000_000
MINUTE = HOUR // 60
SALES = pa.schema([("ts", pa.int64()), ("shop", pa.int64()), ("amount", pa.int64())])


@dataclass(frozen=True)
class Hourly(Edge):
    """The values of all keys of another task at each hour, whether they have changed or not."""

    task: str

    kind: ClassVar[str] = "each hour"
    every_us: ClassVar[int] = HOUR

    def schema(self, plan: Plan, fed: PersistentTask) -> pa.Schema:
        return schema_of(plan, fields_of(plan))

    def may_give(self, plan: Plan, span: Span) -> bool:
        return bool(span.runs)

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[Chunk]:
        since = max(span.since, min(run.first for run in span.runs))
        hours = range((since // HOUR + 1) * HOUR, span.clock + 1, HOUR)
        # All runs are read before the first chunk is given.
        tables = [seen_below(plan.files, span.runs, plan.layout, hour, anew=True) for hour in hours]
        for hour, table in zip(hours, tables, strict=True):
            values = presented(plan, one_chunk(table["value"]))
            yield chunk_of(plan, table, values, np.full(len(table), hour))

    def begins_with(self, fed: Plan, clock: str) -> str:
        return f"the values of {self.task} at each hour after clock={clock}"


class PerShop(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class ByTheHour(PersistentTask):
    """The values that a shop had at each hour, in order."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.int64()))

    def process_message(self, state: Any, message: Message) -> None:
        shown = message.get("after", message)
        state.update(message.timestamp, [shown["value"]])


class Rule(OrderedTask):
    key, state = "shop", pa.int64()

    def process(self, state: Any, message: Message, context: Any) -> Any:
        return message["amount"]


def application(source: Edge, task: PersistentTask | None = None) -> Application:
    app = Application("app", "memory://sixth", checkpoint_interval="10 minutes", max_ahead="100000 days")
    app.add(task or PerShop(), FileSource("in/", timestamp="ts", timestamp_unit="us", schema=SALES))
    return app.add(ByTheHour(), source)


def sales(seed: int) -> list[dict[str, int]]:
    random = Random(seed)
    times = sorted(random.randrange(5 * HOUR) for _ in range(60))
    return [{"ts": at, "shop": random.randrange(4), "amount": random.randrange(9)} for at in times]


def by_the_hour(sold: list[dict[str, int]], hours: int) -> dict[int, list[int]]:
    """The values that each shop has at so many hours."""
    found = dict[int, list[int]]()
    for hour in range(1, hours + 1):
        below = [sale for sale in sold if sale["ts"] < hour * HOUR]
        for shop in sorted({sale["shop"] for sale in below}):
            found.setdefault(shop, []).append(sum(sale["amount"] for sale in below if sale["shop"] == shop))
    return found


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_a_task_may_be_fed_in_a_sixth_way(batch_size: int) -> None:
    sold = sales(batch_size)
    messages = [Message(sale["ts"], sale) for sale in sold]
    ran = run_local(application(Hourly("PerShop")), {"PerShop": messages}, batch_size=batch_size)
    clock = ran["ByTheHour"].clocks[-1]
    assert clock > sold[-1]["ts"]
    assert ran["ByTheHour"].state == by_the_hour(sold, clock // HOUR)


def test_the_core_reads_it_step_by_step_from_all_shards() -> None:
    played, sold = LocalApplication(planned(Hourly("PerShop")), keeping=Keeping(100, 0), parts=2), sales(0)
    played.start()
    for begin in range(0, len(sold), 6):
        played.play("PerShop", [tuple(sale.values()) for sale in sold[begin : begin + 6]])
        played.steps()
    played.play("PerShop", [(6 * HOUR, 0, 1)])
    played.steps()
    assert played.clock == 6 * HOUR
    assert played.state("ByTheHour") == {(shop,): values for shop, values in by_the_hour(sold, 6).items()}


class Torn(Hourly):
    """It loses its runs the first time, once it has given something of them."""

    torn: ClassVar[list[Span]] = []

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[Chunk]:
        yield from super().read(plan, fed, span)
        if not self.torn:
            self.torn.append(span)
            raise FileNotFoundError("a run")


def test_what_was_given_is_not_given_again_when_a_run_is_gone() -> None:
    played = LocalApplication(planned(Torn("PerShop")))
    played.start()
    played.play("PerShop", [(1, 0, 5), (2 * HOUR, 0, 1)])
    with pytest.raises(FileNotFoundError, match="a run"):
        played.steps()
    assert played.state("ByTheHour", HOUR) == {}


def planned(source: Edge) -> dict[str, Plan]:
    """The plans of both tasks, whose store has two shards."""
    plans = core.compiled(application(source), shards=2)
    return {name: core.changed(plan, settings=replace(plan.settings, ahead=2**62)) for name, plan in plans.items()}


def test_it_is_named_where_it_is_refused() -> None:
    before, now = planned(Changes("PerShop", every="1 hour")), planned(Hourly("PerShop"))
    played = LocalApplication(before)
    played.start()
    for at in (1, 2 * HOUR + 1):
        played.play("PerShop", [(at, 1, 1)])
        played.steps()
    with pytest.raises(
        InvalidInputError,
        match=r'task=ByTheHour can\'t go on, as it was fed by Changes\("PerShop", every="1 hour"\) when the store was '
        r'written, and is fed by Hourly\("PerShop"\) now, .* and it loses what it has and begins with the values of PerShop '
        r"at each hour after clock=1970-01-01T02:00:00Z",
    ):
        played.start(*(replace(plan, files=played.files) for plan in now.values()))
    with pytest.raises(InvalidInputError, match=r"an ordered task feeds others .*; give it Emitted\('Rule'\)\."):
        run_local(application(Hourly("Rule"), Rule()), {"Rule": [Message(1, {"shop": 1, "amount": 1})]})
