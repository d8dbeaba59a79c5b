"""A failed commit reaches the run, and waits for its query to end."""

from __future__ import annotations

import pickle
import threading

from persistent_state import StateError, TaskFailedError
from persistent_state.engine.run.watch import Watch
from tests.waiting import PATIENCE, until


def failing(watch: Watch, task: str, error: Exception) -> threading.Thread:
    """A commit that fails, in a thread of its own."""
    thread = threading.Thread(target=watch.fail, args=(task, error), daemon=True)
    thread.start()
    return thread


def test_the_first_commit_that_fails_is_told_and_all_wait_for_the_end() -> None:
    watch, first = Watch(), TaskFailedError("first")
    threads = [failing(watch, "A", first)]
    until(lambda: watch.failed, "the failure")
    threads.append(failing(watch, "B", StateError("second")))
    threads[1].join(0.05)
    assert watch.failed == ("A", first)
    assert all(thread.is_alive() for thread in threads)
    watch.end()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


def test_a_commit_that_a_stop_interrupts_is_no_failure() -> None:
    watch = Watch()
    watch.stop()
    thread = failing(watch, "A", StateError("interrupted"))
    watch.end()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert watch.failed is None


def test_a_watch_is_none_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(Watch())) is None
