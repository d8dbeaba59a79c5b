"""Runs by blocks: a look-up by blocks is one of the whole table, and no byte is used that is not what was written."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import DamagedError, StoreUnavailableError
from persistent_state.event_time.clocks import END
from persistent_state.partials import keys
from persistent_state.partials.layout import Layout, as_numpy, between, rows_below, with_values
from persistent_state.partials.lookup import current
from persistent_state.partials.newest import Newest, Versions
from persistent_state.partials.unbounded import Unbounded
from persistent_state.store import blocks
from persistent_state.store import runs as runs_io
from persistent_state.store.files import BytesLike, Files, MemoryFiles, cache, open_files
from persistent_state.store.named_files import Run
from tests import core
from tests.soak import soak_or

KEY_TYPES = (
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.decimal128(38, 3),
)
LAYOUT = Layout((), monoids.Sum(), Unbounded())
ORDERED = Layout((), Newest(pa.int64()), Versions(None))
TOP = 2**64 - 1
HASHES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, TOP - 1, TOP]), min_size=1, max_size=14)
ASKED = st.none() | st.lists(HASHES | st.just([]), max_size=3)
ROWS = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class FarFiles(MemoryFiles):
    """A store that counts what is asked of it, and keeps copies on the local disk as one behind a network does."""

    near: ClassVar[bool] = False
    fetched: list[int] = field(default_factory=list, compare=False)

    def read(self, path: str) -> pa.Buffer:
        data = super().read(path)
        self.fetched.append(len(data))
        return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        found = [super(FarFiles, self).read(path)[begin:end] for begin, end in ranges]
        self.fetched.extend(map(len, found))
        return found


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cache, "SLACK", 64 * 2**20)
    yield tmp_path
    start_process()


def start_process(copies: Path | None = None) -> None:
    """Forget all that a process knows; with the folder of the copies, they are gone too."""
    runs_io._verified.clear()
    blocks._indexes.clear()
    cache._verified.clear()
    if copies is not None:
        for folder in copies.iterdir():
            shutil.rmtree(folder)


def table_of(hashes: Sequence[int]) -> pa.Table:
    """A table of partial sums: the row's number is its value, and the starts rise and fall."""
    count = len(hashes)
    columns = {
        "hash": pa.array(sorted(hashes), pa.uint64()),
        "start": pa.array([7 * i % 5 for i in range(count)], pa.int64()),
        "value": pa.array(range(count), pa.int64()),
    }
    return pa.table(columns)


def written(files: Files, table: pa.Table, block: int) -> Run:
    """A run whose blocks have about so many rows."""
    with mock.patch.object(blocks, "BLOCK", block * table.nbytes // max(1, len(table)) + block):
        return runs_io.write_run(files, "a/b.arrow", table, LAYOUT, 0, 1 << 64)


def test_a_large_far_file_is_fetched_by_several_requests(monkeypatch: pytest.MonkeyPatch, copies: Path) -> None:
    files, table = FarFiles("memory://" + core.new_id()), table_of(range(100))
    run = written(files, table, 5)
    start_process(copies)
    monkeypatch.setattr(blocks, "LARGE", run.file.length // 4 + 1)
    assert runs_io.read_run(files, run).equals(table)
    # The index first, and then all of it.
    _, *pieces = files.fetched
    assert len(pieces) == 4
    assert sum(pieces) == run.file.length


def timed(hashes: Sequence[int], dues: Sequence[int]) -> pa.Table:
    """A table of as many rows as there are times of first timers."""
    table = table_of(hashes[: len(dues)])
    states = pa.StructArray.from_arrays([table["value"].combine_chunks()], names=["state"])
    return with_values(table, states).append_column("due", pa.array(dues[: len(table)], pa.int64()))


def with_timers(files: Files, table: pa.Table, block: int) -> Run:
    """A run whose blocks have about so many bytes, as a piece of its timers has."""
    with mock.patch.object(blocks, "BLOCK", block):
        return runs_io.write_run(files, "a/b.arrow", table, ORDERED, 0, 1 << 64)


def arrays(asked: Sequence[Sequence[int]] | None) -> runs_io.Asked:
    return None if asked is None else [np.array(sorted(some), np.uint64) for some in asked]


def expected(table: pa.Table, run: Run, asked: Sequence[Sequence[int]] | None) -> list[dict[str, Any]]:
    wanted = None if asked is None else {hash for some in asked for hash in some}
    return [
        row
        for row in table.to_pylist()
        if run.low <= row["hash"] < run.high
        and (run.below is None or row["start"] < run.below)
        and (wanted is None or row["hash"] in wanted)
    ]


def found(table: pa.Table, asked: Sequence[Sequence[int]] | None) -> list[dict[str, Any]]:
    """The rows that were asked for, of those of their blocks."""
    wanted = None if asked is None else {hash for some in asked for hash in some}
    return [row for row in table.to_pylist() if wanted is None or row["hash"] in wanted]


@ROWS
@given(HASHES, st.integers(1, 15), ASKED, st.sampled_from([0, 1, 2, TOP]), st.sampled_from([None, 0, 3]), st.booleans())
@example([1, 2, 2, 2, 3], 2, [[2]], 0, None, False)
@example([2, 2, 2, 2, 2], 1, [[2]], 0, None, False)
@example([0, TOP], 1, [[TOP], [0]], 0, None, False)
def test_the_blocks_of_some_hashes_have_all_their_rows(
    hashes: list[int], block: int, asked: list[list[int]] | None, low: int, below: int | None, far: bool
) -> None:
    files = new_store(far)
    table = table_of(hashes)
    run = replace(written(files, table, block), low=low, high=low + 6 if low < 3 else 1 << 64, below=below)
    for fresh in (False, True):
        if fresh:
            start_process(Path(tempfile.gettempdir()))
        read = runs_io.read_run(files, run, arrays(asked))
        assert found(read, asked) == expected(table, run, asked)
        assert read.schema == table.schema


@ROWS
@given(
    HASHES,
    st.lists(st.sampled_from([0, 1, 2, 3, 4, END]), min_size=1, max_size=14),
    st.sampled_from([1, 32, 48, 1000]),
    st.integers(0, 4),
    st.integers(0, 5),
    st.sampled_from([(0, 1 << 64), (0, 3), (2, TOP)]),
    st.booleans(),
    st.booleans(),
)
@example([1, 2, 3], [2, 2, 2], 16, 2, 3, (0, 1 << 64), False, True)
def test_the_keys_that_are_due_are_those_of_the_rows_whose_timers_are(
    hashes: list[int],
    dues: list[int],
    block: int,
    since: int,
    clock: int,
    part: tuple[int, int],
    far: bool,
    is_new: bool,
) -> None:
    files = new_store(far)
    table = timed(hashes, dues)
    run = with_timers(files, table, block) if is_new else of_an_older_version(files, table, block)
    run = replace(run, low=part[0], high=part[1])
    due = [row["hash"] for row in table.to_pylist() if part[0] <= row["hash"] < part[1] and since <= row["due"] < clock]
    assert not [*blocks.problems(files.read(run.file.path), run.file)]
    for fresh in (False, True):
        if fresh:
            start_process(Path(tempfile.gettempdir()))
        assert runs_io.read_due(files, run, since, clock).tolist() == due
        assert runs_io.read_run(files, run).to_pylist() == between(table, *part).to_pylist()


def of_an_older_version(files: Files, table: pa.Table, block: int) -> Run:
    """A run with timers of a version that did not write them behind the blocks."""
    with mock.patch.object(blocks, "_timers_of", return_value=np.array([], blocks._TIMER)):
        return with_timers(files, table, block)


@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_an_older_version_passes_over_the_timers(block: int) -> None:
    """It reads four lists of the index by their names, as these lines did."""
    files, table = core.memory(), timed(range(40), [7 * i % 11 for i in range(40)])
    run = with_timers(files, table, block)
    data = files.read(run.file.path)
    tail = data[-run.file.index :]
    record = json.loads(bytes(tail[8:]).partition(b"\n")[0])
    assert record.keys() == {"checksum", "due", "first", "length", "name", "rows"}
    bounds = np.cumsum([0, *record["length"]]).tolist()
    checksums, rows, firsts = record["checksum"], record["rows"], record["first"]
    pieces = [data[bounds[i] : bounds[i + 1]] for i in range(len(checksums))]
    # So its `verify` passes over them, too.
    assert bounds[-1] == run.file.length - run.file.index
    assert [blocks._checksum(piece) for piece in pieces] == checksums
    reader = pa.ipc.open_file(data)
    batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    assert [(batch.num_rows, batch["hash"][0].as_py()) for batch in batches] == list(zip(rows, firsts, strict=True))
    schema = pa.ipc.open_file(tail).schema
    read = [
        pa.ipc.read_record_batch(piece, schema) if i else pa.ipc.open_stream(piece[8:]).read_next_batch()
        for i, piece in enumerate(pieces)
    ]
    assert pa.Table.from_batches(read, schema).equals(table)
    assert reader.read_all().equals(table)
    assert pa.ipc.open_stream(data[8:]).read_all().equals(table)


@pytest.mark.soak
@pytest.mark.parametrize("far", [False, True])
def test_one_byte_anywhere_of_the_timers_is_found(copies: Path, far: bool) -> None:
    table = timed(range(12), [5 * i % 12 for i in range(12)])
    hashes = table["hash"].to_pylist()
    run = with_timers(core.memory(), table, 64)
    for at in range(0, run.file.length, soak_or(ci=13, soak=1)):
        files = new_store(far)
        run = with_timers(files, table, 64)
        index = blocks._parsed(files.read(run.file.path)[-run.file.index :])
        assert len(index.dues) == 3
        damaged(files, run, at)
        start_process(copies)
        assert [*blocks.problems(files.read(run.file.path), run.file)]
        for number in range(3):
            i = len(index.rows) + number
            due = 4 * number + 1
            if index.bounds[i] <= at < index.bounds[i + 1] or at >= index.bounds[-1]:
                with pytest.raises(DamagedError):
                    runs_io.read_due(files, run, due, due + 1)
            else:
                assert runs_io.read_due(files, run, due, due + 1).tolist() == [hashes[5 * due % 12]]


@pytest.mark.parametrize("wrong", ["due", "hash", "first"])
def test_timers_that_are_not_those_of_the_rows_are_found(wrong: str) -> None:
    files, table = core.memory(), timed(range(4), [3, 1, 2, END])
    honest = blocks._timers_of

    def timers_of(table: pa.Table) -> Any:
        timers = honest(table)
        timers[wrong] += 1
        return timers

    if wrong == "first":
        run = with_timers(files, table, 16)
        data = bytes(files.read(run.file.path))
        tail = data[-run.file.index :].replace(b'"first":[1,2,3]', b'"first":[1,3,3]')
        run = replace(run, file=replace(run.file, checksum=blocks._checksum(tail)))
        written = pa.py_buffer(data[: -run.file.index] + tail)
    else:
        with mock.patch.object(blocks, "_timers_of", timers_of):
            run = with_timers(files, table, 16)
        written = files.read(run.file.path)
    assert [*blocks.problems(written, run.file)] == ["its timers are not those of its rows"]


def test_a_far_file_gives_the_keys_that_are_due_by_a_piece_of_its_timers(copies: Path) -> None:
    files = FarFiles("memory://" + core.new_id())
    table = timed(range(1000), [7 * i % 1000 for i in range(1000)])
    with mock.patch.object(blocks, "GAP", 0):
        run = with_timers(files, table, 640)
        start_process(copies)
        files.fetched.clear()
        assert runs_io.read_due(files, run, 500, 502).tolist() == [500, 643]
        assert len(files.fetched) == 2
        assert sum(files.fetched) <= run.file.index + 2 * 640


@ROWS
@given(HASHES, st.integers(1, 15), st.sampled_from([0, 1, 4, TOP, 1 << 64]))
def test_rows_are_counted_below_a_hash_whatever_the_chunks(hashes: list[int], block: int, hash: int) -> None:
    table = table_of(hashes)
    chunks = pa.concat_tables([table.slice(0, 0), pa.Table.from_batches(table.to_batches(block))])
    assert rows_below(chunks, hash) == sum(each < hash for each in hashes)
    assert between(chunks, 2, hash).to_pylist() == [row for row in table.to_pylist() if 2 <= row["hash"] < hash]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data())
@pytest.mark.parametrize("type", KEY_TYPES, ids=str)
def test_current_values_by_blocks_are_those_of_whole_levels(type: pa.DataType, data: st.DataObject) -> None:
    layout = Layout((type,), monoids.Sum(), Unbounded())
    values = [None, *range(8)] if type != pa.bool_() else [None, False, True]
    drawn = [data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=9)) for _ in range(3)]
    levels, files = [], core.memory()
    for number, column in enumerate(drawn):
        key = cast(column, type)
        table = pa.table(
            {"hash": keys.hash_keys([key], len(key)), "key0": key, "start": [0] * len(key), "value": range(len(key))}
        )
        table = table.sort_by([("hash", "ascending")]).combine_chunks()
        if number:
            with mock.patch.object(blocks, "BLOCK", 40):
                levels.append((table, runs_io.write_run(files, f"a/{number}", table, layout, 0, 1 << 64)))
    asked = table.select(["hash", "key0"]).group_by(["hash", "key0"]).aggregate([])
    asked = asked.sort_by([("hash", "ascending"), ("key0", "ascending")]).combine_chunks()
    some = [runs_io.read_run(files, run, [as_numpy(asked, "hash")]) for _, run in levels]
    whole = current(asked, [table for table, _ in levels], layout)
    assert current(asked, some, layout).equals(whole)


def cast(column: Sequence[Any], type: pa.DataType) -> pa.Array:
    if pa.types.is_date32(type):
        return pa.array(column, pa.int32()).cast(type)
    if pa.types.is_decimal(type) or pa.types.is_timestamp(type):
        return pa.array(column, pa.int64()).cast(type)
    text = pa.array(column).cast(pa.string())
    return (text if pa.types.is_binary(type) else pa.array(column)).cast(type)


def new_store(far: bool) -> Files:
    """A store of its own in memory, which is read as one behind a network is if it is far."""
    return FarFiles("memory://" + core.new_id()) if far else core.memory()


def damaged(files: Files, run: Run, at: int) -> None:
    data = bytearray(files.read(run.file.path))
    data[at] ^= 1
    files.delete(run.file.path)
    files.create(run.file.path, bytes(data))


@pytest.mark.parametrize("far", [False, True])
def test_one_byte_anywhere_is_found_when_its_block_is_used_and_always_when_the_store_is_verified(
    copies: Path, far: bool
) -> None:
    table = table_of(range(0, 60, 5))
    length = written(core.memory(), table, 4).file.length
    for at in range(0, length, 7):
        files = new_store(far)
        run = written(files, table, 4)
        index = blocks._parsed(files.read(run.file.path)[-run.file.index :])
        assert len(index.rows) == 3
        damaged(files, run, at)
        start_process(copies)
        (problem,) = blocks.problems(files.read(run.file.path), run.file)
        assert "is not what was written" in problem
        for number, first in enumerate(index.firsts.tolist()):
            is_hit = at >= index.bounds[-1] or index.bounds[number] <= at < index.bounds[number + 1]
            asked = [[first + 5]]
            for _ in range(2):
                if is_hit:
                    with pytest.raises(DamagedError, match=r"a/b.arrow is damaged"):
                        runs_io.read_run(files, run, arrays(asked))
                else:
                    assert found(runs_io.read_run(files, run, arrays(asked)), asked) == expected(table, run, asked)
        with pytest.raises(DamagedError):
            runs_io.read_run(files, run)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:70], lambda data: b"", lambda d: d + d])
def test_a_file_of_another_length_is_damaged(copies: Path, far: bool, change: Any) -> None:
    files = new_store(far)
    run = written(files, table_of(range(20)), 4)
    data = bytes(files.read(run.file.path))
    files.delete(run.file.path)
    files.create(run.file.path, change(data))
    start_process(copies)
    for asked in (None, [[3]]):
        if asked and far and change(data) == data + data:
            continue  # where the blocks are is what was written
        with pytest.raises(DamagedError):
            runs_io.read_run(files, run, arrays(asked))


def test_an_index_that_another_file_has_or_that_tells_other_blocks_is_found() -> None:
    files = core.memory()
    one, other = table_of([1, 2, 3, 4]), table_of([1, 2, 3, 5])
    run = written(files, one, 2)
    data = bytes(files.read(run.file.path))
    index = data[-run.file.index :]
    wrong = index.replace(b'"first":[1,3]', b'"first":[1,4]')
    assert wrong != index
    stored = replace(run.file, checksum=blocks._checksum(pa.py_buffer(wrong)))
    told = [*blocks.problems(pa.py_buffer(data[: -len(index)] + wrong), stored)]
    assert told == ["its index does not tell the blocks that it has"]
    files.delete(run.file.path)
    second = written(files, other, 2)
    mixed = pa.py_buffer(bytes(files.read(second.file.path))[: -len(index)] + index)
    assert len(mixed) == run.file.length
    assert [told.partition(" is ")[2] for told in blocks.problems(mixed, run.file)] == ["not what was written"]


def test_a_far_look_up_fetches_the_index_once_and_the_blocks_once(copies: Path) -> None:
    files = FarFiles("memory://" + core.new_id())
    table = table_of(range(1000))
    with mock.patch.object(blocks, "GAP", 0):
        run = written(files, table, 10)
        start_process(copies)
        index = run.file.index
        for asked, least, most in (([[5, 7]], 1, 2), ([[5, 500]], 1, 1), ([[5, 500, 507]], 0, 0), (None, 1, 1)):
            files.fetched.clear()
            assert found(runs_io.read_run(files, run, arrays(asked)), asked) == expected(table, run, asked)
            assert least <= len(files.fetched) <= most
            assert asked is None or sum(files.fetched) <= index + 800
        # All of it was needed, so a copy of the whole file is there, for other processes too.
        assert files.fetched == [run.file.length]
        start_process()
        files.delete(run.file.path)
        assert found(runs_io.read_run(files, run), None) == expected(table, run, None)


def test_near_blocks_are_fetched_by_one_request(copies: Path) -> None:
    files = FarFiles("memory://" + core.new_id())
    run = written(files, table_of(range(1000)), 10)
    start_process(copies)
    with mock.patch.object(blocks, "GAP", 1200):
        asked = [[5, 25, 400, 999]]
        assert found(runs_io.read_run(files, run, arrays(asked)), asked) == expected(table_of(range(1000)), run, asked)
    assert len(files.fetched) == 1 + 3


def test_a_damaged_copy_is_not_used_and_fetched_again(copies: Path) -> None:
    files = FarFiles("memory://" + core.new_id())
    table = table_of(range(100))
    run = written(files, table, 10)
    (copy,) = [path for path in copies.rglob("*") if path.is_file()]
    data = bytearray(copy.read_bytes())
    data[100] ^= 1
    copy.unlink()
    copy.write_bytes(data)
    start_process()
    assert runs_io.read_run(files, run).to_pylist() == table.to_pylist()
    assert copy.read_bytes() != data


def test_a_run_of_an_older_version_is_read_whole() -> None:
    files = core.memory()
    table = table_of([1, 2, 2, 9])
    run = replace(written(files, table, 2), file=runs_io.write_table(files, "a/old.arrow", table))
    assert run.file.index == 0
    assert runs_io.read_run(files, run, arrays([[2]])).to_pylist() == table.to_pylist()
    damaged(files, run, 100)
    start_process()
    with pytest.raises(DamagedError, match=r"a/old.arrow is damaged"):
        runs_io.read_run(files, run, arrays([[2]]))


def test_a_run_is_an_arrow_file_and_a_small_one_is_hardly_larger(tmp_path: Path) -> None:
    files = core.memory()
    table = table_of([1, 2, 3])
    run = runs_io.write_run(files, "a/b.arrow", table, LAYOUT, 0, 1 << 64)
    plain = runs_io.write_table(files, "a/c.arrow", table)
    assert run.file.length - plain.length < 200
    several = written(open_files(tmp_path), table_of(range(20)), 3)
    place = tmp_path / several.file.path
    assert pa.ipc.open_file(place).read_all().to_pylist() == table_of(range(20)).to_pylist()
    with pa.OSFile(str(place)) as stream:
        stream.read(8)
        assert pa.ipc.open_stream(stream).read_all().to_pylist() == table_of(range(20)).to_pylist()


class DownFiles(MemoryFiles):
    def create(self, path: str, data: BytesLike) -> None:
        raise StoreUnavailableError("down")


def test_a_file_is_written_only_if_the_store_says_so() -> None:
    table = pa.table({"hash": pa.array([1], pa.uint64())})
    with pytest.raises(StoreUnavailableError, match="down"):
        blocks.write_blocks(DownFiles(core.memory().url), "run", table)
