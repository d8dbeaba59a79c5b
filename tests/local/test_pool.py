"""Workers die, are replaced, and end with their driver: what is called in them is called until it returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from persistent_state.errors import InvalidInputError, StateError, TaskFailedError
from persistent_state.local.pool import DEATHS, MEMORY, Calls, DeathsError, Pool, StoppedError
from tests.processes import start_guarded
from tests.sentences import problem
from tests.spark.sessions import ROOT
from tests.waiting import until


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(2, [])
    yield made
    made.close()


def dies(place: str, times: int) -> int:
    """Let the worker die until it has been called so often, and return how often that was."""
    called = Path(place)
    called.write_text(called.read_text() + "x" if called.exists() else "x")
    if len(called.read_text()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(called.read_text())


def alive(pid: int) -> bool:
    """Return whether a process runs. One that has ended and was not waited for does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_calls_run_side_by_side_and_return_in_order(pool: Pool) -> None:
    def work(number: int) -> tuple[int, int]:
        time.sleep(0.2)
        return number, os.getpid()

    made = Calls(pool).each(work, range(6))
    assert [number for number, _ in made] == [*range(6)]
    assert {pid for _, pid in made} == pool.pids
    assert os.getpid() not in pool.pids


def test_a_call_whose_worker_dies_is_made_again_and_after_three_deaths_no_more(pool: Pool, tmp_path: Path) -> None:
    calls = Calls(pool)
    for times in range(DEATHS):
        assert calls.each(lambda place, times=times: dies(place, times), [str(tmp_path / f"{times}")]) == [times + 1]
    with pytest.raises(DeathsError, match="by signal 9, as when memory is short") as raised:
        calls.each(lambda place: dies(place, DEATHS), [str(tmp_path / "often")])
    assert raised.value.item == str(tmp_path / "often")
    assert calls.each(len, ["", "a"]) == [0, 1], "others are there"


def test_a_worker_that_was_killed_while_it_waited_costs_no_call_a_try(pool: Pool) -> None:
    calls = Calls(pool)
    for _ in range(DEATHS + 1):
        calls.each(len, ["", "a"])
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(alive, pool.pids)), "the deaths")
    assert calls.each(len, ["", "a"]) == [0, 1]


def test_a_worker_whose_children_outlive_it_is_seen_to_be_dead(pool: Pool, tmp_path: Path) -> None:
    def forks(place: str) -> None:
        if (child := os.fork()) == 0:
            time.sleep(60)
        with Path(place).open("a") as children:
            print(child, file=children)
        os._exit(7)

    try:
        with pytest.raises(DeathsError, match="with exit status 7"):
            Calls(pool).each(forks, [str(tmp_path / "children")])
    finally:
        children = [int(line) for line in (tmp_path / "children").read_text().splitlines()]
        lived = [*map(alive, children)]
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert lived == [True] * DEATHS, "they held the ends of sockets open"


@pytest.mark.parametrize("has_children", [False, True])
def test_a_worker_that_dies_while_it_is_sent_a_call_is_seen_to_be_dead(
    has_children: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forks(number: int) -> int:
        if number and (child := os.fork()) != 0:
            return child
        time.sleep(60 * number)
        return 0

    monkeypatch.setattr("persistent_state.local.pool.DEATHS", 1)
    raised, pool = list[BaseException](), Pool(1, [])

    def call() -> None:
        try:
            # More than a socket takes at once.
            Calls(pool).each(len, [b"x" * (1 << 25)])
        except BaseException as error:
            raised.append(error)

    caller = threading.Thread(target=call, daemon=True)
    (child,) = Calls(pool).each(forks, [int(has_children)])
    try:
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        caller.start()
        until(lambda: _is_sending(caller), "the message")
        os.kill(pid, signal.SIGKILL)
        caller.join(60)
        assert [(type(error), str(error)) for error in raised] == [
            (DeathsError, "by signal 9, as when memory is short")
        ]
        assert Calls(pool).each(len, ["a"]) == [1], "another one is there"
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        pool.close()


def _is_sending(thread: threading.Thread) -> bool:
    """Return whether a thread is in the middle of a message."""
    frame = sys._current_frames()[thread.ident or 0]
    names = set[str]()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return "send" in names


def test_calls_that_wait_for_a_worker_fail_when_the_pool_is_closed(pool: Pool) -> None:
    raised: list[BaseException] = []

    def call() -> None:
        try:
            Calls(pool).each(time.sleep, [60.0] * 8)
        except BaseException as error:
            raised.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    until(lambda: pool.threads._work_queue.qsize() == 6, "calls that wait")
    pool.close()
    caller.join(10.0)
    assert [type(error) for error in raised] in ([StoppedError], [CancelledError])


def test_workers_keep_memory_for_the_next_call_unless_the_user_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "mimalloc")
    pool = Pool(1, [])
    try:
        asked = Calls(pool).each(lambda name: os.environ[name], MEMORY)
    finally:
        pool.close()
    assert asked == ["mimalloc", MEMORY["MALLOC_MMAP_THRESHOLD_"], MEMORY["MALLOC_TRIM_THRESHOLD_"]]


def test_what_a_call_raises_comes_back_as_an_error_of_the_package(pool: Pool) -> None:
    def fails(error: BaseException) -> None:
        raise error

    calls = Calls(pool)
    with pytest.raises(TaskFailedError, match="a bad row"):
        calls.each(fails, [TaskFailedError("a bad row.")])
    with pytest.raises(StateError, match=r"a worker raised ZeroDivisionError\('by 0'\) at .*test_pool.py"):
        calls.each(fails, [ZeroDivisionError("by 0")])
    with pytest.raises(StateError, match="a worker raised SystemExit"):
        calls.each(fails, [SystemExit(3)])
    assert calls.each(len, ["a"]) == [1]


def test_an_error_of_a_class_that_only_workers_know_comes_back_as_that_of_the_package(pool: Pool) -> None:
    class OwnError(InvalidInputError):
        def __init__(self, value: int, unit: str) -> None:
            super().__init__(f"value={value} {unit} is too much.")

    def fails(value: int) -> None:
        raise OwnError(value, "m")

    assert problem(lambda: Calls(pool).each(fails, [7])) == "value=7 m is too much."
    assert Calls(pool).each(len, ["a"]) == [1]


def test_what_all_workers_know_is_sent_once_and_stays_the_same_object(tmp_path: Path) -> None:
    class Large:
        def __getstate__(self) -> Any:
            with (tmp_path / "sent").open("a") as file:
                file.write("x")
            return {"a": 1}

    large = Large()
    pool = Pool(2, [large])
    try:
        keep = {"both": large}
        made = Calls(pool).each(lambda number, keep=keep: (keep["both"].a, number), range(5))
        assert made == [(1, number) for number in range(5)]
        assert (tmp_path / "sent").read_text() == "x"
    finally:
        pool.close()


def test_what_workers_can_not_load_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("class There:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    monkeypatch.undo()
    pool = Pool(1, [only_here.There()])
    try:
        with pytest.raises(InvalidInputError, match="a worker can't load the application: ModuleNotFoundError"):
            Calls(pool).each(len, ["a"])
    finally:
        pool.close()


def test_calls_that_are_cancelled_fail_at_once_and_others_go_on(pool: Pool, tmp_path: Path) -> None:
    def hangs(place: str) -> None:
        Path(place).touch()
        time.sleep(3600)

    calls, others = Calls(pool), Calls(pool)
    failed: list[str] = []

    def run() -> None:
        failed.append(problem(lambda: calls.each(hangs, [str(tmp_path / "begun")]), StoppedError))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until((tmp_path / "begun").exists, "the call")
    assert others.each(len, ["ab"]) == [2]
    calls.cancel()
    thread.join(60)
    assert failed == ["the work was stopped; the next start does it again."]
    with pytest.raises(StoppedError):
        calls.each(len, ["a"])
    assert others.each(len, ["a", "ab"]) == [1, 2]


def test_a_call_that_waits_for_a_worker_can_be_cancelled(tmp_path: Path) -> None:
    def hangs(place: str) -> None:
        Path(place).touch()
        time.sleep(3600)

    pool = Pool(1, [])
    busy, waiting = Calls(pool), Calls(pool)
    failed: list[str] = []
    threads = [
        threading.Thread(
            target=lambda calls=calls, name=name: failed.append(  # type: ignore[misc]
                problem(lambda: calls.each(hangs, [str(tmp_path / name)]), StoppedError)
            ),
            daemon=True,
        )
        for calls, name in ((busy, "busy"), (waiting, "waiting"))
    ]
    try:
        threads[0].start()
        until((tmp_path / "busy").exists, "the call")
        threads[1].start()
        waiting.cancel()
        threads[1].join(60)
        assert (len(failed), (tmp_path / "waiting").exists()) == (1, False)
        busy.cancel()
        threads[0].join(60)
        assert len(failed) == 2
    finally:
        pool.close()


def test_a_pool_that_is_closed_leaves_no_process(pool: Pool) -> None:
    Calls(pool).each(len, ["a", "b"])
    pids = pool.pids
    pool.close()
    assert not any(map(alive, pids))
    with pytest.raises(StoppedError):
        Calls(pool).each(len, ["a"])


DRIVER = """
import sys, time
from persistent_state.local.pool import Calls, Pool
pool = Pool(2, [])
print(*pool.pids, flush=True)
if sys.argv[1] == "busy":
    def hangs(number):
        while True:
            pass
    Calls(pool).each(hangs, range(2))
if sys.argv[1] == "in C":
    def hangs_in_c(number):
        import re
        print("begins", flush=True)
        re.match("(a+)+$", "a" * 60 + "b")
    Calls(pool).each(hangs_in_c, range(2))
time.sleep(3600)
"""


@pytest.mark.parametrize("how", ["busy", "idle", "in C"])
def test_no_worker_survives_a_driver_that_is_killed(how: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = start_guarded([sys.executable, "-c", DRIVER, how], env=env, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    if how == "in C":
        assert [driver.stdout.readline() for _ in pids] == [b"begins\n"] * 2
        # From then on no thread of a worker runs but that of the call, which holds the interpreter's lock.
        time.sleep(0.5)
    driver.kill()
    until(lambda: not any(map(alive, pids)), "the end of the workers")


def test_a_signal_leaves_the_end_of_workers_to_their_driver(pool: Pool) -> None:
    # Ctrl+C in a terminal signals a group. A worker that has only begun to import would die of it with a traceback.
    assert not {os.getpgid(0)} & {os.getpgid(pid) for pid in pool.pids}
    calls = Calls(pool)
    calls.each(len, ["a", "b"])
    pids = pool.pids
    for pid in pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert calls.each(len, ["a", "b"]) == [1, 1]
    assert pool.pids == pids
