"""Answer over HTTP what is asked of a store. Nothing is written, and only the login takes more than GET and HEAD."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from persistent_state.errors import (
    InvalidInputError,
    NotThereError,
    StateError,
    StoreRefusedError,
    StoreUnavailableError,
)
from persistent_state.formatting import to_json
from persistent_state.metrics.exposition import as_text
from persistent_state.metrics.of_store import of_store
from persistent_state.open_state import OpenStore
from persistent_state.redact import shown
from persistent_state.serve import page
from persistent_state.serve.access import Token, is_loopback, is_own_name
from persistent_state.serve.lookups import APPLICATION, TASK, Lookups, Question, parameters_of, read_question
from persistent_state.serve.page import LookupResult
from persistent_state.serve.shared import Shared
from persistent_state.serve.style import HEADERS
from persistent_state.serve.watch import Detail, StoreStatus, Watch
from persistent_state.serve.workers import BusyError, Workers
from persistent_state.store.state_at import find_applications

LOG = logging.getLogger(__name__)

SECONDS = 20.0
"""The most seconds that a whole answer waits for threads and for the store."""

LOOKUPS, LOOKS, WAITING = 8, 3, 64
"""The most look-ups at a time, the most looks for all other pages, and the most calls that wait for either."""

LOGIN_BYTES = 4096
"""The most bytes of the form of a login."""

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Pages:
    """The answers of the server, page by page.

    Args:
        store: The store.
        seconds: A clock that does not go back.
        now_us: The wall clock, microseconds UTC.
        token: What a user must know to log in; None for nothing.
    """

    def __init__(
        self, store: OpenStore, seconds: Callable[[], float], now_us: Callable[[], int], token: Token | None
    ) -> None:
        self._store, self._now_us, self._token = store, now_us, token
        self._watch, self._lookups = Watch(store.files, seconds, now_us), Lookups(store)
        self._metrics = Shared(self._measure, seconds)
        self._of_lookups, self._of_looks = Workers(LOOKUPS, WAITING, SECONDS), Workers(LOOKS, WAITING, SECONDS)
        # Those who ask for the health need not know the token: they wait for one another only, and share an answer.
        self._of_health = Workers(1, WAITING, SECONDS)
        self._health = Shared(lambda: find_applications(store.files), seconds)

    async def home(self, request: Request) -> Response:
        """Answer with the page."""
        deadline = self._of_looks.deadline()
        try:
            store_status = await self._of_looks.run(self._watch.look, deadline)
        except BusyError as error:
            last = self._watch.last
            store_status = StoreStatus(last.applications, str(error), last.at)
        name = request.query_params.get(APPLICATION)
        chosen = next((each for each in store_status.applications if name in (None, "", each.name)), None)
        status = 503 if store_status.error else 404 if chosen is None and name else 200
        detail = Detail()
        if chosen is not None:
            try:
                detail = await self._of_looks.run(partial(self._watch.detail, chosen.name), deadline)
            except BusyError as error:
                detail = Detail(error=str(error))
        result = None
        if request.query_params.get(TASK):
            result, of_lookup = await self._lookup_result(request, deadline)
            status = max(status, of_lookup)
        show = partial(page.page, shown(self._store.files.url), store_status, chosen, detail, result, self._now_us())
        # A store of many tasks makes a long page.
        return HTMLResponse(await run_in_threadpool(show), status)

    async def _lookup_result(self, request: Request, deadline: float) -> tuple[LookupResult, int]:
        try:
            question = read_question(parameters_of(request.scope["query_string"]))
        except InvalidInputError as error:
            half = Question(request.query_params.get(APPLICATION, ""), request.query_params.get(TASK, ""))
            return LookupResult(half, error=str(error)), 400
        try:
            return LookupResult(
                question, await self._of_lookups.run(partial(self._lookups.answer, question), deadline)
            ), 200
        except Exception as error:
            message, status = _of_error(error)
            return LookupResult(question, error=message), status

    async def lookup(self, request: Request) -> Response:
        """Answer a look-up of a key with JSON."""
        try:
            question = read_question(parameters_of(request.scope["query_string"]))
            answer = await self._of_lookups.run(partial(self._lookups.answer, question))
        except Exception as error:
            message, status = _of_error(error)
            return _json({"error": message}, status)
        return _json(answer)

    async def metrics(self, request: Request) -> Response:
        """Answer as the command `metrics` prints."""
        try:
            text = await self._of_looks.run(self._metrics.get)
        except Exception as error:
            message, status = _of_error(error)
            return PlainTextResponse(f"{message}\n", status)
        return Response(text, media_type=OPENMETRICS)

    def _measure(self) -> str:
        samples, errors = of_store(self._store.files)
        for error in errors:
            LOG.warning("%s", error)
        return as_text(samples)

    async def health(self, request: Request) -> Response:
        """Answer whether the store answers. That needs no token, and the answer says nothing else."""
        try:
            await self._of_health.run(self._health.get)
        except (StateError, OSError, BusyError) as error:
            LOG.warning("%s", error)
            return PlainTextResponse("The store does not answer; the server's log says why.\n", 503)
        return PlainTextResponse("The store answers.\n")

    async def login(self, request: Request) -> Response:
        """Take the token from the form, and give the browser a cookie."""
        if self._token is None:
            return RedirectResponse("./", 303)
        if request.method != "POST":
            return HTMLResponse(page.login(is_wrong=False))
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > LOGIN_BYTES:
                return HTMLResponse(page.login(is_wrong=True), 413)
        given = parse_qs(body.decode(errors="replace")).get("token", [""])[0]
        if not self._token.matches(given):
            return HTMLResponse(page.login(is_wrong=True), 401)
        return _let_in(self._token, request, "./")


def _let_in(token: Token, request: Request, to: str) -> Response:
    """Return a redirection that gives the browser the cookie."""
    cookie = {"Set-Cookie": token.set_cookie(request.scope["scheme"] == "https")}
    return RedirectResponse(to, 303, cookie)


def _json(answer: Any, status: int = 200) -> Response:
    return Response(to_json(answer) + "\n", status, media_type="application/json")


def _of_error(error: Exception) -> tuple[str, int]:
    """Return the sentence of an error, and its status."""
    if isinstance(error, NotThereError):
        return str(error), 404
    if isinstance(error, (BusyError, StoreRefusedError, StoreUnavailableError, OSError)):
        return str(error), 503
    if isinstance(error, InvalidInputError):
        return str(error), 400
    if isinstance(error, StateError):
        return str(error), 500
    LOG.error("a request failed", exc_info=error)
    return "the server failed; its log says why.", 500


class Gate:
    """Lets through who may ask, and adds the headers of every answer.

    Args:
        app: What answers.
        host: The host that the server listens on.
        token: What is to be known; None for nothing.
    """

    def __init__(self, app: ASGIApp, host: str, token: Token | None) -> None:
        self._app, self._host, self._token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it be answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refused(Request(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    def _refused(self, request: Request) -> Response | None:
        """Return the answer to a request that goes no further."""
        headers: Headers = request.headers
        if is_loopback(self._host) and not is_own_name(headers.get("host", ""), self._host):
            return PlainTextResponse(
                "This server is asked under a name of this machine only, such as localhost.\n", 421
            )
        # The router goes by this path. That of `request.url` is made of the Host header, too.
        path = request.scope["path"]
        if request.method not in ("GET", "HEAD") and (request.method, path) != ("POST", "/login"):
            return PlainTextResponse("Nothing can be changed here; ask by GET or HEAD.\n", 405, {"Allow": "GET, HEAD"})
        if self._token is None or path in ("/health", "/login"):
            return None
        if path == "/" and (given := request.query_params.get("token")) is not None and self._token.matches(given):
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            return _let_in(self._token, request, f"./?{urlencode(rest)}" if rest else "./")
        if self._token.is_in(headers):
            return None
        asks = {"WWW-Authenticate": "Bearer"}
        if path == "/":
            return HTMLResponse(page.login(is_wrong="token" in request.query_params), 401, asks)
        message = "the token is missing or wrong; send it as Authorization: Bearer TOKEN."
        return _json({"error": message}, 401) if path == "/lookup" else PlainTextResponse(f"{message}\n", 401, asks)


def application(
    store: OpenStore, host: str, token: str | None, seconds: Callable[[], float], now_us: Callable[[], int]
) -> ASGIApp:
    """Return the ASGI application that serves a store.

    Args:
        store: The store.
        host: The host that it listens on: on loopback, only names of this machine are answered.
        token: What a user must know; None for nothing.
        seconds: A clock that does not go back.
        now_us: The wall clock, microseconds UTC.
    """
    secret = None if token is None else Token(token)
    pages = Pages(store, seconds, now_us, secret)

    async def not_found(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return PlainTextResponse("There is nothing here; look at /, /lookup, /metrics, /health.\n", status)

    routes = [
        _route("/", pages.home),
        _route("/lookup", pages.lookup),
        _route("/metrics", pages.metrics),
        _route("/health", pages.health),
        Route("/login", pages.login, methods=["GET", "POST"]),
    ]
    served = Starlette(routes=routes, exception_handlers={HTTPException: not_found})
    # A redirection would repeat the Host header.
    served.router.redirect_slashes = False
    return Gate(served, host, secret)


def _route(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, answer, methods=["GET"])
