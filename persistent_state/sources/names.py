"""Columns that files do not hold under their names: they are in the names of folders, have another name, or are not there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa

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


def absent_columns(there: Mapping[str, pa.DataType], wanted: Iterable[pa.Field], within: str = "") -> dict[str, str]:
    """Return the columns, and fields of structs, that a file lacks, each with words on what the file has instead.

    Args:
        there: The columns of the file, and their types.
        wanted: The columns that are read.
        within: The struct whose fields these are, and a point.

    Example:
        >>> absent_columns({"K": pa.string()}, [pa.field("k", pa.string())])
        {'k': ", but 'K'"}
    """
    found: dict[str, str] = {}
    for field in wanted:
        name, type = within + field.name, field.type
        if field.name not in there:
            found[name] = _instead(field.name, there)
            continue
        has = there[field.name]
        while pa.types.is_list(type) and pa.types.is_list(has):
            type, has = type.value_type, has.value_type
        if pa.types.is_struct(type) and pa.types.is_struct(has):
            inner = absent_columns({each.name: each.type for each in has}, type, f"{name}.")
            if type.num_fields and all(f"{name}.{each.name}" in inner for each in type):
                inner = {name: f", but one with the fields {_listed([each.name for each in has])}"}
            found |= inner
    return found


def _instead(name: str, there: Iterable[str]) -> str:
    names = [*there]
    # As ASCII, since the two may look alike.
    alike = [ascii(other) for other in names if _plain(other) == _plain(name)]
    return f", but {alike[0]}" if alike else f", only {_listed(names)}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if names[_NAMED:] else ""
    return ", ".join(map(repr, names[:_NAMED])) + more if names else "none"


def _plain(name: str) -> str:
    """Return a name without its case, its composition, white space around it and characters that have no shape."""
    seen = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", seen).casefold()).strip()


def struct_paths(
    fields: Iterable[pa.Field], within: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the path of each field, and of the fields of structs, with the names beside it."""
    fields = list(fields)
    names = [field.name for field in fields]
    for field in fields:
        yield (*within, field.name), names
        if pa.types.is_struct(field.type):
            yield from struct_paths(field.type, (*within, field.name))


def names_alike(name: str) -> tuple[str, str]:
    """Return a pattern of the members of JSON whose names may be `other_name`s of a column or its own, and one of its own."""
    forms = {unicodedata.normalize(form, each) for form in ("NFC", "NFD") for each in (name, name.casefold())}
    unseen = r"[\s\p{Z}\p{Cf}]*"
    alike = "|".join(unseen + unseen.join(map(re.escape, form)) + unseen for form in sorted(forms))
    return rf'(?i)"(?:{alike})"\s*:', rf'"{re.escape(name)}"\s*:'


def other_name(name: str, names: Iterable[str], schema: Sequence[str]) -> str | None:
    """Return, as ASCII, the one of a record's names that is another only by its case or by what can't be seen; else None."""
    plain = _plain(name)
    alike = (ascii(other)[:_SHOWN] for other in names if other not in schema and _plain(other) == plain)
    return next(alike, None)
