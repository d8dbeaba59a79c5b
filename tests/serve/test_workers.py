"""Calls in threads: bounded in number and in time, and an error is that of the call."""

from __future__ import annotations

import asyncio
import threading

import pytest

from persistent_state.serve.workers import BusyError, Workers
from tests.waiting import PATIENCE


def test_a_call_that_takes_too_long_is_given_up_and_counts_until_it_ends() -> None:
    async def play() -> None:
        workers, begun, go_on = Workers(1, 1, 0.1), threading.Event(), threading.Event()

        def hang() -> None:
            begun.set()
            go_on.wait(PATIENCE)

        # On a slow machine its time may be over before it begins.
        while not begun.is_set():
            with pytest.raises(BusyError, match=r"^the store did not answer within 0\.1 seconds; "):
                await workers.run(hang)
        # Its thread is still there, so that the next call waits in vain.
        with pytest.raises(BusyError, match="within"):
            await workers.run(lambda: 1)
        go_on.set()
        assert await workers.run(lambda: 1, asyncio.get_running_loop().time() + PATIENCE) == 1

    asyncio.run(play())


def test_more_calls_than_may_wait_are_refused_at_once() -> None:
    async def play() -> None:
        workers, go_on = Workers(2, 1, PATIENCE), threading.Event()
        calls = [asyncio.create_task(workers.run(go_on.wait)) for _ in range(3)]
        # Each comes to where it waits.
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match=r"^too many ask at once; "):
            await workers.run(lambda: 1)
        go_on.set()
        assert await asyncio.gather(*calls) == [True] * 3
        assert await workers.run(lambda: 1) == 1

    asyncio.run(play())


def test_so_many_calls_run_at_a_time_and_no_more() -> None:
    async def play() -> int:
        workers, lock, running, most = Workers(2, 20, PATIENCE), threading.Lock(), [0], [0]
        both = threading.Barrier(2)

        def call() -> None:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            both.wait(PATIENCE)
            # A moment for a third.
            threading.Event().wait(0.01)
            with lock:
                running[0] -= 1

        await asyncio.gather(*(workers.run(call) for _ in range(20)))
        return most[0]

    assert asyncio.run(play()) == 2


def test_an_error_of_a_call_is_raised() -> None:
    def call() -> None:
        raise ValueError("mine")

    async def play() -> None:
        with pytest.raises(ValueError, match="mine"):
            await Workers(1, 1, PATIENCE).run(call)

    asyncio.run(play())
