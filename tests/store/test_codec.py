"""The store's format: read as docs/format.md says, without the library, from a store of each format."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import (
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    SessionWindow,
    SlidingWindow,
    WindowState,
    open_store,
    read_state,
)
from persistent_state.batch.plan import FlowPlan
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.naming import keep
from persistent_state.store import blocks, codec, late_rows, lists
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core
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


def written(store: Path, number: int, folder: str = "log") -> tuple[dict[str, Any], str]:
    """An entry as it stands in the log, and the checksum by which the next one names it."""
    data = (store / APPLICATION / folder / f"{number:020d}.json").read_bytes()
    body, seal = data.splitlines(keepends=True)
    assert seal == b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"
    entry: dict[str, Any] = json.loads(body)
    assert entry["number"] == number
    for field in ("flows", "tasks", "changes"):
        if isinstance(entry.get(field), str):
            entry[field] = json.loads(zlib.decompress(base64.b64decode(entry[field])))
    return entry, hashlib.sha256(data).hexdigest()


def newest_entry(store: Path) -> dict[str, Any]:
    return entry_of(store, max(int(path.stem) for path in (store / APPLICATION / "log").glob("*.json")))


def entry_of(store: Path, number: int) -> dict[str, Any]:
    """An entry of the log, put together from the newest whole one up to it and the changes since."""
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
    inline = file.get("inline")
    data = zlib.decompress(base64.b64decode(inline)) if inline else (store / file["path"]).read_bytes()
    if start := file.get("start"):
        data = data[start : start + file["length"]]
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
    for clock in open_store(str(store)).application(APPLICATION).clocks():
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
        found = [
            row
            for table in open_store(str(store)).application(APPLICATION).late_rows(task)
            for row in table.to_pylist()
        ]
        assert sorted(row["position"] for row in found) == sorted(LATE | WITHOUT_TIMESTAMP)
        assert {row["position"] for row in found if row["reason"] == "late"} == LATE
        assert {tuple(row["row"]["notes"]) for row in found} == {(f"n{i}",) for i in LATE | WITHOUT_TIMESTAMP}


def test_a_clock_that_is_not_retained_is_refused(store: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"clock=.* \(-7\) of task=Totals is not retained"):
        read_state(str(store), APPLICATION, Totals(), -7)


class Bounded(PersistentTask):
    """Sums by shop of a state that time bounds."""

    key, value = "shop", "n"

    def __init__(self, name: str, state: WindowState[int] | NonWindowState[int]) -> None:
        self.name, self._state = name, state

    def persistent_state(self) -> WindowState[int] | NonWindowState[int]:
        return self._state


SHOPS = "abcdefgh"

SIZE, STEP, GAP, TTL = 30, 10, 8, 12
"""What bounds the states, in microseconds."""

BOUNDED = pa.schema([("ts", pa.int64()), ("shop", pa.string()), ("n", pa.int64())])

Sums = dict[tuple[Any, ...], int]


def write_bounded(store: Path) -> list[dict[str, Any]]:
    """Write a store of a task for each bound, and return its messages. One clock is kept by name, and has left the log."""
    chance = random.Random(7)
    states = {
        "Windows": WindowState(Sum(), SlidingWindow(core.us(SIZE), core.us(STEP))),
        "Sessions": WindowState(Sum(), SessionWindow(core.us(GAP))),
        "Lives": NonWindowState(Sum(), ttl=core.us(TTL)),
    }
    settings = Settings(interval=10, delay=5, ahead=2**62)
    files = open_files(str(store))
    tasks = [Bounded(name, state) for name, state in states.items()]
    flow = FlowPlan(tuple(core.plan_of(task, BOUNDED, files=files, settings=settings, shards=2) for task in tasks))
    log = Log(files, APPLICATION)
    core.start(log, [flow])
    # No message is further behind than the delay.
    messages = [{"ts": i + chance.randrange(5), "shop": chance.choice(SHOPS), "n": i} for i in range(180)]
    for begin in range(0, len(messages), 18):
        read = pa.RecordBatch.from_pylist(messages[begin : begin + 18], BOUNDED)
        entry = core.play(log, flow, read, keeping=Keeping(clocks=3, grace=10**15))
        if begin == 54:
            keep(log, None, "by name", 0)
    core.collect(log, entry.epoch, now=1, keeping=Keeping(clocks=3, grace=0))
    return messages


def entry_at(store: Path, clock: int) -> dict[str, Any]:
    """The entry by which the state at a clock is read."""
    newest = newest_entry(store)
    if clock in newest["retained"]:
        return newest
    number = newest["kept"][str(clock)]["entry"]
    assert not (store / APPLICATION / "log" / f"{number:020d}.json").exists()
    return written(store, number, "kept")[0]


def bounded_by_hand(store: Path, name: str, clock: int) -> Sums:
    """The state of a task at a clock, by its key, and of a window by its start and end."""
    task = entry_at(store, clock)["tasks"][name]
    window, found = task["identity"]["window"], Sums()
    by_key: dict[str, list[dict[str, Any]]] = {}
    for row in state_rows(store, task, clock):
        by_key.setdefault(row["key0"], []).append(row)
    for key, sums in by_key.items():
        if "size" in window:
            size, step = window["size"], window["step"]
            for row in sums:
                for start in range(row["start"] // step * step, row["start"] - size, -step):
                    if start + size > clock:
                        place = (key, start, start + size)
                        found[place] = found.get(place, 0) + row["value"]
            continue
        gap = window["gap"] if "gap" in window else window["ttl"] + 1
        groups: list[list[dict[str, Any]]] = []
        for row in sorted(sums, key=lambda row: row["first"]):
            if groups and row["first"] < max(each["last"] for each in groups[-1]) + gap:
                groups[-1].append(row)
            else:
                groups.append([row])
        for group in groups:
            first, last = min(row["first"] for row in group), max(row["last"] for row in group)
            total = sum(row["value"] for row in group)
            if "gap" in window and last + gap > clock:
                found[key, first, last + gap] = total
            elif "ttl" in window and last + window["ttl"] >= clock:
                found[(key,)] = total
    return found


def bounded_by_messages(messages: list[dict[str, Any]], name: str, clock: int) -> Sums:
    """What the state has to be, from the messages alone."""
    found = Sums()
    for key in SHOPS:
        times = sorted((row["ts"], row["n"]) for row in messages if row["shop"] == key and row["ts"] < clock)
        if name == "Windows":
            for start in range(-SIZE, clock, STEP):
                inside = [n for ts, n in times if start <= ts < start + SIZE]
                if inside and start + SIZE > clock:
                    found[key, start, start + SIZE] = sum(inside)
            continue
        groups: list[list[tuple[int, int]]] = []
        for ts, n in times:
            if groups and ts - groups[-1][-1][0] < (GAP if name == "Sessions" else TTL + 1):
                groups[-1].append((ts, n))
            else:
                groups.append([(ts, n)])
        for group in groups:
            first, last, total = group[0][0], group[-1][0], sum(n for _, n in group)
            if name == "Sessions" and last + GAP > clock:
                found[key, first, last + GAP] = total
            elif name == "Lives" and last + TTL >= clock:
                found[(key,)] = total
    return found


@pytest.mark.parametrize("name", ["Windows", "Sessions", "Lives"])
@pytest.mark.rows_in_files
def test_states_that_time_bounds_are_read_by_hand_at_every_clock_and_at_one_kept_by_name(
    tmp_path: Path, name: str
) -> None:
    messages = write_bounded(tmp_path)
    newest = newest_entry(tmp_path)
    (named,) = [int(clock) for clock, kept in newest["kept"].items() if kept.get("names")]
    assert named not in newest["retained"]
    for clock in (named, *newest["retained"]):
        expected = bounded_by_messages(messages, name, clock)
        assert bounded_by_hand(tmp_path, name, clock) == expected != {}
