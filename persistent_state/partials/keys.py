"""A stable 64-bit hash of key columns, and the shards that are ranges of it.

The hash is part of the store's format: the same on every platform, process and version. All arithmetic is modulo 2**64.

    mix(x):    x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31; return x

    hash(key): h = 0
               for each column's value, in order:
                   null:       h = mix(h ^ 0x5851F42D4C957F2D)
                   otherwise:  h ^= (L + 1) * 0x9E3779B97F4A7C15
                               for each word w of the value:  h = mix(h ^ w)
               return h

A value, in its stored form (see `normalise`), is L bytes, little endian:
    bool (0 or 1), integers, date (days since 1970-01-01), timestamp (microseconds since then, UTC if it has a zone):
                L = 8, two's complement;
    float:      L = 8, IEEE 754 binary64; -0.0 is 0.0, and every NaN is 0x7FF8000000000000;
    decimal:    L = 16, the unscaled value in two's complement;
    string:     its UTF-8; binary: itself.
Its words are these bytes cut in eights, zero bytes filling up the last one; an empty value has one word, which is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persistent_state.errors import InvalidInputError

Hashes: TypeAlias = npt.NDArray[np.uint64]

_NULL = 0x5851F42D4C957F2D
_LENGTH = 0x9E3779B97F4A7C15
_TIMES_1 = np.uint64(0xBF58476D1CE4E5B9)
_TIMES_2 = np.uint64(0x94D049BB133111EB)
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)
_BLOCK = 1 << 15  # rows mixed at a time: what stays in a core's cache


def normal_type(type: pa.DataType) -> pa.DataType:
    """Return the type in which a key column of `type` is stored, hashed and compared.

    Raises:
        InvalidInputError: a column of this type cannot be a key.
    """
    kind = pa.types
    if kind.is_dictionary(type):
        return normal_type(type.value_type)
    if kind.is_boolean(type) or kind.is_uint64(type):
        return type
    if kind.is_integer(type):
        return pa.int64()
    if kind.is_float32(type) or kind.is_float64(type):
        return pa.float64()
    if kind.is_string(type) or kind.is_large_string(type) or type == pa.string_view():
        return pa.string()
    if kind.is_binary(type) or kind.is_large_binary(type) or type == pa.binary_view():
        return pa.binary()
    if kind.is_fixed_size_binary(type):
        return pa.binary()
    if kind.is_timestamp(type):
        return pa.timestamp("us", "UTC" if type.tz else None)
    if kind.is_date(type):
        return pa.date32()
    if kind.is_decimal128(type):
        return pa.decimal128(38, type.scale)
    if kind.is_null(type):
        raise InvalidInputError("key type=null cannot be a key: no value tells its type; give schema=, which says it.")
    if isinstance(type, pa.BaseExtensionType) and kind.is_fixed_size_binary(type.storage_type):
        raise InvalidInputError(f"key type={type} cannot be a key; give schema=, and say binary for it there.")
    raise InvalidInputError(
        f"key type={type} cannot be a key; cast the column to a bool, integer, float, string, binary, date, timestamp"
        " or decimal128."
    )


def normalise(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """Return a key column in its stored form: of its `normal_type`, with one zero and one NaN for floats.

    Raises:
        InvalidInputError: the type cannot be a key, or a value does not fit the stored form (nanoseconds that are not whole
            microseconds, a timestamp beyond the range of microseconds, more than 2 GiB of strings).
    """
    stored = normal_type(column.type)
    values: Any = column
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        values = values.cast(stored)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"a key does not fit type={stored}: {error}. Change it before the task.") from error
    if stored == pa.float64():
        values = pc.add(values, 0.0)  # -0.0 + 0.0 is 0.0
        values = pc.if_else(pc.is_nan(values), float("nan"), values)
    normal: pa.Array[Any] = values
    return normal


def hash_keys(columns: Sequence[pa.Array[Any]], rows: int) -> Hashes:
    """Return the hash of each row's key, as the module defines it. `columns` are normalised and `rows` long.

    Without columns there is one global key, whose hash is 0. Equal keys have equal hashes, never the other way round.
    """
    hashes = np.zeros(rows, np.uint64)
    for column in columns:
        if _is_bytes(column.type):
            _add_bytes(hashes, column)
        else:
            hashes ^= np.uint64(9 * _LENGTH % 2**64)
            if column.null_count:
                np.bitwise_xor(hashes, np.uint64(9 * _LENGTH % 2**64 ^ _NULL), out=hashes, where=_nulls(column))
            _add_words(hashes, _fixed_words(column))
    return hashes


def same_as_previous(columns: Sequence[pa.Array[Any]], rows: int | None = None) -> npt.NDArray[np.bool_]:
    """Return whether each row has the key of the row before it; False for the first. Nulls are equal, and so are NaNs.

    `columns` are normalised; `rows` is needed only where there are no columns.
    """
    count = len(columns[0]) if columns else rows or 0
    same = np.zeros(count, np.bool_)
    same[1:] = equal([column[1:] for column in columns], [column[:-1] for column in columns], max(0, count - 1))
    return same


def equal(columns: Sequence[pa.Array[Any]], others: Sequence[pa.Array[Any]], rows: int) -> npt.NDArray[np.bool_]:
    """Return for each row whether both tables have the same key there. Nulls are equal, and so are NaNs."""
    same = np.ones(rows, np.bool_)
    for column, other in zip(columns, others, strict=True):
        if _is_bytes(column.type):
            same_value = pc.equal(column, other).fill_null(False).to_numpy(zero_copy_only=False)
            if column.null_count and other.null_count:
                same_value = same_value | (_nulls(column) & _nulls(other))
        else:
            same_value = _fixed_words(column) == _fixed_words(other)
            if column.null_count or other.null_count:
                same_value &= _nulls(column) == _nulls(other)
        same &= same_value
    return same


def shard_range(shard: int, shards: int) -> tuple[int, int]:
    """Return the hashes [low, high) of shard number `shard` of `shards`. A hash h is in shard h * shards >> 64."""
    return -(-(shard << 64) // shards), -(-((shard + 1) << 64) // shards)


def shard_of(hash: int, shards: int) -> int:
    """Return the number of the shard that holds a hash."""
    return hash * shards >> 64


def shard_bounds(sorted_hashes: Hashes, shards: int) -> npt.NDArray[np.int64]:
    """`shards` + 1 offsets into ascending hashes: shard s holds rows [bounds[s], bounds[s + 1])."""
    lows = np.array([shard_range(shard, shards)[0] for shard in range(shards)], np.uint64)
    return np.append(np.searchsorted(sorted_hashes, lows), len(sorted_hashes)).astype(np.int64)


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_binary(type) or pa.types.is_decimal128(type))


def _nulls(column: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _fixed_words(column: pa.Array[Any]) -> Hashes:
    """Return the word of each row of a column of 8-byte values, 0 where it is null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.view(pa.int32()).cast(pa.int64())
    column = column.view(pa.uint64())
    words: Hashes = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return words


def _add_words(hashes: Hashes, words: Hashes) -> None:
    """Mix a word into the hash of each row, in place: h = mix(h ^ w)."""
    shifted = np.empty(_BLOCK, np.uint64)
    for start in range(0, len(hashes), _BLOCK):
        x = hashes[start : start + _BLOCK]
        y = shifted[: len(x)]
        x ^= words[start : start + _BLOCK]
        x ^= np.right_shift(x, np.uint64(30), out=y)
        x *= _TIMES_1
        x ^= np.right_shift(x, np.uint64(27), out=y)
        x *= _TIMES_2
        x ^= np.right_shift(x, np.uint64(31), out=y)


def _add_bytes(hashes: Hashes, column: pa.Array[Any]) -> None:
    """Add a column of strings, binaries or decimals: word after word, each for the rows that still have one."""
    rows = len(column)
    if not rows:
        return
    buffers: list[Any] = column.buffers()
    if pa.types.is_decimal128(column.type):
        offsets = np.arange(column.offset, column.offset + rows + 1, dtype=np.int64) * 16
    else:
        offsets = np.frombuffer(buffers[1], np.int32, rows + 1, column.offset * 4).astype(np.int64)
    size = int(offsets[-1] - offsets[0])
    padded = np.zeros(size + 8, np.uint8)
    if size:
        padded[:size] = np.frombuffer(buffers[-1], np.uint8, size, int(offsets[0]))
    word_at: Hashes = np.ndarray((size + 1,), "<u8", padded, strides=(1,))  # the word at every byte

    starts = offsets[:-1] - offsets[0]
    lengths = np.diff(offsets)
    if column.null_count:
        null = _nulls(column)
        lengths[null] = 0
    hashes ^= (lengths + 1).astype(np.uint64) * np.uint64(_LENGTH)
    words = word_at[starts] & _MASKS[np.minimum(lengths, 8)]
    if column.null_count:
        words[null] = np.uint64(_LENGTH ^ _NULL)  # takes away the length of no bytes
    _add_words(hashes, words)

    active = np.flatnonzero(lengths > 8)
    starts, lengths = starts[active] + 8, lengths[active] - 8
    while len(active):
        part = hashes[active]
        _add_words(part, word_at[starts] & _MASKS[np.minimum(lengths, 8)])
        hashes[active] = part
        longer = lengths > 8
        active, starts, lengths = active[longer], starts[longer] + 8, lengths[longer] - 8
