"""An open store answers exactly about tasks that process in order, and about joins: at clocks, by key, and as changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistent_state import Application, AsOfJoin, Context, Message, OrderedTask, Timer
from persistent_state.batch.plan import Plan
from persistent_state.open_state import OpenStore, OpenTask
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.store.files import Files
from persistent_state.task import name_of_messages
from tests import core
from tests.local_application import Rows, compiled
from tests.soak import soak_or
from tests.test_open_state import ACTIONS, KEYS, SCHEMA, World, answers_exactly, copies, far_files, small

__all__ = ["copies"]

LEFT, RIGHT = "left", "right"
STAYS, RINGS = 25, 12
"""How long a key is kept after its last message, and when a timer rings after each, in microseconds."""


class Follow(OrderedTask):
    """The sum and the last number of a key, and how often it was rung for."""

    key = "key"
    state = pa.struct([("sum", pa.int64()), ("last", pa.int64()), ("rings", pa.int64())])
    ttl = core.us(STAYS)

    def process(self, state: Any, message: Message, context: Context) -> Any:
        state = state or {"sum": 0, "last": 0, "rings": 0}
        context.set_timer(message.timestamp + RINGS, "ring")
        return {**state, "sum": state["sum"] + message["n"], "last": message["n"]}

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        return {**state, "rings": state["rings"] + 1}


Sent = tuple[int, int, int, bool]
"""A message: its key, its time, its number, and whether it is of the right input."""


def followed(some: Sequence[Sent], clock: int) -> Any:
    """The state of a key at a clock, of messages in order."""
    state: Any = None
    timers: set[int] = set()
    newest = 0

    def ring(upto: int) -> None:
        for time in sorted(time for time in timers if time <= upto):
            timers.remove(time)
            state["rings"] += 1

    for _, time, n, _ in some:
        ring(time)
        if state is None or time > newest + STAYS:
            state = {"sum": 0, "last": 0, "rings": 0}
        state["sum"], state["last"], newest = state["sum"] + n, n, time
        timers.add(time + RINGS)
    ring(clock - 1)
    return state


def as_of(some: Sequence[Sent], clock: int) -> Any:
    """The newest right row of a key, of those below a clock, in order."""
    key, time, n, _ = some[-1]
    return {"ts": time, "key": key, "n": n}


class Ordered(World):
    """An application of one task of two inputs, of which each has some messages in each micro-batch."""

    @property
    def opened(self) -> OpenTask:
        return OpenStore(self.files).application("app").task(self.task, presented=True)

    def planned(self, files: Files) -> tuple[dict[str, Plan], dict[str, TimeReplayableSource]]:
        self.given = {name: Rows(SCHEMA) for name in (LEFT, RIGHT)}
        app = Application("app", "memory://none", checkpoint_interval=core.us(10), max_ahead="100000 days")
        return compiled(app.add(self.task, self.given), files, self.shards)

    def play(self) -> None:
        for is_right in (False, True):
            for time in self.random.choices(range(10), k=self.random.randint(1, 5)):
                key, n = self.random.randrange(KEYS), self.random.randint(-3, 3)
                self.sent.append((key, 10 * self.batch + time, n, is_right))  # type: ignore[arg-type]
        self.batch += 1
        for name, source in self.given.items():
            source.rows = [(ts, key, n) for key, ts, n, is_right in self.sent if is_right == (name == RIGHT)]  # type: ignore[misc]
        self.turn(name_of_messages(self.task.task_name))
        self.steps()

    def expected(self, clock: int) -> dict[Any, Any]:
        is_join, some, of_key = isinstance(self.task, AsOfJoin), list[Any](self.sent), dict[int, list[Sent]]()
        for message in sorted(some, key=lambda message: (message[1], message[3])):
            # A left row is no part of the state of a join.
            if message[1] < clock and (message[3] or not is_join):
                of_key.setdefault(message[0], []).append(message)
        made: Callable[..., Any] = as_of if is_join else followed
        return {key: made(sent, clock) for key, sent in of_key.items() if sent[-1][1] + STAYS >= clock}


TASKS = {"ordered": Follow(), "as of": AsOfJoin(LEFT, RIGHT, key="key", tolerance=core.us(STAYS))}


@pytest.mark.soak
@pytest.mark.parametrize("kind", TASKS)
@settings(
    max_examples=soak_or(ci=4, soak=300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=14), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_handles_of_tasks_in_order_answer_exactly_or_refuse(
    kind: str, actions: Sequence[str], seed: int, far: bool, colliding: bool
) -> None:
    with small(colliding=colliding):
        answers_exactly(Ordered(TASKS[kind], seed, far_files(far)), actions)
