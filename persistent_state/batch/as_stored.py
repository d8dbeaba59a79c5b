"""Values as the store would give them back, worked out value by value and fast.

A state that user code returns is handed to it again: before a step ends as it is, after that from the store. So that both are
equal, each value is made what it would be after a round trip through Arrow, and shares nothing with the one that was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from monoids.nested import codec_of

AsStored: TypeAlias = Callable[[Any], Any]
"""Returns a value as the store would give it back. It raises a MonoidError for one that the type does not take."""


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
    if isinstance(type, pa.StructType):
        return _of_struct(type)
    if isinstance(type, pa.ListType):
        return _of_list(_copying(type.value_type))
    return _made("value", [f"if not ({_is_sure(type)}): raise unsure", "return value"], {})


def _is_sure(type: pa.DataType) -> str:
    """Return the expression that is true if a `value` of a type certainly comes back as it is."""
    if pa.types.is_signed_integer(type):
        most = 2 ** (type.bit_width - 1)
        return f"value.__class__ is int and {-most} <= value < {most}"
    if type == pa.float64():
        return "value.__class__ is float"
    if type == pa.bool_():
        return "value.__class__ is bool"
    # Of other text not all can be encoded.
    return "value.__class__ is str and value.isascii()" if type == pa.string() else "False"


def _of_struct(type: pa.StructType) -> AsStored:
    # One function for all fields, since calls would take most of the time.
    lines = [f"if row.__class__ is not dict or len(row) != {len(type)}: raise unsure"]
    known: dict[str, Any] = {}
    for i, field in enumerate(type):
        lines += ["try:", f"    value = row[{field.name!r}]", "except KeyError:", "    raise unsure from None"]
        if pa.types.is_nested(field.type):
            known[f"part{i}"] = _copying(field.type)
            lines.append(f"value{i} = None if value is None else part{i}(value)")
        else:
            lines += [f"if not (value is None or {_is_sure(field.type)}): raise unsure", f"value{i} = value"]
    copied = ", ".join(f"{field.name!r}: value{i}" for i, field in enumerate(type))
    return _made("row", [*lines, f"return {{{copied}}}"], known)


def _made(argument: str, lines: Sequence[str], known: Mapping[str, Any]) -> AsStored:
    """Return a function of these lines, as `dataclass` makes its methods."""
    names = {**known, "unsure": _UnsureError}
    exec(f"def copy({argument}):\n" + "\n".join(f"    {line}" for line in lines), names)
    made: AsStored = names["copy"]
    return made


def _of_list(of_item: AsStored) -> AsStored:
    def copy(value: Any) -> Any:
        if value.__class__ is not list:
            raise _UnsureError
        return [None if item is None else of_item(item) for item in value]

    return copy
