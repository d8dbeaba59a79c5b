"""The values that a sink is given under Spark: a DataFrame whose parts the workers read."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from persistent_state.engine.spark.versions import arrow_types, spark_types
from persistent_state.errors import DisagreementError, StateError
from persistent_state.partials.shuffle import numbers_of_partitions
from persistent_state.sinks.base import arrow_batches
from persistent_state.sinks.values import OfPart, Result, count_of_parts, divided, values_of, with_rows


@dataclass(frozen=True)
class SparkValues:
    """The `Values` of a DataFrame.

    Attributes:
        frame: The rows.
        schema: Their columns in the Arrow types in which a sink is given them.
    """

    frame: DataFrame
    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all rows in this process, as `Values.batches` does. Spark's workers read them for it."""
        return _as(self.schema, arrow_batches(self.frame))

    def map_parts(
        self, function: OfPart[Result], *, parts: int | None = None, by: Sequence[str] | None = None
    ) -> list[Result]:
        """Let Spark's workers call a function for each part, as `Values.map_parts` says."""
        # Name columns by number, since PySpark hands no column to Python whose name has a dot.
        rows = self.frame.toDF(*map(str, range(len(self.schema))))
        schema = self.schema
        if by is not None:
            return _by_key(rows, schema, function, count_of_parts(parts, by), by)

        def call(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context, filled = TaskContext.get(), with_rows(_as(schema, batches))
            if filled is not None:
                assert context is not None, "it runs in a worker"
                yield _answer(context.partitionId(), function, filled)

        coalesced = rows if parts is None else rows.coalesce(parts)
        return [result for _, result in _answers(coalesced, call)]

    def to_spark(self) -> DataFrame:
        """Return the DataFrame."""
        return self.frame


@values_of.register
def _values_of_frame(frame: DataFrame) -> SparkValues:
    return SparkValues(frame, arrow_types(frame.schema))


def _by_key(
    rows: DataFrame, schema: pa.Schema, function: OfPart[Result], parts: int, by: Sequence[str]
) -> list[Result]:
    labels = numbers_of_partitions(parts)
    columns = [pa.field(str(place), field.type) for place, field in enumerate(schema)]
    labelled = pa.schema([*columns, pa.field("label", pa.int32()), pa.field("is_row", pa.bool_())])

    def label(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in _as(schema, batches):
            for part, of_part in divided(batch, by, parts):
                count = of_part.num_rows
                more = pa.array([labels[part]] * count, pa.int32()), pa.array([True] * count)
                yield pa.record_batch([*of_part.columns, *more], schema=labelled)
        # Each part gets a row that is left out later, so that Spark runs a task for a part without rows, too.
        empty = [pa.nulls(parts, field.type) for field in schema]
        yield pa.record_batch([*empty, pa.array(labels, pa.int32()), pa.array([False] * parts)], schema=labelled)

    def call(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (filled := with_rows(batches)) is not None:
            first = next(filled)
            part = labels.index(first.column(len(schema))[0].as_py())
            real = (batch.filter(batch.column(len(schema) + 1)) for batch in chain([first], filled))
            yield _answer(part, function, _as(schema, (batch.select(range(len(schema))) for batch in real)))

    shuffled = rows.mapInArrow(label, spark_types(labelled)).repartition(parts, "label")
    answers = _answers(shuffled, call)
    called = [part for part, _ in answers]
    if called != list(range(parts)):
        raise DisagreementError(f"Spark wrote parts={called} of {parts}; try again.")
    return [result for _, result in answers]


def _as(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows, with the columns of the schema: Spark's differ in names, and in zones of times."""
    for batch in batches:
        if batch.num_rows:
            yield batch.rename_columns(schema.names).cast(schema)


def _answer(part: int, function: OfPart[Result], batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    try:
        answer = pickle.dumps((function(part, batches), None))
    except StateError as raised:
        # Return the error as a row, as Spark turns an error that a worker raises into pages of text.
        answer = pickle.dumps((None, raised))
    return pa.record_batch([pa.array([part], pa.int64()), pa.array([answer], pa.binary())], ["part", "answer"])


def _answers(rows: DataFrame, call: Any) -> list[tuple[int, Any]]:
    """Let the workers call, and return the number of each part and its result, in the order of the parts.

    Raises:
        StateError: A call has raised this error.
    """
    answers = []
    for part, answer in sorted(map(tuple, rows.mapInArrow(call, "part bigint, answer binary").collect())):
        result, error = pickle.loads(answer)
        if error is not None:
            raise error
        answers.append((part, result))
    return answers
