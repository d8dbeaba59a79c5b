"""The bytes that rows take, by the offsets of their columns alone: nothing that the offsets point to is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import TaskFailedError

Rows = NDArray[np.int64]


def are_more(tables: Sequence[pa.Table], size: int) -> bool:
    """Return whether tables hold more than `size` bytes."""
    # Whole buffers hold no less than the rows that are in tables, and are counted ten times faster.
    return bool(sum(table.get_total_buffer_size() for table in tables) > size < sum(table.nbytes for table in tables))


def of_ranges(batch: pa.RecordBatch, begins: Rows, ends: Rows) -> Rows:
    """Return the bytes of the rows [begin, end) of a batch, for each pair of bounds."""
    return _sum([_of_column(column, begins, ends) for column in batch.columns], begins)


def _sum(sizes: list[Rows], begins: Rows) -> Rows:
    total: Rows = np.zeros(len(begins), np.int64)
    for size in sizes:
        total += size
    return total


def _of_column(column: pa.Array, begins: Rows, ends: Rows) -> Rows:
    type = column.type
    if pa.types.is_struct(type):
        return _sum([_of_column(column.field(i), begins, ends) for i in range(type.num_fields)], begins)
    if pa.types.is_map(type):
        offsets = column.offsets.to_numpy()
        inner = offsets[begins], offsets[ends]
        return _of_column(column.keys, *inner) + _of_column(column.items, *inner) + 4 * (ends - begins)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        offsets = column.offsets.to_numpy()
        return _of_column(column.values, offsets[begins], offsets[ends]) + 4 * (ends - begins)
    if pa.types.is_fixed_size_list(type):
        each = type.list_size
        return _of_column(column.values, (begins + column.offset) * each, (ends + column.offset) * each)
    if (width := _OFFSETS.get(type.id)) is not None:
        offsets = np.frombuffer(column.buffers()[1] or b"", width)
        offsets = offsets[column.offset :] if len(offsets) else np.zeros(len(column) + 1, width)
        lengths: Rows = (offsets[ends] - offsets[begins]).astype(np.int64)
        return lengths + 4 * (ends - begins)
    return (ends - begins) * -(-_bits(column) // 8)


def _bits(column: pa.Array) -> int:
    try:
        bits: int = column.type.bit_width
    except ValueError:
        bits = 8 * -(-column.nbytes // max(1, len(column)))
    return bits


_OFFSETS = {
    pa.string().id: np.int32,
    pa.binary().id: np.int32,
    pa.large_string().id: np.int64,
    pa.large_binary().id: np.int64,
}


def pieces(batch: pa.RecordBatch, most: int, size: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Pieces of a sorted batch, no more than 1/64 of a slice or one row: the hash each begins at, its part of a slice."""
    begins, ends = np.zeros(1, np.int64), np.full(1, len(batch))
    if 64 * len(batch) <= most and 64 * (held := batch.get_total_buffer_size()) <= size:
        # Blocks of a run are many, and small.
        return _hashes(batch)[:1], np.array([max(len(batch) / most, held / size)])

    def weights() -> NDArray[np.float64]:
        return np.maximum((ends - begins) / most, of_ranges(batch, begins, ends) / size)

    for step in (max(1, most // 64), 128, 1):
        counts = np.where(weights() > 1 / 64, -(-(ends - begins) // step), 1)
        lasts = np.repeat(ends, counts)
        within = np.arange(len(lasts)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.repeat(begins, counts) + within * step
        ends = np.where(np.repeat(counts > 1, counts), np.minimum(begins + step, lasts), lasts)
    return _hashes(batch)[begins], weights()


def touched(asked: pa.Table, levels: Sequence[pa.Table]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of a sorted table, and how many bytes of the sorted levels have each hash."""
    hashes = np.concatenate([np.array([], np.uint64), *map(_hashes, asked.to_batches())])
    hashes = hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]]
    found = np.zeros(len(hashes), np.int64)
    for batch in (batch for level in levels for batch in level.to_batches()):
        stored = _hashes(batch)
        begins, ends = (np.searchsorted(stored, hashes, side=side) for side in ("left", "right"))
        found += of_ranges(batch, begins, ends)
    return hashes, found


def _hashes(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    hashes: NDArray[np.uint64] = batch.column("hash").to_numpy()
    return hashes


@contextmanager
def within_arrow() -> Iterator[None]:
    """Around what puts values of few keys together.

    Raises:
        TaskFailedError: they are more than Arrow holds.
    """
    try:
        yield
    except pa.ArrowException as error:
        if not isinstance(error, pa.ArrowCapacityError) and "overflow" not in str(error):
            raise
        raise TaskFailedError(
            f"the values of one key hold more than 2 GiB, which Arrow can't put together ({error}); keep less of a key: in "
            "windows, with a ttl, or with a monoid that is bounded, such as TopK or a sketch."
        ) from error
