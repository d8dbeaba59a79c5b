"""Codecs of lists, structs, tuples and maps, made of the codecs of their parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monoids.codec import Array, Codec, DataType, Mask, MonoidError, Rows, naming, null_where, sort_within, valid
from monoids.scalars import Scalar

T = TypeVar("T")


def codec_of(type: DataType) -> Codec[Any]:
    """Return the codec of a type that is primitive, or of lists, structs and maps of such types."""
    codec: Codec[Any]
    if isinstance(type, pa.ListType):
        codec = ListCodec(codec_of(type.value_type))
    elif isinstance(type, pa.StructType):
        codec = StructCodec({field.name: codec_of(field.type) for field in type})
    elif isinstance(type, pa.MapType):
        codec = MapCodec(type.key_type, codec_of(type.item_type))
    else:
        codec = Scalar(type)
    if codec.type != type:
        raise MonoidError(f"type={type} is not what monoids keep. Use {codec.type}.")
    return codec


def kept_type(type: DataType) -> DataType:
    """Return the type that is kept for values of a type: integers of 64 bits for all integers, and so on.

    Raises:
        MonoidError: No type is kept for it.
    """
    if pa.types.is_dictionary(type):
        return kept_type(type.value_type)
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return pa.list_(kept_type(type.value_type))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, kept_type(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(kept_type(type.key_type), kept_type(type.item_type))
    return Scalar(type).type


def offsets_of(lengths: Rows) -> Array:
    """Arrow's offsets of rows with these numbers of entries."""
    return pa.array(np.append(0, np.cumsum(lengths)), pa.int32())


def entries_of(array: Array) -> tuple[Rows, slice]:
    """Return the offsets of the rows of a list or map array, from 0, and the slice of its child that belongs to it."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    return offsets - offsets[0], slice(int(offsets[0]), int(offsets[-1]))


def with_null_entries(lists: Array) -> Mask:
    """Return True for each row of a list column that is not null and has a null among its entries."""
    offsets, stretch = entries_of(lists)
    before = np.append(0, np.cumsum(~valid(lists.values[stretch])))[offsets]
    return valid(lists) & (np.diff(before) > 0)


def nulls(present: Mask) -> Array | None:
    """Arrow's mask of the rows that are not present."""
    return None if present.all() else pa.array(~present)


def is_there(values: Sequence[Any]) -> Mask:
    """Return True for each value that is not None."""
    return np.fromiter((value is not None for value in values), bool, len(values))


def fill(part: Codec[Any], column: Array) -> Array:
    """Return the column with nulls replaced by the value that a missing part stands for."""
    if part.missing is None or not column.null_count:
        return column
    rows = np.where(valid(column), np.arange(len(column)), len(column))
    return pa.concat_arrays([column, part.to_arrow([part.missing])]).take(pa.array(rows))


class Checked(Codec[T], Generic[T]):
    """A mixin before a codec that refuses some rows whose parts are values.

    Attributes:
        taken: the values, in words.
    """

    taken: str

    @abstractmethod
    def misfits(self, array: Array) -> Mask:
        """Return True for each row of the other codec's column that is not null and is not a value."""

    def to_arrow(self, values: Sequence[T | None]) -> Array:
        array = super().to_arrow(values)  # type: ignore[safe-super]
        wrong = np.flatnonzero(self.misfits(array))
        if len(wrong):
            raise self.refused_value(values[wrong[0]], self.taken)
        return array

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        array, bad = super()._cast(column)  # type: ignore[safe-super]
        bad |= self.misfits(array)
        return null_where(array, bad), bad


class ListCodec(Codec[list[Any]]):
    """Lists of values of another codec."""

    def __init__(self, item: Codec[Any]) -> None:
        self.item = item
        self.type = pa.list_(item.type)

    def to_arrow(self, values: Sequence[list[Any] | None]) -> Array:
        for value in values:
            if value is not None and not isinstance(value, list):
                raise self.refused_value(value, "lists")
        with naming("item"):
            items = self.item.to_arrow(list(chain.from_iterable(value or () for value in values)))
        offsets = offsets_of(np.array([len(value or ()) for value in values], np.int64))
        return pa.ListArray.from_arrays(offsets, items, mask=nulls(is_there(values)))

    def from_arrow(self, array: Array) -> list[list[Any] | None]:
        offsets, stretch = entries_of(array)
        items = self.item.from_arrow(array.values[stretch])
        rows = zip(pairwise(offsets.tolist()), valid(array).tolist(), strict=True)
        return [items[start:end] if is_one else None for (start, end), is_one in rows]

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        if isinstance(column.type, (pa.LargeListType, pa.FixedSizeListType)):
            column = column.cast(pa.list_(column.type.value_type))
        if not isinstance(column.type, pa.ListType):
            raise self.refused_column(column)
        offsets, stretch = entries_of(column)
        with naming("item"):
            items, misfits = self.item.cast(column.values[stretch])
        present = valid(column)
        bad = present & (np.diff(np.append(0, np.cumsum(misfits))[offsets]) > 0)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=nulls(present & ~bad)), bad


class StructCodec(Codec[Any]):
    """Dictionaries with given fields. One that is None or left out is what its codec says is missing."""

    def __init__(self, parts: Mapping[str, Codec[Any]]) -> None:
        if not parts:
            raise MonoidError("there is no part. Give at least one.")
        self.parts = dict(parts)
        self.type = pa.struct([(name, part.type) for name, part in self.parts.items()])

    def fields(self, value: Any) -> Mapping[str, Any]:
        """Return a value's fields by name."""
        taken = f"dictionaries with the keys {', '.join(self.parts)}"
        if not isinstance(value, Mapping):
            raise self.refused_value(value, taken)
        unknown = [name for name in value if name not in self.parts]
        if unknown:
            with naming(f"unknown field {unknown[0]!r}"):
                raise self.refused_value(value, taken)
        return value

    def value(self, fields: tuple[Any, ...]) -> Any:
        """Return the value that has these fields."""
        return dict(zip(self.parts, fields, strict=True))

    def fill(self, part: Codec[Any], column: Array) -> Array:
        """Return the column of a part with nulls replaced by the value that a missing part stands for."""
        return fill(part, column)

    def array(self, columns: list[Array], present: Mask) -> Array:
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=nulls(present))

    def to_arrow(self, values: Sequence[Any]) -> Array:
        rows = [{} if value is None else self.fields(value) for value in values]
        columns = []
        for name, part in self.parts.items():
            with naming(f"field {name!r}"):
                columns.append(self.fill(part, part.to_arrow([row.get(name) for row in rows])))
        return self.array(columns, is_there(values))

    def from_arrow(self, array: Array) -> list[Any]:
        columns = [part.from_arrow(array.field(name)) for name, part in self.parts.items()]
        rows = zip(zip(*columns, strict=True), valid(array).tolist(), strict=True)
        return [self.value(fields) if is_one else None for fields, is_one in rows]

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        if not isinstance(column.type, pa.StructType):
            raise self.refused_column(column)
        given = [field.name for field in column.type]
        if len(set(given)) < len(given) or not self.parts.keys() >= set(given):
            raise self.refused_column(column)
        columns, present, bad = [], valid(column), np.zeros(len(column), bool)
        for name, part in self.parts.items():
            with naming(f"field {name!r}"):
                field, misfits = part.cast(column.field(name) if name in given else pa.nulls(len(column)))
            columns.append(self.fill(part, field))
            bad |= present & misfits
        return self.array(columns, present & ~bad), bad


class RecordCodec(Checked[Any], StructCodec):
    """Tuples with named places, as structs with those fields, none of which is missing.

    `makes_no_sense` finds the rows that are no value although their fields are, from the columns of these.
    """

    def __init__(
        self,
        kind: Callable[..., tuple[Any, ...]],
        parts: Mapping[str, Codec[Any]],
        makes_no_sense: Callable[[list[Array]], Mask] | None = None,
    ) -> None:
        super().__init__(parts)
        self._kind, self._makes_no_sense = kind, makes_no_sense
        self.taken = f"tuples of {', '.join(parts)} that make sense together"

    def fields(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, tuple) or len(value) != len(self.parts) or any(part is None for part in value):
            raise self.refused_value(value, f"tuples of {', '.join(self.parts)}")
        return dict(zip(self.parts, value, strict=True))

    def value(self, fields: tuple[Any, ...]) -> Any:
        return self._kind(*fields)

    def fill(self, part: Codec[Any], column: Array) -> Array:
        return column

    def misfits(self, array: Array) -> Mask:
        fields, wrong = array.flatten(), np.zeros(len(array), bool)
        for field in fields:
            wrong |= ~valid(field)
        if self._makes_no_sense is not None:
            wrong |= self._makes_no_sense(fields)
        return wrong & valid(array)


class TupleCodec(StructCodec):
    """Tuples, as structs whose fields are named 0, 1 and so on."""

    def fields(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            raise self.refused_value(value, f"tuples of {len(self.parts)}")
        return dict(zip(self.parts, value, strict=True))

    def value(self, fields: tuple[Any, ...]) -> Any:
        return fields


class MapCodec(Codec[dict[Any, Any]]):
    """Dictionaries from primitive keys. As columns they are sorted by key, so that equal ones are equal columns."""

    def __init__(self, key_type: DataType, value: Codec[Any]) -> None:
        self.key, self.value = Scalar(key_type, "ordered"), value
        self.type = pa.map_(self.key.type, value.type)

    def array(self, row: Rows, keys: Array, values: Array, present: Mask) -> Array:
        """Return the column of these entries, which are sorted by row and key."""
        offsets = offsets_of(np.bincount(row, minlength=len(present)))
        return pa.MapArray.from_arrays(offsets, keys, fill(self.value, values), mask=nulls(present))

    def entries(self, column: Array) -> tuple[Rows, Array, Array]:
        """Return the row, key and value of every entry of a map column."""
        offsets, stretch = entries_of(column)
        return np.repeat(np.arange(len(column)), np.diff(offsets)), column.keys[stretch], column.items[stretch]

    def to_arrow(self, values: Sequence[dict[Any, Any] | None]) -> Array:
        for value in values:
            if value is not None and (not isinstance(value, Mapping) or None in value):
                raise self.refused_value(value, "dictionaries without the key None")
        dicts = [value or {} for value in values]
        with naming("key"):
            keys = self.key.to_arrow(list(chain.from_iterable(dicts)))
        with naming("value"):
            items = self.value.to_arrow(list(chain.from_iterable(d.values() for d in dicts)))
        row = np.repeat(np.arange(len(dicts)), [len(d) for d in dicts])
        order = pa.array(sort_within(row, keys))
        return self.array(row, keys.take(order), items.take(order), is_there(values))

    def from_arrow(self, array: Array) -> list[dict[Any, Any] | None]:
        offsets, stretch = entries_of(array)
        keys, items = self.key.from_arrow(array.keys[stretch]), self.value.from_arrow(array.items[stretch])
        entries = list(zip(keys, items, strict=True))
        rows = zip(pairwise(offsets.tolist()), valid(array).tolist(), strict=True)
        return [dict(entries[start:end]) if is_one else None for (start, end), is_one in rows]

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        if not isinstance(column.type, pa.MapType):
            raise self.refused_column(column)
        row, keys, items = self.entries(column)
        with naming("key"):
            keys, bad_keys = self.key.cast(keys)
        with naming("value"):
            items, bad_items = self.value.cast(items)
        order = pa.array(sort_within(row, keys))
        keys, items = keys.take(order), items.take(order)
        # Sorted or not, entry i is in row[i], so masks of either order are of the same rows.
        misfits = bad_keys | bad_items | ~valid(keys) | repeats(row, keys)
        present = valid(column)
        bad = present & (np.bincount(row[misfits], minlength=len(column)) > 0)
        good = present & ~bad
        kept = pa.array(good[row])
        return self.array(row[good[row]], keys.filter(kept), items.filter(kept), good), bad


def repeats(row: Rows, keys: Array) -> Mask:
    """Find the entries, sorted by row and key, that are as the one before in both."""
    same = np.asarray(pc.equal(keys[1:], keys[:-1]).fill_null(False))
    return np.append(np.zeros(min(1, len(row)), bool), same & (row[1:] == row[:-1]))
