"""What is read of a state for a sink in this process."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask, ValuesAtClock
from persistent_state.drive.output_sink import OutputSink
from persistent_state.drive.output_values import local_values
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.deliver import Due
from persistent_state.sinks.console import ConsoleSink
from persistent_state.sinks.values import LocalValues
from persistent_state.store.log import Log
from tests import core


class Words(PersistentTask):
    key, value, name = "word", "n", "words"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def test_the_values_of_a_state_can_be_pickled_and_lie_in_its_parts() -> None:
    schema = pa.schema([("ts", pa.int64()), ("word", pa.string()), ("n", pa.int64())])
    plan = replace(core.plan_of(Words(), schema, shards=3), outputs=("console",))
    log = Log(plan.files, plan.application)
    core.start(log, [plan])
    messages = [{"ts": 5, "word": f"word {number % 50}", "n": number} for number in range(200)]
    core.play(log, plan, pa.RecordBatch.from_pylist([*messages, {"ts": 15, "word": "", "n": 0}], schema))
    place = OutputSink(plan, ValuesAtClock(ConsoleSink()))
    state = place.state(core.newest(log), Due(10, BEGINNING, BEGINNING))
    values: LocalValues = pickle.loads(pickle.dumps(local_values(state, plan, place.origin().schema)))
    rows = pa.Table.from_batches(values.batches(), values.schema).to_pylist()
    assert {row["word"]: row["value"] for row in rows} == {
        f"word {word}": sum(range(word, 200, 50)) for word in range(50)
    }
    counts = values.map_parts(lambda part, batches: sum(batch.num_rows for batch in batches))
    assert (len(counts), sum(counts)) == (3, 50)
