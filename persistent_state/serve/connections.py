"""Answer connections, and bound what a client can take without a token: their number, their time, and lines of the log."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

LOG = logging.getLogger(__name__)

REQUEST = 10.0
"""The most seconds until a request has come whole: its head, and the form of a login."""

ANSWER = 60.0
"""The most seconds from then until the client has read the answer."""

CONNECTIONS = 256
"""The most connections at a time, where the process may open enough files."""

ACCEPTED = 32
"""The most connections that the event loop accepts at once, before their number is looked at."""

LINES, EACH = 100, 60.0
"""The most different lines of the log that are counted apart, and the seconds for which one of them keeps its likes away."""

KEEP_ALIVE = 75
"""The seconds for which a connection without requests stays open: longer than most clients keep one."""

END = 5
"""The most seconds that answers under way have when the server ends."""

IDLE, COMING, ANSWERED = "idle", "coming", "answered"


def most_connections() -> int:
    """Return the most connections at a time. Files of the store need room beside them, and so do those accepted at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(8, min(CONNECTIONS, files // 4))


class Connection(H11Protocol):
    """A connection whose requests have an end.

    If there are too many, the one that has kept the server waiting for the longest time is closed: who asks is answered.
    """

    most = CONNECTIONS
    _state, _since = COMING, 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._turn(COMING)
        if len(self.connections) > self.most:
            waiting = [one for one in self.connections if isinstance(one, Connection) and one._state != ANSWERED]
            min(waiting, key=lambda one: one._since)._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._turn(ANSWERED if self._is_answered() else COMING)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._turn(ANSWERED if self._is_answered() else IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _is_answered(self) -> bool:
        """Return whether a request has come whole, and its answer has not yet gone."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _turn(self, state: str) -> None:
        """Give the connection the time of its state, which begins now. What comes in pieces has no more time for that."""
        if state == self._state and self._timer is not None:
            return
        self._stop()
        self._state, self._since = state, self.loop.time()
        # The library closes idle connections.
        if state != IDLE and not self.transport.is_closing():
            self._timer = self.loop.call_later(REQUEST if state == COMING else ANSWER, self._end)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._stop()
        # It counts no longer, though the event loop closes it a moment later.
        self.connections.discard(self)
        self.transport.abort()


def server(app: ASGIApp, announce: Callable[[], None]) -> uvicorn.Server:
    """Return a server of an application, which calls `announce` as soon as it answers."""
    config = uvicorn.Config(
        app,
        http=type("_Connection", (Connection,), {"most": most_connections()}),
        backlog=ACCEPTED,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=END,
        timeout_keep_alive=KEEP_ALIVE,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(log_failure)
            await super().startup(sockets)
            announce()

    return Server(config)


class OnceAMinute(logging.Filter):
    """Lets a line of the log through, and those that say the same a minute later, with their number.

    Args:
        seconds: A clock that does not go back.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        super().__init__()
        self._seconds = seconds
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.name, record.getMessage()
        if line not in self._lines and len(self._lines) >= LINES:
            line = record.name, ""
        until, left_out = self._lines.get(line, (float("-inf"), 0))
        if self._seconds() < until:
            self._lines[line] = until, left_out + 1
            return False
        self._lines[line] = self._seconds() + EACH, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more such lines since the last one)", ()
        return True


@contextmanager
def few_lines(seconds: Callable[[], float]) -> Iterator[None]:
    """Let the server's loggers say the same once a minute."""
    once = OnceAMinute(seconds)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "persistent_state.serve.app", __name__)]
    for logger in loggers:
        logger.addFilter(once)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(once)


def log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what failed in the event loop. Python's own line for it is another one for each connection."""
    LOG.error("%s", context["message"], exc_info=context.get("exception"))
