"""The names of members of JSON objects: columns that no record has, and records that have one under another name only."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persistent_state.sources.casts import is_list
from persistent_state.sources.names import Path, listed, other_name

_LOOKED_AT = 100
"""The most records at the start of a block of which a sentence says the names."""

_ESCAPED = r'[^"\\]*(?:\\.[^"\\]*)+'
"""A pattern of what stands between the quotes of a text with a backslash."""
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
    found: dict[int, str] = {}
    lines = _lines_of(text, starts, numbers)
    others: list[str] | None = None
    for path, names, column, rows in _fields(raw.schema.names, raw.columns, np.arange(raw.num_rows)):
        if not column.null_count:
            continue
        if others is None:
            # Most texts have none of these letters, and a look at the whole text is quick.
            others = [_ESCAPED] if b"\\" in text else []
            others += [] if text.isascii() else [_odd_letter()]
        of_nulls = rows[column.is_null().to_numpy(False)]
        # In their order, and those of a list follow each other.
        nulls = pa.array(of_nulls[np.append(True, of_nulls[1:] != of_nulls[:-1])])
        texts = lines.take(nulls)
        alike, own = (pc.count_substring_regex(texts, each) for each in _patterns(path[-1], others))
        for row in nulls.filter(pc.greater(alike, own)).to_pylist():
            for members in _objects(_record(lines[row]), path[:-1]):
                if path[-1] not in members and (other := other_name(path[-1], members, names)):
                    found[row] = f"column {'.'.join(path)} is not in it, but {other}"
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
    for record in chain(first, _may_have(lines[_LOOKED_AT:], text, left)):
        for path in [path for path in left if any(path[-1] in each for each in _objects(record, path[:-1]))]:
            del left[path]
        if not left:
            return {}
    found: dict[Path, str] = {}
    for path, names in left.items():
        there = [*dict.fromkeys(name for record in first for each in _objects(record, path[:-1]) for name in each)]
        within = path[:-1]
        if not there:
            # Objects without any member say nothing.
            continue
        if within and all((*within, name) in left for name in names):
            found[within] = f", but one with the fields {listed(there)}"
        else:
            found[path] = f" in any of {len(lines):,} good records, the first of which have {listed(there)}"
    return found


def _may_have(lines: pa.Array[Any], text: bytes, paths: Iterable[Path]) -> Iterator[Any]:
    """Yield the records of lines that may have members at these paths. A name is written as it is, or with escapes."""
    # In most texts there is none of them, and a look at the whole text is quick.
    for word in {json.dumps(path[-1], ensure_ascii=False) for path in paths}:
        if word.encode(errors="surrogatepass") in text:
            yield from map(_record, lines.filter(pc.match_substring(lines, word)))
    if b"\\" in text:
        yield from map(_record, lines.filter(pc.match_substring_regex(lines, rf'"{_ESCAPED}"\s*:')))


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


@cache
def _odd_letter() -> str:
    """Return a pattern of names with a letter that is several in another case, or another one if it is composed.

    Patterns know other cases of one letter only.
    """
    letters = (letter for letter in map(chr, [*range(0x80, 0xD800), *range(0xE000, 0x10000)]))
    odd = [each for each in letters if len(each.casefold()) > 1 or not unicodedata.is_normalized("NFC", each)]
    return rf'[^"\\]*[{"".join(odd)}\p{{M}}\x{{2F800}}-\x{{2FA1D}}][^"\\]*'


def _patterns(name: str, others: Sequence[str]) -> tuple[str, str]:
    """Return a pattern of the members whose names may be `other_name`s of a column or its own, and one of its own.

    The first one is also that of all names with the patterns `others`.
    """
    forms = {unicodedata.normalize(form, each) for form in ("NFC", "NFD") for each in (name, name.casefold())}
    unseen = r"[\s\p{Z}\p{Cf}]*"
    alike = "|".join([*(unseen + unseen.join(map(re.escape, form)) + unseen for form in sorted(forms)), *others])
    own = "|".join({re.escape(json.dumps(name, ensure_ascii=is_ascii)) for is_ascii in (False, True)})
    return rf'(?i)"(?:{alike})"\s*:', rf"(?:{own})\s*:"
