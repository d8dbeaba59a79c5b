"""Values whose type changes from start to start: their fields are matched by name, wherever they stand in each other.

A field that is new is null in older values. One that is gone is dropped, for ever: if a later type has the name again, this is
a new field. A field may get another type if that has all values of the type before. So a value comes out alike whatever types
it was rewritten in on the way, and nothing needs to be rewritten when a type changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from monoids import Monoid
from monoids.nested import entries_of
from persistent_state.partials.type_names import name_of

Path: TypeAlias = tuple[str, ...]
"""The names of the fields that lead to one. The items of a list are `item`, the keys and values of a map `key` and `value`."""

EVERYTHING: Path = ()
"""The path of the value itself."""

_UNITS = ("s", "ms", "us", "ns")
_REACHING = ("s", "ms", "us")
"""Units of time, each finer than the one before. A number of nanoseconds does not reach as far as dates do."""


class Evolving(Monoid[Any]):
    """A base of monoids that go on from values of another type, and whose values are structs that stay apart.

    Their types are plain: see `plain`.
    """

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "type": name_of(self.type)}


@dataclass(frozen=True)
class Difference:
    """A field of values of before that is dropped (`after` is None), or that can't be made what it is to be now."""

    path: Path
    before: pa.DataType
    after: pa.DataType | None


def plain(type: pa.DataType) -> pa.DataType:
    """Return the type that values of a type are kept in: the same values, in one of the ways in which Arrow has them.

    Text, bytes and lists have offsets of 32 bits, dictionaries are their values, and any field may be null.
    """
    if isinstance(type, pa.DictionaryType):
        return plain(type.value_type)
    if isinstance(type, pa.StructType):
        return pa.struct([(field.name, plain(field.type)) for field in type])
    if isinstance(type, pa.MapType):
        return pa.map_(plain(type.key_type), plain(type.item_type))
    if pt.is_list(type) or pt.is_large_list(type) or pt.is_fixed_size_list(type):
        return pa.list_(plain(type.value_type))
    if pt.is_large_string(type) or pt.is_string_view(type):
        return pa.string()
    if pt.is_large_binary(type) or pt.is_fixed_size_binary(type) or pt.is_binary_view(type):
        return pa.binary()
    return type


def differences(before: pa.DataType, after: pa.DataType, path: Path = EVERYTHING) -> Iterator[Difference]:
    """Yield where values of one type do not come out whole as values of another. Both types are plain.

    Args:
        before: The type in which the values were written.
        after: The type that is wanted.
        path: The place of the values.
    """
    if before == after or pt.is_null(before):
        return
    if pt.is_null(after):
        yield Difference(path, before, None)
    elif _are(pa.StructType, before, after) and _has_each_once(before) and _has_each_once(after):
        for field in before:
            place = after.get_field_index(field.name)
            if place < 0:
                yield Difference((*path, field.name), field.type, None)
            else:
                yield from differences(field.type, after.field(place).type, (*path, field.name))
    elif _are(pa.ListType, before, after):
        yield from differences(before.value_type, after.value_type, (*path, "item"))
    elif _are(pa.MapType, before, after) and _is_wider(before.key_type, after.key_type):
        yield from differences(before.item_type, after.item_type, (*path, "value"))
    elif not _is_wider(before, after):
        yield Difference(path, before, after)


def misfits(before: pa.DataType, after: pa.DataType, without: Collection[Path] = ()) -> list[Difference]:
    """Return the fields that can't be made what they are to be, but for those of `without`, which do not count any more."""
    return [
        each
        for each in differences(before, after)
        if each.after is not None and not any(each.path[: len(path)] == path for path in without)
    ]


def as_type(values: pa.Array, type: pa.DataType, without: Collection[Path] = ()) -> pa.Array:
    """Return values as values of another type.

    Args:
        values: Values of a type that differs from `type` at fields of `without` only, or in fields that are new or are gone.
        type: The type.
        without: The fields of `values` that do not count any more. If it is everything, all fields are null.
    """
    if values.type == type and not without:
        return values
    if EVERYTHING in without:
        without = [(field.name,) for field in values.type]
    return _as_type(values, type, without)


def less(without: Sequence[Path], more: Sequence[Path]) -> tuple[Path, ...]:
    """Return the fields that do not count any more when `more` of them do not. What is within one of them is left out."""
    paths = {*without, *more}
    return tuple(sorted(path for path in paths if not any(path[:end] in paths for end in range(len(path)))))


def _are(kind: Any, *types: pa.DataType) -> bool:
    return all(isinstance(type, kind) for type in types)


def _has_each_once(type: pa.StructType) -> bool:
    return bool(len({field.name for field in type}) == type.num_fields)


_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""By the bits of integers: the most decimal digits that they have. Integers of 64 bits without a sign have one more."""


def _is_wider(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether a type that is not nested has all values of another."""
    if before == after:
        return True
    for is_kind, holds in _WIDER:
        if is_kind(before):
            return holds(before, after)
    return False


def _holds_integers(before: pa.DataType, after: pa.DataType) -> bool:
    bits, has_sign = int(before.bit_width), bool(pt.is_signed_integer(before))
    if pt.is_decimal(after):
        return _has_digits(after, _DIGITS[bits] + (bits == 64 and not has_sign), 0)
    if pt.is_floating(after):
        return bits <= 32 and bool(bits < after.bit_width)
    is_wider = pt.is_integer(after) and bits < after.bit_width
    return bool(is_wider and (pt.is_signed_integer(after) or not has_sign))


def _has_digits(type: pa.DataType, digits: int, scale: int) -> bool:
    """Return whether decimals have at least this number of digits before the point, and this scale behind it."""
    return bool(type.scale >= scale and type.precision - type.scale >= digits)


def _is_finer(before: pa.DataType, after: pa.DataType, units: Sequence[str] = _REACHING) -> bool:
    if before.unit == after.unit:
        return True
    return {before.unit, after.unit} <= {*units} and units.index(before.unit) < units.index(after.unit)


_WIDER: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]], ...] = (
    (pt.is_integer, _holds_integers),
    (pt.is_floating, lambda before, after: pt.is_floating(after) and before.bit_width < after.bit_width),
    (
        pt.is_decimal,
        lambda before, after: (
            pt.is_decimal(after) and _has_digits(after, before.precision - before.scale, before.scale)
        ),
    ),
    (pt.is_date32, lambda before, after: pt.is_date64(after)),
    (pt.is_time, lambda before, after: pt.is_time(after) and _is_finer(before, after, _UNITS)),
    (pt.is_duration, lambda before, after: pt.is_duration(after) and _is_finer(before, after)),
    (
        pt.is_timestamp,
        lambda before, after: (
            pt.is_timestamp(after) and (before.tz is None) == (after.tz is None) and _is_finer(before, after)
        ),
    ),
)
"""By kind of types: whether a type has all values of one of this kind."""


def _as_type(values: pa.Array, type: pa.DataType, without: Collection[Path]) -> pa.Array:
    """Return values as values of another type; null where they do not count any more."""
    if EVERYTHING in without or pt.is_null(values.type) or pt.is_null(type):
        return pa.nulls(len(values), type)
    if values.type == type and not without:
        return values
    for kind, cast in _NESTED:
        if _are(kind, values.type, type):
            return cast(values, type, without)
    return values.cast(type)


def _struct(values: pa.Array, type: pa.StructType, without: Collection[Path]) -> pa.Array:
    if not type.num_fields:
        return pa.array([{} if is_there.as_py() else None for is_there in values.is_valid()], type)
    columns = []
    for field in type:
        if values.type.get_field_index(field.name) < 0:
            columns.append(pa.nulls(len(values), field.type))
        else:
            columns.append(_as_type(values.field(field.name), field.type, _within(without, field.name)))
    return pa.StructArray.from_arrays(columns, fields=list(type), mask=_mask(values))


def _list(values: pa.Array, type: pa.ListType, without: Collection[Path]) -> pa.Array:
    offsets, entries = entries_of(values)
    items = _as_type(values.values[entries], type.value_type, _within(without, "item"))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=_mask(values))


def _map(values: pa.Array, type: pa.MapType, without: Collection[Path]) -> pa.Array:
    offsets, entries = entries_of(values)
    keys = values.keys[entries].cast(type.key_type)
    items = _as_type(values.items[entries], type.item_type, _within(without, "value"))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, mask=_mask(values))


_NESTED: tuple[tuple[Any, Callable[[pa.Array, Any, Collection[Path]], pa.Array]], ...] = (
    (pa.StructType, _struct),
    (pa.ListType, _list),
    (pa.MapType, _map),
)


def _within(without: Collection[Path], name: str) -> list[Path]:
    return [path[1:] for path in without if path[0] == name]


def _mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None
