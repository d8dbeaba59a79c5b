"""Parse lines that hold one JSON object each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from numpy.typing import NDArray

from persistent_state.formatting import shortened
from persistent_state.sources.casts import Unfit, is_known, leaves, most_digits, of_column
from persistent_state.sources.csv_lines import Parser

_NOT_AN_OBJECT = "not a JSON object"
_SEVERAL = "several JSON objects in one line"
_FEW = 128
"""The most lines of which Python looks at each, where the parser refuses them together."""

_WHITE = b" \t\r\n"
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""A text of JSON from its first quote up to its last one."""
_LINE_FEED = re.compile(rb"\\.|\n", re.DOTALL)

_WHOLE = re.compile(r"-?[0-9]{1,20}")


def json_parser(schema: pa.Schema) -> Parser:
    """Return a parser of lines that hold one JSON object each."""
    # The parser would take numbers for times. Times are text here, and parsed later, to find bad values instead of lines.
    fields = [field.with_type(_read_as(field.type)) for field in schema]
    odd = _odd_decimals(schema)
    floats = [field.name for field in schema if any(map(pa.types.is_float32, leaves([field.type])))]

    def read(text: bytes) -> pa.Table:
        rules = pa_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
        options = pa_json.ReadOptions(block_size=len(text), use_threads=False)
        source: Any = pa.BufferReader(text)
        table = pa_json.read_json(source, read_options=options, parse_options=rules)
        for name in floats:
            # pyarrow takes a number that is too large for a float for an infinite one.
            if any(map(_has_infinite, table[name].chunks)) and (b"Inf" not in text or text.count(b"\n") > 1):
                raise Unfit(of_column(name, f"is not {schema.field(name).type}"))
        return table

    def parse(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[pa.Table, dict[int, Any]]:
        is_one = len(starts) == 1
        codes = np.frombuffer(text, np.uint8)
        last = codes[ends - 2]
        last = np.where(last == ord("\r"), codes[np.maximum(ends - 3, 0)], last)
        # pyarrow takes objects wherever their lines end, and crashes on a null. But a line end between "}" and "{" can
        # only be one between two objects, so that no object lies in two lines and each line makes a row or more.
        numbers: Sequence[int] = range(len(starts))
        bad: dict[int, Unfit] = {}
        if (codes[starts] != ord("{")).any() or (last != ord("}")).any():
            lines = [text[start:end].strip(_WHITE) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
            are_objects = [line.startswith(b"{") and line.endswith(b"}") for line in lines]
            numbers = np.flatnonzero(are_objects).tolist()
            bad = {i: Unfit(_not_an_object(lines[i])) for i, is_object in enumerate(are_objects) if not is_object}
            if not numbers:
                return pa.schema(fields).empty_table(), bad
            lines = [lines[i] for i in numbers]
            text = b"\n".join(lines) + b"\n"
            ends = np.cumsum([len(line) + 1 for line in lines])
            starts = np.concatenate([[0], ends])[:-1]
        try:
            if not _is_utf8(text):
                raise Unfit("")
            if odd:
                check_odd(text, starts, ends)
            table = read(text)
            if len(table) != len(starts):
                raise Unfit("")
            return table, bad
        except pa.ArrowInvalid:
            if len(starts) > _FEW:
                raise
        # The fault may lie in members that are not read.
        kept: list[bytes] = []
        for number, start, end in zip(numbers, starts, ends, strict=True):
            line = text[start:end]
            try:
                kept.append(_object(members(_members(line))))
            except Unfit as error:
                # pyarrow reads lines that Python does not, such as those with Inf.
                if is_one or str(error) != _NOT_AN_OBJECT or not is_read(line):
                    bad[number] = error
                else:
                    kept.append(line)
        if not kept:
            return pa.schema(fields).empty_table(), bad
        if is_one:
            return read_alone(text), {}
        return read(b"".join(kept)), bad

    def is_read(line: bytes) -> bool:
        try:
            if odd:
                check_odd(line, np.array([0]), np.array([len(line)]))
            return len(read(line)) == 1
        except pa.ArrowInvalid:
            return False

    def check_odd(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        offsets = pa.py_buffer(np.append(starts, ends[-1]).astype(np.int64))
        rows = pa.Array.from_buffers(pa.large_binary(), len(starts), [None, offsets, pa.py_buffer(text)])
        for line in rows.filter(pc.match_substring_regex(rows, odd)).to_pylist():
            _check_decimals(line, schema)

    def members(written: _Members) -> dict[str, str]:
        """Return the members of a line that are read, as JSON, without those within them that are not."""
        values = dict(written)
        kept: dict[str, str] = {}
        for field in fields:
            if len(values) < len(written) and sum(name == field.name for name, _ in written) > 1:
                raise Unfit(
                    of_column(field.name, "stands twice in it"),
                    _shortly(*(each for name, each in written if name == field.name)),
                )
            value = values.get(field.name)
            try:
                kept[field.name] = _written(value, field.type)
            except UnicodeEncodeError:
                raise Unfit(of_column(field.name, "is not UTF-8"), _shortly(value)) from None
            if not _is_kind(value, field.type):
                raise misfit(field.name, written)
        if odd:
            _check_decimals(_object(kept), schema)
        return kept

    def read_alone(line: bytes) -> pa.Table:
        written = _members(line)
        kept = members(written)
        try:
            return read(_object(kept))
        except pa.ArrowInvalid:
            for name in kept:
                try:
                    read(_object({name: kept[name]}))
                except pa.ArrowInvalid:
                    raise misfit(name, written) from None
        raise Unfit("not a record of the schema")

    def misfit(name: str, written: _Members) -> Unfit:
        return Unfit(of_column(name, f"is not {schema.field(name).type}"), _shortly(dict(written)[name]))

    return parse


def in_one_line(value: bytes) -> bytes:
    """Return a value of JSON without line feeds: those in a text are escaped, and others are white space."""
    value = value.strip(_WHITE)
    if b"\n" in value:
        value = _TEXT.sub(lambda text: _LINE_FEED.sub(_escaped, text[0]), value).replace(b"\n", b" ")
    return value


def _escaped(found: re.Match[bytes]) -> bytes:
    return rb"\n" if found[0] == b"\n" else found[0]


def _object(members: Mapping[str, str]) -> bytes:
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in members.items())}}}\n".encode()


def _read_as(type: pa.DataType) -> pa.DataType:
    """Return a type with text in the place of times, and decimals of most digits, at all levels."""
    if pa.types.is_date(type) or pa.types.is_timestamp(type) or pa.types.is_time(type):
        return pa.string()
    if pa.types.is_decimal128(type):
        # pyarrow counts zeros behind the point, too, so that 10.0 would not be a decimal(2, 0).
        return pa.decimal128(38, type.scale)
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_read_as(field.type)) for field in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_read_as(type.value_type)))
    return type


def _has_infinite(column: pa.Array[Any]) -> bool:
    if pa.types.is_nested(column.type):
        parts = column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]
        return any(map(_has_infinite, parts))
    return bool(pa.types.is_float32(column.type) and pc.any(pc.is_inf(column)).as_py())


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object, in their order."""


class _Number(str):
    """A number as it was written."""


_MEMBERS = json.JSONDecoder(object_pairs_hook=_Members, parse_float=_Number, parse_int=_Number, strict=False)
_encoded = json.JSONEncoder(ensure_ascii=False).encode
"""Made once. What `json.loads` and `json.dumps` make for each text takes longer than the text."""


def _members(line: bytes) -> _Members:
    """Return the members of a JSON object. A byte that is not UTF-8 is half a surrogate, as JSON may write one, too.

    Raises:
        Unfit: The line is not a JSON object.
    """
    try:
        record = _MEMBERS.decode(line.decode(errors="surrogateescape"))
    except (ValueError, RecursionError):
        raise Unfit(_not_an_object(line)) from None
    if not isinstance(record, _Members):
        raise Unfit(_NOT_AN_OBJECT)
    return record


def _not_an_object(line: bytes) -> str:
    """Return why a line is not a JSON object, in words that do not depend on pyarrow's."""
    if not _is_utf8(line):
        return "not UTF-8"
    try:
        text = line.decode().strip()
        end = json.JSONDecoder().raw_decode(text)[1]
        if text.startswith("{") and text[end:].lstrip(" \t\r,").startswith("{"):
            return _SEVERAL
    except (ValueError, RecursionError):
        pass
    return _NOT_AN_OBJECT


def _is_kind(value: Any, type: pa.DataType) -> bool:
    """Return whether a value may be one of a type. The parser, which judges in the end, is slow for one value."""
    if value is None:
        return True
    if pa.types.is_struct(type):
        fields = {field.name: field.type for field in type}
        return isinstance(value, _Members) and all(
            _is_kind(each, fields[name]) for name, each in value if name in fields
        )
    if pa.types.is_list(type):
        return isinstance(value, list) and all(_is_kind(each, type.value_type) for each in value)
    if pa.types.is_boolean(type):
        return isinstance(value, bool)
    if pa.types.is_floating(type):
        return isinstance(value, (_Number, float))
    if pa.types.is_string(type):
        return isinstance(value, str) and not isinstance(value, _Number)
    if pa.types.is_integer(type):
        if not isinstance(value, _Number) or not _WHOLE.fullmatch(value):
            return False
        bits, least = (type.bit_width - 1, -1) if pa.types.is_signed_integer(type) else (type.bit_width, 0)
        return bool(least << bits <= int(value) < 1 << bits)
    return not isinstance(value, (_Members, list))


def _written(value: Any, type: pa.DataType) -> str:
    """Return a value as JSON, without the members that a type does not name.

    Raises:
        UnicodeEncodeError: A text is not one.
    """
    if isinstance(value, _Members):
        fields = {field.name: field.type for field in type} if pa.types.is_struct(type) else {}
        kept = (f"{json.dumps(name)}:{_written(each, fields[name])}" for name, each in value if name in fields)
        return f"{{{','.join(kept)}}}"
    if isinstance(value, list):
        return f"[{','.join(_written(each, type.value_type) for each in value)}]" if pa.types.is_list(type) else "[]"
    if isinstance(value, _Number):
        return value
    written = _encoded(value)
    written.encode()
    return written


def _shortly(*values: Any) -> str | None:
    """Return values as JSON, cut short; None if they lie too deep within each other."""
    # Python's parser goes deeper than its functions do.
    with suppress(RecursionError):
        return shortened(", ".join(map(_shown, values)))
    return None


def _shown(value: Any) -> str:
    """Return a value as JSON, with all that is in it."""
    if isinstance(value, _Members):
        return f"{{{','.join(f'{_shown(name)}:{_shown(each)}' for name, each in value)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    if isinstance(value, _Number):
        return value
    # Half a surrogate is no text.
    return _encoded(value).encode(errors="backslashreplace").decode()


def _odd_decimals(schema: pa.Schema) -> str:
    """Return a pattern of all lines of JSON with decimals that pyarrow might not know; "" if the schema has no decimals."""
    most = [most_digits(type) for type in leaves(schema.types) if pa.types.is_decimal(type)]
    # A number with an exponent, or with many digits. Any of that may be escaped.
    return (
        rf"[^0-9A-Za-z.][0-9.]+[eE][-+]?[0-9]|[0-9.]{{{min(most) + 1}}}|\\u00([46]5|2[bBdDeE]|3[0-9])" if most else ""
    )


def _check_decimals(line: bytes, schema: pa.Schema) -> None:
    """Refuse a line of JSON with a decimal that pyarrow might not know: see `exact_decimal`.

    Raises:
        Unfit: The line has one, or is not JSON.
    """
    try:
        # Members that stand twice are all looked at. Numbers are as they were written.
        record = _MEMBERS.decode(line.decode(errors="surrogatepass"))
    except (ValueError, RecursionError):
        raise Unfit(_not_an_object(line)) from None
    for field in schema:
        for name, value in record:
            if name == field.name and not _are_known(value, field.type):
                raise Unfit(
                    of_column(name, f"is not {field.type}"),
                    shortened(value) if isinstance(value, str) else _shortly(value),
                )


def _are_known(value: Any, type: pa.DataType) -> bool:
    """Return whether the decimals of a JSON value are decimals that pyarrow knows."""
    if isinstance(value, _Members):
        fields = {field.name: field.type for field in type} if pa.types.is_struct(type) else {}
        return all(_are_known(each, fields[name]) for name, each in value if name in fields)
    if isinstance(value, list):
        return not isinstance(type, pa.ListType) or all(_are_known(each, type.value_type) for each in value)
    # What is not a decimal is refused by pyarrow.
    return not (isinstance(value, str) and pa.types.is_decimal(type)) or is_known(value, type)
