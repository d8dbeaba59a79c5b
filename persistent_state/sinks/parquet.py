"""A Parquet table by clock: the files of a clock are seen when its marker is there, all of them or none.

    _table.json                              whose values these are, and their columns
    _clocks/<clock>.json                     a marker: created last, it names the files of the clock
    _clocks/<clock>-<timeline>.json          a marker of a later timeline than 0
    _rewinds/<timeline>.json                 the clock of the table when the timeline began, and those of earlier timelines
    <clock>-<part>-<task>-<digest>.parquet   values at a clock

A rewind begins a timeline by creating one file in `_rewinds`. The file has the last clock of the table at or below the clock
of the rewind. It makes void each marker of an earlier timeline at a clock above its own. That takes back all clocks above the
rewind. It also takes back what a writer of an earlier timeline may yet add: its clocks rise, so they are above the last one.

The newest file in `_rewinds` repeats what the earlier ones said when it was created. An earlier one that is created after it
is of a process that was fenced, and does not count. So a reader needs the newest file only, unless an older version of the
library created it. A reader lists the markers before the rewinds, and so never misses the file with which the timeline of a
marker began.

A clock is written as 20 digits, which sort as clocks do: 1 and the microseconds, or 0 and the microseconds since -2**63. The
digest is the first 16 hexadecimal digits of the file's SHA-256. So two attempts at a clock with the same rows make the same
files. An attempt with other rows, as after a change of the program, makes other files, and never names the files that a killed
attempt has left.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persistent_state.errors import DamagedError, ExistsError, InvalidInputError, StateError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import Clock, full_clock, read_clock
from persistent_state.partials.keys import normalise, same_as_previous
from persistent_state.sinks.base import (
    CLOCK,
    Origin,
    RecordingSink,
    check_timeline,
    folder_record,
    known_clock,
)
from persistent_state.sinks.values import Values
from persistent_state.store.files import LocalFiles, open_files

if TYPE_CHECKING:
    import os

    from pyarrow.dataset import Dataset

FORMAT = 3
"""The format of a new table. A table keeps the format with which it was created.

Readers of format 1 know nothing of rewinds, and would show what is void. Readers of format 2 count each rewind, and would hide
clocks above one that came too late.
"""

READABLE = (1, 2, FORMAT)

GROUP_ROWS = 1 << 17
"""Rows of a row group, which a reader's thread takes as one."""

LEFTOVER_AGE = 3600.0
"""Seconds after which a temporary file has no writer any more."""

_TABLE = "_table.json"
_MARKERS = "_clocks"
_REWINDS = "_rewinds"
_AT_ONCE = 16  # markers read at the same time


class ParquetSink(RecordingSink):
    """A folder of Parquet files to which each clock adds its values: the key columns, `clock` (a timestamp) and `value`.

    A table belongs to one task. To read it, use `paths`, `dataset` or `latest`: they name only clocks that are whole, of one
    history. The folder itself may also have files of drivers that were killed, and of clocks that a rewind has taken back.

    Args:
        url: A folder, or a URL of fsspec, as a store's.
        files: The most files per clock. Each is written by one worker that holds its rows in memory and sorts them by key.
            The number may change at any start.
        storage_options: What fsspec needs to open the folder. They appear in no message.

    Raises:
        InvalidInputError: The URL, an option or `files` is wrong.

    Example:
        >>> ParquetSink("memory://tables/totals").name
        'parquet:memory://tables/totals'
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        files: int = 1,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if files < 1:
            raise InvalidInputError(f"{files=} of a ParquetSink; give at least 1.")
        self.place = open_files(url, storage_options)
        self.files = files
        self._origin: Origin | None = None
        self._last = BEGINNING

    def __repr__(self) -> str:
        return f"ParquetSink({self.place.url!r}, files={self.files})"

    @property
    def name(self) -> str:
        return f"parquet:{self.place.url}"

    def records(self, task: str) -> frozenset[Hashable]:
        return frozenset({folder_record(self.place.url, self.place.options)})

    def open(self, origin: Origin) -> int | None:
        """Return the last clock in the table, or None. Create the table if it is missing.

        Args:
            origin: Whose values will be written here, and their columns.

        Raises:
            InvalidInputError: Parquet can't hold the values, or the table is another task's or has other columns.
            DamagedError: The file that describes the table is not what was written.
        """
        _check_columns(origin)
        schema = base64.b64encode(origin.schema.remove_metadata().serialize()).decode()
        try:
            self.place.create(_TABLE, _json({"format": FORMAT, **_described(origin), "schema": schema}))
        except ExistsError:
            origin = self._as_in_table(origin)
        self._origin = origin
        self._collect()
        markers, rewinds = self._listed()
        check_timeline(self.name, max(rewinds, default=0), origin)
        self._last = max(_valid(markers, rewinds), default=BEGINNING)
        return known_clock(self._last)

    def write_values(self, values: Values, clock: int) -> None:
        if clock <= self._last:
            return
        origin, place = self._origin, self.place
        assert origin is not None, "open comes first"

        def store(part: int, batches: Iterator[pa.RecordBatch]) -> str:
            path, data = _data_file(origin, clock, part, pa.Table.from_batches(batches))
            with suppress(ExistsError):
                place.create(path, data)
            return path

        paths = sorted(values.map_parts(store, parts=self.files))
        self._check_here(paths)
        with suppress(ExistsError):
            place.create(_marker(clock, origin.timeline), _json({"clock": clock, "files": paths}))
        # If a rewind came first, the marker is void.
        check_timeline(self.name, max(self._began(), default=0), origin)
        self._last = clock

    def rewind(self, clock: int, values: Values) -> None:
        origin = self._origin
        assert origin is not None, "open comes first"
        markers, rewinds = self._listed()
        if max(rewinds, default=0) < origin.timeline:
            last = max((each for each in _valid(markers, rewinds) if each <= clock), default=BEGINNING)
            # What a writer of an earlier timeline adds from now on is void, below the clock too: its next clock may come with
            # the same rows.
            began = {"clock": last, "earlier": {str(timeline): at for timeline, at in rewinds.items()}}
            with suppress(ExistsError):
                self.place.create(f"{_REWINDS}/{origin.timeline:020d}.json", _json(began))
            markers, rewinds = self._listed()
        check_timeline(self.name, max(rewinds, default=0), origin)
        self._last = max(_valid(markers, rewinds), default=BEGINNING)

    def rows_above(self, clock: int, origin: Origin) -> int | None:
        _check_columns(origin)
        markers = self._markers()
        with suppress(FileNotFoundError):
            self._as_in_table(origin)
        above = {each: timeline for each, timeline in markers.items() if each > clock}
        return int(self._dataset(self._data_files(above, None)).count_rows()) if above else 0

    def last_clock(self, origin: Origin) -> int | None:
        markers, rewinds = self._listed()
        with suppress(FileNotFoundError):
            self._as_in_table(origin)
        check_timeline(self.name, max(rewinds, default=0), origin)
        return max(_valid(markers, rewinds), default=BEGINNING)

    def clocks(self) -> list[int]:
        """Return the clocks that are in the table.

        Returns:
            Microseconds UTC, ascending.

        Raises:
            InvalidInputError: There is no table.
        """
        markers = self._markers()
        if not markers:
            self._table()
        return sorted(markers)

    def paths(self, clocks: Sequence[Clock] | None = None) -> list[str]:
        """Return the paths of the files of these clocks, for `spark.read.parquet(*paths)` and DuckDB.

        A clock that is in the table keeps its files for ever.

        Args:
            clocks: Clocks in microseconds UTC, as ISO texts or as `datetime`s with zones; by default all.

        Returns:
            Paths in the order of the clocks. A clock without values has no file.

        Raises:
            InvalidInputError: There is no such clock in the table, or no table.
        """
        return [f"{self.place.url}/{path}" for path in self._data_files(self._markers(), clocks)]

    def dataset(self, clocks: Sequence[Clock] | None = None) -> Dataset:
        """Return the values at these clocks, by default at all. They are read when the dataset is used.

        pyarrow reads it by `to_table`, with columns and a filter. DuckDB reads it by the name of the variable that holds it.

        Args:
            clocks: Clocks in microseconds UTC, as ISO texts or as `datetime`s with zones; by default all.

        Raises:
            InvalidInputError: There is no such clock in the table, or no table.
        """
        return self._dataset(self._data_files(self._markers(), clocks))

    def _dataset(self, paths: Sequence[str]) -> Dataset:
        # These bring pandas, which takes half a second.
        import pyarrow.dataset as ds
        from fsspec.core import url_to_fs
        from pyarrow import fs

        system, root = fs.LocalFileSystem(), self.place.url
        if not isinstance(self.place, LocalFiles):
            client, root = url_to_fs(root, **{**self.place.options, "use_listings_cache": False})
            system = fs.PyFileSystem(fs.FSSpecHandler(client))
        checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        return ds.FileSystemDataset.from_paths(
            [f"{root}/{path}" for path in paths],
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._table()["schema"]))),
            format=ds.ParquetFileFormat(default_fragment_scan_options=checked),
            filesystem=system,
        )

    def latest(self, clock: Clock | None = None) -> pa.Table:
        """Return the newest row of each key at or below a clock.

        This is the whole state if each clock has the keys that changed. `clock` is then when the key last changed.

        Args:
            clock: Microseconds UTC, ISO text or a `datetime` with a zone; by default the last clock.

        Raises:
            InvalidInputError: There is no table.
        """
        if self._table()["key"] is None:
            raise InvalidInputError(
                f"table={self.place.url!r} has the rows that a task emits, and none replaces another; read all, by dataset()."
            )
        newest = None if clock is None else read_clock(clock)
        markers = {at: timeline for at, timeline in self._markers().items() if newest is None or at <= newest}
        rows = self._dataset(self._data_files(markers, None)).to_table()
        *keys, _, _ = rows.column_names
        order = np.asarray(pc.sort_indices(rows, [(name, "ascending") for name in (*keys, CLOCK)]))
        same = same_as_previous([normalise(rows[name].take(order)) for name in keys], len(rows))
        is_last = np.ones(len(rows), np.bool_)
        is_last[order[:-1]] = ~same[1:]
        return rows.filter(pa.array(is_last))

    def _collect(self) -> None:
        """Delete the temporary files of drivers and workers that were killed; what can't be deleted now is deleted later."""
        with suppress(StateError):
            for folder in ("", _MARKERS, _REWINDS):
                # The age of a file is by the wall clock.
                for name, age in self.place.leftovers(folder, time.time_ns() // 1000):  # noqa: TID251
                    if age > LEFTOVER_AGE:
                        self.place.delete(f"{folder}/{name}" if folder else name)

    def _began(self) -> dict[int, str]:
        """Return by timeline, ascending, the file with which it began."""
        names = (re.fullmatch(r"(\d{20})\.json", name) for name in sorted(self.place.list(_REWINDS)))
        return {int(match[1]): f"{_REWINDS}/{match[0]}" for match in names if match}

    def _listed(self) -> tuple[list[tuple[int, int]], dict[int, int]]:
        """Return clock and timeline of each marker, and by timeline the clock above which those of earlier ones are void."""
        names = (re.fullmatch(r"(\d{20})(?:-(\d{20}))?\.json", name) for name in self.place.list(_MARKERS))
        markers = [(_clock(match[1]), int(match[2] or 0)) for match in names if match]
        rewinds: dict[int, int] = {}
        for timeline, path in reversed(self._began().items()):
            began = self._read(path)
            rewinds[timeline] = began["clock"]
            # Older versions do not repeat earlier rewinds.
            if "earlier" in began:
                rewinds |= {int(earlier): at for earlier, at in began["earlier"].items()}
                break
        return markers, rewinds

    def _markers(self) -> dict[int, int]:
        """Return the clocks that are in the table, ascending, with the timeline of each."""
        return _valid(*self._listed())

    def _data_files(self, markers: Mapping[int, int], clocks: Sequence[Clock] | None) -> list[str]:
        """Return the files of clocks, by default of all that have these markers."""
        if not markers:
            self._table()
        wanted = [*markers] if clocks is None else [read_clock(clock) for clock in clocks]
        for clock in wanted:
            if clock not in markers:
                raise InvalidInputError(
                    f"clock={full_clock(clock)} is not in table={self.place.url!r}; use one of its clocks()."
                )
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            read = pool.map(lambda clock: self._read(_marker(clock, markers[clock]))["files"], wanted)
            return [path for paths in read for path in paths]

    def _as_in_table(self, origin: Origin) -> Origin:
        """Return the origin with the columns of the table.

        Raises:
            InvalidInputError: The table is of another task, or has other columns.
            FileNotFoundError: There is no table.
        """
        table = self._read_table()
        origin = origin.with_whole([name for name, kind in table["columns"].items() if kind == "int64"])
        for what, wanted in _described(origin).items():
            if table[what] != wanted:
                raise InvalidInputError(
                    f"table={self.place.url!r} has {what}={table[what]!r}, not {wanted!r}; write to a table of its own."
                )
        return origin

    def _table(self) -> dict[str, Any]:
        try:
            return self._read_table()
        except FileNotFoundError:
            raise InvalidInputError(f"there is no table in {self.place.url!r}; look at its address.") from None

    def _read_table(self) -> dict[str, Any]:
        table = self._read(_TABLE)
        if not table.keys() >= {"format", "application", "task", "key", "columns", "schema"}:
            raise DamagedError(f"path={_TABLE!r} of {self.place.url!r} is not what was written; restore it.")
        if table["format"] not in READABLE:
            raise InvalidInputError(f"table={self.place.url!r} has format={table['format']}, not {FORMAT}; upgrade.")
        return table

    def _read(self, path: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.place.read(path).to_pybytes())
        except ValueError as error:
            raise DamagedError(
                f"path={path!r} of table={self.place.url!r} is not what was written; restore it."
            ) from error
        return content

    def _check_here(self, paths: Sequence[str]) -> None:
        """Refuse files that workers have written to disks of other machines."""
        if self.place.near:
            for path in paths:
                try:
                    self.place.read(path)
                except FileNotFoundError:
                    raise InvalidInputError(
                        f"table={self.place.url!r} is not where the workers wrote; give it a place that all of them reach."
                    ) from None


def _described(origin: Origin) -> dict[str, Any]:
    columns = {field.name: str(field.type) for field in origin.schema}
    return {
        "application": origin.application,
        "task": origin.task,
        # A key that may have several rows at a clock has no latest one.
        "key": list(origin.key_columns) if origin.is_unique else None,
        "columns": columns,
    }


def _check_columns(origin: Origin) -> None:
    names = [name.lower() for name in origin.schema.names]
    if len(set(names)) < len(names):
        raise InvalidInputError(
            f"task={origin.task}: readers of Parquet can't tell columns={origin.schema.names} apart; rename the key's."
        )
    try:
        pq.write_table(origin.schema.empty_table(), pa.MockOutputStream())
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"task={origin.task}: Parquet can't hold its values: {error}; use another sink."
        ) from error


def _data_file(origin: Origin, clock: int, part: int, rows: pa.Table) -> tuple[str, pa.Buffer]:
    """Return the name and the bytes of a data file."""
    rows = rows.cast(origin.schema)
    if origin.key_columns:
        rows = rows.sort_by([(name, "ascending") for name in origin.key_columns])
    stream = pa.BufferOutputStream()
    pq.write_table(rows, stream, row_group_size=GROUP_ROWS, compression="zstd", write_page_checksum=True)
    data = stream.getvalue()
    # The task's name in the path is for people only.
    task = re.sub(r"[^A-Za-z0-9_.-]", "_", origin.task)[:100]
    return f"{_digits(clock)}-{part:04d}-{task}-{hashlib.sha256(data).hexdigest()[:16]}.parquet", data


def _valid(markers: Sequence[tuple[int, int]], rewinds: Mapping[int, int]) -> dict[int, int]:
    """Return the clocks, ascending, whose markers are not void, with the timeline of each."""
    return {
        clock: timeline
        for clock, timeline in sorted(markers)
        if not any(began > timeline and at < clock for began, at in rewinds.items())
    }


def _marker(clock: int, timeline: int) -> str:
    return f"{_MARKERS}/{_digits(clock)}{f'-{timeline:020d}' if timeline else ''}.json"


def _digits(clock: int) -> str:
    return f"1{clock:019d}" if clock >= 0 else f"0{clock + 2**63:019d}"


def _clock(digits: str) -> int:
    return int(digits[1:]) - (0 if digits[0] == "1" else 2**63)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
