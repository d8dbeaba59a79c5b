"""A worker looks when it is woken or its time has come, never twice at a time, and ends when it is stopped."""

from __future__ import annotations

import threading

from persistent_state.drive.worker import LogWorker
from tests.waiting import PATIENCE, until

NEVER = 1e6


def test_a_worker_looks_when_it_is_woken() -> None:
    looks: list[str] = []
    worker = LogWorker("worker", lambda: looks.append(threading.current_thread().name), NEVER)
    worker.start()
    for count in (1, 2):
        worker.wake()
        until(lambda count=count: len(looks) == count, "a look")
    assert worker.stop(PATIENCE)
    assert looks == ["worker", "worker"]


def test_a_worker_that_nobody_wakes_looks_again_and_again() -> None:
    looks: list[int] = []
    worker = LogWorker("worker", lambda: looks.append(1), 0.001)
    worker.start()
    until(lambda: len(looks) > 3, "looks")
    assert worker.stop(PATIENCE)


def test_who_wakes_a_worker_during_a_look_is_looked_for_once_more() -> None:
    began, goes_on, looks = threading.Event(), threading.Event(), list[int]()

    def look() -> None:
        looks.append(1)
        began.set()
        goes_on.wait(PATIENCE)

    worker = LogWorker("worker", look, NEVER)
    worker.start()
    worker.wake()
    assert began.wait(PATIENCE)
    worker.wake()
    goes_on.set()
    until(lambda: len(looks) == 2, "the second look")
    assert worker.stop(PATIENCE)


def test_a_stop_waits_no_longer_than_its_patience_and_says_so() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def look() -> None:
        began.set()
        goes_on.wait(PATIENCE)

    worker = LogWorker("worker", look, NEVER)
    assert worker.stop(0), "it was not started"
    worker.start()
    worker.wake()
    assert began.wait(PATIENCE)
    assert not worker.stop(0)
    assert worker.is_alive
    goes_on.set()
    assert worker.stop(PATIENCE)


def test_a_worker_may_look_once_more_at_its_end_and_can_be_started_again() -> None:
    looks: list[int] = []
    for looks_last in (True, False):
        worker = LogWorker("worker", lambda: looks.append(1), NEVER, looks_last)
        for _ in range(2):
            worker.start()
            assert worker.stop(PATIENCE)
    assert len(looks) == 2
