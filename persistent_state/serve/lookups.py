"""Look a key of a task up at a clock, as a browser or a program asks for it."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa

from persistent_state.errors import InvalidInputError, NotThereError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock, plain, read_clock, shortened, show_clock
from persistent_state.open_state import OpenState, OpenStore
from persistent_state.protocol.naming import kept_clock, listed_names
from persistent_state.store.asked import key_column, key_value
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import find_applications, find_task, nearest_clocks, no_application

APPLICATION, TASK, CLOCK, KEY, NULL = "application", "task", "clock", "key", "null"
"""The parameters of a look-up that are no key columns."""

RESERVED = (APPLICATION, TASK, CLOCK, KEY, NULL)

COLUMN = "key."
"""A prefix for the names of key columns, so that a column may have the name of another parameter."""

STATES = 64
"""The most states that are held open."""


@dataclass(frozen=True)
class Question:
    """A question for the value of a key.

    Attributes:
        application: The name of the application.
        task: The name of the task.
        clock: The clock, or the name of a kept one, as text; "" for the newest.
        columns: Key columns as text.
        key: The key as JSON instead: an object by columns, or the value of the only column; "" if it is not given so.
        nulls: The key columns that are null.
    """

    application: str
    task: str
    clock: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    nulls: Sequence[str] = ()


def read_question(parameters: Sequence[tuple[str, str]]) -> Question:
    """Return the question that the parameters of a URL ask.

    Raises:
        InvalidInputError: A parameter is missing, or given twice.
    """
    given: dict[str, str] = {}
    columns: dict[str, str] = {}
    for name, value in parameters:
        if name == NULL:
            continue
        place, own = (given, name) if name in RESERVED else (columns, name.removeprefix(COLUMN))
        if own in place:
            raise InvalidInputError(f"{name} is given twice; give it once.")
        place[own] = value
    if missing := [name for name in (APPLICATION, TASK) if not given.get(name)]:
        raise InvalidInputError(
            f"{' and '.join(missing)} {'are' if missing[1:] else 'is'} missing; add {missing[0]}=NAME to the URL."
        )
    nulls = [value for name, value in parameters if name == NULL]
    return Question(given[APPLICATION], given[TASK], given.get(CLOCK, "").strip(), columns, given.get(KEY, ""), nulls)


def parameters_of(query: bytes) -> list[tuple[str, str]]:
    """Return the parameters of a URL, in their order.

    Raises:
        InvalidInputError: They are not UTF-8.
    """
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidInputError(
            f"query={shortened(repr(query))} of the URL is not UTF-8; write each byte of a text's UTF-8 as %XX."
        ) from None


class Lookups:
    """Answers questions of many threads from one open store. States that were asked for stay open."""

    def __init__(self, store: OpenStore) -> None:
        self._store, self._lock = store, threading.Lock()
        self._logs: dict[str, tuple[Log, threading.Lock]] = {}
        self._states: OrderedDict[tuple[str, str, int, int], OpenState] = OrderedDict()

    def answer(self, question: Question) -> dict[str, Any]:
        """Return the answer as JSON knows it.

        Raises:
            NotThereError: There is no such application, task or clock.
            InvalidInputError: The key or the clock is not one, or the monoid of the task is not known.
            DamagedError: A file is not what was written.
            StoreRefusedError: The store refuses what it is asked.
            StoreUnavailableError: The store does not answer.
        """
        entry = self._newest(question.application)
        find_task(entry, question.application, question.task)
        clock = self._clock(entry, question)
        state = self._state(entry, question, clock)
        key = key_of(question, state.schema, state.state.key_columns)
        current = state.get(key)
        answer = {
            "application": question.application,
            "task": question.task,
            "clock": state.clock,
            "time": show_clock(state.clock),
            "timeline": state.timeline,
            "key": {
                name: plain(key_column(state.state, place, [value])[0])
                for place, (name, value) in enumerate(key.items())
            },
        }
        type = state.schema.field("value").type
        columns = state.state.layout.kind.window_columns
        if not columns:
            return {**answer, "value": _plain(current, type)}
        windows = [
            {
                **{name: show_clock(edge) for name, edge in zip(columns, edges, strict=True)},
                "value": _plain(value, type),
            }
            for edges, value in current.items()
        ]
        return {**answer, "windows": windows}

    def _newest(self, application: str) -> Entry:
        files = self._store.files
        with self._lock:
            shared = self._logs.get(application)
        if shared is None:
            if application not in find_applications(files):
                raise no_application(files, application)
            with self._lock:
                shared = self._logs.setdefault(application, (Log(files, application), threading.Lock()))
        log, lock = shared
        with lock:
            entry = log.newest()
        if entry is None:
            raise no_application(files, application)
        return entry

    def _clock(self, entry: Entry, question: Question) -> int:
        """Return the clock that a question names; by default the newest at which the task has a state."""
        newest = min(entry.clock, entry.flow_of(question.task).visited)
        if not question.clock:
            clock = newest
        elif (named := kept_clock(entry, question.clock)) is not None:
            clock = named
        else:
            try:
                clock = read_clock(question.clock)
            except InvalidInputError:
                raise NotThereError(
                    f"clock={question.clock!r} is not a time, and keeps no clock of {question.application}; give microseconds "
                    f"since 1970, ISO text such as 2013-01-31T12:00:00Z, where the + of a zone is written %2B, or the name of "
                    f"a kept clock; {listed_names(entry)}."
                ) from None
        if clock == BEGINNING:
            raise NotThereError(f"task={question.task} has no checkpoint yet; ask again when it has one.")
        if clock not in (*entry.readable, newest):
            near = nearest_clocks({*entry.readable, newest} - {BEGINNING}, clock)
            there = f"take {near}" if near else "no clock is kept yet"
            raise NotThereError(f"clock={full_clock(clock)} of {question.application} is not kept; {there}.")
        return clock

    def _state(self, entry: Entry, question: Question, clock: int) -> OpenState:
        # Each start has an epoch: a state of another start may be of another timeline, or the task was built again.
        place = (question.application, question.task, clock, entry.epoch)
        with self._lock:
            if (state := self._states.get(place)) is not None:
                self._states.move_to_end(place)
                return state
        state = self._store.application(question.application).task(question.task, presented=True).at(clock)
        with self._lock:
            self._states[place] = state
            while len(self._states) > STATES:
                self._states.popitem(last=False)
        return state


def key_of(question: Question, schema: pa.Schema, names: Sequence[str]) -> dict[str, Any]:
    """Return the key that a question names, by columns, as Python has the values.

    Raises:
        InvalidInputError: A column is missing, is not one of the key, or its text is not of its type.
    """
    types = {name: schema.field(name).type for name in names}
    given: dict[str, Any] = dict(question.columns)
    if question.key:
        if given or question.nulls:
            raise InvalidInputError("the key is given twice; give it as key=JSON, or by its columns.")
        given = _of_json(question.key, names)
    else:
        for name in question.nulls:
            given[name] = None
    listed = ", ".join(f"{name} ({type})" for name, type in types.items()) or "none"
    if unknown := sorted(given.keys() - types.keys()):
        raise InvalidInputError(
            f"{', '.join(unknown)} is no key column of task={question.task}; its key columns are {listed}."
        )
    if missing := [name for name in names if name not in given]:
        raise InvalidInputError(
            f"key column {', '.join(missing)} of task={question.task} is missing; its key columns are {listed}."
        )
    return {name: key_value(question.task, name, given[name], types[name]) for name in names}


def _of_json(text: str, names: Sequence[str]) -> dict[str, Any]:
    try:
        key = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInputError(f'key={text!r} is not JSON; write it as {{"column": "value"}}.') from None
    if isinstance(key, dict):
        return key
    if len(names) == 1:
        return {names[0]: key}
    raise InvalidInputError(f'key={text!r} is no object; write it as {{"column": "value"}}, with {", ".join(names)}.')


def _plain(value: Any, type: pa.DataType) -> Any:
    return plain(pa.scalar(value, type))
