"""Tasks that read windows, sessions and what expires give the same state on a real Spark as locally, over starts too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from monoids import Sum
from persistent_state import (
    Application,
    FileSource,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    WindowState,
    read_state,
    run_local,
)
from persistent_state.state import KeptState
from tests.core import whole_times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000


class Steps(PersistentTask):
    """Adds one more than it reads of the first of its windows."""

    key = "key"
    reads_state: ClassVar[bool] = True

    def __init__(self, name: str, state: KeptState[Any]) -> None:
        self.name = name
        self.state = state

    def persistent_state(self) -> KeptState[Any]:
        return self.state

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        read = state.get()
        known = read if isinstance(read, int) else min(read.items())[1]
        state.update(message.timestamp, (known + 1) % 1000)


def tasks() -> list[Steps]:
    return [
        Steps("Tumbling", WindowState(Sum(), TumblingWindow("1 minute"))),
        Steps("Sliding", WindowState(Sum(), SlidingWindow("1 minute", "20 seconds"))),
        Steps("Sessions", WindowState(Sum(), SessionWindow("10 seconds"))),
        Steps("Living", NonWindowState(Sum(), ttl="10 seconds")),
    ]


def state_of(app: Application, task: Steps) -> dict[Any, Any]:
    """The state at the global clock, as `run_local` gives it."""
    table = whole_times(read_state(app.store, app.name, task))
    *columns, values = (table[name].to_pylist() for name in table.column_names)
    keys = zip(*columns, strict=True)
    return {key[0] if len(key) == 1 else key: value for key, value in zip(keys, values, strict=True)}


def test_tasks_that_read_what_time_bounds_give_the_state_of_a_local_run(spark: SparkSession, tmp_path: Path) -> None:
    # In order of time, so that what was before a message does not depend on how micro-batches are cut.
    times = [3, 4, 9, 20, 21, 29, 31, 44, 45, 55, 61, 63, 70, 75, 84, 85, 86, 125]
    rows = [{"ts": time * SECOND, "key": key} for time in times for key in ("a", "b", None)[: 1 + time % 3]]
    messages = [Message(row["ts"], {"key": row["key"]}) for row in rows]
    local = {task.name: run_local(task, messages, checkpoint_interval="10 seconds", batch_size=1) for task in tasks()}
    folder = tmp_path / "in"
    folder.mkdir()
    for start, spans in enumerate((range(60), range(60, 200))):
        some = [row for row in rows if row["ts"] // SECOND in spans]
        columns = pa.schema([("ts", pa.timestamp("us", "UTC")), ("key", pa.string())])
        pq.write_table(pa.Table.from_pylist(some, columns), folder / f"{start}.parquet")
        app = Application("reads", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=2 - start)
        source = FileSource(folder, timestamp="ts")
        for task in tasks():
            app.add(task, source)
        app.run(spark, drain=bool(start))
        for task in tasks():
            run = local[task.name]
            expected = run.state if start else run.states[50 * SECOND]
            assert state_of(app, task) == expected, task.name
            assert expected, task.name
