"""Run what reads a store in a limited number of threads, and let no one wait without end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class BusyError(Exception):
    """There was no answer in time, or too many wait for one. The message is a sentence for people."""


class Workers:
    """Runs calls in threads, for an event loop.

    A call that takes too long is given up, but counts until it ends: what a store never answers takes no more threads than
    there are. They are daemons, so that such a call does not keep the process from ending.

    Args:
        threads: The most calls at a time.
        waiting: The most calls that wait for a thread.
        seconds: The most seconds until there is an answer, whether a call waits for a thread or runs.
    """

    def __init__(self, threads: int, waiting: int, seconds: float) -> None:
        self._free, self._most, self._seconds = asyncio.Semaphore(threads), threads + waiting, seconds
        self._calls = 0

    def deadline(self) -> float:
        """Return the time by which a call that begins now has its answer, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + self._seconds

    async def run(self, call: Callable[[], T], deadline: float | None = None) -> T:
        """Return what a call returns, or raise what it raises.

        Args:
            call: The call.
            deadline: The time by which there is an answer, for an answer of several calls. By default that of this call alone.

        Raises:
            BusyError: There was no answer in time, or too many calls wait.
        """
        if self._calls >= self._most:
            raise BusyError("too many ask at once; ask again in a moment.")
        deadline = self.deadline() if deadline is None else deadline
        self._calls += 1
        try:
            await asyncio.wait_for(self._free.acquire(), self._left(deadline))
        except asyncio.TimeoutError:
            self._calls -= 1
            raise self._late() from None
        except asyncio.CancelledError:
            self._calls -= 1
            raise
        try:
            return await asyncio.wait_for(self._begin(call), self._left(deadline))
        except asyncio.TimeoutError:
            raise self._late() from None

    def _left(self, deadline: float) -> float:
        return deadline - asyncio.get_running_loop().time()

    def _late(self) -> BusyError:
        return BusyError(f"the store did not answer within {self._seconds:g} seconds; look at it, then ask again.")

    def _begin(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: Callable[[], None]) -> None:
            self._free.release()
            self._calls -= 1
            if not answer.done():
                result()

        def work() -> None:
            try:
                result = partial(answer.set_result, call())
            except Exception as error:
                result = partial(answer.set_exception, error)
            # The loop may be closed by now: then no one waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result)

        threading.Thread(target=work, name="persistent-state serve", daemon=True).start()
        return answer
