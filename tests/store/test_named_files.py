"""The runs of a shard after a change, and when rows aside are settled."""

from __future__ import annotations

import pytest

from persistent_state.store.named_files import Run, ShardRuns, SideFile, Stored

A, B, C, D, E = (Run(Stored(path, 1, ""), 1, 0, 1, 0, 0) for path in "abcde")


@pytest.mark.parametrize(
    ("stay", "new", "after"),
    [
        ((0, 3), (D,), (A, B, C, D)),
        ((1, 3), (D,), (B, C, D)),
        ((0, 1), (D, E), (A, D, E)),
        ((0, 2), (D, E), (A, B, D, E)),
        ((0, 0), (D, E, A), (D, E, A)),
        ((3, 3), (), ()),
    ],
)
def test_runs_that_stay_come_before_new_ones(
    stay: tuple[int, int], new: tuple[Run, ...], after: tuple[Run, ...]
) -> None:
    assert ShardRuns((A, B, C)).changed(stay, new) == ShardRuns(after)


def test_a_shard_that_does_not_change_is_the_same_object() -> None:
    shard = ShardRuns((A, B, C))
    assert shard.changed((0, 3), ()) is shard


def test_rows_aside_are_settled_once_no_start_reads_any_of_their_partitions_again_or_all_are_below_the_clock() -> None:
    side = SideFile(Stored("side", 1, ""), {"late": 2}, newest=20, ends={"p": 5, "q": 3})
    assert not side.is_settled(20, {"p": 5, "q": 2})
    assert side.is_settled(20, {"p": 5, "q": 3})
    assert side.is_settled(21, {"p": 0, "q": 0})
