"""The names of members of JSON objects: columns that no record has, and records that have one under another name only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persistent_state.sources.casts import is_list, of_column
from persistent_state.sources.names import Path, listed, look_of, other_name

_LOOKED_AT = 100
"""The most records at the start of a block of which a sentence says the names."""

_FORMS = 16
"""The most ways to write a name of which each is looked for in all lines."""

_BEHIND = np.frombuffer(b": \t\r\n", np.uint8)
"""The bytes that may stand behind the last quote of a name."""

_NAME = re.compile(rb'"([^"\\\n]*(?:\\.[^"\\\n]*)*)"\s*:|"[^"\\\n]*(?:\\.[^"\\\n]*)*"')
"""A text of JSON; a group has what stands between its quotes if it is a name."""
_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"(?=\s*(:))?|[][{}]|[^\s,:"{}[\]]+)', re.DOTALL)
"""A text of JSON, with the colon behind it if it is a name; a bracket; or any other value."""


def _lines_of(text: bytes, starts: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.Array[Any]:
    """Return lines of a text whose lines begin at these places. They need not be UTF-8."""
    offsets = pa.py_buffer(np.append(starts, len(text)).astype(np.int64))
    # As text, since patterns know letters beyond ASCII.
    lines = pa.Array.from_buffers(pa.large_string(), len(starts), [None, offsets, pa.py_buffer(text)])
    return lines if len(numbers) == len(lines) else lines.take(pa.array(numbers))


def misnamed(raw: pa.RecordBatch, text: bytes, starts: NDArray[np.int64], numbers: NDArray[np.int64]) -> dict[int, str]:
    """Return the rows that have a column, or a field of a struct, under another name only, with the reason.

    Args:
        raw: Records as they were parsed.
        text: The lines of these records and of others.
        starts: Where each line begins.
        numbers: The number of each record's line.
    """
    fields = [
        (path, names, rows[column.is_null().to_numpy(False)])
        for path, names, column, rows in _fields(raw.schema.names, raw.columns, np.arange(raw.num_rows))
        if column.null_count
    ]
    if not fields:
        return {}
    lines = _lines_of(text, starts, numbers)
    has_null = np.zeros(raw.num_rows, np.bool_)
    for _, _, of_nulls in fields:
        has_null[of_nulls] = True
    written = _names_in(lines.filter(pa.array(has_null)))
    found: dict[int, str] = {}
    for path, names, of_nulls in fields:
        # Hardly any name is alike, so that a column more takes no look at the lines.
        alike = [each for other, each in written.get(look_of(path[-1]), ()) if other not in names]
        if not alike:
            continue
        # In their order, and those of a list follow each other.
        nulls = pa.array(of_nulls[np.append(True, of_nulls[1:] != of_nulls[:-1])])
        for row in nulls.filter(_have_any(lines.take(nulls), alike)).to_pylist():
            for members in _objects(_record(lines[row]), path[:-1]):
                if path[-1] not in members and (other := other_name(path[-1], members, names)):
                    found[row] = of_column(".".join(path), f"is not in it, but {other}")
    return found


def unseen(rows: pa.RecordBatch, text: bytes, starts: NDArray[np.int64], good: NDArray[np.int64]) -> dict[Path, str]:
    """Return the columns, and fields of structs, that no record has, each with words on what the records have instead.

    Args:
        rows: The records that are good, as rows.
        text: The lines of all records.
        starts: Where each begins.
        good: The numbers of the good ones.
    """
    columns = _fields(rows.schema.names, rows.columns, np.arange(rows.num_rows))
    left = {path: names for path, names, column, _ in columns if column.null_count == len(column) > 0}
    if not left:
        return {}
    lines = _lines_of(text, starts, good)
    first = [*map(_record, lines[:_LOOKED_AT])]
    for record in chain(first, _may_have(lines[_LOOKED_AT:], left)):
        for path in [path for path in left if any(path[-1] in each for each in _objects(record, path[:-1]))]:
            del left[path]
        if not left:
            return {}
    there = {
        within: [*dict.fromkeys(name for record in first for each in _objects(record, within) for name in each)]
        for within in {path[:-1] for path in left}
    }
    found: dict[Path, str] = {}
    for path, names in left.items():
        within = path[:-1]
        if not there[within]:
            # Objects without any member say nothing.
            continue
        if within and all((*within, name) in left for name in names):
            found[within] = f", but one with the fields {listed(there[within])}"
        else:
            found[path] = f" in any of {len(lines):,} good records, the first of which have {listed(there[within])}"
    return found


def _may_have(lines: pa.Array[Any], left: Mapping[Path, object]) -> Iterator[Any]:
    """Yield the records of lines that may have members at the paths that are left, while there are such paths."""
    written = _names_in(lines)
    for name in dict.fromkeys(path[-1] for path in left):
        alike = [each for other, each in written.get(look_of(name), ()) if other == name]
        for line in lines.filter(_have_any(lines, alike)) if alike else ():
            if all(path[-1] != name for path in left):
                break
            yield _record(line)


def _names_in(lines: pa.Array[Any]) -> dict[str, list[tuple[str, bytes]]]:
    """Return the names of members at all levels of lines, and the bytes between their quotes, by `look_of` each.

    Some texts that are no names are among them.
    """
    has_quotes = pc.match_substring(lines, b'\\"')
    written = {name for line in lines.filter(has_quotes) for name in _NAME.findall(line.as_buffer())}
    if len(others := lines.filter(pc.invert(has_quotes)) if written else lines):
        _, offsets, text = others.buffers()
        codes = np.frombuffer(text, np.uint8)[: np.frombuffer(offsets, np.int64)[others.offset + len(others)]]
        # From one quote up to the next one. Lines end with a line feed, so that something stands behind each quote.
        quotes = np.flatnonzero(codes == ord('"'))
        places = pa.py_buffer(quotes.astype(np.int64))
        parts = pa.Array.from_buffers(pa.large_binary(), max(0, len(quotes) - 1), [None, places, text])
        is_name = np.isin(codes[quotes[1:] + 1], _BEHIND)
        written.update(part[1:] for part in pc.unique(parts.filter(pa.array(is_name))).to_pylist())
    found: dict[str, list[tuple[str, bytes]]] = {}
    for each in written:
        name = each.decode(errors="surrogateescape")
        if b"\\" in each:
            with suppress(ValueError):
                name = json.loads(f'"{name}"', strict=False)
        found.setdefault(look_of(name), []).append((name, each))
    return found


def _have_any(lines: pa.Array[Any], written: Sequence[bytes]) -> pa.BooleanArray:
    """Return which lines may have one of these names, as they are written, in quotes."""
    if len(written) > _FORMS:
        # To look for each would take longer than to read all lines.
        return pa.array(np.ones(len(lines), np.bool_))
    return reduce(pc.or_, (pc.match_substring(lines, b'"%s"' % each) for each in written))


def _fields(
    names: Sequence[str], columns: Iterable[pa.Array[Any]], rows: NDArray[np.int64], within: Path = ()
) -> Iterator[tuple[Path, list[str], pa.Array[Any], NDArray[np.int64]]]:
    """Yield the path of each column, and of the fields of structs and of structs in lists, with the names beside it.

    With them come its values, and the row of each. A struct that is null has no fields.
    """
    for name, column in zip(names, columns, strict=True):
        path, its_rows = (*within, name), rows
        yield path, [*names], column, its_rows
        while is_list(column.type):
            its_rows = its_rows[pc.list_parent_indices(column).to_numpy()]
            column = column.flatten()
        if pa.types.is_struct(column.type):
            if column.null_count:
                its_rows = its_rows[column.is_valid().to_numpy(False)]
                column = column.drop_null()
            yield from _fields([field.name for field in column.type], column.flatten(), its_rows, path)


def _record(line: pa.Scalar) -> Any:
    """Return a line that pyarrow has read as Python has it, with numbers as texts."""
    text = line.as_buffer().to_pybytes().decode(errors="surrogateescape")
    with suppress(ValueError, RecursionError):
        return json.loads(text, parse_int=str, parse_float=str, strict=False)
    # pyarrow reads what Python's parser does not: Inf, -NaN, and arrays that lie deep within each other.
    return _taken_apart(text)


def _taken_apart(text: str) -> Any:
    """Return the value of a text that is JSON by its brackets and names. Its numbers and texts stay as they are written."""
    holders: list[Any] = [[]]
    name = ""
    for token, colon in _TOKEN.findall(text):
        if colon:
            name = json.loads(token, strict=False)
        elif token in "]}":
            holders.pop()
        else:
            value: Any = {} if token == "{" else [] if token == "[" else token
            if isinstance(holders[-1], dict):
                holders[-1][name] = value
            else:
                holders[-1].append(value)
            if token in "[{":
                holders.append(value)
    return holders[0][0]


def _objects(value: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects at a path within a value, also those in lists."""
    if isinstance(value, list):
        for each in value:
            yield from _objects(each, path)
    elif isinstance(value, dict):
        if path:
            yield from _objects(value.get(path[0]), path[1:])
        else:
            yield value
