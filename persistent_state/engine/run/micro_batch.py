"""The control rows of a micro-batch or a step: Spark tasks merge blobs for the shards of their slots, and say what they made.

A slot is a task's share of the shards, as a worker's is under Local: it merges them one after the other, and writes their runs
together.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from persistent_state.batch.packets import DRIVER, Answers, Blob, Descriptor, Report
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.shard import read_values
from persistent_state.drive.local import OfShard, merge_share, take_share
from persistent_state.drive.turn import Part
from persistent_state.edges.output_rows import output_rows
from persistent_state.engine.read.arrow_source import freeze_imports
from persistent_state.engine.run.frames import NO_SINK
from persistent_state.engine.spark import failures
from persistent_state.engine.spark.schemas import types_of
from persistent_state.engine.spark.versions import spark_types
from persistent_state.errors import StateError
from persistent_state.run.wall_clock import new_id
from persistent_state.store.codec import run_from_json, run_to_json
from persistent_state.store.named_files import Run, Stored

Held: TypeAlias = Mapping[int, Mapping[str, Sequence[Run]]]
"""By shard and task: the runs that the shard holds, as its slot knows from the micro-batch before."""

ANSWERS = "label int, answer binary"
"""The columns of control rows."""


def control_rows(blobs: DataFrame, flow: FlowPlan, attempts: int) -> DataFrame:
    """Return the rows (label, answer) of a micro-batch: the descriptors of each slot, and one row of all parts' reports.

    Running it writes the runs that the descriptors name. If a part or a slot fails, an error stands in place of an answer.
    """

    def step(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        label = int(key[0])
        sent = [blob for frame in frames for blob in frame["blob"]]
        # What Spark keeps is a cache: merge_shard uses it only if the log says the same.
        kept = json.loads(state.get[0]) if state.exists else {}
        cached = {
            int(shard): {task: list(map(run_from_json, runs)) for task, runs in by_task.items()}
            for shard, by_task in kept.items()
        }
        now = state.getCurrentProcessingTimeMs() * 1000
        answer, held = answer_of(flow, label, sent, cached, now, attempts)
        if held is not None:
            state.update((json.dumps(held, default=run_to_json),))
        freeze_imports()
        yield pd.DataFrame({"label": [label], "answer": [answer]})

    return blobs.groupBy("label").applyInPandasWithState(
        step, ANSWERS, "runs string", "update", GroupStateTimeout.NoTimeout
    )


def answer_of(
    flow: FlowPlan,
    label: int,
    sent: Sequence[bytes],
    cached: Held,
    now: int,
    attempts: int,
) -> tuple[bytes, Held | None]:
    """Return the answer of the slot with this label to what its shards were sent, and the runs that they hold then.

    The reports to the driver are their own answer. Instead of an answer there may be the error of a part, or that of the slot.
    """
    if failed := next((blob for blob in sent if failures.error_of(blob)), None):
        return failed, None
    if label == DRIVER:
        return pickle.dumps((now, sent)), None
    blobs: dict[int, list[Blob]] = {}
    for blob in map(Blob.from_bytes, sent):
        blobs.setdefault(blob.shard, []).append(blob)
    share = [OfShard(shard, blobs[shard], cached.get(shard, {})) for shard in sorted(blobs)]
    try:
        merged = merge_share(flow, new_id, share)
    except StateError as error:
        return failures.as_row(error, attempts), None
    made = [descriptor for descriptors, _ in merged for descriptor in descriptors]
    return pickle.dumps(made), {of.shard: runs for of, (_, runs) in zip(share, merged, strict=True)}


def answers_in_place(flow: FlowPlan, share: Sequence[Part], attempts: int) -> list[bytes]:
    """Return the answers of the parts that take a step in the shards of a slot: their reports, and what the shards have made.

    Instead of both there may be an error.
    """
    try:
        taken = take_share(flow, new_id, share)
    except StateError as error:
        return [failures.as_row(error, attempts)] * 2
    reports = [report.to_bytes() for report, _ in taken]
    return [pickle.dumps((0, reports)), pickle.dumps([descriptor for _, made in taken for descriptor in made])]


def answers_of(rows: Sequence[Row], is_planned_by_spark: bool) -> Answers:
    """Return the reports of the parts and the descriptors of the shards that the rows of a micro-batch hold.

    Raises:
        StateError: A part or a slot failed.
    """
    reports: list[Report] = []
    descriptors: list[Descriptor] = []
    for row in rows:
        if error := failures.error_of(row["answer"]):
            raise error
        if row["label"] == DRIVER:
            now, sent = pickle.loads(row["answer"])
            some = list(map(Report.from_bytes, sent))
            # Parts without rows do not know the batch time, where Spark plans them.
            reports += [replace(report, now=now) for report in some] if is_planned_by_spark else some
        else:
            descriptors += pickle.loads(row["answer"])
    return Answers(reports, descriptors)


def running_values(rows: DataFrame, plan: Plan, clock: int, descriptors: Sequence[Descriptor]) -> DataFrame:
    """Return the values of the keys that a micro-batch changed, from its descriptors or the files that these name.

    Of windows those that are open at the clock.
    """
    values_by_shard = [descriptor.values for descriptor in descriptors if descriptor.values]
    shown, session = output_rows(plan), rows.sparkSession
    schema = shown.schema

    def read(values: Stored | bytes) -> pa.Table:
        return read_values(plan.files, values, plan.layout, clock)

    if all(isinstance(values, bytes) for values in values_by_shard):
        tables = [shown.of(table).cast(schema) for table in map(read, values_by_shard)]
        table = pa.concat_tables([schema.empty_table(), *tables])
        return session.createDataFrame(table, spark_types(schema)).coalesce(max(1, len(values_by_shard)))

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from shown.of(read(values_by_shard[number])).cast(schema).to_batches()

    # A partition for each shard, and nothing to shuffle.
    numbers = session.range(0, len(values_by_shard), 1, len(values_by_shard))
    return numbers.mapInArrow(unpack, spark_types(schema))


def check_values(plan: Plan) -> None:
    """Refuse a task with outputs if Spark has no type for its values.

    Raises:
        InvalidInputError: Spark has no type for a key column or for the value.
    """
    types_of(plan.name, output_rows(plan).schema, NO_SINK)
