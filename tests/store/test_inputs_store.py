"""A store of tasks with several inputs, which says nothing of what they declare, is sound for this version.

`fixtures/write_inputs_store.py` says what is in the store.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from persistent_state import InvalidInputError, open_store
from persistent_state.partials.since import Since
from persistent_state.store.files import Files
from persistent_state.store.state_at import seen_below
from persistent_state.store.verify import verify
from tests import core
from tests.fixtures.write_inputs_store import APART, APPLICATION, KEEPING, World, rows
from tests.store.test_upgrades import FEW_ROWS, FIXTURES, survive, unpacked

STORES = sorted(path.name for path in FIXTURES.glob("inputs-*"))


def go_on(files: Files, upto: int = 80, shards: int = 2, **declared: Any) -> World:
    """Start the application with another number of shards, and read on."""
    world = World(files, shards, **declared).begin()
    world.read(upto)
    core.collect(world.log, world.newest.epoch, now=0, keeping=KEEPING)
    return world


def taken(clock: int) -> Counter[int]:
    wanted = Counter[int]()
    for ts, shop, _, cents in rows("orders"):
        wanted[shop] += cents if ts < clock else 0
    for at, of, _, rate in rows("rates"):
        wanted[of] += rate if at < clock else 0
    return wanted


def per_shop(clock: int) -> dict[int, Counter[str]]:
    wanted: dict[int, Counter[str]] = {}
    for ts, shop, region, cents in rows("orders"):
        if ts < clock:
            wanted.setdefault(shop, Counter()).update(cents=cents, orders=1, region=region)
    return wanted


def sums(clock: int, value: str = "cents") -> Counter[int]:
    wanted = Counter(taken(clock))
    for shop in per_shop(clock).values():
        wanted[shop["orders"]] += shop[value]
    return wanted


def joined(since: int, clock: int) -> list[tuple[int, int, int]]:
    """The moment, the cents and the rate of each pair."""
    return sorted(
        (max(ts, at), cents, rate)
        for ts, shop, _, cents in rows("orders")
        for at, of, _, rate in rows("rates")
        if shop == of and abs(ts - at) <= APART and since <= max(ts, at) < clock
    )


def check(files: Files, value: str = "cents") -> None:
    """The store is sound, and each row is in it once."""
    assert verify(files.url).problems == ()
    world = World(files, 2)
    entry = world.newest
    wanted = {"Taken": taken, "PerShop": per_shop, "Sums": partial(sums, value=value)}
    for name, expected in wanted.items():
        # A task that was made anew can't be read at earlier clocks.
        there = [clock for clock in open_store(files.url).application(APPLICATION).clocks() if entry.is_at(name, clock)]
        assert entry.clock in there
        for clock in there:
            state = {key: some for (key,), some in core.state_at(entry, world.plans[name], clock).items() if some}
            assert state == {key: some for key, some in expected(clock).items() if some}, (name, clock)
    stored = entry.tasks["Near.rows"].stored
    table = seen_below(
        files, stored.runs, world.plans["Near.rows"].layout, entry.clock, Since(stored.floor), stored.floor
    )
    found = sorted((row["timestamp"], row["value"]["cents"], row["value"]["rate"]) for row in table.to_pylist())
    assert found == joined(stored.floor, entry.clock)


@pytest.mark.parametrize("name", STORES)
def test_a_store_of_several_inputs_is_sound_before_and_after_this_version_goes_on_from_it(name: str) -> None:
    files = unpacked(name)
    check(files)
    for _ in range(2):
        go_on(files)
        check(files)
    assert core.newest(World(files, 2).log).clock > 700


@pytest.mark.soak
@pytest.mark.parametrize("name", STORES)
@FEW_ROWS
def test_whatever_kills_that_the_next_start_cuts_back_and_goes_on(name: str, few: str) -> None:
    files = unpacked(name)
    assert survive(files, lambda mortal: go_on(mortal, 60, shards=1)) > (4 if few == "in files" else 1)
    check(files)


@pytest.mark.parametrize("name", STORES)
def test_what_is_declared_is_recorded_from_the_first_start_on_and_noticed_then(name: str) -> None:
    files = unpacked(name)
    before = World(files, 2).newest
    assert not any("declared" in task.identity for task in before.tasks.values())
    world = go_on(files, 60)
    # Nothing was made anew for what the store does not say.
    for task, known in before.tasks.items():
        assert (world.started.tasks[task].born, world.started.tasks[task].life) == (known.born, known.life)
        assert {**world.started.tasks[task].identity, "declared": 0} == {**known.identity, "declared": 0}
    for declared, said in [
        ({"keys": {"Taken": "by"}}, "task=Taken: input='rates' had key='of' when .*, and has key='by' now"),
        ({"keys": {"Near": "by"}}, "task=Near: input='rates' had key='of' when .*, and has key='by' now"),
        ({"sides": ("rates", "orders")}, "task=Near: input='rates' was the right side of the join when .* is the left"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            World(files, 2, **declared).begin()  # type: ignore[arg-type]
    # What is fed what changes is made anew.
    go_on(files, 80, value="region")
    check(files, "region")
