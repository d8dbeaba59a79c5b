"""The control rows of a micro-batch or a step: Spark tasks merge blobs for their shards, and say what they made."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from persistent_state.batch.packets import DRIVER, Answers, Blob, Descriptor, Report
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.shard import merge_shard, read_values
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

ANSWERS = "label int, answer binary"
"""The columns of control rows."""


def control_rows(blobs: DataFrame, flow: FlowPlan, labels: Sequence[int], attempts: int) -> DataFrame:
    """Return the rows (label, answer) of a micro-batch: the descriptors of each shard, and one row of all parts' reports.

    Running it writes the runs that the descriptors name. If a part or a shard fails, an error stands in place of an answer.
    """

    def step(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        label = int(key[0])
        sent = [blob for frame in frames for blob in frame["blob"]]
        # What Spark keeps is a cache: merge_shard uses it only if the log says the same.
        kept = json.loads(state.get[0]) if state.exists else {}
        cached = {task: list(map(run_from_json, runs)) for task, runs in kept.items()}
        now = state.getCurrentProcessingTimeMs() * 1000
        answer, runs = answer_of(flow, labels, label, sent, cached, now, attempts)
        if runs is not None:
            state.update((json.dumps({task: list(map(run_to_json, some)) for task, some in runs.items()}),))
        freeze_imports()
        yield pd.DataFrame({"label": [label], "answer": [answer]})

    return blobs.groupBy("label").applyInPandasWithState(
        step, ANSWERS, "runs string", "update", GroupStateTimeout.NoTimeout
    )


def answer_of(
    flow: FlowPlan,
    labels: Sequence[int],
    label: int,
    sent: Sequence[bytes],
    cached: Mapping[str, Sequence[Run]],
    now: int,
    attempts: int,
) -> tuple[bytes, Mapping[str, Sequence[Run]] | None]:
    """Return the answer of the shard with this label to what it was sent, and the runs that it has then.

    The reports to the driver are their own answer. Instead of an answer there may be the error of a part, or that of the shard.
    """
    if failed := next((blob for blob in sent if failures.error_of(blob)), None):
        return failed, None
    if label == DRIVER:
        return pickle.dumps((now, sent)), None
    try:
        made, runs = merge_shard(flow, labels.index(label), list(map(Blob.from_bytes, sent)), cached, new_id)
    except StateError as error:
        return failures.as_row(error, attempts), None
    return pickle.dumps(made), runs


def answers_in_place(flow: FlowPlan, part: Part, attempts: int) -> list[bytes]:
    """Return the answers of the part that takes a step in its shard: its report, and what the shard has made.

    Instead of both there may be an error.
    """
    try:
        report, made = part.take(flow, new_id)
    except StateError as error:
        return [failures.as_row(error, attempts)] * 2
    return [pickle.dumps((0, [report.to_bytes()])), pickle.dumps(made)]


def answers_of(rows: Sequence[Row], is_planned_by_spark: bool) -> Answers:
    """Return the reports of the parts and the descriptors of the shards that the rows of a micro-batch hold.

    Raises:
        StateError: A part or a shard failed.
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
