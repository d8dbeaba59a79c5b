"""Run files with blocks: Arrow files of several record batches, each of which is found by hash, read and verified alone.

A block is one record batch as it stands in the file; the first block begins with the file's head. Behind the blocks stand the
timers, if the rows have any: pairs of the time when a key's first timer is due and the key's hash, sorted by this time and cut
into pieces. Blocks are sorted by hash, so that without them each block would have to be read to find what is due. Behind the
timers stands the index, then Arrow's footer. An entry names the checksum of these two, and the index has the checksum of each
block and piece, so no byte is used that was not verified. `docs/format.md` describes the bytes.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import DamagedError
from persistent_state.event_time.clocks import END
from persistent_state.partials.layout import DUE, as_numpy
from persistent_state.store.files import cache
from persistent_state.store.files.base import Files, Stamp
from persistent_state.store.named_files import Stored
from persistent_state.store.shared_file import MOST_SHARED, SharedFile

BLOCK = 256 << 10
"""About how many bytes a block, or a piece of the timers, has.

A look-up of a key reads and verifies one block. Each costs some bytes of the index."""

GAP = 256 << 10
"""The most bytes between two blocks that are fetched with them, since a further request would take longer."""

LARGE = 64 << 20
"""The most bytes of a file that one request fetches: more come sooner by several at once."""

TIGHTEST = 8
"""The most times that compression makes a run smaller, about. A larger run is not compressed to see whether it fits."""

MOST_INDEXES = 10_000
"""The most indexes that a process remembers."""

_MAGIC, _END = 8, 8
"""Bytes of an Arrow file before its schema, and of the mark behind its last record batch."""

_TIMER = np.dtype([("due", "<i8"), ("hash", "<u8")])
"""The time of a key's first timer, and the key's hash."""

Pieces: TypeAlias = Mapping[int, pa.Buffer]
"""The bytes of blocks and pieces of timers, by their numbers, which ascend."""

Needed: TypeAlias = Callable[["Index"], list[int]]
"""Chooses blocks, or pieces of timers, of a file by its index."""


@dataclass(frozen=True)
class Index:
    """The blocks of a file, and the pieces of its timers, whose numbers follow those of the blocks."""

    schema: pa.Schema

    firsts: NDArray[np.uint64]
    """By block: the hash of its first row."""

    rows: tuple[int, ...]

    bounds: tuple[int, ...]
    """The first byte of each block and piece in the file, and the byte behind the last."""

    checksums: tuple[str, ...]

    dues: NDArray[np.int64]
    """By piece: the time of its first timer. Empty if no row has a timer, or an older version wrote the file."""

    sound: set[int] = field(default_factory=set)
    """The blocks and pieces of a mapped file that this process has verified since the file was written to last."""

    def pieces(self, data: pa.Buffer, numbers: Iterable[int]) -> dict[int, pa.Buffer]:
        """Return the bytes of blocks, or of pieces of the timers, of a whole file."""
        return {i: data[self.bounds[i] : self.bounds[i + 1]] for i in numbers}

    def size(self, numbers: Sequence[int]) -> int:
        """Return how many bytes these blocks or pieces have."""
        return sum(self.bounds[i + 1] - self.bounds[i] for i in numbers)


Known: TypeAlias = tuple[str, Stored | str, Stamp | None]
"""The store and the file or range, or the checksum of a copy; and the stamp if it is mapped: what an index is known by."""

_indexes: dict[Known, Index] = {}


def write_blocks(files: Files, path: str, table: pa.Table, shared: SharedFile | None = None, room: int = 0) -> Stored:
    """Write a table that is sorted by hash as a new file with blocks, durable when this returns.

    If it takes at most `room` bytes, it is written nowhere: the entry is to have the bytes. Else, with `shared`, it is a range
    of the shared file, unless it is large. It is then durable when the shared file is written.
    """
    data, length = _encoded(table, path.rpartition("/")[2])
    stored = Stored(path, len(data), _checksum(data[-length:]), length)
    if len(data) <= TIGHTEST * room and len(packed := zlib.compress(data, 1)) <= room:
        return replace(stored, inline=packed)
    if shared is None or len(data) > MOST_SHARED:
        files.ensure(path, data)
    else:
        path, start = shared.add(path, data)
        stored = replace(stored, path=path, start=start)
    if not files.near:
        cache.keep(stored.checksum, data)
    return stored


def read_blocks(
    files: Files,
    stored: Stored,
    low: int = 0,
    high: int = 1 << 64,
    asked: Sequence[NDArray[np.uint64]] | None = None,
    anew: bool = False,
) -> pa.Table:
    """Return the rows of the blocks that may hold hashes in [low, high), and others of their blocks.

    Args:
        files: The store.
        stored: A file with blocks.
        low: The lowest hash.
        high: The first hash that is too high.
        asked: Sorted arrays of the hashes that are looked for; None if all are.
        anew: True verifies what is read also if this process has verified it before.

    Raises:
        DamagedError: The index or a block that is needed is not what was written.
        FileNotFoundError: The file was collected.
    """
    index, pieces = _read(files, stored, partial(_needed, low=low, high=high, asked=asked), anew)
    return _table(pieces, index)


def read_due(files: Files, stored: Stored, since: int, clock: int, anew: bool = False) -> NDArray[np.uint64] | None:
    """Return the sorted hashes of the keys whose first timer is due from `since` to below `clock`.

    Args:
        files: The store.
        stored: A file with blocks, of which a row has a timer.
        since: The lowest time.
        clock: The first time that is too high.
        anew: True verifies what is read also if this process has verified it before.

    Returns:
        The hashes; None if an older version wrote the file, so that all its blocks have to be read.

    Raises:
        DamagedError: The index or a piece that is needed is not what was written.
        FileNotFoundError: The file was collected.
    """
    index, pieces = _read(files, stored, partial(_needed_timers, since=since, clock=clock), anew)
    if len(index.dues) == 0:
        return None
    timers = _timers(pieces, index)
    hashes: NDArray[np.uint64] = np.sort(timers["hash"][(timers["due"] >= since) & (timers["due"] < clock)])
    return hashes


def problems(data: pa.Buffer, stored: Stored) -> Iterator[str]:
    """Yield what is wrong with the bytes of a file with blocks that has its length."""
    if _checksum(data[-stored.index :]) != stored.checksum:
        yield "its index is not what was written"
        return
    index = _parsed(data[-stored.index :])
    if index.bounds[-1] != stored.length - stored.index:
        yield "its index is of another file"
        return
    count = len(index.rows)
    for i, piece in index.pieces(data, range(len(index.checksums))).items():
        if _checksum(piece) != index.checksums[i]:
            yield f"its block {i} is not what was written" if i < count else "its timers are not what was written"
            return
    reader = pa.ipc.open_file(data)
    batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    found = [(batch.num_rows, batch["hash"][0].as_py()) for batch in batches]
    table = _table(index.pieces(data, range(count)), index)
    is_same = np.array_equal(as_numpy(table, "hash"), as_numpy(reader.read_all(), "hash"))
    if found != list(zip(index.rows, index.firsts.tolist(), strict=True)) or not is_same:
        yield "its index does not tell the blocks that it has"
    elif len(index.dues):
        numbers = range(count, len(index.checksums))
        pieces = index.pieces(data, numbers)
        firsts = [_timers({i: pieces[i]}, index)["due"][0] for i in numbers]
        if not np.array_equal(_timers(pieces, index), _timers_of(table)) or firsts != index.dues.tolist():
            yield "its timers are not those of its rows"


def _encoded(table: pa.Table, name: str) -> tuple[pa.Buffer, int]:
    """Return the bytes of a file with blocks, and how many of them the index and all behind it are."""
    rows = max(1, table.num_rows * BLOCK // max(1, table.nbytes))
    batches = table.combine_chunks().to_batches(max_chunksize=rows)
    # Twice, as the first time shows the size: a buffer that grows is copied more often.
    measured = pa.MockOutputStream()
    bounds = [0, *_write(measured, table.schema, batches)]
    timers = _timers_of(table)
    most_timers = max(1, BLOCK // _TIMER.itemsize)
    parts = [timers[i : i + most_timers] for i in range(0, len(timers), most_timers)]
    most = len(name) + 128 * (1 + len(batches) + len(parts)) + _END + timers.nbytes
    data = pa.allocate_buffer(measured.size() + most)
    _write(pa.FixedSizeBufferWriter(data), table.schema, batches)
    blocks = [data[begin:end] for begin, end in pairwise(bounds)]
    view = memoryview(data).cast("B")
    mark, footer = bytes(view[bounds[-1] : bounds[-1] + _END]), bytes(view[bounds[-1] + _END : measured.size()])
    # The mark comes before the timers too: what reads the file as a stream stops there.
    pieces = [(b"" if i else mark) + part.tobytes() for i, part in enumerate(parts)]
    index: dict[str, Any] = {
        "checksum": [_checksum(block) for block in blocks],
        "first": [batch["hash"][0].as_py() for batch in batches],
        "length": [len(piece) for piece in (*blocks, *pieces)],
        "name": name,
        "rows": [batch.num_rows for batch in batches],
    }
    if pieces:
        firsts = [int(part["due"][0]) for part in parts]
        index["due"] = {"checksum": [_checksum(piece) for piece in pieces], "first": firsts}
    line = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
    # Arrow wants its footer at a multiple of 8 bytes.
    line += b" " * (-(len(line) + 1) % 8) + b"\n"
    tail = mark + line + footer
    rest = b"".join([*pieces, tail])
    view[bounds[-1] : bounds[-1] + len(rest)] = rest
    return data[: bounds[-1] + len(rest)], len(tail)


def _timers_of(table: pa.Table) -> NDArray[Any]:
    """Return when the first timer of each row is due, and the row's hash, sorted; without the rows that have no timer."""
    if DUE not in table.column_names:
        return np.array([], _TIMER)
    dues = as_numpy(table, DUE)
    # The rows are sorted by hash, so that a stable sort leaves those of one time sorted.
    rows = np.argsort(dues, kind="stable")
    rows = rows[: np.searchsorted(dues, END, sorter=rows)]
    timers = np.empty(len(rows), _TIMER)
    timers["due"], timers["hash"] = dues[rows], as_numpy(table, "hash")[rows]
    return timers


def _timers(pieces: Pieces, index: Index) -> NDArray[Any]:
    """Return the timers of pieces of them, of which the first begins with Arrow's mark."""
    skipped = {len(index.rows): _END}
    parts = [np.frombuffer(piece, _TIMER, offset=skipped.get(i, 0)) for i, piece in pieces.items()]
    return np.concatenate([np.array([], _TIMER), *parts])


def _write(sink: Any, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> list[int]:
    """Write an Arrow file; return where each of its record batches ends."""
    ends = []
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    return ends


def _parsed(tail: pa.Buffer) -> Index:
    """Return the index of the last bytes of a file, from the mark behind its last block on."""
    record = json.loads(bytes(tail[_END:]).partition(b"\n")[0])
    bounds = np.cumsum([0, *record["length"]]).tolist()
    firsts = np.array(record["first"], np.uint64)
    # Arrow finds its footer from the end, so the rest of the file need not be there.
    schema = pa.ipc.open_file(tail).schema
    due = record.get("due", {"checksum": [], "first": []})
    checksums, dues = (*record["checksum"], *due["checksum"]), np.array(due["first"], np.int64)
    return Index(schema, firsts, tuple(record["rows"]), tuple(bounds), checksums, dues)


def _needed(index: Index, low: int, high: int, asked: Sequence[NDArray[np.uint64]] | None) -> list[int]:
    """Return the blocks that may hold hashes from `low` to `high`, of those asked for."""
    firsts = index.firsts
    # Rows of one hash may end a block and go on in the next.
    lasts = np.append(firsts[1:], np.uint64(2**64 - 1))
    needed = (lasts >= np.uint64(low)) & (firsts <= np.uint64(high - 1))
    if asked is not None:
        holds = [np.searchsorted(some, firsts) < np.searchsorted(some, lasts, side="right") for some in asked]
        needed &= np.any(holds, axis=0) if holds else False
    return np.flatnonzero(needed).tolist()


def _needed_timers(index: Index, since: int, clock: int) -> list[int]:
    """Return the pieces with timers that may be due from `since` to below `clock`."""
    # Timers of one time may end a piece and go on in the next.
    lasts = np.append(index.dues[1:], END)
    return (len(index.rows) + np.flatnonzero((index.dues < clock) & (lasts >= since))).tolist()


def _read(files: Files, stored: Stored, needed: Needed, anew: bool) -> tuple[Index, Pieces]:
    """Return the index of a file and the pieces of it that are needed, all of them verified."""
    if stored.inline:
        return _read_inline(stored.unpacked(), stored, needed)
    if files.near:
        stamp = files.stamp(stored.path)
        data = stored.within(files.read(stored.path))
        # Where it is unknown whether it was written to, all is verified each time.
        return _read_mapped(data, (files.url, stored, stamp), stored, needed, anew or stamp is None)
    return _read_far(files, stored, needed, anew)


def _read_inline(data: pa.Buffer, stored: Stored, needed: Needed) -> tuple[Index, Pieces]:
    """Return pieces of bytes that an entry has. They are merged soon: nothing is remembered of them."""
    tail = data[-stored.index :]
    if len(data) != stored.length or _checksum(tail) != stored.checksum:
        raise stored.damage()
    index = _parsed(tail)
    pieces = index.pieces(data, needed(index))
    _check(pieces, index, stored)
    return index, pieces


def _index(known: Known, stored: Stored, read: Callable[[], pa.Buffer], anew: bool = False) -> Index:
    """Return the index of a file, verified once per process or, if so asked, anew; `read` reads it and all behind it."""
    index = _indexes.get(known)
    if index is None or anew:
        tail = read()
        if _checksum(tail) != stored.checksum:
            raise stored.damage()
    if index is None:
        if len(_indexes) >= MOST_INDEXES:
            _indexes.clear()
        index = _indexes[known] = _parsed(tail)
    return index


def _read_mapped(data: pa.Buffer, known: Known, stored: Stored, needed: Needed, anew: bool) -> tuple[Index, Pieces]:
    """Return pieces of a mapped file, each verified once per process or, if so asked, anew."""
    if len(data) != stored.length:
        raise stored.damage()
    index = _index(known, stored, lambda: data[-stored.index :], anew)
    numbers = needed(index)
    _check(index.pieces(data, {*numbers} - (set() if anew else index.sound)), index, stored)
    index.sound.update(numbers)
    return index, index.pieces(data, numbers)


def _read_far(files: Files, stored: Stored, needed: Needed, anew: bool) -> tuple[Index, Pieces]:
    """Return pieces of a far file: of a copy of it, of copies of its pieces, or fetched."""
    if (copy := cache.opened(stored.checksum)) is not None:
        data, stamp = copy
        try:
            return _read_mapped(data, ("", stored.checksum, stamp), stored, needed, anew)
        except DamagedError:
            cache.drop(stored.checksum)
    end = stored.start + stored.length
    known = (files.url, stored, None)
    index = _index(known, stored, lambda: files.read_ranges(stored.path, [(end - stored.index, end)])[0])
    numbers = needed(index)
    pieces = {i: cache.find(index.checksums[i], anew) for i in numbers}
    missing = [i for i in numbers if pieces[i] is None]
    if 2 * index.size(missing) > stored.length:
        data = _whole(files, stored)
        if len(data) != stored.length:
            raise stored.damage()
        pieces = index.pieces(data, numbers)
        _check(pieces, index, stored)
        cache.keep(stored.checksum, data)
    else:
        pieces.update(_fetched(files, stored, index, missing))
        _check({i: pieces[i] for i in missing}, index, stored)
        for i in missing:
            cache.keep(index.checksums[i], pieces[i])
    return index, pieces


def _whole(files: Files, stored: Stored) -> pa.Buffer:
    """Return the bytes of a far file. Those of a large one come by several requests at once."""
    if stored.length <= LARGE and not stored.start:
        return files.read(stored.path)
    end = stored.start + stored.length
    spans = [(begin, min(begin + LARGE, end)) for begin in range(stored.start, end, LARGE)]
    return pa.py_buffer(b"".join(files.read_ranges(stored.path, spans)))


def _fetched(files: Files, stored: Stored, index: Index, missing: Sequence[int]) -> Iterator[tuple[int, pa.Buffer]]:
    """Yield pieces with their bytes, of as few requests as do not fetch much more."""
    spans: list[tuple[int, int]] = []
    for i in missing:
        begin, end = index.bounds[i], index.bounds[i + 1]
        if spans and begin - spans[-1][1] <= GAP:
            begin, _ = spans.pop()
        spans.append((begin, end))
    in_file = [(stored.start + begin, stored.start + end) for begin, end in spans]
    for (begin, end), data in zip(spans, files.read_ranges(stored.path, in_file), strict=True):
        for i in missing:
            if begin <= index.bounds[i] < end:
                yield i, data[index.bounds[i] - begin : index.bounds[i + 1] - begin]


def _check(pieces: Pieces, index: Index, stored: Stored) -> None:
    if any(_checksum(piece) != index.checksums[i] for i, piece in pieces.items()):
        raise stored.damage()


def _checksum(data: pa.Buffer | bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _table(pieces: Pieces, index: Index) -> pa.Table:
    """Return the rows of blocks."""
    batches = [
        # The first block begins as an Arrow stream does, with the schema.
        pa.ipc.read_record_batch(piece, index.schema) if i else pa.ipc.open_stream(piece[_MAGIC:]).read_next_batch()
        for i, piece in pieces.items()
    ]
    return pa.Table.from_batches(batches, index.schema)
