"""Lists of files that are collected while an entry is read."""

from __future__ import annotations

import pytest

from persistent_state.errors import DamagedError
from persistent_state.store.all_files import with_lists
from persistent_state.store.entry import Entry
from tests import core
from tests.two_tasks import TwoTasks


def test_if_a_list_was_collected_the_newer_entry_is_read_instead() -> None:
    world = TwoTasks()
    before = core.newest(world.log)
    world.read("A", {"x": 25}, "x")
    asked = list[int]()

    def read(entry: Entry) -> str:
        asked.append(entry.number)
        if entry.number == before.number:
            raise FileNotFoundError("app/lists/1")
        return "read"

    assert with_lists(world.log, before, read) == "read"
    assert asked == [before.number, before.number + 1]


def test_a_list_of_the_newest_entry_that_is_gone_is_damage() -> None:
    world = TwoTasks()

    def read(entry: Entry) -> None:
        raise FileNotFoundError("app/lists/1")

    told = r"^a list of files that the newest log entry of app names is gone \(app/lists/1\); restore it\.$"
    with pytest.raises(DamagedError, match=told):
        with_lists(world.log, core.newest(world.log), read)
