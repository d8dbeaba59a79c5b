"""A pool of worker processes, which make the calls that threads of this process ask for. One that dies is replaced."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from persistent_state.errors import StateError
from persistent_state.local.messages import LOOK_SECONDS, AnswerUnpickler, Channel, Message, to_call

DEATHS = 3
"""The number of workers that may die of one call."""

END_SECONDS = 5.0
"""The time that a process has for its end once it has let go of its connection."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); from persistent_state.local.worker import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
# A process of `multiprocessing` would import the program that starts the run again, and start it a second time where it has no
# `if __name__ == "__main__":`.

MEMORY = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""The environment in which glibc keeps memory for the next micro-batch: to get it from the system again takes longer than to
fold what is in it. A user's own settings win."""

Item = TypeVar("Item")
Made = TypeVar("Made")


class DeathsError(Exception):
    """`DEATHS` workers in a row have died of a call for this `item`, the last one in this way, as words."""

    def __init__(self, item: object, way: str) -> None:
        super().__init__(way)
        self.item, self.way = item, way

    def sentence(self, of: str, remedy: str) -> str:
        """Return the error as words, with what the workers died of, and the beginning of what to do."""
        died = f"{DEATHS} workers in a row died of {of}, the last one {self.way}"
        return f"{died}. {remedy}, or mend the code that ends the process."


class StoppedError(StateError):
    """The call was cancelled, because the run or this start of it ends."""


class _DiedError(Exception):
    """The process of a worker has ended."""


class Worker:
    """A process that makes one call at a time. It starts at once, and is sent what it is to know before its first call."""

    def __init__(self, known: Message) -> None:
        here, there = socket.socketpair()
        arguments = [str(there.fileno()), str(os.getpid()), json.dumps(sys.path)]
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl+C in a terminal goes to the driver alone. A worker that still imports would print a traceback.
                start_new_session=True,
                env={**MEMORY, **os.environ},
            )
        self._channel = Channel(here.detach())
        self._known: Message | None = known

    @property
    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def call(self, message: Message) -> object:
        """Return what the call in a message returns.

        Raises:
            StateError: The call raised, or the process can't load what it is to know.
        """
        if self._known is not None:
            self._ask(self._known)
            self._known = None
        return self._ask(message)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and wait for that."""
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def way_of_death(self) -> str:
        """Return in words how the process has ended."""
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            # It has let go of its connection, and hangs.
            self._process.kill()
            status = self._process.wait()
        if status >= 0:
            return f"with exit status {status}"
        return f"by signal {-status}" + (", as when memory is short" if status == -9 else "")

    def _check_alive(self) -> None:
        # Processes that it has forked may outlive it, and hold the other end open.
        if not self.is_alive and not self._channel.has_news(0.0):
            raise EOFError

    def _ask(self, message: Message) -> object:
        try:
            self._channel.send(message, self._check_alive)
            while not self._channel.has_news(LOOK_SECONDS):
                self._check_alive()
            answer = self._channel.receive()
        except (EOFError, OSError) as error:
            raise _DiedError from error
        except StateError:
            raise
        except BaseException:
            # No later call may take the rest of the answer for its own.
            self.kill()
            raise
        made, raised = AnswerUnpickler(answer).load()
        if raised is not None:
            raise raised
        return made


class Pool:
    """A number of workers, all of which know the same objects. Calls wait for a worker that is free."""

    def __init__(self, count: int, known: Sequence[object]) -> None:
        self.known, self.count = known, count
        self.threads = ThreadPoolExecutor(count, "persistent-state calls")
        # Workers end with the thread that has started them, so it lives as long as the pool.
        self._starter = ThreadPoolExecutor(1, "persistent-state workers")
        self._sent = to_call(known, ())
        self._free: SimpleQueue[Worker] = SimpleQueue()
        self._all: set[Worker] = set()
        self._lock = threading.Lock()
        self.is_closed = False
        for _ in range(count):
            self._free.put(self._start())

    @property
    def pids(self) -> set[int]:
        """The ids of the processes."""
        with self._lock:
            return {worker.pid for worker in self._all}

    def take(self, check: Callable[[], None]) -> Worker:
        """Wait for a worker that is free, and return it. It is given back by `give`. While it waits, `check` may raise."""
        while True:
            check()
            with suppress(Empty):
                worker = self._free.get(timeout=LOOK_SECONDS)
                break
        if worker.is_alive or self.is_closed:
            return worker
        # It was killed while it waited, which is no fault of the next call.
        self._forget(worker)
        try:
            return self._start()
        except BaseException:
            self._free.put(worker)
            raise

    def give(self, worker: Worker) -> None:
        """Take a worker back, dead or alive."""
        self._free.put(worker)

    def close(self) -> None:
        """End all workers. Calls that are under way fail, and so do later ones."""
        with self._lock:
            self.is_closed = True
            workers = [*self._all]
        for worker in workers:
            worker.kill()
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()
        self._starter.shutdown(wait=False)

    def _start(self) -> Worker:
        with self._lock:
            if self.is_closed:
                raise StoppedError("the run has ended; start again.")
            worker = self._starter.submit(Worker, self._sent).result()
            self._all.add(worker)
            return worker

    def _forget(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.close()


class Calls:
    """Calls in the `workers` of a pool, which can be cancelled together. Several threads may call `each`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.workers = pool.count
        self._busy: set[Worker] = set()
        self._lock = threading.Lock()
        self._is_cancelled = False

    def each(self, function: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
        """Call a function for each item in workers, side by side, and return what the calls return, in this order.

        A call whose worker dies is made again.

        Raises:
            StateError: A call raised this error, or was cancelled.
            DeathsError: `DEATHS` workers have died of one call.
        """
        all_items = [*items]
        self._check()
        if len(all_items) == 1:
            return [self._call(function, all_items[0])]
        futures = [self._pool.threads.submit(self._call, function, item) for item in all_items]
        try:
            return [future.result() for future in futures]
        finally:
            # After an error nothing of a turn that is void is left under way.
            # One that is cancelled is not waited for: a closed pool says of none that it is done.
            wait([future for future in futures if not future.cancel()])

    def cancel(self) -> None:
        """Let the calls fail that are under way, and those that come."""
        with self._lock:
            self._is_cancelled = True
            for worker in self._busy:
                worker.kill()

    def _call(self, function: Callable[[Item], Made], item: Item) -> Made:
        message, way = to_call((function, item), self._pool.known), ""
        for _ in range(DEATHS):
            worker = self._pool.take(self._check)
            try:
                self._begin(worker)
                made: Made = worker.call(message)  # type: ignore[assignment]
                return made
            except _DiedError:
                way = worker.way_of_death()
                self._check()
            finally:
                with self._lock:
                    self._busy.discard(worker)
                self._pool.give(worker)
        raise DeathsError(item, way)

    def _begin(self, worker: Worker) -> None:
        with self._lock:
            self._check()
            self._busy.add(worker)

    def _check(self) -> None:
        if self._is_cancelled or self._pool.is_closed:
            raise StoppedError("the work was stopped; the next start does it again.")
