"""Apply the `transform` of a source: to rows, or to a piece of a file, whose bad records stay behind the rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import TaskFailedError, at_definition, raised
from persistent_state.sources.casts import plain_rows
from persistent_state.sources.formats import Original, Piece, one_batch
from persistent_state.sources.names import Path
from persistent_state.sources.schemas import name_twice

Transform: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table"]


class NoRowsError(Exception):
    """A `transform` has returned something that is no batch of Arrow, or one name for two columns."""


OF_NO_ROWS = "for a batch without rows, which it is given at the start to learn its columns"
"""The end of an error of a `transform` that fails before any row is read."""


def what_it_did(error: Exception) -> str:
    """Return in words what a `transform` did that failed with this error."""
    return str(error) if isinstance(error, NoRowsError) else f"raised {raised(error)}"


def transformed(transform: Transform | None, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Apply a source's `transform` to rows, and return the result as one batch.

    Raises:
        NoRowsError: It returned something else. An error that the transform raises comes as it is.
    """
    if transform is None:
        return plain_rows(rows)
    made = transform(rows)
    if not isinstance(made, (pa.RecordBatch, pa.Table)):
        is_pandas = type(made).__module__.partition(".")[0] == "pandas"
        how = " as pa.RecordBatch.from_pandas(frame, schema=...) makes" if is_pandas else ""
        raise NoRowsError(
            f"returned a {type(made).__name__}{at_definition(transform)} and not a pyarrow.RecordBatch{how}"
        )
    if (name := name_twice(made.schema)) is not None:
        raise NoRowsError(f"returned {name!r} twice{at_definition(transform)} and not each column once")
    return plain_rows(one_batch(made.to_batches(), made.schema) if isinstance(made, pa.Table) else made)


def absent_behind(
    rows: pa.RecordBatch, before: Container[str], absent: Collection[Path], columns: Container[str]
) -> tuple[str, ...]:
    """Return the columns of a transform's result that are null in all rows, and may come of what is absent.

    Args:
        rows: What the transform returned.
        before: The names of the columns that it was given.
        absent: The paths of those, and of fields of structs, that are absent.
        columns: The columns among them.
    """
    maybe = [name for name in rows.schema.names if name in columns or name not in before] if absent else []
    return tuple(name for name in maybe if rows.column(name).null_count == rows.num_rows)


def transformed_piece(piece: Piece, transform: Transform, schema: pa.Schema, path: str, source: str) -> Piece:
    """Return the rows that a transform makes of a piece of a file. The bad records come after all rows.

    Args:
        piece: The piece.
        transform: The transform.
        schema: The schema of what the transform makes of a batch without rows.
        path: The path of the file.
        source: The source, for messages.

    Raises:
        TaskFailedError: The transform fails, or makes other columns.
    """
    try:
        rows = transformed(transform, piece.rows)
    except Exception as error:
        raise TaskFailedError(f"transform of {source} {what_it_did(error)}, for rows of file={path!r}.") from error
    if not rows.schema.equals(schema):
        raise TaskFailedError(
            f"transform of {source}{at_definition(transform)} made columns ({_columns(rows.schema)}) of file={path!r}, "
            f"and ({_columns(schema)}) of a batch without rows; make them alike."
        )
    bad = tuple(replace(record, position=rows.num_rows + i) for i, record in enumerate(piece.bad))

    @cache
    def places() -> NDArray[np.int64]:
        return np.delete(np.arange(piece.count), [record.position for record in piece.bad])

    hands_on = _hands_on(piece.rows, rows)

    def original(place: int) -> Original:
        if place < rows.num_rows:
            # Otherwise it is unknown which rows a transform made of which record.
            return piece.original(int(places()[place])) if hands_on else Original()
        return piece.original(piece.bad[place - rows.num_rows].position)

    # A transform may fill what the file lacks, or give it another name.
    absent = [path for path, _ in piece.absent]
    lacks = absent_behind(rows, piece.rows.schema.names, absent, piece.lacks)
    return Piece(rows, rows.num_rows + len(bad), bad, original, piece.absent, lacks, piece.misplaced)


def _hands_on(rows: pa.RecordBatch, made: pa.RecordBatch) -> bool:
    """Return whether a transform handed a column on as it was, and made no copy. Then each row is of the row at its place."""
    given = {_memory(column) for column in rows.columns}
    return made.num_rows == rows.num_rows and any(_memory(column) in given for column in made.columns if column.nbytes)


def _memory(column: pa.Array) -> tuple[int, ...]:
    """Return where the values of a column lie in memory."""
    return column.offset, *(buffer.address if buffer else 0 for buffer in column.buffers())


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
