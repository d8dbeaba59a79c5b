"""The runs that a shard goes on from are those that the log says, whatever the shard remembers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch.packets import Ground, Sender, digest
from persistent_state.batch.shard import held_runs
from persistent_state.errors import DisagreementError
from persistent_state.store.log import Log
from tests import core

SENDER = Sender("Total", 1, 2, "", 0, 1)


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


def test_a_shard_uses_what_it_remembers_only_where_the_log_says_the_same() -> None:
    rows = pa.record_batch({"ts": pa.array([5, 25]), "n": pa.array([1, 2])})
    plan = core.plan_of(Total(), rows.schema)
    log = Log(plan.files, "app")
    core.start(log, [plan])
    runs = core.play(log, plan, rows).tasks["Total"].stored.runs
    ground = Ground(20, (), 0, digest(runs, 20))
    for cached in (None, (), runs):
        assert held_runs(plan, SENDER, ground, 0, cached) == runs
    core.play(log, plan, rows)
    assert held_runs(plan, SENDER, ground, 0, runs) == runs
    for cached in (None, ()):
        with pytest.raises(DisagreementError, match="the log has moved on since it was planned"):
            held_runs(plan, SENDER, ground, 0, cached)
