"""Arrow types from their names, as an identity writes them."""

from __future__ import annotations

import re

import pyarrow as pa

from monoids.codec import DataType, MonoidError

_PLAIN = {
    str(type): type
    for type in (
        *(pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.time64("us")),
        *(pa.duration("us"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
    )
}


def parse_type(text: str) -> DataType:
    """Return the type of the text that `str` makes of it. It reads the types of key columns and of this package's monoids.

    Raises:
        MonoidError: it is not one of those, or its text does not show where the name of a field ends and its type begins.
    """
    try:
        type = _parse(text)
    except ValueError:
        type = None
    if str(type) != text:
        raise MonoidError(f"type={text} is not known here. Upgrade, or give the monoid that has it.")
    return type


def _parse(text: str) -> DataType:
    if text in _PLAIN:
        return _PLAIN[text]
    if digits := re.fullmatch(r"decimal128\((\d+), (-?\d+)\)", text):
        return pa.decimal128(int(digits[1]), int(digits[2]))
    kind, _, inner = text.removesuffix(">").partition("<")
    if kind == "list":
        return pa.list_(_parse(inner.removeprefix("item: ")))
    if kind == "map":
        key, item = _split(inner)
        return pa.map_(_parse(key), _parse(item))
    if kind == "struct":
        fields = [part.partition(": ") for part in _split(inner)]
        return pa.struct([(name, _parse(type)) for name, _, type in fields])
    raise ValueError(text)


def _split(text: str) -> list[str]:
    """Return the parts between commas that are not within brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<([") - (letter in ">)]")
        if depth == 0 and text.startswith(", ", place):
            parts.append(text[start:place])
            start = place + 2
    return [*parts, text[start:]]
