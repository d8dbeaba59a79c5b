"""Read the records of a file source's files: their format, and the columns that their folders say."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import StateError, TaskFailedError, raised
from persistent_state.sources import formats
from persistent_state.sources.casts import Unfit, of_column
from persistent_state.sources.csv_lines import CsvOptions
from persistent_state.sources.folder import Folder
from persistent_state.sources.listing import File, name_of
from persistent_state.sources.names import ALIKE, folder_column_twice, folder_columns, listed, other_name

_ORIGIN = pa.struct([("file", pa.string()), ("line", pa.int64()), ("value", pa.string())])


@dataclass(frozen=True)
class FileReader:
    """A reader of the files of a folder.

    Attributes:
        folder: The folder.
        schema: Returns the schema of the records.
        format: The format of all files; None if each file's ending says its own.
        csv: How CSV files are written.
        timestamp: The column that a CSV file must name; "" if there is none.
    """

    folder: Folder
    schema: Callable[[], pa.Schema]
    format: str | None
    csv: CsvOptions
    timestamp: str

    def kind(self, path: str) -> tuple[str | None, formats.Codec | None]:
        """Return the format and the compression of a file. A format that is not read is named, too."""
        endings = name_of(path).lower().split(".")
        last, before = endings[-1], endings[-2:-1]
        if last in formats.NOT_READ and (self.format is None or not formats.BY_ENDING.keys().isdisjoint(before)):
            return last, None
        codec = formats.CODECS.get(last)
        return self.format or formats.BY_ENDING.get(before[0] if codec and before else last), codec

    def is_opened(self, path: str) -> bool:
        """Return whether the file of a path is opened when it is read. Others have one bad record, whatever they hold."""
        format = self.kind(path)[0]
        return format is not None and format not in formats.NOT_READ

    def is_fit(self, path: str) -> bool:
        """Return whether the folders of a path say values that fit their columns."""
        return not self._of_folders(path)[1]

    def text_size(self, file: File, codec: formats.Codec) -> int:
        """Return how many bytes a compressed file has as a text; 0 if it can't be read."""
        with suppress(StateError, *formats.UNDECODABLE), self.folder.open(file.path, file.size) as stored:
            return sum(map(len, formats.decompressed(pa.PythonFile(stored, mode="r"), codec)))
        return 0

    def pieces(self, file: io.IOBase, path: str) -> Iterator[formats.Piece]:
        """Yield the records of a file, with the columns that its folders say.

        Raises:
            TaskFailedError: A fault of the reader, not of the file.
        """
        try:
            yield from self._with_folder_columns(file, path)
        except (StateError, MemoryError):
            raise
        except Exception as error:
            raise TaskFailedError(
                f"file={path!r} of {self.folder!r} can't be read: {raised(error)}. Move it away, or give it another format."
            ) from error

    def _with_folder_columns(self, file: io.IOBase, path: str) -> Iterator[formats.Piece]:
        schema = self.schema()
        values, fault = self._of_folders(path)
        rest = pa.schema([field for field in schema if field.name not in values] or [formats.NO_COLUMN])
        stored = rest if values else schema
        for piece in formats.read_pieces(file, *self.kind(path), stored, self.csv, fault, self.timestamp):
            if values:
                count = piece.rows.num_rows
                columns = [
                    pa.repeat(values[name], count) if name in values else piece.rows.column(name)
                    for name in schema.names
                ]
                rows = pa.RecordBatch.from_arrays(columns, schema=schema)
                absent = {names: words for names, words in piece.absent if names != (formats.NO_COLUMN.name,)}
                piece = replace(piece, rows=rows).without(absent)
            yield piece

    def _of_folders(self, path: str) -> tuple[dict[str, pa.Scalar], str]:
        """Return the values of the columns that a path says, and why they make the rows bad; "" if they don't."""
        values: dict[str, pa.Scalar] = {}
        schema, fault = self.schema(), ""
        if (twice := folder_column_twice(path, schema.names)) is not None:
            fault = of_column(twice, "stands twice in its folders' names")
        for name, text in self.folder_columns(path):
            try:
                values[name] = formats.of_text(text, schema.field(name))
            except Unfit as error:
                values[name], fault = pa.scalar(None, schema.field(name).type), f"{error}, in its folder's name"
        return values, fault

    def folder_columns(self, path: str) -> list[tuple[str, str | None]]:
        """Return the columns that are read of the folders of a path, each with its text."""
        return [column for column in folder_columns(path).items() if column[0] in self.schema().names]

    def notes(self, path: str, piece: formats.Piece) -> dict[str, str]:
        """Return the sentences on columns that a file lacks, or has at another place, by column."""
        columns = [name for name in self.schema().names if name not in folder_columns(path)]
        instead = [piece.instead.get(name, "") for name in columns]
        notes = {name: self._note(path, name, words) for name, words in piece.instead.items()}
        # The file may be broken, or of another kind. It uses up no warning of a column that another file has renamed.
        if len(columns) > 1 and all(instead) and not any(words.startswith(ALIKE) for words in instead):
            notes = {
                "": f"file={path!r} of {self.folder!r} has no column of the schema{instead[0]}: all are null there."
            }
        if piece.misplaced and columns:
            notes[columns[0]] = (
                f"file={path!r} of {self.folder!r} has a first line that names {listed(piece.misplaced)}, and "
                f"header='position' reads its columns as {listed(columns)}: leave header out to read them by their names."
            )
        return notes

    def _note(self, path: str, column: str, instead: str) -> str:
        alike = other_name(column, folder_columns(path), self.schema().names)
        folder = f", and its folder has {alike}" if alike else ""
        return f"file={path!r} of {self.folder!r} has no column {column!r}{instead}{folder}: it is null there."


def originals(
    path: str, first: int, original: Callable[[int], formats.Original], positions: NDArray[np.int64]
) -> pa.RecordBatch:
    """Return the records of a file at these positions; `original` counts from the position `first`."""
    records = [original(place) for place in (positions - first).tolist()]
    # A name that is not UTF-8 is shown as the journal writes it.
    name = path.encode(errors="backslashreplace").decode()
    origins = [{"file": name, "line": each.line, "value": each.value} for each in records]
    record = pa.array([each.record for each in records], pa.large_binary())
    return pa.record_batch({"record": record, "origin": pa.array(origins, _ORIGIN)})
