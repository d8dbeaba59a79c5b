"""How many queries of an application start at a time, and what becomes of those that the machine was too slow for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from persistent_state.drive import backoff
from persistent_state.drive.backoff import Patience
from persistent_state.engine.run import queries
from persistent_state.engine.run.queries import AT_ONCE, Queries
from persistent_state.run.feeds import FedTask
from tests import core
from tests.run.test_start_checks import setup_of
from tests.words import SCHEMA, Words

SLOW = RuntimeError("Python worker failed to connect back.")


@dataclass
class Stream:
    """A query of Spark's that opens its sources until the test says otherwise."""

    isActive: bool = True
    error: Exception | None = None
    status: dict[str, str] = field(default_factory=lambda: {"message": "Initializing sources"})

    def exception(self) -> Exception | None:
        return self.error

    def get_through(self) -> None:
        self.status = {"message": "Getting offsets from events"}

    def fail(self, error: Exception) -> None:
        self.isActive, self.error = False, error

    def stop(self) -> None:
        self.isActive = False


class Flows:
    """The queries of so many flows, and the time."""

    def __init__(self, number: int) -> None:
        source: Any = None
        self.now = 100.0
        self.patience = Patience(lambda: self.now)
        setup = setup_of(FedTask(core.plan_of(Words(), SCHEMA), source, source))
        self.queries = Queries(source, setup, source, patience=self.patience)
        self.begun: list[str] = []
        self.of_call: Exception | None = None
        for each in range(number):
            self.queries._start_of[str(each)] = lambda name=str(each): self._start(name)  # type: ignore[misc]
        self.queries._waiting = [*self.queries._start_of]
        self.queries.start_more()

    def _start(self, name: str) -> None:
        self.begun.append(name)
        if self.of_call is not None:
            error, self.of_call = self.of_call, None
            raise error
        self.queries.by_flow[name] = Stream()  # type: ignore[assignment]

    def stream(self, name: str) -> Stream:
        found: Any = self.queries.by_flow[name]
        return found  # type: ignore[no-any-return]

    def starting(self) -> int:
        return sum(self.stream(name).status["message"].startswith("Init") for name in self.queries.by_flow)


def test_a_few_queries_start_at_a_time_and_all_count_as_active() -> None:
    flows = Flows(10)
    assert flows.queries.active_flows == {*map(str, range(10))}
    while len(flows.begun) < 10:
        assert flows.starting() == AT_ONCE
        assert {*flows.queries.unheard} == {*map(str, range(10))} - {
            name for name, idle in flows.queries.idle.items() if idle
        }
        flows.stream(next(name for name in flows.begun if flows.stream(name).status["message"][0] == "I")).get_through()
        flows.queries.start_more()
    assert flows.begun == [*map(str, range(10))]


def test_a_query_that_has_ended_makes_room_for_the_next() -> None:
    flows = Flows(AT_ONCE + 2)
    flows.stream("0").isActive = False
    flows.stream("1").fail(ValueError("another failure"))
    flows.queries.start_more()
    assert len(flows.begun) == AT_ONCE + 2


def test_after_the_machine_was_too_slow_one_query_starts_at_a_time_and_the_others_stay() -> None:
    flows = Flows(5)
    for name in "01":
        flows.stream(name).get_through()
    for name in "23":
        flows.stream(name).fail(SLOW)
    flows.queries.start_more()
    kept = [flows.stream(name) for name in "01"]
    waits = []
    while (failed := flows.queries.failed_flow) is not None:
        waits.append(flows.queries.start_again(failed[0]))
    # Both failed in the same try.
    assert waits == [5.0, 5.0]
    assert flows.queries.active_flows == {*"01234"}
    flows.queries.start_more()
    assert flows.begun == [*"01234"]
    flows.stream("4").get_through()
    flows.now += 5
    for name in "23":
        flows.queries.start_more()
        assert flows.begun[-1] == name
        assert flows.starting() == 1
        flows.stream(name).get_through()
    assert [flows.stream(name) for name in "01"] == kept
    assert all(stream.isActive for stream in kept)


def test_a_call_that_the_server_was_too_slow_for_is_a_failure_of_that_flow_alone() -> None:
    flows = Flows(0)
    flows.of_call = SLOW
    flows.queries._start_of = {name: lambda name=name: flows._start(name) for name in "ab"}  # type: ignore[misc]
    flows.queries._waiting = [*"ab"]
    flows.queries.start_more()
    assert flows.queries.failed_flow == ("a", SLOW)
    assert flows.queries.active_flows == {"b"}
    assert flows.queries.start_again("a") == 5.0
    assert flows.queries.failed_flow is None
    flows.now += 5
    flows.stream("b").get_through()
    flows.queries.start_more()
    assert flows.begun == ["a", "b", "a"]
    flows.of_call = ValueError("the plan is wrong")
    flows.queries._waiting = ["b"]
    flows.stream("a").get_through()
    with pytest.raises(ValueError, match="the plan is wrong"):
        flows.queries.start_more()


def test_a_start_alone_is_no_success_and_a_commit_or_nothing_to_read_is_one() -> None:
    flows, tries = Flows(1), 0
    while True:
        flows.stream("0").get_through()
        flows.queries.start_more()
        flows.stream("0").fail(SLOW)
        wait = flows.queries.start_again("0")
        if wait is None:
            break
        flows.now += wait
        flows.queries.start_more()
        tries += 1
    assert 10 < tries < 30
    assert backoff.PATIENCE < flows.now - 100 < backoff.PATIENCE + 120

    flows = Flows(1)
    flows.stream("0").fail(SLOW)
    assert flows.queries.start_again("0") == 5
    flows.now += 5
    flows.queries.start_more()
    flows.stream("0").status = {"message": "Waiting for data to arrive"}
    flows.queries.start_more()
    flows.now += 2 * backoff.PATIENCE
    flows.stream("0").fail(SLOW)
    assert flows.queries.start_again("0") == 5


def test_what_is_stopped_starts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "POLL_SECONDS", 0)
    flows = Flows(10)
    flows.queries.stop()
    flows.queries.start_more()
    assert len(flows.begun) == AT_ONCE
    assert flows.queries.active_flows == set()


def test_waits_grow_to_a_minute_and_end_ten_minutes_after_the_last_success() -> None:
    now = [0.0]
    patience = Patience(lambda: now[0])
    waits = []
    while (wait := patience.fail()) is not None:
        waits.append(wait)
        assert patience.is_waiting
        now[0] += wait + 10
        assert not patience.is_waiting
    assert waits[:5] == [5, 10, 20, 40, 60]
    assert backoff.PATIENCE < now[0] < backoff.PATIENCE + 70
    patience.succeed()
    assert patience.fail() == 5
    assert patience.was_needed
