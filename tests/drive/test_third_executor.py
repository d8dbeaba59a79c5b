"""A third executor, made in this file alone: threads run the parts of a turn side by side, and then its shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import Application, Changes, Message, NonWindowState, OrderedTask, PersistentTask
from persistent_state.batch.packets import Answers
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import local
from persistent_state.drive.local import Held, Item, Made, NewId
from persistent_state.drive.turn import Part
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import TimeReplayableSource
from tests import core
from tests.local_application import LocalApplication, Rows, compiled

SALES = pa.schema([("ts", pa.int64()), ("shop", pa.int64()), ("amount", pa.int64())])
SHARDS = PARTS = 3


class Killed(Exception):
    """A thread was killed."""


class Threads:
    """An executor of threads. It runs a thread for each part at the same time, and then one for each shard.

    The threads are counted. Those whose numbers are in `dying` are killed.
    """

    def __init__(self, pool: ThreadPoolExecutor, dying: Collection[int] = ()) -> None:
        self.pool, self.dying, self.count = pool, dying, 0

    def __call__(
        self, flow: FlowPlan, parts: Sequence[Part], source: TimeReplayableSource | None, held: Held, new_id: NewId
    ) -> Answers:
        return local.run(flow, parts, source, held, new_id, self.each, 2)

    def each(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        numbered = [*enumerate(items, self.count)]
        self.count += len(numbered)
        meeting = Barrier(len(numbered))

        def run(number: int, item: Item) -> Made:
            # If they ran one after the other, the first would wait here in vain.
            meeting.wait(timeout=120)
            if number in self.dying:
                raise Killed
            return function(item)

        return self.pool.map(run, *zip(*numbered, strict=True))


class PerShop(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Total(PersistentTask):
    """The sum over all shops of what they have now."""

    value = "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Rule(OrderedTask):
    """The number of sales in a row that were each larger than the one before."""

    key, state = "shop", pa.struct([("last", pa.int64()), ("rising", pa.int64())])
    emits = pa.schema([("rising", pa.int64())])

    def process(self, state: Any, message: Message, context: Any) -> Any:
        last, rising = (state["last"], state["rising"]) if state else (0, 0)
        rising = rising + 1 if message["amount"] > last else 0
        if rising > 1:
            context.emit(rising=rising)
        return {"last": message["amount"], "rising": rising}


def application() -> Application:
    app = Application("app", "memory://third", checkpoint_interval=core.us(10), max_ahead="100000 days")
    app.add(PerShop(), Rows(SALES)).add(Total(), Changes("PerShop"))
    return app.add(Rule(), Rows(SALES))


class History(LocalApplication):
    """It keeps the states of all tasks at each global clock."""

    def __init__(self, executor: local.Executor) -> None:
        self.states = dict[int, dict[str, dict[Any, Any]]]()
        self.deaths = 0
        super().__init__(*compiled(application(), core.memory(), SHARDS), Keeping(100, 0), PARTS, executor)

    def check(self) -> None:
        if self.clock != BEGINNING:
            states = {task: self.state(task) for task in self.plans}
            assert self.states.setdefault(self.clock, states) == states

    def until_it_lives(self, work: Callable[[], None]) -> None:
        """Do this, and start again whenever a thread was killed."""
        while True:
            try:
                return work()
            except Killed:
                self.deaths += 1
                self.start()

    def read(self) -> None:
        """Read what has come, and take all steps."""
        for task in FED:
            self.turn(task)
        self.steps()


FED = ("PerShop", "Rule.messages")


def played(executor: local.Executor, batches: Sequence[list[tuple[int, int, int]]]) -> History:
    """Play these sales to their end."""
    app = History(executor)
    app.start()
    for batch in batches:
        for task in FED:
            app.send(task, batch)
        app.until_it_lives(app.read)
    app.until_it_lives(app.drain)
    return app


@pytest.mark.parametrize("seed", range(3))
def test_threads_give_the_same_states_as_parts_and_shards_in_turn_though_some_are_killed(seed: int) -> None:
    random = Random(seed)
    sold = [(at, random.randrange(7), random.randrange(9)) for at in sorted(random.randrange(200) for _ in range(90))]
    batches = [sold[begin : begin + 10] for begin in range(0, 90, 10)]
    in_turn = played(local.run, batches)
    with ThreadPoolExecutor(max(PARTS, SHARDS)) as pool:
        by_threads = played(Threads(pool, random.sample(range(90), 3)), batches)
    assert by_threads.deaths == 3
    common = in_turn.states.keys() & by_threads.states
    assert (len(common) > 5, max(common) > sold[-1][0]) == (True, True)
    assert {clock: by_threads.states[clock] for clock in common} == {clock: in_turn.states[clock] for clock in common}
    totals = {(shop,): sum(amount for _, each, amount in sold if each == shop) for shop in range(7)}
    assert by_threads.state("PerShop") == totals
    assert by_threads.state("Total") == {(): sum(totals.values())}
