"""Columns that files do not hold under their names: they are in the names of folders, have another name, or are not there."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from persistent_state.sources.casts import is_list

Path: TypeAlias = "tuple[str, ...]"
"""The name of a column, and those of the fields of structs within it."""

ALIKE = ", but "
"""The beginning of the words on a column that a file has under a name like it."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_NAMED = 8
"""The number of columns that a sentence names."""

_SHOWN = 80
"""The most characters of a name in a reason. Reasons are counted in the log."""


def folder_columns(path: str) -> dict[str, str | None]:
    """Return the columns that the folders of a path say, as `region=Oslo/` does.

    Example:
        >>> folder_columns("region=Troms%C3%B8/day=__HIVE_DEFAULT_PARTITION__/0.parquet")
        {'region': 'Tromsø', 'day': None}
    """
    # A byte that is not UTF-8 stays one, so that the text fits no column.
    return {name: None if value == _NULL else _decoded(value) for name, value in _of_folders(path)}


def folder_column_twice(path: str, wanted: Sequence[str]) -> str | None:
    """Return one of the wanted columns that two folders of a path say; None if there is none."""
    names = [name for name, _ in _of_folders(path)]
    return next((name for name in names if names.count(name) > 1 and name in wanted), None)


def _of_folders(path: str) -> list[tuple[str, str]]:
    parts = (folder.split("=", 1) for folder in path.split("/")[:-1] if folder.find("=") > 0)
    return [(_decoded(name), value) for name, value in parts]


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def absent_columns(there: Mapping[str, pa.DataType], wanted: Iterable[pa.Field], within: Path = ()) -> dict[Path, str]:
    """Return the columns, and fields of structs, that a file lacks, each with words on what the file has instead.

    Args:
        there: The columns of the file, and their types.
        wanted: The columns that are read.
        within: The struct whose fields these are.

    Example:
        >>> absent_columns({"K": pa.string()}, [pa.field("k", pa.string())])
        {('k',): ", but 'K'"}
    """
    found: dict[Path, str] = {}
    for field in wanted:
        path, type = (*within, field.name), field.type
        if field.name not in there:
            found[path] = _instead(field.name, there)
            continue
        has = there[field.name]
        while is_list(type) and is_list(has):
            type, has = _held(type), _held(has)
        if pa.types.is_struct(type) and pa.types.is_struct(has):
            inner = absent_columns({each.name: each.type for each in has}, type, path)
            if type.num_fields and all((*path, each.name) in inner for each in type):
                inner = {path: f", but one with the fields {listed([each.name for each in has])}"}
            found |= inner
    return found


def _held(type: pa.DataType) -> pa.DataType:
    """Return the type of what a list holds, or a map as a list of its entries."""
    if pa.types.is_map(type):
        return pa.struct({"key": type.key_type, "value": type.item_type})
    return type.value_type


def _instead(name: str, there: Iterable[str]) -> str:
    names = [*there]
    # As ASCII, since the two may look alike.
    alike = [ascii(other) for other in names if look_of(other) == look_of(name)]
    if alike:
        return f"{ALIKE}{alike[0]}"
    # A letter of another alphabet may have the look of a Latin one.
    odd = [other for other in names if name.isascii() and any(map(_is_like_latin, other))]
    in_ascii = f" (in ASCII: {', '.join(map(ascii, odd[:_NAMED]))})" if odd else ""
    return f", only {listed(names)}{in_ascii}"


def _is_like_latin(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith(("CYRILLIC", "GREEK"))


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence, the first few of them."""
    more = f" and {len(names) - _NAMED:,} more" if names[_NAMED:] else ""
    return ", ".join(map(repr, names[:_NAMED])) + more if names else "none"


def look_of(name: str) -> str:
    """Return how a name looks: without its case, its composition, white space around it and characters that have no shape."""
    if name.isascii():
        return name.lower().strip()
    shown = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", shown).casefold()).strip()


def other_name(name: str, names: Iterable[str], schema: Sequence[str]) -> str | None:
    """Return, as ASCII, the one of a record's names that is another only by its case or by what can't be seen; else None."""
    plain = look_of(name)
    alike = (ascii(other)[:_SHOWN] for other in names if other not in schema and look_of(other) == plain)
    return next(alike, None)
