"""The source of the files of a folder, each read once, in the order in which listings found them."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import fsspec
import numpy as np
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

from persistent_state.errors import (
    InvalidInputError,
    StateError,
    StoreUnavailableError,
    TaskFailedError,
    check_path,
    check_whole,
    raised,
    translating,
)
from persistent_state.formatting import iso_time
from persistent_state.redact import shown, without_secrets
from persistent_state.sources import formats, moves
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource, check_timestamp_unit
from persistent_state.sources.casts import Unfit, leaves, plain_schema
from persistent_state.sources.csv_lines import CsvOptions
from persistent_state.sources.listing import (
    HUDI,
    TABLES,
    UNREADABLE,
    File,
    Listing,
    is_ignored,
    local_file,
    local_listing,
    microseconds,
    name_of,
    table_mark,
)
from persistent_state.sources.names import folder_column_twice, folder_columns, listed, other_name
from persistent_state.sources.schemas import AnySchema, arrow_schema, name_twice

Split: TypeAlias = (
    # (ordinal, path, size, path where its bytes are now, whether this start was the first to list it) of files
    "tuple[tuple[int, str, int, str, bool], ...]"
)

_logger = logging.getLogger("persistent_state")

PARTITION = ""
ROW_BITS = 32
ORIGIN = pa.struct([("file", pa.string()), ("line", pa.int64()), ("value", pa.string())])

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "modified", "modificationTime", "created")
_WITHOUT_FOLDERS = frozenset({"s3", "gs", "abfs", "memory"})
"""The protocols of stores that have no folders: an empty folder looks like one that never existed."""
_ALIASES = {"local": "file", "s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
"""Other names of protocols."""
_OR = "or name the task in rebuild, which reads all files as they are now (reset begins at zero)"
"""The way out where a file can't be brought back."""

_OPENING_BYTES = 1 << 16
_NAMED = 3
"""The number of files that a message names."""
_WATCHED, _IN_TURN = 100, 900
"""The number of the newest known files of a folder of this machine that each listing looks at, whether they have changed, and
how many of the others it looks at in turn: of 10,000 files a listing takes 25 ms, and to look at each of them takes 0.1 s."""
_MOVED = (
    "not read, as it looks like a file that was read under another path, so that its rows would count twice. Move it back, as "
    "it was, or out of the folder; if it is another file, write it again under another name"
)
_COPIED = (
    "read, although it looks like a copy of another file that is read. If it is one, its rows count twice: move it out of the "
    "folder, and name the task in rebuild"
)
_OTHER_SIZE = (
    "the size has changed since it was listed. What was written since is not read, and a start that has to read the file again "
    "is refused. Write new rows to a new file"
)
_WRITTEN_AGAIN = (
    "written again since it was listed. What it holds now counts only for a start that reads it again. Write new rows to a new "
    "file"
)
"""Warnings of files."""
_WHOLE = '{"finite": true}'
"""The line of the journal behind the last file of a finite source."""


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
        transform: formats.Transform | None = None,
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
        path = os.fspath(path)
        if not path:
            raise InvalidInputError(
                "path='' of a FileSource names no folder; give one, such as '.' for the current one."
            )
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
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)", path) and not path.startswith("file:"):
            raise InvalidInputError(
                f"{path=} is neither a path nor a url; write a url as {path.replace(':/', '://', 1)!r}."
            )
        # Made absolute, since workers may stand in another folder.
        check_path("path", path)
        is_url = "://" in path or path.startswith("file:")
        self.path = path if is_url else os.path.abspath(os.path.expanduser(path))
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
        self._opened: _Opened | None = None
        self._maker = os.getpid()

    def __repr__(self) -> str:
        return f"FileSource({shown(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the schema, or finds it as this one does.
        return {**self.__dict__, "_opened": None, "_begun": self._begun if self._stored is None else []}

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows that `read` delivers. It is read once, and copies of the source keep it."""
        if self._made is None:
            nothing = formats.one_batch([], self._record_schema())
            try:
                self._made = formats.transformed(self._transform, nothing).schema
            except Exception as error:
                raise InvalidInputError(
                    f"transform of {self!r} {formats.what_it_did(error)}, for a batch without rows."
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
        if (schema := _schema_in(journal)) is not None:
            self._stored, self._made = schema, None
            return
        begun = [file.path for file in _files_in(journal)]
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
        files = _files_in(journal)
        if known.get(PARTITION, 0) > len(files) << ROW_BITS:
            raise InvalidInputError(
                f"{self!r} is to go on from {known[PARTITION]}, but its journal has only {len(files)} files; "
                "the task had another source: give it another name, or reset it."
            )
        if self._stored is None:
            self.go_on_from(journal)
        is_whole = self.finite and len(files) < len(journal)
        self._opened = _Opened(files, len(files), {file.path for file in files}, is_whole=is_whole)
        self._take()
        self._opened.is_opening = False
        if self.finite and not files:
            raise InvalidInputError(
                f"{self!r} is finite and has no file, so that it would end before it begins; put its files there first, "
                "correct the path, or leave finite out."
            )
        self._warn_if_without_files()
        for format in {self._kind(file.path)[0] for file in files} & {formats.CSV, formats.JSON}:
            formats.check_text(str(format), self._record_schema())

    def reads(self, place: str) -> bool:
        """Return whether files that are written to a place would be read.

        Args:
            place: A path or a URL.
        """
        root, place = _same_for_all(self.path), _same_for_all(place)
        return place == root or (place.startswith(f"{root}/") and not is_ignored(place[len(root) + 1 :]))

    def stay_within(self, ends: Mapping[str, int]) -> None:
        self._state.most = ends.get(PARTITION, 0) >> ROW_BITS

    def freeze(self) -> None:
        if not self.finite:
            self._take()
        self._state.is_frozen = True

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        state = self._state
        first = start.get(PARTITION, 0) >> ROW_BITS
        if not (state.is_frozen or self.finite) and (everything or first >= len(state.files)) and state.most is None:
            self._take()
        end = len(state.files) if everything else self._end_of_batch(first)
        end = end if state.most is None else max(first, min(end, state.most))
        for file in state.files[first : min(end, state.journalled)]:
            self._check_replayed(file)
        if end >= state.journalled:
            # Nothing is replayed from here on.
            state.present = None
        ends = {**start, PARTITION: end << ROW_BITS} if end > first else dict(start)
        return Reach(
            ends=ends,
            channels={PARTITION: False} if self.channel is None else None,
            journal=self._whole_journal(start, ends) if self.finite else self._lines(max(first, state.journalled), end),
            is_last=end >= len(state.files) if self.finite else None,
        )

    def amount(self, start: Mapping[str, int], end: Mapping[str, int]) -> tuple[int, str]:
        return (end.get(PARTITION, 0) >> ROW_BITS) - (start.get(PARTITION, 0) >> ROW_BITS), "files"

    def places(self, start: Mapping[str, int]) -> dict[str, str]:
        files = self._state.files[start.get(PARTITION, 0) >> ROW_BITS :]
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
        known, read = _files_in(journal), _files_in(newest)
        again = [file for file in known[start.get(PARTITION, 0) >> ROW_BITS :] if self._is_opened(file.path)]
        sizes = {file.path: file.size for file in again}
        taken = {file.path for file in known}
        if _WHOLE not in journal:
            again += [file for file in read if file.path not in taken and self._is_opened(file.path)]
        if not again:
            return
        listed = self._listed().files
        there = {file.path: file.size for file in listed}
        system, root = self._system()
        with self._asking(""):
            # Some listings leave out files that they could not look at.
            missing = [file for file in again if file.path not in there and not system.exists(f"{root}/{file.path}")]
            stamps = moves.by_stamp(read) if missing else {}
            lost = [file for file in missing if self._stand_in(file, stamps) is None]
        gone = [file.path for file in lost]
        # The state at the clock has no rows of these.
        later = [file for file in listed if file.path not in taken]
        now = {file.path: other.path for file in lost[:_NAMED] for other in moves.alike(file, later)}
        # The state at the clock may have rows of these, by their places.
        changed = [path for path, size in sizes.items() if there.get(path, size) != size]
        for paths, what in ((gone, "are gone"), (changed, "have another size than they had")):
            if paths:
                named = (f"{path!r}{f' (perhaps {now[path]!r} now)' if path in now else ''}" for path in paths[:_NAMED])
                names = ", ".join(named)
                more = f" and {len(paths) - _NAMED:,} more" if paths[_NAMED:] else ""
                # One that was first read after the clock is read as it is now.
                empty = ", put files without rows in their place" if sizes.keys().isdisjoint(paths) else ""
                raise InvalidInputError(
                    f"{len(paths):,} of the {len(again):,} files of {self!r} that are to be read again {what}: {names}{more}. "
                    f"Bring back what they were{empty}, or go back to a later clock."
                )

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Split]:
        first = start.get(PARTITION, 0) >> ROW_BITS
        files = self._state.files[first : end.get(PARTITION, 0) >> ROW_BITS]
        ends = list(accumulate(file.size + _OPENING_BYTES for file in files))
        groups: dict[int, list[tuple[int, str, int, str, bool]]] = {}
        for i, file in enumerate(files):
            # A file belongs to the part that its middle is in.
            middle = ends[i] - (file.size + _OPENING_BYTES) // 2
            place = self._state.places.get(file.path, file.path)
            is_new = first + i >= self._state.journalled
            groups.setdefault(middle * parts // ends[-1], []).append((first + i, file.path, file.size, place, is_new))
        return [tuple(group) for group in groups.values()]

    def partitions_in(self, split: Split) -> Collection[str]:
        return (PARTITION,)

    def read(self, split: Split) -> Iterator[Chunk]:
        for ordinal, path, size, place, is_new in split:
            start = position = ordinal << ROW_BITS
            # The only record of a file that is never opened says so. It may be gone by now, under the name of a format.
            with self._open(place, size, is_new) if self._is_opened(path) else io.BytesIO() as file:
                for piece in self._pieces(file, path):
                    if self._transform is not None:
                        piece = self._transformed_piece(piece, path)
                    if position + piece.count > start + (1 << ROW_BITS):
                        raise InvalidInputError(f"file={path!r} of {self!r} has more than 2**32 rows; cut it up.")
                    bad = tuple(replace(record, position=position + record.position) for record in piece.bad)
                    if piece.count or piece.absent:
                        originals = partial(_originals, path, position, piece.original)
                        yield Chunk(
                            PARTITION,
                            position,
                            piece.rows,
                            bad,
                            start,
                            originals=originals,
                            lacks=piece.lacks,
                            unseen=piece.lacks if self._kind(path)[0] == formats.JSON else (),
                            notes=self._notes(path, piece),
                        )
                    position += piece.count

    def _notes(self, path: str, piece: formats.Piece) -> dict[str, str]:
        notes = {name: self._note(path, name, words) for name, words in piece.instead.items()}
        columns = [name for name in self._record_schema().names if name not in folder_columns(path)]
        if piece.misplaced and columns:
            notes[columns[0]] = (
                f"file={path!r} of {self!r} has a first line that names {listed(piece.misplaced)}, and header='position' reads "
                f"its columns as {listed(columns)}: leave header out to read them by their names."
            )
        return notes

    def _note(self, path: str, column: str, instead: str) -> str:
        """Return the sentence on a column that a file lacks, with the words `instead` on what the file has."""
        alike = other_name(column, folder_columns(path), self._record_schema().names)
        folder = f", and its folder has {alike}" if alike else ""
        return f"file={path!r} of {self!r} has no column {column!r}{instead}{folder}: it is null there."

    def _pieces(self, file: io.IOBase, path: str) -> Iterator[formats.Piece]:
        try:
            yield from self._with_folder_columns(file, path)
        except (StateError, MemoryError):
            raise
        except Exception as error:
            raise TaskFailedError(
                f"file={path!r} of {self!r} can't be read: {raised(error)}. Move it away, or give it another format."
            ) from error

    def _of_folders(self, path: str) -> tuple[dict[str, pa.Scalar], str]:
        """Return the values of the columns that a path says, and why they make the rows bad; "" if they don't."""
        values: dict[str, pa.Scalar] = {}
        schema, fault = self._record_schema(), ""
        if (twice := folder_column_twice(path, schema.names)) is not None:
            fault = f"column {twice} stands twice in its folders' names"
        for name, text in folder_columns(path).items():
            if name in schema.names:
                try:
                    values[name] = formats.of_text(text, schema.field(name))
                except Unfit as error:
                    values[name], fault = pa.scalar(None, schema.field(name).type), f"{error}, in its folder's name"
        return values, fault

    def _with_folder_columns(self, file: io.IOBase, path: str) -> Iterator[formats.Piece]:
        """Yield the records of a file, with the columns that its folders say."""
        schema = self._record_schema()
        values, fault = self._of_folders(path)
        rest = pa.schema([field for field in schema if field.name not in values] or [formats.NO_COLUMN])
        # A transform may make the timestamp of other columns.
        timestamp = "" if self._transform else self.timestamp
        for piece in formats.read_pieces(
            file, *self._kind(path), rest if values else schema, self._csv, fault, timestamp
        ):
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

    @property
    def _state(self) -> _Opened:
        assert self._opened is not None, "open comes first"
        return self._opened

    def _lines(self, first: int, end: int) -> tuple[str, ...]:
        """Return the lines of the journal for the files from one ordinal up to another."""
        # All starts have one schema, so the first line has it.
        schema = self._record_schema() if self._takes_schema and first == 0 < end else None
        files = self._state.files
        return tuple(
            _line_of_file(files[ordinal], ordinal, None if ordinal else schema) for ordinal in range(first, end)
        )

    def _whole_journal(self, start: Mapping[str, int], ends: Mapping[str, int]) -> tuple[str, ...]:
        """Return the lines for all files of a finite source, until a micro-batch has committed them."""
        state = self._state
        if state.last_reach is not None and state.last_reach == start:
            # This start is where the last micro-batch ended, so that its lines were committed.
            state.is_whole = True
        state.last_reach = dict(ends) if ends != start else None
        if state.is_whole or ends == start:
            return ()
        return (*self._lines(state.journalled, len(state.files)), _WHOLE)

    def _take(self) -> None:
        """List the folder, and number the files that are new. A finite source that has its files takes no new one."""
        state = self._state
        listing = self._listed(state.paths)
        self._check_tables(listing.tables, "has")
        if state.is_opening:
            self._check_tables(self._tables_above(), "lies below the folder of")
        if state.present is not None:
            state.present = listing.there or {}
        self._warn_of_changes(listing)
        is_gone = partial(self._is_gone, listing)
        state.moved, copies = moves.moved_and_copied(self._folder, state.files, listing.files, is_gone, state.moved)
        self._warn(_MOVED, {path: f"{path!r} (read as {then!r})" for path, then in state.moved.items()})
        if state.is_whole:
            return
        self._warn(_COPIED, {path: f"{path!r} (as {other!r})" for path, other in copies.items()})
        unreadable = [path for path, why in listing.left_out.items() if why == UNREADABLE]
        if self.finite and unreadable:
            raise StoreUnavailableError(
                f"file={unreadable[0]!r} of {self!r} may not be read. Permit that, then try again."
            )
        for why in dict.fromkeys(listing.left_out.values()):
            self._warn(f"left out: {why}", [path for path, other in listing.left_out.items() if other == why])
        new = self._in_order([file for file in listing.files if file.path not in state.moved])
        state.files += new
        state.paths.update(file.path for file in new)

    def _warn(self, why: str, paths: Collection[str]) -> None:
        """Warn of files once for each start. A mapping has the words for each path.

        Spark's planner, which opens a copy in a process of its own, warns only of what comes later.
        """
        state = self._state
        new = [path for path in sorted(paths) if (path, why) not in state.warned]
        state.warned.update((path, why) for path in new)
        if new and (self._maker == os.getpid() or not state.is_opening):
            names = ", ".join(paths[path] if isinstance(paths, Mapping) else repr(path) for path in new[:_NAMED])
            more = f" and {len(new) - _NAMED:,} more" if new[_NAMED:] else ""
            _logger.warning("%s%s of %r: %s.", names, more, self, why)

    def _check_tables(self, tables: Mapping[str, str], where: str) -> None:
        """Refuse to begin with a folder that is a table. A source that has begun goes on, with a warning."""
        for path, what in tables.items():
            if self._state.is_opening and not self._state.files:
                raise InvalidInputError(f"{self!r} {where} {path!r}, so its files are {what}.")
            self._warn(f"its files are {what}", [path])

    def _tables_above(self) -> dict[str, str]:
        """Return the marks of tables that this folder lies in, with what to use instead."""
        system, root = self._system()
        root = os.path.realpath(root) if type(system) is LocalFileSystem else root
        found: dict[str, str] = {}
        folder, _, name = root.rpartition("/")
        below = [name]
        while folder:
            # Who may read a folder need not be permitted to look at those above it.
            with suppress(OSError):
                # The folders of partitions hold columns, but for Hudi's. Others may lie below a table by chance.
                of_columns = all("=" in name for name in below)
                tables = {name: what for name, what in TABLES.items() if of_columns or name == HUDI}
                found |= {
                    f"{folder}/{name}": what for name, what in tables.items() if system.exists(f"{folder}/{name}")
                }
                names = system.ls(f"{folder}/metadata", detail=False) if below[0] == "data" else []
                for mark in (table_mark("metadata/" + name_of(name)) for name in names):
                    found |= {f"{folder}/{path}": what for path, what in mark.items()}
            folder, _, name = folder.rpartition("/")
            below.insert(0, name)
        return {mark: what for mark, what in found.items() if not f"{root}/".startswith(f"{mark}/")}

    def _warn_of_changes(self, listing: Listing) -> None:
        """Warn of known files that were written again: of all that the listing has looked at, else of some of them in turn."""
        files, there = self._state.files, listing.there
        if there is None:
            newest, others = files[-_WATCHED:], files[:-_WATCHED]
            begin = self._state.turn
            files = [*others[begin : begin + _IN_TURN], *newest]
            self._state.turn = begin + _IN_TURN if begin + _IN_TURN < len(others) else 0
            there = {file.path: now for file in files if (now := self._on_this_machine(file.path)) is not None}
        present = [(file, there[file.path]) for file in files if file.path in there]
        present = [(file, now) for file, now in present if self._is_opened(file.path)]
        self._warn(_OTHER_SIZE, [file.path for file, now in present if file.size != now.size])
        self._warn(_WRITTEN_AGAIN, [file.path for file, now in present if _is_written_again(file, now)])

    def _on_this_machine(self, path: str) -> File | None:
        with suppress(OSError):
            return local_file(path, os.path.join(self._system()[1], path))
        return None

    @property
    def _folder(self) -> moves.Folder:
        return moves.Folder(self._kind, self._is_opened, lambda path: not self._of_folders(path)[1], self._text_size)

    def _text_size(self, file: File, codec: formats.Codec) -> int:
        """Return how many bytes a compressed file has as a text; 0 if it can't be read."""
        with suppress(StateError, *formats.UNDECODABLE), self._open(file.path, file.size) as stored:
            return sum(map(len, formats.decompressed(pa.PythonFile(stored, mode="r"), codec)))
        return 0

    def _stand_in(self, gone: File, stamps: Mapping[tuple[int, int | None], list[File]]) -> str | None:
        """Return the path of the file that a file that is gone has become under its right name or folder, if there is one."""
        return self._first_that_is_there(moves.stand_ins(self._folder, gone, stamps))

    def _later_one(self, gone: str) -> str | None:
        """Return in words which later file may be one that is gone, and what to do then; None if none may be."""
        files, journalled = ([], 0) if self._opened is None else (self._opened.files, self._opened.journalled)
        place = next((i for i, file in enumerate(files) if file.path == gone), None)
        if place is None:
            return None
        twice = f"{_OR.removeprefix('or ')}: brought back, it would count twice"
        read, new = files[place + 1 : journalled], files[journalled:]
        for later, what, way in ((read, "was read", twice), (new, "is new", f"move it back, {_OR}")):
            if (path := self._first_that_is_there(moves.alike(files[place], later))) is not None:
                return f"file={path!r}, which {what}, looks like it. If that is the same one, {way}"
        return None

    def _first_that_is_there(self, files: Iterable[File]) -> str | None:
        system, root = self._system()
        for file in files:
            with self._asking(file.path):
                if system.exists(f"{root}/{file.path}"):
                    return file.path
        return None

    def _is_opened(self, path: str) -> bool:
        """Return whether the file of a path is opened when it is read. Others have one bad record, whatever they hold."""
        format = self._kind(path)[0]
        return format is not None and format not in formats.NOT_READ

    def _is_gone(self, listing: Listing, known: File) -> bool:
        """Return whether a known file is no longer there, or another one is in its place."""
        return known != (self._on_this_machine(known.path) if listing.there is None else listing.there.get(known.path))

    def _end_of_batch(self, first: int) -> int:
        files = self._state.files[first : first + self._files_per_batch]
        sizes = accumulate(file.size for file in files)
        return first + max(sum(size <= self._bytes_per_batch for size in sizes), min(1, len(files)))

    def _check_replayed(self, file: File) -> None:
        if not self._is_opened(file.path):
            return
        state = self._state
        now = (state.present or {}).get(file.path)
        if now is None:
            # No listing has it: some leave out files that they could not look at.
            system, root = self._system()
            with self._asking(file.path):
                try:
                    info = system.info(f"{root}/{file.path}")
                except FileNotFoundError:
                    state.stamps = state.stamps or moves.by_stamp(state.files)
                    if (place := self._stand_in(file, state.stamps)) is None:
                        raise
                    state.places[file.path] = place
                    return
            now = File(file.path, _size(info), _modified(info))
        if now.size != file.size:
            raise self._changed(file.path, file.size, now.size)
        if _is_written_again(file, now):
            self._warn(_WRITTEN_AGAIN, [file.path])

    def _changed(self, path: str, then: int, now: int) -> InvalidInputError:
        return InvalidInputError(
            f"file={path!r} of {self!r} had {then} bytes and has {now}; bring back what it held, {_OR}. A file must "
            "be whole when it appears, and never change."
        )

    def _record_schema(self) -> pa.Schema:
        if self._stored is None:
            there = {file.path: file for file in self._listed().files if self._kind(file.path)[0] == formats.PARQUET}
            begun = [there.pop(path) for path in self._begun if path in there]
            unread = None
            for file in (*begun, *self._in_order([*there.values()])):
                try:
                    self._stored = self._schema_of(file)
                    return self._stored
                except formats.UNDECODABLE as error:
                    # It is a bad record, which says nothing of the others.
                    unread = unread or InvalidInputError(
                        f"file={file.path!r} of {self!r} has no schema: {error}; give schema=."
                    )
            raise unread or InvalidInputError(f"{self!r} has no Parquet file to take the schema from; give it schema=.")
        return self._stored

    def _once(self, stored: pa.Schema, file: str) -> pa.Schema:
        """Return the columns of a file that have a name of their own, and warn of the others."""
        alike = {name: [field for field in stored if field.name == name] for name in stored.names}
        twice = {name: path for name, fields in alike.items() if (path := name_twice(fields)) is not None}
        for name in (self.timestamp, self.channel):
            if name in twice:
                raise InvalidInputError(
                    f"file={file!r} of {self!r} has {name!r} twice; give it once, or choose another column by schema=."
                )
        if twice and self._maker == os.getpid():
            names = " and ".join(map(repr, twice.values()))
            _logger.warning("file=%r of %r has %s twice: columns that hold them are not read.", file, self, names)
        return pa.schema([field for field in stored if field.name not in twice])

    def _schema_of(self, file: File) -> pa.Schema:
        """Return the schema of the records of a Parquet file, with the columns that its folders say."""
        with self._open(file.path, file.size) as stored:
            parquet = formats.open_parquet(pa.PythonFile(stored, mode="r"))
            schema = self._once(plain_schema(parquet.schema_arrow).remove_metadata(), file.path)
        names = [name for name in folder_columns(file.path) if name not in schema.names]
        if untyped := [each.name for each in schema if pa.null() in leaves([each.type])]:
            _logger.warning(
                "The schema of %r is that of file=%r, whose columns %s hold only nulls, so that they have no type and other "
                "files with values there are bad; give schema=.",
                self,
                file.path,
                ", ".join(map(repr, untyped)),
            )
        return pa.schema([*schema, *(pa.field(name, pa.string()) for name in names)])

    def _transformed_piece(self, piece: formats.Piece, path: str) -> formats.Piece:
        try:
            rows = formats.transformed(self._transform, piece.rows)
        except Exception as error:
            raise TaskFailedError(
                f"transform of {self!r} {formats.what_it_did(error)}, for rows of file={path!r}."
            ) from error
        if not rows.schema.equals(self.schema):
            raise TaskFailedError(
                f"transform of {self!r} made columns ({_columns(rows.schema)}) of file={path!r}, "
                f"and ({_columns(self.schema)}) of a batch without rows; make them alike."
            )
        # It is unknown which rows a transform made of which record, so the bad records come after all rows.
        bad = tuple(replace(record, position=rows.num_rows + i) for i, record in enumerate(piece.bad))

        def original(place: int) -> formats.Original:
            if place < rows.num_rows:
                return formats.Original()
            return piece.original(piece.bad[place - rows.num_rows].position)

        # A transform may fill what the file lacks, or give it another name.
        absent = [path for path, _ in piece.absent]
        lacks = formats.absent_behind(rows, piece.rows.schema.names, absent, piece.lacks)
        return formats.Piece(rows, rows.num_rows + len(bad), bad, original, piece.absent, lacks, piece.misplaced)

    def _kind(self, path: str) -> tuple[str | None, formats.Codec | None]:
        """Return the format and the compression of a file. A format that is not read is named, too."""
        endings = name_of(path).lower().split(".")
        last, before = endings[-1], endings[-2:-1]
        if last in formats.NOT_READ and (self._format is None or not formats.BY_ENDING.keys().isdisjoint(before)):
            return last, None
        codec = formats.CODECS.get(last)
        return self._format or formats.BY_ENDING.get(before[0] if codec and before else last), codec

    def _listed(self, known: Collection[str] = ()) -> Listing:
        """List the folder. `known` are the paths of files that are known."""
        system, root = self._system()
        with self._asking(""):
            system.invalidate_cache()
            try:
                kind = system.info(root)["type"]
            except (FileNotFoundError, NotADirectoryError):
                kind = None
            if kind == "file" or (kind is None and any(mark in self.path for mark in "*?[")):
                instead = "give one: all files in it and below are read, and a transform can leave out rows"
                raise InvalidInputError(f"{self!r} is not a folder; {instead}.")
            if kind is None and not _has_folders(system):
                if not _is_bucket_there(system, root):
                    raise InvalidInputError(
                        f"{self!r} is in a bucket that does not exist; make it first, or correct the path."
                    )
            elif kind != "directory":
                raise InvalidInputError(f"{self!r} is not a folder; create it, or correct the path.")
            if type(system) is LocalFileSystem:
                return local_listing(root, known)
            infos = system.find(root, detail=True)
        names = ((name[len(root) + 1 :], info) for name, info in infos.items())
        there = {path: File(path, _size(info), _modified(info)) for path, info in names}
        new = [file for path, file in there.items() if path not in known]
        marks = {file.path: mark for file in new if (mark := table_mark(file.path))}
        tables = {path: what for mark in marks.values() for path, what in mark.items()}
        files = [file for file in new if not is_ignored(file.path) and file.path not in marks]
        return Listing(files, {}, tables, there)

    def _warn_if_without_files(self) -> None:
        # Once for a start: Spark's planner opens a copy in a process of its own.
        if self._maker == os.getpid() and not self._state.present and not _has_folders(self._system()[0]):
            _logger.warning(
                "%r holds no file %s. Its store has no folders, so a mistyped path looks the same: look at the path if "
                "there should be files. Files that come are read.",
                self,
                "any more" if self._state.files else "yet",
            )

    def _in_order(self, files: list[File]) -> list[File]:
        if self._order_by == "name":
            return sorted(files, key=lambda file: file.path)
        if any(file.modified is None for file in files):
            raise InvalidInputError(f"{self!r} is on a file system that tells no modification times; order by name.")
        return sorted(files, key=lambda file: (file.modified or 0, file.path))

    def _system(self) -> tuple[Any, str]:
        # Looked up each time, since an fsspec instance must not be carried over a fork. To fsspec "::" would join two URLs.
        if os.path.isabs(self.path):
            system, root = fsspec.filesystem("file", **self._options), self.path
        else:
            system, root = fsspec.core.url_to_fs(self.path, **self._options)
        return system, root.rstrip("/")

    def _asking(self, path: str, is_new: bool = False) -> AbstractContextManager[None]:
        return translating(OSError, partial(self._as_ours, path, is_new))

    def _as_ours(self, path: str, is_new: bool, error: OSError) -> StateError:
        if is_new and isinstance(error, FileNotFoundError):
            return self._not_as_listed(path, "is gone, and was there")
        if isinstance(error, FileNotFoundError):
            moved = {} if self._opened is None else self._opened.moved
            if new := next((new for new, then in moved.items() if then == path), None):
                return InvalidInputError(
                    f"file={path!r} of {self!r} is gone, and file={new!r} looks like it; move that back, as it was, {_OR}."
                )
            if (other := self._later_one(path)) is not None:
                return InvalidInputError(f"file={path!r} of {self!r} is gone, and {other}. Else bring it back.")
            return InvalidInputError(f"file={path!r} of {self!r} is gone; bring it back, {_OR}.")
        why = without_secrets(error, self._options)
        what = f"{path!r} of {self!r}" if path else repr(self)
        return StoreUnavailableError(f"{what}: {why}. Put it right, then try again.")

    def _not_as_listed(self, path: str, what: str) -> StateError:
        # If the log has the file by now, the next start refuses to go on without it.
        return StoreUnavailableError(
            f"file={path!r} of {self!r} {what} when the folder was listed. None of its rows counts yet: the next start "
            "lists the folder again. Write a file under an ignored name, then move it in, and leave it as it is."
        )

    def _open(self, path: str, size: int, is_new: bool = False) -> _StoredFile:
        """Open a file of which the log has this size; or, if it `is_new`, only a listing of this start."""
        system, root = self._system()
        with self._asking(path, is_new):
            file = _StoredFile(system.open(f"{root}/{path}", "rb"), lambda: self._asking(path, is_new))
        if (now := file.seek(0, io.SEEK_END)) != size:
            file.close()
            if is_new:
                raise self._not_as_listed(path, f"has {now} bytes, and had {size}")
            raise self._changed(path, size, now)
        file.seek(0)
        return file


@dataclass
class _Opened:
    """The driver's view of the folder: files by ordinal, the number of them in the journal, and the files that were listed.

    These are kept while files of the journal are replayed. `moved` has files that are not read, each with the path that it had.
    """

    files: list[File]
    journalled: int
    paths: set[str]
    present: dict[str, File] | None = field(default_factory=dict)
    is_frozen: bool = False
    most: int | None = None
    """The number of files to stay within."""
    is_whole: bool = False
    """True if the journal has all files of a finite source."""
    last_reach: dict[str, int] | None = None
    """The ends of the newest reach of a finite source, if that had anything to read."""
    is_opening: bool = True
    moved: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """The paths under which files are read that are gone from their own."""
    stamps: dict[tuple[int, int | None], list[File]] = field(default_factory=dict)
    turn: int = 0
    """The number of the known file from which on the next listing looks whether some have changed."""
    warned: set[tuple[str, str]] = field(default_factory=set)
    """The paths of which people were warned since the source was opened, each with why."""


def _originals(
    path: str, first: int, original: Callable[[int], formats.Original], positions: NDArray[np.int64]
) -> pa.RecordBatch:
    """Return the records of a file at these positions; `original` counts from the position `first`."""
    originals = [original(place) for place in (positions - first).tolist()]
    # A name that is not UTF-8 is shown as the journal writes it.
    name = path.encode(errors="backslashreplace").decode()
    origins = [{"file": name, "line": each.line, "value": each.value} for each in originals]
    record = pa.array([each.record for each in originals], pa.large_binary())
    return pa.record_batch({"record": record, "origin": pa.array(origins, ORIGIN)})


class _StoredFile(io.RawIOBase):
    """A file that raises its own failures apart from damage in its content."""

    def __init__(self, file: Any, asking: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._asking = asking

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with self._asking():
            return bytes(self._file.read(size))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._asking():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


def _line_of_file(file: File, ordinal: int, schema: pa.Schema | None) -> str:
    record = {"file": ordinal, "path": file.path, "size": file.size, "modified": file.modified}
    if schema is not None:
        record["schema"] = base64.b64encode(schema.serialize()).decode()
    return json.dumps(record)


def _schema_in(journal: Sequence[str]) -> pa.Schema | None:
    """Return the schema that a file gave at the first start; None if the journal has none."""
    try:
        text = json.loads(journal[0])["schema"] if journal else None
        return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except (ValueError, TypeError, KeyError, OSError):
        return None


def _files_in(journal: Sequence[str]) -> list[File]:
    """Return the files of a journal, by ordinal."""
    lines = (line for line in journal if line != _WHOLE)
    return [_file_of_line(line, ordinal) for ordinal, line in enumerate(lines)]


def _file_of_line(line: str, ordinal: int) -> File:
    try:
        record = json.loads(line)
        if record["file"] == ordinal:
            return File(record["path"], record["size"], record["modified"])
    except (ValueError, TypeError, KeyError):
        pass
    raise InvalidInputError(
        f"line {ordinal} of the journal was not written by a FileSource: {line[:200]!r}; "
        "the task had another source: give it another name, or reset it."
    )


def _same_for_all(place: str) -> str:
    """Return a path or a URL as one text, however it is written."""
    protocol, colon, rest = place.partition("://")
    if not colon and (match := re.match("(file|local):", place, re.IGNORECASE)):
        protocol, colon, rest = match[1], ":", place[match.end() :]
    protocol = _ALIASES.get(protocol.lower(), protocol.lower()) if colon else "file"
    if protocol == "file":
        return os.path.realpath(os.path.expanduser(rest if colon else place))
    return f"{protocol}://" + re.sub("//+", "/", rest).strip("/")


def _has_folders(system: Any) -> bool:
    """Return whether a file system has folders, and not only files whose names begin alike."""
    protocols = {system.protocol} if isinstance(system.protocol, str) else {*system.protocol}
    return protocols.isdisjoint(_WITHOUT_FOLDERS)


def _is_bucket_there(system: Any, root: str) -> bool:
    """Return whether the bucket of a place without files is there."""
    if "abfs" in system.protocol:
        # Azure's client lists nothing, and raises nothing, where there is no container.
        return bool(system.exists(root.partition("/")[0]))
    try:
        # Not asked for the bucket itself, since credentials for what is in it may not permit that.
        system.find(root)
    except FileNotFoundError:
        return False
    return True


def _is_written_again(file: File, now: File) -> bool:
    return (
        file.size == now.size
        and file.modified is not None
        and now.modified is not None
        and file.modified != now.modified
    )


def _size(info: Mapping[str, Any]) -> int:
    return int(info.get("size") or 0)


def _modified(info: Mapping[str, Any]) -> int | None:
    """Return the modification time in microseconds UTC, by any name and in any form that a file system gives it."""
    time = next((info[key] for key in _MODIFIED if info.get(key) is not None), None)
    if isinstance(time, str):
        time = iso_time(time)
    if isinstance(time, datetime):
        time = time.timestamp()
    return None if time is None else microseconds(time)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
