"""How often a client of Spark Connect looks at the log."""

from __future__ import annotations

import threading

import pytest

from persistent_state.drive.worker import LogWorker
from persistent_state.engine.run.followed import pause_after
from tests.waiting import PATIENCE


@pytest.mark.parametrize("every", [1, 10, 60])
def test_an_entry_is_seen_within_an_eighth_of_the_time_since_the_one_before(every: int) -> None:
    assert moments(every)[-1] <= max(every * 9 / 8, every + 0.25)


def test_an_idle_minute_has_twelve_looks_at_most() -> None:
    looks = moments(3600)
    assert all(sum(start < at <= start + 60 for at in looks) <= 12 for start in range(60, 3540))


def moments(until: float) -> list[float]:
    """The moments of looks, in seconds since an entry, up to the first that is not before `until`."""
    at = [pause_after(0)]
    while at[-1] < until:
        at.append(at[-1] + pause_after(at[-1]))
    return at


def test_a_worker_asks_each_time_for_how_long_it_waits() -> None:
    pauses, done = [0.0, 0.001, 0.002], threading.Event()
    asked = iter(pauses)

    def pause() -> float:
        return next(asked, PATIENCE)

    looks = list[None]()

    def look() -> None:
        looks.append(None)
        if len(looks) == len(pauses):
            done.set()

    worker = LogWorker("looks", look, pause)
    worker.start()
    assert done.wait(PATIENCE)
    assert worker.stop(PATIENCE)
    assert len(looks) == len(pauses)
