"""The source of the files of a folder, each read once, in the order in which listings found them."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa

from persistent_state.errors import InvalidInputError, check_whole
from persistent_state.sources import file_reader, formats, known_files, transforms
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource, check_timestamp_unit
from persistent_state.sources.casts import plain_schema
from persistent_state.sources.checked import is_opened_again
from persistent_state.sources.csv_lines import CsvOptions
from persistent_state.sources.file_journal import WHOLE, files_in, line_of_file, schema_in
from persistent_state.sources.file_reader import FileReader
from persistent_state.sources.folder import Folder, absolute
from persistent_state.sources.known_files import KnownFiles
from persistent_state.sources.schema_inference import first_schema
from persistent_state.sources.schemas import AnySchema, arrow_schema

Split: TypeAlias = (
    # (ordinal, path, size, path where its bytes are now, whether this start was the first to list it) of files
    "tuple[tuple[int, str, int, str, bool], ...]"
)

_logger = logging.getLogger("persistent_state")

PARTITION = ""
ROW_BITS = 32

_OPENING_BYTES = 1 << 16
"""The cost of opening a file, in bytes of its content."""


class FileSource(TimeReplayableSource):
    """A source of the rows of the files in a folder and in the folders below it, as one partition.

    Every file is read once, whatever its name and age: a file that appears late or with an old time is read when it is seen. A
    file is known by its path. It must be whole when it appears and never change: write it elsewhere, or under an ignored name,
    and move it in. Names that begin with "." or "_", the name "tmp" and names that end in ".tmp" are ignored. A restart replays
    files that must still be there. In a bucket a prefix without files is an empty folder; elsewhere the folder must be there.

    Columns that a folder's name says, as `region=Oslo/` does, are read from there. Without `schema` they are text.

    In CSV and JSON a line is a record, so that quoted fields hold no line ends. An empty field of CSV is null, a quoted empty
    field is "". Timestamps are ISO 8601, in UTC if they have no zone. Times that are finer than the schema are cut; no other
    value changes without a word. A column that a file lacks is null, with a warning. Where it is a task's key, or its value in
    a file that is not JSON, the rows are bad ones. A record that can't be decoded or does not fit the schema is a bad record by
    itself; the unreadable rest of a damaged file is one bad record.

    A `finite` source has the files that its first start finds, and ends when they are read: then the clock waits for it no
    more. So it can be the history of a task, beside an input that goes on from where the history ends.

    A position is (ordinal of the file) << 32 | (place in the file). The place counts records, bad ones too; with a `transform`
    it counts the rows that the transform returned.

    Args:
        path: The folder, or its URL for fsspec.
        timestamp: The column of event time: a timestamp, a date, or int64 of `timestamp_unit`.
        timestamp_unit: "s", "ms", "us" or "ns". By default integers are microseconds, and a first start whose timestamps look
            like another unit is refused.
        schema: The schema of the records, by default that of the first Parquet file.
        format: "parquet", "csv" (with a header) or "json" (one object per line). By default each file's ending decides:
            .parquet, .csv, .json, .jsonl, .ndjson. Texts may be compressed, as .gz, .bz2 or .zst.
        channel: The column of channels; None if all rows are one channel.
        order_by: The order of the files that one listing finds: "name", or "modified" for their modification times.
        max_files_per_batch: The most files of a micro-batch.
        bytes_per_batch: The most bytes of a micro-batch. It has at least one file.
        finite: Whether the folder is listed once, at the first start, and the source ends with the last file of that listing.
        csv: How CSV files are written, where it is not as above: see `CsvOptions`.
        transform: A stateless, row-wise function of a record batch: select, filter, explode, join to a static table.
        storage_options: What fsspec needs to open the folder. They appear in no message.

    Raises:
        InvalidInputError: An argument is wrong.

    Example:
        >>> FileSource("memory://flights", timestamp="time", schema="time timestamp, tail string").schema.names
        ['time', 'tail']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timestamp: str,
        timestamp_unit: str | None = None,
        schema: AnySchema | None = None,
        format: str | None = None,
        channel: str | None = None,
        order_by: str = "name",
        max_files_per_batch: int = 1000,
        bytes_per_batch: int = 1 << 30,
        finite: bool = False,
        csv: CsvOptions = formats.PLAIN_CSV,
        transform: transforms.Transform | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        kinds: tuple[tuple[str, object, Any, str], ...] = (
            ("path", path, (str, os.PathLike), "a text or a Path"),
            ("timestamp", timestamp, str, "the name of a column"),
            ("channel", channel, (str, type(None)), "the name of a column"),
            ("finite", finite, bool, "True or False"),
            ("storage_options", storage_options, (Mapping, type(None)), "a mapping"),
        )
        for name, given, kind, what in kinds:
            if not isinstance(given, kind):
                # Not the value itself, which may hold a secret.
                raise InvalidInputError(f"{name} of a FileSource is of type {type(given).__name__}; give {what}.")
        path = absolute(path)
        if format is not None and format not in formats.FORMATS:
            raise InvalidInputError(f"{format=}; say 'parquet', 'csv' or 'json', or leave it to the files' endings.")
        if order_by not in ("name", "modified"):
            raise InvalidInputError(f"{order_by=}; say 'name' or 'modified'.")
        if not isinstance(csv, CsvOptions):
            raise InvalidInputError(f"{csv=} is not a CsvOptions; give one, as CsvOptions(delimiter=';').")
        check_whole("max_files_per_batch", max_files_per_batch)
        check_whole("bytes_per_batch", bytes_per_batch)
        if max_files_per_batch < 1 or bytes_per_batch < 1:
            raise InvalidInputError(f"{max_files_per_batch=}, {bytes_per_batch=}; give at least 1 of each.")
        self.path = path
        self.timestamp = timestamp
        check_timestamp_unit(timestamp_unit)
        self.timestamp_unit = timestamp_unit
        self.channel = channel
        self.finite = finite
        self._format = format
        self._order_by = order_by
        self._files_per_batch = max_files_per_batch
        self._bytes_per_batch = bytes_per_batch
        self._csv = csv
        self._transform = transform
        self._options = dict(storage_options or {})
        self._stored = None if schema is None else plain_schema(arrow_schema(schema))
        self._takes_schema = schema is None
        self._begun: list[str] = []
        self._made: pa.Schema | None = None
        self._opened: KnownFiles | None = None
        self._maker = os.getpid()

    def __repr__(self) -> str:
        return repr(self._folder)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the schema, or finds it as this one does.
        return {**self.__dict__, "_opened": None, "_begun": self._begun if self._stored is None else []}

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows that `read` delivers. It is read once, and copies of the source keep it."""
        if self._made is None:
            nothing = formats.one_batch([], self._record_schema())
            try:
                self._made = transforms.transformed(self._transform, nothing).schema
            except Exception as error:
                raise InvalidInputError(
                    f"transform of {self!r} {transforms.what_it_did(error)}, {transforms.OF_NO_ROWS}."
                ) from error
        return self._made

    @property
    def takes_schema(self) -> bool:
        """True if the schema is that of a file."""
        return self._takes_schema

    def go_on_from(self, journal: Sequence[str]) -> None:
        """Take the schema that the first start took from a file, whatever has become of that file.

        Before journals had the schema it was that of the first file that had been read.

        Args:
            journal: A line of JSON per file that was read, in order.

        Raises:
            InvalidInputError: The journal is another source's.
        """
        if not self._takes_schema:
            return
        if (schema := schema_in(journal)) is not None:
            self._stored, self._made = schema, None
            return
        begun = [file.path for file in files_in(journal)]
        if begun[:1] != self._begun[:1]:
            self._begun, self._stored, self._made = begun, None, None

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        """Begin a start. A file of the journal is never taken for a new one.

        Args:
            journal: A line of JSON per file that was read, in order. A finite source writes all of its files at once, and a
                line that says so.
            known: By partition: the first position that no start of the application has committed.

        Raises:
            InvalidInputError: There is no such folder or bucket, the journal is another source's, or a format can't hold the
                schema; or the source is finite, and the folder has no file; or nothing was read yet, and it is a table's.
        """
        files = files_in(journal)
        if known.get(PARTITION, 0) > len(files) << ROW_BITS:
            raise InvalidInputError(
                f"{self!r} is to go on from {known[PARTITION]}, but its journal has only {len(files)} files; "
                "the task had another source: give it another name, or reset it."
            )
        if self._stored is None:
            self.go_on_from(journal)
        is_whole = self.finite and len(files) < len(journal)
        self._opened = KnownFiles(self._reader, files, self.finite, is_whole, self._is_copy)
        self._opened.open()
        if self.finite and not files:
            raise InvalidInputError(
                f"{self!r} is finite and has no file, so that it would end before it begins; put its files there first, "
                "correct the path, or leave finite out."
            )
        self._warn_if_without_files()
        for format in {self._reader.kind(file.path)[0] for file in files} & {formats.CSV, formats.JSON}:
            formats.check_text(str(format), self._record_schema())

    def reads(self, place: str) -> bool:
        """Return whether files that are written to a place would be read.

        Args:
            place: A path or a URL.
        """
        return self._folder.holds(place)

    def stay_within(self, ends: Mapping[str, int]) -> None:
        self._known.most = ends.get(PARTITION, 0) >> ROW_BITS

    def freeze(self) -> None:
        if not self.finite:
            self._known.take()
        self._known.is_frozen = True

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        known = self._known
        first = start.get(PARTITION, 0) >> ROW_BITS
        if not (known.is_frozen or self.finite) and (everything or first >= len(known.files)) and known.most is None:
            known.take()
        end = len(known.files) if everything else self._end_of_batch(first)
        end = end if known.most is None else max(first, min(end, known.most))
        for file in known.files[first : min(end, known.journalled)]:
            known.check_replayed(file)
        if end >= known.journalled:
            # Nothing is replayed from here on.
            known.present = None
        ends = {**start, PARTITION: end << ROW_BITS} if end > first else dict(start)
        return Reach(
            ends=ends,
            channels={PARTITION: False} if self.channel is None else None,
            journal=self._whole_journal(start, ends) if self.finite else self._lines(max(first, known.journalled), end),
            has_more=end < len(known.files),
            is_last=end >= len(known.files) if self.finite else None,
        )

    def _end_of_batch(self, first: int) -> int:
        files = self._known.files[first : first + self._files_per_batch]
        sizes = accumulate(file.size for file in files)
        return first + max(sum(size <= self._bytes_per_batch for size in sizes), min(1, len(files)))

    def _lines(self, first: int, end: int) -> tuple[str, ...]:
        """Return the lines of the journal for the files from one ordinal up to another."""
        # All starts have one schema, so the first line has it.
        schema = self._record_schema() if self._takes_schema and first == 0 < end else None
        files = self._known.files
        return tuple(
            line_of_file(files[ordinal], ordinal, None if ordinal else schema) for ordinal in range(first, end)
        )

    def _whole_journal(self, start: Mapping[str, int], ends: Mapping[str, int]) -> tuple[str, ...]:
        """Return the lines for all files of a finite source, until a micro-batch has committed them."""
        known = self._known
        if known.last_reach is not None and known.last_reach == start:
            # This start is where the last micro-batch ended, so that its lines were committed.
            known.is_whole = True
        known.last_reach = dict(ends) if ends != start else None
        if known.is_whole or ends == start:
            return ()
        return (*self._lines(known.journalled, len(known.files)), WHOLE)

    def amount(self, start: Mapping[str, int], end: Mapping[str, int]) -> tuple[int, str]:
        return (end.get(PARTITION, 0) >> ROW_BITS) - (start.get(PARTITION, 0) >> ROW_BITS), "files"

    def places(self, start: Mapping[str, int]) -> dict[str, str]:
        files = self._known.files[start.get(PARTITION, 0) >> ROW_BITS :]
        return {PARTITION: files[0].path if files else "behind the last file"}

    def check_again(self, start: Mapping[str, int], journal: Sequence[str], newest: Sequence[str]) -> None:
        """Refuse a rewind if files are gone that are to be read again.

        A file that was first read after the clock is read as it is now. So its content may be another.

        Args:
            start: The position from which files are to be read again.
            journal: The lines of the files that had been read when the clock was the newest.
            newest: The lines of all files that have been read by now.

        Raises:
            InvalidInputError: Files are gone, or have changed of which the state at the clock may have rows.
        """
        first = start.get(PARTITION, 0) >> ROW_BITS
        known_files.check_again(self._reader, first, files_in(journal), files_in(newest), WHOLE in journal)

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Split]:
        known = self._known
        first = start.get(PARTITION, 0) >> ROW_BITS
        files = known.files[first : end.get(PARTITION, 0) >> ROW_BITS]
        ends = list(accumulate(file.size + _OPENING_BYTES for file in files))
        groups: dict[int, list[tuple[int, str, int, str, bool]]] = {}
        for i, file in enumerate(files):
            # A file belongs to the part that its middle is in.
            middle = ends[i] - (file.size + _OPENING_BYTES) // 2
            place = known.places.get(file.path, file.path)
            is_new = first + i >= known.journalled
            groups.setdefault(middle * parts // ends[-1], []).append((first + i, file.path, file.size, place, is_new))
        return [tuple(group) for group in groups.values()]

    def partitions_in(self, split: Split) -> Collection[str]:
        return (PARTITION,)

    def read(self, split: Split) -> Iterator[Chunk]:
        reader = self._reader
        for ordinal, path, size, place, is_new in split:
            start = position = ordinal << ROW_BITS
            # The only record of a file that is never opened says so. It may be gone by now, under the name of a format.
            with self._open(place, size, is_new) if reader.is_opened(path) else io.BytesIO() as file:
                for piece in reader.pieces(file, path):
                    if self._transform is not None:
                        piece = transforms.transformed_piece(piece, self._transform, self.schema, path, repr(self))
                    if position + piece.count > start + (1 << ROW_BITS):
                        raise InvalidInputError(f"file={path!r} of {self!r} has more than 2**32 rows; cut it up.")
                    bad = tuple(replace(record, position=position + record.position) for record in piece.bad)
                    if piece.count or piece.absent:
                        yield Chunk(
                            PARTITION,
                            position,
                            piece.rows,
                            bad,
                            start,
                            originals=partial(file_reader.originals, path, position, piece.original),
                            lacks=piece.lacks,
                            unseen=piece.lacks if reader.kind(path)[0] == formats.JSON else (),
                            notes=reader.notes(path, piece),
                        )
                    position += piece.count

    def _open(self, path: str, size: int, is_new: bool) -> io.IOBase:
        # The driver may know what has become of a file that is gone.
        gone = None if self._opened is None else self._opened.gone
        return self._folder.open(path, size, is_new, gone)

    @property
    def _folder(self) -> Folder:
        return Folder(self.path, self._options, self._order_by)

    @property
    def _reader(self) -> FileReader:
        # A transform may make the timestamp of other columns.
        timestamp = "" if self._transform else self.timestamp
        return FileReader(self._folder, self._record_schema, self._format, self._csv, timestamp)

    @property
    def _known(self) -> KnownFiles:
        assert self._opened is not None, "open comes first"
        return self._opened

    @property
    def _is_copy(self) -> bool:
        """True in another process, and where it is opened again: the driver has warned of what is there."""
        return self._maker != os.getpid() or is_opened_again()

    def _record_schema(self) -> pa.Schema:
        if self._stored is None:
            once = (self.timestamp, self.channel)
            self._stored = first_schema(self._reader, self._begun, once, warns=not self._is_copy)
        return self._stored

    def _warn_if_without_files(self) -> None:
        if not (self._is_copy or self._known.present or self._folder.has_folders()):
            _logger.warning(
                "%r holds no file %s. Its store has no folders, so a mistyped path looks the same: look at the path if "
                "there should be files. Files that come are read.",
                self,
                "any more" if self._known.files else "yet",
            )
