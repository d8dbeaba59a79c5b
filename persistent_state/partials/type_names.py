"""Names of Arrow types. Each type has a name of its own, so that a log can name the type of its values.

They are those that `str` gives. Only a field whose name is empty, or has one of the characters `"`, `<`, `>`, `:` and `,`, has
its name written as JSON writes it.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa

_UNITS = ("s", "ms", "us", "ns")

_LEAVES = {
    str(type): type
    for type in (
        *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.date64(), pa.month_day_nano_interval()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(make(unit) for make in (pa.timestamp, pa.duration) for unit in _UNITS),
    )
}

_DECIMALS = {"128": pa.decimal128, "256": pa.decimal256}

_LEAF = re.compile(r"\w+(\[[^\]]*\]|\([^)]*\))?")
_NAME = re.compile(r'[^"<>:,]+')
_DECIMAL = re.compile(r"decimal(\d+)\((\d+), (-?\d+)\)")
_INSTANT = re.compile(r"timestamp\[(\w+), tz=([^\]]+)\]")


def name_of(type: pa.DataType) -> str:
    """Return the name of a type."""
    if isinstance(type, pa.StructType):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {name_of(field.type)}' for field in type)}>"
    if isinstance(type, pa.ListType):
        return f"list<item: {name_of(type.value_type)}>"
    if isinstance(type, pa.MapType):
        return f"map<{name_of(type.key_type)}, {name_of(type.item_type)}>"
    return str(type)


def type_named(name: str) -> pa.DataType:
    """Return the type of a name.

    Raises:
        ValueError: No type that is known here has this name.
    """
    type, _ = _first(name)
    if name_of(type) != name:
        raise ValueError(f"{name!r} is not the name of a type that is known here.")
    return type


def _quoted(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name)


def _first(text: str) -> tuple[pa.DataType, str]:
    """Return the type at the beginning of a text, and what comes after its name."""
    if text.startswith("struct<"):
        fields, rest = [], text.removeprefix("struct<")
        while not rest.startswith(">"):
            name, rest = _field_name(rest.removeprefix(", "))
            type, rest = _first(rest.removeprefix(": "))
            fields.append(pa.field(name, type))
        return pa.struct(fields), rest[1:]
    if text.startswith("list<item: "):
        item, rest = _first(text.removeprefix("list<item: "))
        return pa.list_(item), rest[1:]
    if text.startswith("map<"):
        key, rest = _first(text.removeprefix("map<"))
        item, rest = _first(rest.removeprefix(", "))
        return pa.map_(key, item), rest[1:]
    found = _LEAF.match(text)
    leaf = found[0] if found else ""
    return _leaf(leaf), text[len(leaf) :]


def _field_name(text: str) -> tuple[str, str]:
    if text.startswith('"'):
        name, end = json.JSONDecoder().raw_decode(text)
        return name, text[end:]
    found = _NAME.match(text)
    if found is None:
        raise ValueError(f"{text!r} does not begin with the name of a field.")
    return found[0], text[found.end() :]


def _leaf(name: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(name):
        width, digits, scale = decimal.groups()
        if width in _DECIMALS:
            return _DECIMALS[width](int(digits), int(scale))
    if instant := _INSTANT.fullmatch(name):
        return pa.timestamp(instant[1], instant[2])
    if name not in _LEAVES:
        raise ValueError(f"{name!r} is not the name of a type that is known here.")
    return _LEAVES[name]
