"""A graph of tasks over a folder that grows: revenue by shop, then by region, and what plain Python makes of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from monoids import Count, Max, Struct, Sum
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    Context,
    Emitted,
    FileSource,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    Timer,
    TumblingWindow,
    WindowState,
    read_state,
)
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

NAME = "graph"
SECOND = 1_000_000
SLOT = 20
SHOPS, REGIONS = 7, 3
SCHEMA = pa.schema(
    [("shop", pa.int64()), ("region", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)


class PerShop(PersistentTask):
    """The revenue of a shop, and the region that it is in now."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(revenue=Sum(), region=Max()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["amount"], batch["region"]], names=["revenue", "region"])


class PerSlot(PersistentTask):
    """The amounts of a shop in 20 seconds."""

    key, value = "shop", "amount"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), TumblingWindow(f"{SLOT} seconds"))


class PerRegion(PersistentTask):
    """The revenue of the shops that are in a region now, and how many there are."""

    key = "region"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(total=Sum(), shops=Count()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["revenue"], pa.array([1] * len(batch))], names=["total", "shops"])


class Total(PersistentTask):
    """The revenue of all regions."""

    value = "total"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Revenue(PersistentTask):
    """The revenue of all shops."""

    value = "revenue"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Best(PersistentTask):
    """The greatest amount of a slot, by shop."""

    key, value = "shop", "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Max())


class Rare(PersistentTask):
    """The number of sales of a shop in the first seconds of five minutes, of which most clocks have none."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        seconds = batch["ts"].cast(pa.int64()).to_numpy() // SECOND
        return pa.array([int(is_rare(second)) or None for second in seconds.tolist()], pa.int64())


class Rares(PersistentTask):
    """The number of all such sales: most of its steps change nothing."""

    value = "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Watch(OrderedTask):
    """Emits each best sale of a region so far, and that it has fallen silent. After a longer silence it begins again."""

    key = "region"
    state = pa.struct([("sales", pa.int64()), ("best", pa.int64())])
    emits = pa.schema([("what", pa.string()), ("number", pa.int64())])
    ttl = "40 seconds"

    def process(self, state: Any, message: Message, context: Context) -> Any:
        # In its place, as user code may.
        state = state or {"sales": 0, "best": -(10**6)}
        state["sales"] += 1
        if message["amount"] > state["best"]:
            state["best"] = message["amount"]
            context.emit(what="best", number=state["best"])
        context.delete_timer(message.timestamp - SECOND + QUIET, "quiet")
        context.delete_timer(message.timestamp - SECOND + FORGOTTEN, "forgotten")
        context.set_timer(message.timestamp + QUIET, "quiet")
        context.set_timer(message.timestamp + FORGOTTEN, "forgotten")
        return state

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        context.emit(what=timer.name, number=state["sales"])
        if timer.name == "quiet":
            context.set_timer(timer.timestamp + QUIET, "still quiet")
        return state


QUIET, FORGOTTEN = 15 * SECOND, 60 * SECOND
"""A timer of the second kind is never called, as its region is forgotten by then."""


class Said(PersistentTask):
    """How many rows `Watch` has emitted of a kind, and the sum of their numbers."""

    key = "what"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(rows=Count(), numbers=Sum()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([pa.array([1] * len(batch)), batch["number"]], names=["rows", "numbers"])


def is_rare(second: int) -> bool:
    return second % 300 < 5


@dataclass(frozen=True)
class Sale:
    """A message."""

    shop: int
    region: int
    amount: int
    second: int


def sale(second: int) -> Sale:
    """The message of a second. Now and then all shops move to another region."""
    return Sale(second % SHOPS, second // 50 % REGIONS, second * 37 % 1000 - 300, second)


def grow(folder: Path, file: int, seconds: range) -> None:
    """Write the messages of these seconds as a file."""
    place = folder / "in"
    place.mkdir(exist_ok=True)
    sales = [sale(second) for second in seconds]
    times = pa.array([each.second * SECOND for each in sales], pa.int64()).cast(SCHEMA.field("ts").type)
    columns = [pa.array([getattr(each, name) for each in sales], pa.int64()) for name in SCHEMA.names[:3]]
    pq.write_table(pa.table([*columns, times], schema=SCHEMA), place / "_unfinished")
    (place / "_unfinished").rename(place / f"{file:04d}.parquet")


def application(
    folder: Path,
    shards: int = 2,
    interval: str = "10 seconds",
    outputs: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    files_per_batch: int = 1,
    tasks: Sequence[tuple[PersistentTask | OrderedTask, Any]] = (),
    **more: Any,
) -> Application:
    """The graph over a folder, its store there too, with these `outputs`, `without` some of its tasks and with more `tasks`."""
    app = Application(
        NAME,
        str(folder / "store"),
        checkpoint_interval=interval,
        shards=shards,
        retained_checkpoints=4,
        **more,
    )
    source = FileSource(str(folder / "in"), timestamp="ts", schema=SCHEMA, max_files_per_batch=files_per_batch)
    all_tasks: list[tuple[PersistentTask | OrderedTask, Any]] = [
        (PerShop(), source),
        (PerSlot(), source),
        (Rare(), source),
        (PerRegion(), Changes("PerShop")),
        (Revenue(), Changes("PerShop")),
        (Total(), Changes("PerRegion")),
        (Best(), ClosedWindows("PerSlot")),
        (Rares(), Changes("Rare")),
        (Watch(), source),
        (Said(), Emitted("Watch")),
    ]
    replaced = {task.task_name for task, _ in tasks}
    for task, fed_by in [*(each for each in all_tasks if each[0].task_name not in replaced), *tasks]:
        if task.task_name not in without:
            app.add(task, fed_by, sink=(outputs or {}).get(task.task_name))
    return app


def newest(folder: Path) -> Entry:
    entry = Log(open_files(str(folder / "store")), NAME).newest()
    assert entry is not None
    return entry


def state(folder: Path, task: str, clock: int | None = None) -> dict[Any, Any]:
    """The state of a task by its key: what nothing is left of is left out."""
    found = {}
    for row in read_state(str(folder / "store"), NAME, task, clock).to_pylist():
        value = row.pop("value")
        if value not in (0, {"total": 0, "shops": 0}):
            found[tuple(row.values())] = value
    return found


def per_shop(sales: Sequence[Sale]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for each in sales:
        known = found.get((each.shop,), {"revenue": 0, "region": 0})
        found[each.shop,] = {
            "revenue": known["revenue"] + each.amount,
            "region": max(known["region"], each.region),
        }
    return found


def per_region(shops: Mapping[Any, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for shop in shops.values():
        total = found.setdefault((shop["region"],), {"total": 0, "shops": 0})
        total["total"] += shop["revenue"]
        total["shops"] += 1
    return found


def best(sales: Sequence[Sale], clock: int) -> dict[Any, Any]:
    """The greatest amount of the slots that have closed."""
    slots: dict[tuple[int, int], int] = {}
    for each in sales:
        slot = each.shop, each.second // SLOT
        slots[slot] = slots.get(slot, 0) + each.amount
    found: dict[Any, Any] = {}
    for (shop, slot), amount in slots.items():
        if (slot + 1) * SLOT * SECOND <= clock:
            found[shop,] = max(found.get((shop,), amount), amount)
    return {key: value for key, value in found.items() if value != 0}


def watched(sales: Sequence[Sale], clock: int) -> tuple[dict[Any, Any], list[tuple[str, int, int]]]:
    """What is kept of each region at a clock, and the rows: what was emitted, its number and its moment."""
    lives: dict[int, list[list[Sale]]] = {}
    for each in sales:
        own = lives.setdefault(each.region, [[]])
        if own[-1] and (each.second - own[-1][-1].second) * SECOND > 40 * SECOND:
            own.append([])
        own[-1].append(each)
    kept, rows = dict[Any, Any](), list[tuple[str, int, int]]()
    for region, own in lives.items():
        for life in own:
            best = -(10**6)
            for each in life:
                if each.amount > best:
                    best = each.amount
                    rows.append(("best", best, each.second * SECOND))
            newest, state = life[-1].second * SECOND, {"sales": len(life), "best": best}
            quiet, still = ("quiet", newest + QUIET), ("still quiet", newest + 2 * QUIET)
            rows += [(what, len(life), at) for what, at in (quiet, still) if at < clock]
            waiting = [each for each in (quiet, still) if each[1] >= clock][:1]
            timers = [{"timestamp": at, "name": what} for what, at in (*waiting, ("forgotten", newest + FORGOTTEN))]
            if newest + 40 * SECOND >= clock:
                kept[region,] = {"state": state, "timers": timers, "newest": newest}
    return kept, rows


def said(rows: Sequence[tuple[str, int, int]]) -> dict[Any, Any]:
    """How many of these rows there are of a kind, and the sum of their numbers."""
    found: dict[Any, Any] = {}
    for what, number, _ in rows:
        known = found.setdefault((what,), {"rows": 0, "numbers": 0})
        known["rows"] += 1
        known["numbers"] += number
    return found


def all_of(values: Mapping[Any, Any], field: str) -> dict[Any, Any]:
    total = sum(value[field] for value in values.values())
    return {(): total} if total else {}


def check(folder: Path, sent: int) -> int:
    """At each retained clock each task is made of what feeds it, and in the end of the messages: so many were sent.

    Returns:
        How many clocks there are.
    """
    entry, clocks = newest(folder), 0
    for clock in entry.retained:
        sales = [sale(second) for second in range(min(clock // SECOND, sent))]
        made = {
            "PerShop": lambda sales=sales: per_shop(sales),
            "PerRegion": lambda clock=clock: per_region(state(folder, "PerShop", clock)),
            "Revenue": lambda clock=clock: all_of(state(folder, "PerShop", clock), "revenue"),
            "Total": lambda clock=clock: all_of(state(folder, "PerRegion", clock), "total"),
            "Best": lambda sales=sales, clock=clock: best(sales, clock),
            "Rares": lambda sales=sales: all_of({each: {"": 1} for each in sales if is_rare(each.second)}, ""),
            "Watch": lambda sales=sales, clock=clock: watched(sales, clock)[0],
            "Said": lambda sales=sales, clock=clock: said(watched(sales, clock)[1]),
        }
        for name, task in entry.tasks.items():
            assert not entry.late_counts_of(name)
            if name in made and task.active and task.born <= clock:
                assert state(folder, name, clock) == made[name](), (name, clock)
        clocks += 1
    return clocks
