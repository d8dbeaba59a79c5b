"""The schema of a file source that is given none: that of the first Parquet file of its folder that can be read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.sources import formats
from persistent_state.sources.casts import leaves, plain_schema
from persistent_state.sources.file_reader import FileReader
from persistent_state.sources.listing import File
from persistent_state.sources.names import folder_columns
from persistent_state.sources.schemas import name_twice

_logger = logging.getLogger("persistent_state")


def first_schema(reader: FileReader, begun: Sequence[str], once: Collection[str | None], warns: bool) -> pa.Schema:
    """Return the schema of the records of the first Parquet file.

    Args:
        reader: The reader of the files.
        begun: The paths of files that were read, which come before all others.
        once: Columns that the file must not have twice.
        warns: Whether columns that are not read are named in the log.

    Raises:
        InvalidInputError: There is no such file, none can be read, or one has a column of `once` twice.
    """
    folder = reader.folder
    there = {file.path: file for file in folder.listing().files if reader.kind(file.path)[0] == formats.PARQUET}
    first = [there.pop(path) for path in begun if path in there]
    unread = None
    for file in (*first, *folder.in_order(there.values())):
        try:
            return _schema_of(reader, file, file.path not in begun, once, warns)
        except formats.UNDECODABLE as error:
            # It is a bad record, which says nothing of the others.
            unread = unread or InvalidInputError(
                f"file={file.path!r} of {folder!r} has no schema: {str(error).rstrip('.')}; give schema=."
            )
    raise unread or InvalidInputError(f"{folder!r} has no Parquet file to take the schema from; give it schema=.")


def _schema_of(reader: FileReader, file: File, is_new: bool, once: Collection[str | None], warns: bool) -> pa.Schema:
    """Return the schema of the records of a Parquet file, with the columns that its folders say."""
    with reader.folder.open(file.path, file.size, is_new) as stored:
        parquet = formats.open_parquet(pa.PythonFile(stored, mode="r"))
        schema = plain_schema(parquet.schema_arrow).remove_metadata()
    what = f"file={file.path!r} of {reader.folder!r}"
    twice = _names_twice(schema)
    if again := next((name for name in once if name in twice), None):
        raise InvalidInputError(f"{what} has {again!r} twice; give it once, or choose another column by schema=.")
    if twice and warns:
        names = " and ".join(map(repr, twice.values()))
        _logger.warning("%s has %s twice: columns that hold them are not read.", what, names)
    columns = [column for column in schema if column.name not in twice]
    if untyped := [column.name for column in columns if pa.null() in leaves([column.type])]:
        _logger.warning(
            "The schema of %r is that of file=%r, whose columns %s hold only nulls, so that they have no type and other "
            "files with values there are bad; give schema=.",
            reader.folder,
            file.path,
            ", ".join(map(repr, untyped)),
        )
    schema = pa.schema(columns)
    of_folders = [name for name in folder_columns(file.path) if name not in schema.names]
    return pa.schema([*schema, *(pa.field(name, pa.string()) for name in of_folders)])


def _names_twice(schema: pa.Schema) -> dict[str, str]:
    """Return the columns that a schema has twice, or in which a struct has a field twice, each with what is there twice."""
    alike = {name: [column for column in schema if column.name == name] for name in schema.names}
    return {name: path for name, columns in alike.items() if (path := name_twice(columns)) is not None}
