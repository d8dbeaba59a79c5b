"""Values as the store would give them back, worked out value by value and fast.

A state that user code returns is handed to it again: before a step ends as it is, after that from the store. So that both are
equal, each value is made what it would be after a round trip through Arrow, and shares nothing with the one that was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from monoids.nested import codec_of

AsStored: TypeAlias = Callable[[Any], Any]
"""Returns a value as the store would give it back. It raises a MonoidError for one that the type does not take."""

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class _UnsureError(Exception):
    """Only Arrow can tell what becomes of a value."""


def as_stored(type: pa.DataType) -> AsStored:
    """Return a function that gives values of this type back as the store would.

    Raises:
        MonoidError: Values of the type can't be kept.
    """
    codec, copy = codec_of(type), _copying(type)

    def found(value: Any) -> Any:
        try:
            return None if value is None else copy(value)
        except _UnsureError:
            (back,) = codec.from_arrow(codec.to_arrow([value]))
            return back

    return found


def _copying(type: pa.DataType) -> AsStored:
    """Return a function that copies the values that certainly come back as they are, and is unsure of all others."""
    if type in _INTEGERS:
        most = 2 ** (_INTEGERS[type] - 1)
        return _if(lambda value: value.__class__ is int and -most <= value < most)
    if type == pa.float64():
        return _if(lambda value: value.__class__ is float)
    if type == pa.bool_():
        return _if(lambda value: value.__class__ is bool)
    if type == pa.string():
        # Of other text not all can be encoded.
        return _if(lambda value: value.__class__ is str and value.isascii())
    if isinstance(type, pa.StructType):
        return _of_struct({field.name: _copying(field.type) for field in type})
    if isinstance(type, pa.ListType):
        return _of_list(_copying(type.value_type))
    return _if(lambda value: False)


def _if(is_sure: Callable[[Any], bool]) -> AsStored:
    def copy(value: Any) -> Any:
        if is_sure(value):
            return value
        raise _UnsureError

    return copy


def _of_struct(parts: dict[str, AsStored]) -> AsStored:
    fields = list(parts.items())

    def copy(value: Any) -> Any:
        if value.__class__ is not dict or len(value) != len(fields):
            raise _UnsureError
        try:
            return {name: None if (part := value[name]) is None else of_part(part) for name, of_part in fields}
        except KeyError:
            raise _UnsureError from None

    return copy


def _of_list(of_item: AsStored) -> AsStored:
    def copy(value: Any) -> Any:
        if value.__class__ is not list:
            raise _UnsureError
        return [None if item is None else of_item(item) for item in value]

    return copy
