"""The wait between tries of something that fails."""

from __future__ import annotations

import pytest

from persistent_state.drive import backoff
from persistent_state.drive.backoff import Backoff


def test_each_wait_is_twice_the_one_before_up_to_the_longest() -> None:
    tries = Backoff()
    assert [tries.fail() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert tries.failures == 8


def test_a_success_makes_the_next_failure_the_first() -> None:
    tries = Backoff()
    tries.fail()
    tries.fail()
    tries.succeed()
    assert tries.failures == 0
    assert tries.fail() == 1


def test_no_number_of_failures_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Backoff()
    tries.failures = 5000
    assert tries.fail() == 60
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0)
    assert tries.fail() == 0
