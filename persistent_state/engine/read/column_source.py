"""Read a source in the workers and let Spark compute the updates of its rows, as the Column of `process_column`.

The rows cross Spark together with columns of this module. Behind Spark the source's chunks are made again from them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition

from persistent_state.batch.lift import lacked_columns, unfit_rows
from persistent_state.batch.packets import Basis, Blob, Report, to_ipc
from persistent_state.batch.plan import FlowPlan
from persistent_state.batch.rows import microseconds
from persistent_state.drive.turn import Part
from persistent_state.engine.read.arrow_source import ArrowReader, blob_batches, load
from persistent_state.engine.read.dataframe_source import map_batches, source_rows, update_column
from persistent_state.engine.spark import failures
from persistent_state.engine.spark.versions import spark_types
from persistent_state.errors import StateError
from persistent_state.event_time.inputs import INPUT
from persistent_state.sources.base import BadRecord, Chunk, Originals
from persistent_state.sources.formats import one_batch

_HEADER, _PARTITION, _POSITION, _REPLAY, _REASON, _ORIGINALS = (
    f"_persistent_state_{name}" for name in ("header", "partition", "position", "replay", "reason", "originals")
)
_NONE = -1
"""The position of no row: its chunk does not say from where a replay starts."""

_BESIDE = pa.schema(
    [
        (_HEADER, pa.binary()),
        (_PARTITION, pa.string()),
        (_POSITION, pa.int64()),
        (_REPLAY, pa.int64()),
        (_REASON, pa.string()),
        (_ORIGINALS, pa.binary()),
    ]
)
"""The columns beside the rows of a source: what the part starts from, and the place of each row.

A row before the rows of a chunk holds the original records of those rows that are set aside whatever their updates are, and
another one the notes of the chunk, and the columns that it lacks or that no record of it has, as a header.
"""

DAY = 86_400_000_000


def blobs_of_source(session: SparkSession, reader: RowReader) -> DataFrame:
    """Return a flow's blobs, from a source whose updates Spark computes, as a streaming DataFrame."""
    flow = reader.flow
    rows = load(session, flow, reader, spark_types(_sent_schema(flow)))
    seen = rows.select(*(_quoted(name) for name in flow.first.only.schema.names))
    # The rows that the reader added get a null.
    is_row = F.coalesce(*(F.col(name) for name in (_HEADER, _REASON, _ORIGINALS))).isNull()
    updates = [F.when(is_row, update_column(plan.task, seen)).alias(plan.column) for plan in flow.rows(INPUT)]

    def blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[Blob | Report]:
        full = (batch for batch in batches if batch.num_rows)
        first = next(full)
        header = first.column(_HEADER)[0].as_py()
        if error := failures.error_of(header):
            raise error
        chunks = _replaced(chain([first.slice(1)], full), flow)
        part: Part = pickle.loads(header)
        yield from part.combine(flow, chunks)

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from blob_batches(blobs(batches), reader.labels, reader.attempts)

    return map_batches(rows.select("*", *updates), step)


def _sent_schema(flow: FlowPlan) -> pa.Schema:
    """Return the columns that a reader sends through Spark: beside those of each row, why it does not fit each task."""
    unfit = [pa.field(plan.unfit_column, pa.string()) for plan in flow.rows(INPUT)]
    return pa.schema([*flow.first.only.schema, *_BESIDE, *unfit])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _replaced(batches: Iterable[pa.RecordBatch], flow: FlowPlan) -> Iterator[Chunk]:
    """Yield the chunks that a reader sent through Spark as rows, and raise the error that it sent instead of the rest."""
    originals: dict[str, Originals] = {}
    lacks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    for batch in batches:
        for header in batch.column(_HEADER).drop_null().to_pylist():
            if error := failures.error_of(header):
                raise error
        kind = np.stack([_is_valid(batch, name) for name in (_REASON, _ORIGINALS, _HEADER)])
        partitions = pc.dictionary_encode(batch.column(_PARTITION))
        replays = batch.column(_REPLAY).fill_null(_NONE).to_numpy()
        place = np.stack([*kind, partitions.indices.to_numpy(), replays])
        begins = np.flatnonzero(np.any(place[:, 1:] != place[:, :-1], axis=0)) + 1
        rows, positions = source_rows(batch, flow), batch.column(_POSITION).fill_null(0).to_numpy()
        for begin, end in pairwise([0, *begins.tolist(), batch.num_rows] if batch.num_rows else []):
            partition, at = batch.column(_PARTITION)[begin].as_py(), positions[begin:end]
            is_bad, are_originals, are_notes = kind[:, begin]
            if are_originals:
                records = pa.ipc.open_stream(batch.column(_ORIGINALS)[end - 1].as_buffer()).read_all()
                originals = {partition: partial(_looked_up, records)}
            elif are_notes:
                # Of pieces without rows, several come next to each other.
                for header in batch.column(_HEADER).slice(begin, end - begin).to_pylist():
                    notes, lacks, unseen = pickle.loads(header)
                    yield Chunk(partition, 0, rows.slice(0, 0), at=positions[:0], notes=notes)
            elif is_bad:
                reasons = batch.column(_REASON).slice(begin, end - begin).to_pylist()
                bad = tuple(BadRecord(*record) for record in zip(at.tolist(), reasons, strict=True))
                yield Chunk(partition, int(at[0]), rows.slice(0, 0), bad, at=at[:0], originals=originals.get(partition))
            else:
                some, came = rows.slice(begin, end - begin), originals.get(partition)
                replay = None if replays[begin] == _NONE else int(replays[begin])
                yield Chunk(
                    partition, int(at[0]), some, replay=replay, at=at, originals=came, lacks=lacks, unseen=unseen
                )


def _is_valid(batch: pa.RecordBatch, column: str) -> NDArray[np.bool_]:
    return np.asarray(batch.column(column).is_valid())


def _looked_up(records: pa.Table, positions: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the records at these positions, with nulls where there is none."""
    return one_batch(records.take(pc.index_in(positions, value_set=records["position"])).to_batches(), records.schema)


class RowReader(ArrowReader):
    """The reader of a source's rows for Spark. A row before them holds what the part starts from."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        schema = _sent_schema(self.flow)

        def row(header: bytes) -> pa.RecordBatch:
            return _record_batch(schema, 1, {_HEADER: pa.array([header], pa.binary())})

        if isinstance(partition.value, StateError):
            yield row(failures.as_row(partition.value, 1))
            return
        part: Part = partition.value
        yield row(pickle.dumps(replace(part, reads=None)))
        try:
            absent: tuple[tuple[str, ...], ...] = (), ()
            for chunk in part.chunks(self.flow, self.source):
                if chunk.notes or (chunk.lacks, chunk.unseen) != absent:
                    about = pa.array([pickle.dumps((dict(chunk.notes), chunk.lacks, chunk.unseen))], pa.binary())
                    yield _record_batch(schema, 1, {_PARTITION: pa.array([chunk.partition]), _HEADER: about})
                yield from self._sent(chunk, part.basis, schema)
                absent = chunk.lacks, chunk.unseen
        except StateError as error:
            yield row(failures.as_row(error, self.attempts))

    def _sent(self, chunk: Chunk, basis: Basis, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        count, bad = chunk.rows.num_rows, chunk.bad
        # Spark changes the values, so find the unfit keys before.
        plans = self.flow.rows(INPUT)
        lacked = [lacked_columns(plan, chunk.lacks, chunk.unseen) for plan in plans]
        unfit = {
            plan.unfit_column: unfit_rows(plan, chunk.rows, columns)
            for plan, columns in zip(plans, lacked, strict=True)
        }
        unread = np.full(count, self.flow.first.only.channel in chunk.lacks)
        for mask in chain.from_iterable(masks.values() for masks in unfit.values()):
            unread |= mask
        if (originals := self._originals(chunk, basis, unread)) is not None:
            partition = pa.array([chunk.partition], pa.string())
            yield _record_batch(schema, 1, {_PARTITION: partition, _ORIGINALS: pa.array([originals], pa.binary())})
        yield _record_batch(
            schema,
            count,
            {
                **{field.name: self._column(chunk.rows, field) for field in self.flow.first.only.schema},
                _PARTITION: pa.repeat(pa.scalar(chunk.partition, pa.string()), count),
                _POSITION: pa.array(chunk.positions),
                _REPLAY: pa.repeat(pa.scalar(chunk.replay, pa.int64()), count),
                **{name: _reasons(masks, count) for name, masks in unfit.items() if masks},
            },
        )
        if bad:
            yield _record_batch(
                schema,
                len(bad),
                {
                    _PARTITION: pa.repeat(pa.scalar(chunk.partition, pa.string()), len(bad)),
                    _POSITION: pa.array([record.position for record in bad], pa.int64()),
                    _REASON: pa.array([record.reason for record in bad], pa.string()),
                },
            )

    def _originals(self, chunk: Chunk, basis: Basis, unfit: NDArray[np.bool_]) -> bytes | None:
        """Return the original records of a chunk that are set aside whatever their updates are, with their positions."""
        if chunk.originals is None:
            return None
        stamps, valid = microseconds(
            chunk.rows.column(self.flow.first.only.timestamp), self.flow.first.only.timestamp_unit
        )
        aside = chunk.positions[~valid | (stamps < basis.clock) | unfit]
        aside = np.union1d(aside, np.array([record.position for record in chunk.bad], np.int64))
        if len(aside) == 0:
            return None
        table = pa.Table.from_batches([chunk.originals(aside)])
        return to_ipc(table.append_column("position", pa.array(aside)))

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        column = rows.column(field.name)
        if field.name != self.flow.first.only.timestamp or pa.types.is_int64(field.type):
            return _carried(column, field.type)
        # A cast would truncate towards zero and wrap around; tasks without a Column round down.
        stamps, valid = microseconds(column, None)
        if pa.types.is_date(field.type):
            return pa.array(stamps // DAY, pa.int32(), mask=~valid).cast(field.type)
        return pa.array(stamps, mask=~valid).cast(field.type)


def _reasons(unfit: Mapping[str, NDArray[np.bool_]], count: int) -> pa.Array:
    """Return the reason of each row that one of these masks picks, and null for the others."""
    texts = np.full(count, None, np.object_)
    for reason, mask in unfit.items():
        texts[mask] = reason
    return pa.array(texts, pa.string())


def _carried(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Return a column as Spark can hold it: times are truncated to Spark's unit, and times beyond its range are null."""
    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        carried = column.cast(type, safe=False)
        if not pa.types.is_timestamp(column.type) or column.type.unit == "ns":
            return carried
        is_same = pc.equal(carried.cast(column.type, safe=False), column)
        return pc.if_else(is_same, carried, pa.scalar(None, type))


def _record_batch(schema: pa.Schema, count: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
