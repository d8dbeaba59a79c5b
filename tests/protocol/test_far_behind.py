"""A sink that is far behind has all clocks kept that it lacks. They make no commit, step or delivery dearer."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from persistent_state.batch.packets import Answers, Blob
from persistent_state.protocol import commits, graph
from persistent_state.protocol.deliver import Giver, delivered
from persistent_state.sources.base import Reach
from persistent_state.store import log as logs
from persistent_state.store.codec import to_bytes
from persistent_state.store.log import Log
from persistent_state.store.output_state import ACTIVE, OutputRecord, OutputState
from tests import core
from tests.core import combine
from tests.protocol.test_graph import EVENTS, KEEPING, Graph

Returned = TypeVar("Returned")

FED = "PerSlot"
"""The task whose sink is behind, and whose closed windows feed another task."""


class FarBehind(Graph):
    """An application in which a sink has yet to be given so many clocks, and what each of its operations costs.

    It takes its turns by hand, as it counts what each operation of a turn costs.
    """

    def __init__(self, clocks: int) -> None:
        super().__init__(shards=1)
        self.cost = Counter[str]()
        self.giver = Giver(Log(self.files, "app"), FED, "none", lambda _: None, lambda entry, due: None, lambda: 0)
        self.start()
        self.now = 100_000
        self.round()
        newest = self.newest
        lacked = tuple(range(newest.clock - 10 * clocks, newest.clock + 1, 10))
        task = newest.tasks[FED]
        behind = replace(task, outputs=OutputState({"none": OutputRecord(ACTIVE, lacked[0])}))
        self.log.append(newest.follower(0, tasks={**newest.tasks, FED: behind}, retained=lacked))
        # Once to read what is new, and once to be looked at.
        self.round()
        self.cost.clear()
        self.round()

    def round(self) -> None:
        """A micro-batch of each source, the steps that are due then, and a delivery."""
        self.now += 10
        rows = pa.RecordBatch.from_pylist([{"ts": self.now + 9, "shop": 1, "amount": 1}], EVENTS)
        for name in ("PerShop", "Amounts", FED):
            self.micro_batch(name, rows)
        while self.has_stepped():
            pass
        self.counted("delivery", lambda: self.giver.give_next(1))
        entry = self.newest
        self.counted("progress", lambda: delivered(entry, FED))

    def has_stepped(self) -> bool:
        entry = self.newest
        due = self.counted("due", lambda: graph.due(entry))
        if not due:
            return False
        step, flow = due[0], core.alone(self.plans[due[0].flow])
        self.counted("plan of a step", lambda: commits.plan_step(entry, flow, step, 0))
        self.counted("spans of a step", lambda: graph.spans(entry, flow, step))
        self.commit("commit of a step", step.flow, core.answers_of_step(self.log, self.plans, step))
        return True

    def micro_batch(self, name: str, rows: pa.RecordBatch) -> None:
        flow, entry = core.alone(self.plans[name]), self.newest
        first = entry.flows[name].source.next_positions.get("", 0)
        reach = Reach({"": first + len(rows)}, None)
        basis = self.counted("plan", lambda: commits.plan_batch(entry, flow, reach, 0))
        self.cost["bytes of a plan"] += len(pickle.dumps(basis))
        sent = [combine(flow, basis, 0, 1, [core.chunk(first, rows, True)])]
        data = sent[0][0][0].to_bytes()
        self.cost["bytes of a blob"] += len(data)
        assert Blob.from_bytes(data).grounds == sent[0][0][0].grounds
        self.commit("commit", name, core.merged(flow, sent))

    def commit(self, what: str, name: str, made: Answers) -> None:
        before = self.newest
        entry = self.counted(what, lambda: core.commit(self.log, self.plans[name], made, keeping=KEEPING))
        self.cost["bytes of entries"] += len(to_bytes(entry, before, before.base))

    def counted(self, what: str, do: Callable[[], Returned]) -> Returned:
        """Do something, and add the instructions that Python ran for it to its cost."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            frame.f_trace_opcodes = True
            self.cost[what] += event == "opcode"
            return trace

        others = sys.gettrace()
        sys.settrace(trace)
        try:
            return do()
        finally:
            sys.settrace(others)


def test_clocks_that_a_sink_lacks_cost_no_commit_step_or_delivery_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    # A whole entry, of which there is one in hundreds, has them all.
    monkeypatch.setattr(logs._Known, "is_far_from_base", lambda known, now, carried: False)
    few, many = FarBehind(50), FarBehind(1_000)
    assert [len(world.newest.retained) for world in (few, many)] == [52, 1_002]
    assert min(few.cost.values()) > 0
    # Of a thousand clocks a search looks at five more than of fifty.
    assert {what: cost for what, cost in many.cost.items() if cost > 1.05 * few.cost[what] + 200} == {}
