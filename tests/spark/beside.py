"""A graph of tasks that see what changes from each half minute to the next, and of tasks that a source feeds beside that.

Over the messages of `pipeline`, with what plain Python makes of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from monoids import Count, List, Map, Struct, Sum
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    Emitted,
    FileSource,
    IntervalJoin,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from tests.spark.pipeline import (
    NAME,
    SCHEMA,
    SECOND,
    SLOT,
    PerShop,
    PerSlot,
    Rare,
    Sale,
    is_rare,
    newest,
    per_shop,
    sale,
    state,
)

HALF = 30
"""The seconds after which is looked at what has changed."""


class Gained(PersistentTask):
    """What a shop has gained in a minute, as it is seen twice a minute."""

    key = "shop"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), TumblingWindow("1 minute"))

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        before = message["before"] or {"revenue": 0}
        state.update(message.timestamp, message["after"]["revenue"] - before["revenue"])


class Seen(PersistentTask):
    """How often a slot of a shop was seen with an amount, and how often it was gone then."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Map(pa.string(), Count()))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        before, after = (message[side] and message[side]["value"] for side in ("before", "after"))
        state.update(message.timestamp, {f"{message['window_start'].timestamp():.0f}: {before} -> {after}": 1})


class Story(PersistentTask):
    """All sales of a shop in order, and between them how many rare ones there are. Most steps have none."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.string()))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        if message.input == "sales":
            state.update(message.timestamp, [f"{message['amount']}"])
        else:
            before, after = (message[side] and message[side]["value"] for side in ("before", "after"))
            state.update(message.timestamp, [f"{before} -> {after}"])


class Both(PersistentTask):
    """The sum of all sales in a region, and what the shops that are in it now have taken in all, with their number."""

    key = "region"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(sold=Sum(), taken=Sum(), shops=Count()))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        if message.input == "sales":
            state.update(message.timestamp, {"sold": message["amount"], "taken": 0, "shops": 0})
        else:
            state.update(message.timestamp, {"sold": 0, "taken": message["revenue"], "shops": 1})


class Met(PersistentTask):
    """How many rows `Near` has of a shop, how many of them are of a sale alone, and the sum of their products."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(rows=Count(), alone=Sum(), products=Sum()))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        is_alone, product = message["value"] is None, message["amount"] * (message["value"] or 0)
        state.update(message.timestamp, {"rows": 1, "alone": int(is_alone), "products": product})


BEFORE, AFTER = 12, 3
"""A sale is joined with the slots of its shop that ended so many seconds before, or will have so many after."""

MIXED = ("Story", "Both", "Near.messages")
"""The tasks that a source and a task feed."""


def application(folder: Path, shards: int = 2, interval: str = "10 seconds") -> Application:
    """The graph over a folder, its store there too."""
    app = Application(NAME, str(folder / "store"), checkpoint_interval=interval, shards=shards, retained_checkpoints=4)
    source = FileSource(str(folder / "in"), timestamp="ts", schema=SCHEMA, max_files_per_batch=1)
    app.add(PerShop(), source)
    app.add(PerSlot(), source)
    app.add(Rare(), source)
    app.add(Gained(), Changes("PerShop", every=f"{HALF} seconds"))
    app.add(Seen(), Changes("PerSlot", every=f"{HALF} seconds"))
    app.add(Story(), {"sales": source, "rare": Changes("Rare", every=f"{HALF} seconds")})
    app.add(Both(), {"shops": Changes("PerShop"), "sales": source})
    bounds = f"{BEFORE} seconds", f"{AFTER} seconds"
    near = IntervalJoin("sales", "slots", *bounds, key="shop", how="left", name="Near")
    app.add(near, {"sales": source, "slots": ClosedWindows("PerSlot")})
    app.add(Met(), Emitted("Near"))
    return app


def check(folder: Path, sent: int) -> int:
    """At each retained clock each task is what plain Python makes of the messages: so many were sent.

    Returns:
        How many clocks there are.
    """
    entry = newest(folder)
    for clock in entry.retained:
        assert clock % (HALF * SECOND) == 0
        seconds = clock // SECOND
        sales = [sale(second) for second in range(min(seconds, sent))]
        made = {
            "PerShop": per_shop(sales),
            "Rare": dict(_rare(sales)),
            "Gained": _gained(sales, seconds),
            "Seen": _seen(sales, seconds),
            "Story": _story(sales, seconds),
            "Both": _both(sales),
            "Met": _met(sales, seconds),
        }
        for name, wanted in made.items():
            assert entry.tasks[name].born <= clock
            assert not entry.late_counts_of(name)
            found = {tuple(map(_plain, key)): value for key, value in state(folder, name, clock).items()}
            assert found == wanted, (name, seconds)
    return len(entry.retained)


def _plain(value: Any) -> Any:
    """A time as its second, and anything else as it is."""
    return value.timestamp() if isinstance(value, datetime) else value


def _pairs(
    sales: Sequence[Sale], seconds: int, made_of: Callable[[Sequence[Sale]], Mapping[Any, Any]]
) -> Iterator[tuple[int, Any, Any, Any]]:
    """Each half minute up to a time, with a key that has changed in it: what it was and what it is."""
    before: Mapping[Any, Any] = {}
    for at in range(HALF, seconds + 1, HALF):
        after = made_of([each for each in sales if each.second < at])
        yield from ((at, key, before.get(key), value) for key, value in after.items() if before.get(key) != value)
        before = after


def _gained(sales: Sequence[Sale], seconds: int) -> dict[Any, Any]:
    found = Counter[Any]()
    for at, (shop,), before, after in _pairs(sales, seconds, per_shop):
        minute = (at - 1) // 60 * 60
        if minute + 60 > seconds:
            found[shop, minute, minute + 60] += after["revenue"] - (before or {"revenue": 0})["revenue"]
    return {key: value for key, value in found.items() if value}


def _slots(sales: Sequence[Sale]) -> dict[tuple[int, int], int]:
    found = Counter[Any]()
    for each in sales:
        found[each.shop, each.second // SLOT * SLOT] += each.amount
    return dict(found)


def _seen(sales: Sequence[Sale], seconds: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    before: dict[Any, int] = {}
    for at in range(HALF, seconds + 1, HALF):
        slots = _slots([each for each in sales if each.second < at])
        after = {(shop, slot): amount for (shop, slot), amount in slots.items() if slot + SLOT > at}
        for shop, slot in {*before, *after}:
            pair = before.get((shop, slot)), after.get((shop, slot))
            if pair[0] != pair[1]:
                told = found.setdefault((shop,), Counter())
                told[f"{slot}: {pair[0]} -> {pair[1]}"] += 1
        before = after
    return {key: sorted(value.items()) for key, value in found.items()}


def _rare(sales: Sequence[Sale]) -> Counter[Any]:
    return Counter((each.shop,) for each in sales if is_rare(each.second))


def _story(sales: Sequence[Sale], seconds: int) -> dict[Any, Any]:
    told = [(float(each.second), 0, (each.shop,), f"{each.amount}") for each in sales]
    for at, shop, before, after in _pairs(sales, seconds, _rare):
        told.append((at - 1 / SECOND, 1, shop, f"{before} -> {after}"))
    found: dict[Any, Any] = {}
    for _, _, shop, words in sorted(told):
        found.setdefault(shop, []).append(words)
    return found


def _both(sales: Sequence[Sale]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for each in sales:
        found.setdefault((each.region,), {"sold": 0, "taken": 0, "shops": 0})["sold"] += each.amount
    for shop in per_shop(sales).values():
        found[shop["region"],]["taken"] += shop["revenue"]
        found[shop["region"],]["shops"] += 1
    return found


def _met(sales: Sequence[Sale], seconds: int) -> dict[Any, Any]:
    ended = [(shop, slot + SLOT, amount) for (shop, slot), amount in _slots(sales).items() if slot + SLOT <= seconds]
    found: dict[Any, Any] = {}
    for each in sales:
        # A slot ends a moment before the next begins.
        low, high = each.second - BEFORE, each.second + AFTER
        near = [amount for shop, end, amount in ended if shop == each.shop and low < end <= high]
        if near or high < seconds:
            told = found.setdefault((each.shop,), {"rows": 0, "alone": 0, "products": 0})
            told["rows"] += max(1, len(near))
            told["alone"] += not near
            told["products"] += sum(each.amount * amount for amount in near)
    return found
