"""The store's format: read as docs/format.md says, without the library, from a store of each format."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import InvalidInputError, clocks, read_late_rows, read_state
from persistent_state.store import blocks, codec, late_rows, lists
from tests.fixtures.write_store import APPLICATION, Notes, Totals, rows, write

STORE = Path(__file__).parents[1] / "fixtures" / "store-v1"
LATE = {25}
WITHOUT_TIMESTAMP = {13, 47}


LISTS = ("retained", "sides", "coarse", "files", "tail", "spans", "runs")
BY_NAME = (
    "kept",
    "flows",
    "tasks",
    "inputs",
    "channels",
    "positions",
    "planned",
    "settled_counts",
    "delivered",
    "voided",
    "cut_at",
)
DEFAULTS: dict[str, Any] = {
    **{field: {} for field in ("planned", "settled_counts", "delivered", "voided", "cut_at", "kept")},
    "sides": [],
    "settled": {"files": [], "tail": []},
}
"""What may have a change though it was never written."""

OF_FLOWS = ("clock", "batch", "holds", "coarse", "sides", "settled", "settled_counts")
OF_INPUTS = ("channels", "positions", "journal", "planned", "again")


def written(store: Path, number: int) -> tuple[dict[str, Any], str]:
    """An entry as it stands in the log, and the checksum by which the next one names it."""
    data = (store / APPLICATION / "log" / f"{number:020d}.json").read_bytes()
    body, seal = data.splitlines(keepends=True)
    assert seal == b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"
    entry: dict[str, Any] = json.loads(body)
    assert entry["number"] == number
    for field in ("flows", "tasks", "changes"):
        if isinstance(entry.get(field), str):
            entry[field] = json.loads(zlib.decompress(base64.b64decode(entry[field])))
    return entry, hashlib.sha256(data).hexdigest()


def newest_entry(store: Path) -> dict[str, Any]:
    number = max(int(path.stem) for path in (store / APPLICATION / "log").glob("*.json"))
    base = written(store, number)[0].get("base", number)
    entry, checksum = written(store, base)
    entry.pop("changes", None)
    for link in range(base + 1, number + 1):
        change, own = written(store, link)
        assert change["previous"] == checksum
        entry, checksum = changed("entry", entry, change["changes"]), own
    return entry if entry["format"] > 3 else {**entry, "flows": own_flows(entry["tasks"])}


def own_flows(tasks: dict[str, Any]) -> dict[str, Any]:
    """The flows of tasks that share none, from an entry of a format that knows none. They have the tasks' names."""
    flows = {}
    for name, task in tasks.items():
        source = {field: task.pop(field) for field in OF_INPUTS if field in task}
        flows[name] = {"inputs": {"": source}, **{field: task.pop(field) for field in OF_FLOWS}}
        task["flow"] = name
    return flows


def changed(field: str, before: Any, change: Any) -> Any:
    """The value of a field after a change."""
    if field in LISTS:
        first, end, new = change
        return [*before[first:end], *new]
    if field == "shards" and isinstance(change, dict):
        return [changed("", shard, change.get(str(i), {})) for i, shard in enumerate(before)]
    if not isinstance(before, dict) or field == "identity":
        return change
    after = {**before}
    for name, value in change.items():
        if field in BY_NAME and value is None:
            del after[name]
        elif field in BY_NAME:
            after[name] = changed("", before[name], value) if name in before else value
        else:
            was = before.get(name, DEFAULTS.get(name))
            after[name] = value if was is None else changed(name, was, value)
    return after


def runs_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    return task["runs"] if "runs" in task else [run for shard in task["shards"] for run in shard["runs"]]


def content(store: Path, file: dict[str, Any]) -> bytes:
    data = (store / file["path"]).read_bytes()
    assert len(data) == file["length"]
    if index := file.get("index"):
        assert hashlib.sha256(data[-index:]).hexdigest() == file["checksum"]
        assert_blocks_are_told(data[:-index], json.loads(data[-index + 8 :].splitlines()[0]), data)
    else:
        assert hashlib.sha256(data).hexdigest() == file["checksum"]
    return data


def assert_blocks_are_told(body: bytes, index: dict[str, list[Any]], whole: bytes) -> None:
    """Each block is what was written, and has the rows and the first hash that the index tells."""
    assert sum(index["length"]) == len(body)
    schema, begin, batches = pa.ipc.open_file(whole).schema, 0, []
    for length, checksum in zip(index["length"], index["checksum"], strict=True):
        block = body[begin : begin + length]
        assert hashlib.sha256(block).hexdigest() == checksum
        # The first block begins with 8 bytes and the schema.
        batches.append(pa.ipc.read_record_batch(block, schema) if begin else next(pa.ipc.open_stream(block[8:])))
        begin += length
    assert [batch.num_rows for batch in batches] == index["rows"]
    assert [batch["hash"][0].as_py() for batch in batches] == index["first"]
    assert pa.Table.from_batches(batches) == pa.ipc.open_file(whole).read_all()


def state_rows(store: Path, task: dict[str, Any], clock: int) -> Iterator[dict[str, Any]]:
    for run in runs_of(task):
        for row in pa.ipc.open_file(content(store, run["file"])).read_all().to_pylist():
            in_range = run["low"] <= row["hash"] < run["high"]
            if in_range and row["start"] < clock and (run["below"] is None or row["start"] < run["below"]):
                yield row


def totals_by_hand(store: Path, clock: int) -> dict[tuple[Any, ...], dict[str, int]]:
    found: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in state_rows(store, newest_entry(store)["tasks"]["Totals"], clock):
        key = tuple(row[name] for name in ("key0", "key1") if name in row)
        total = found.setdefault(key, {"sales": 0, "total": 0})
        for name in total:
            total[name] += row["value"][name]
    return found


def notes_by_hand(store: Path, clock: int) -> dict[Any, list[str]]:
    order = ("time", "channel", "position", "strand", "number")
    found: dict[Any, list[str]] = {}
    by_order = sorted(
        state_rows(store, newest_entry(store)["tasks"]["Notes"], clock), key=lambda row: [row[name] for name in order]
    )
    for row in by_order:
        found.setdefault(row["key0"], []).extend(row["value"])
    return found


def late_by_hand(store: Path, task: str) -> Iterator[dict[str, Any]]:
    """The late and bad rows of a task: its own, and those of its flow."""
    entry = newest_entry(store)
    record = entry["tasks"][task]
    for holder in (record, entry["flows"][record["flow"]]):
        listed = holder.get("settled", DEFAULTS["settled"])
        older = [json.loads(line) for file in listed["files"] for line in content(store, file).splitlines()]
        settled = [json.loads(item) for item in (*older, *listed["tail"])]
        for side in (*settled, *holder.get("sides", [])):
            for row in pa.ipc.open_file(content(store, side["file"])).read_all().to_pylist():
                if all(is_left(row, cut) for cut in side["cuts"]):
                    yield row


def is_left(row: dict[str, Any], cut: dict[str, Any]) -> bool:
    """Whether a start has left a row where it is."""
    is_below = row["timestamp"] is not None and row["timestamp"] < cut["clock"]
    return is_below or (row["position"] is not None and row["position"] < cut["positions"].get(row["strand"], 0))


def sales_below(clock: int) -> list[tuple[int, dict[str, Any]]]:
    """The messages of the state, in order of (timestamp, position)."""
    sales = [(i, row) for i, row in enumerate(rows()) if i not in LATE | WITHOUT_TIMESTAMP and row["ts"] < clock]
    return sorted(sales, key=lambda sale: (sale[1]["ts"], sale[0]))


def expected_totals(clock: int) -> dict[tuple[Any, ...], dict[str, int]]:
    wanted: dict[tuple[Any, ...], dict[str, int]] = {}
    for _, row in sales_below(clock):
        if row["price"] is not None:
            total = wanted.setdefault((row["shop"], row["item"]), {"sales": 0, "total": 0})
            total["sales"] += 1
            total["total"] += row["price"]
    return wanted


def expected_notes(clock: int) -> dict[Any, list[str]]:
    wanted: dict[Any, list[str]] = {}
    for _, row in sales_below(clock):
        wanted.setdefault(row["shop"], []).extend(row["notes"])
    return wanted


@pytest.fixture(params=["kept", "fresh", "of one flow", "compressed and in lists"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the first version, and stores that this version writes."""
    if request.param == "kept":
        return STORE
    # Or each file would have one block.
    monkeypatch.setattr(blocks, "BLOCK", 200)
    if request.param == "compressed and in lists":
        monkeypatch.setattr(codec, "LARGE", 0)
        monkeypatch.setattr(late_rows, "MANY", 0)
        monkeypatch.setattr(lists, "TAIL", 0)
    write(tmp_path, as_one=request.param == "of one flow")
    return tmp_path


def test_the_store_is_read_by_hand_at_every_retained_clock(store: Path) -> None:
    entry = newest_entry(store)
    assert entry["retained"]
    for clock in entry["retained"]:
        assert totals_by_hand(store, clock) == expected_totals(clock)
        assert notes_by_hand(store, clock) == expected_notes(clock)


def test_the_library_reads_the_same(store: Path) -> None:
    for clock in clocks(str(store), APPLICATION):
        totals = read_state(str(store), APPLICATION, Totals(), clock).to_pylist()
        assert {(row["shop"], row["item"]): row["value"] for row in totals} == expected_totals(clock)
        notes = read_state(str(store), APPLICATION, Notes(), clock).to_pylist()
        assert {row["shop"]: row["value"] for row in notes} == expected_notes(clock)


def test_the_store_holds_what_the_format_is_about(store: Path) -> None:
    """Or reading it would prove little."""
    entry = newest_entry(store)
    runs = [run for task in entry["tasks"].values() for run in runs_of(task)]
    assert entry["epoch"] == 2
    assert entry["shards"] == 3
    assert any(run["below"] is not None for run in runs)
    assert len({run["file"]["path"] for run in runs}) < len(runs)
    assert max(run["last"] for run in runs) >= entry["clock"]
    assert all(flow["sides"] or flow["settled"]["files"] for flow in entry["flows"].values())
    assert {task["flow"] for task in entry["tasks"].values()} == entry["flows"].keys()


def test_late_and_bad_rows_are_each_there_once(store: Path) -> None:
    for task in ("Totals", "Notes"):
        by_hand = [row["position"] for row in late_by_hand(store, task)]
        assert sorted(by_hand) == sorted(LATE | WITHOUT_TIMESTAMP)
        found = [row for table in read_late_rows(str(store), APPLICATION, task) for row in table.to_pylist()]
        assert sorted(row["position"] for row in found) == sorted(LATE | WITHOUT_TIMESTAMP)
        assert {row["position"] for row in found if row["reason"] == "late"} == LATE
        assert {tuple(row["row"]["notes"]) for row in found} == {(f"n{i}",) for i in LATE | WITHOUT_TIMESTAMP}


def test_a_clock_that_is_not_retained_is_refused(store: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"clock=.* \(-7\) of task=Totals is not retained"):
        read_state(str(store), APPLICATION, Totals(), -7)
