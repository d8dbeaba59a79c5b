"""Read the options of the data source `persistent-state`. Each wrong one is a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from monoids import Aggregator, Monoid
from persistent_state.engine.data_source.named_state import NamedState
from persistent_state.errors import InvalidInputError, raised
from persistent_state.formatting import read_clock, shortened

STATE, CHANGES, LATE = "state", "changes", "late"
LISTS = ("applications", "tasks", "clocks", "outputs")

LATEST = "latest"
"""The `startClock` of a stream that begins with what comes after it was started."""

STORAGE = "storage."

OPTIONS: Mapping[str, tuple[str, ...]] = {
    STATE: ("application", "task", "clock", "key", "pushFilters", "presented", "monoids"),
    CHANGES: ("application", "task", "changes", "startClock", "endClock", "presented", "monoids"),
    LATE: ("application", "task", "late"),
    "applications": ("list",),
    **dict.fromkeys(LISTS[1:], ("application", "list")),
}
"""By what is read: the options that say which."""

NAMES = {name.lower(): name for names in OPTIONS.values() for name in names}
"""Spark hands every name on in lower case."""


@dataclass(frozen=True)
class SourceOptions:
    """The wishes of a user of the data source, in plain values that go to any process.

    `clock` is that of a state, or the last one of changes; the state is `named` once it is settled. `start` is the clock after
    which changes are asked for: a clock, `LATEST`, or None for all from nothing on. `is_ended` says that the last one is given.
    """

    store: str
    what: str
    storage: Mapping[str, Any] = field(repr=False)
    application: str = ""
    task: str = ""
    clock: int | None = None
    named: NamedState | None = None
    start: int | str | None = None
    is_ended: bool = False
    keys: tuple[Mapping[str, Any], ...] | None = None
    push_filters: bool = False
    presented: bool = False
    monoids: tuple[str, ...] = ()

    def found_monoids(self) -> tuple[Monoid[Any] | Aggregator[Any, Any, Any], ...]:
        """Return the monoids and aggregators that the option `monoids` names.

        Raises:
            InvalidInputError: One is missing, or is not valid.
        """
        return tuple(map(_imported, self.monoids))


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """Return what the options ask for.

    Raises:
        InvalidInputError: An option is missing, is not known, has a wrong value, or says nothing beside another.
    """
    texts = {name.lower(): text for name, text in given.items()}
    storage = {name[len(STORAGE) :]: _storage(text) for name, text in texts.items() if name.startswith(STORAGE)}
    store = texts.pop("path", None)
    if store is None or texts.pop("paths", None) is not None:
        raise InvalidInputError("path=... is not one store; name its folder or URL, as in load('s3://bucket/apps').")
    own = {name: text for name, text in texts.items() if not name.startswith(STORAGE)}
    for name in own:
        _check_name(name)
    what = _what(own)
    for name in own:
        if NAMES[name] not in OPTIONS[what]:
            known = ", ".join(OPTIONS[what])
            raise InvalidInputError(f"{NAMES[name]}=... says nothing of {_named(what)}; leave it out, of {known}.")
    if what in (STATE, CHANGES, LATE):
        for name in ("application", "task"):
            if not own.get(name):
                raise InvalidInputError(
                    f"{name}=... is missing; name one, as in .option({name!r}, ...). "
                    f".option('list', '{name}s') lists all."
                )
    return SourceOptions(
        store,
        what,
        storage,
        application=own.get("application", ""),
        task=own.get("task", ""),
        clock=_value(own, "endClock" if what == CHANGES else "clock", read_clock),
        is_ended="endclock" in own,
        start=_value(own, "startClock", lambda text: LATEST if text.lower() == LATEST else read_clock(text)),
        keys=_value(own, "key", _keys),
        push_filters=_flag(own, "pushFilters"),
        presented=_flag(own, "presented"),
        monoids=tuple(name.strip() for name in own.get("monoids", "").split(",") if name.strip()),
    )


def _check_name(name: str) -> None:
    if name not in NAMES:
        near = get_close_matches(name, NAMES, 1)
        way = (
            f"write {NAMES[near[0]]}, if that is meant"
            if near
            else f"there are {', '.join(NAMES.values())}, {STORAGE}NAME"
        )
        raise InvalidInputError(f"option {name!r} is not one of the data source persistent-state; {way}.")


def _what(own: Mapping[str, str]) -> str:
    """Return what is to be read."""
    asked = [name for name in (CHANGES, LATE) if _flag(own, name)]
    if "list" in own:
        if own["list"].lower() not in LISTS:
            raise InvalidInputError(f"list={own['list']!r} is not a list; take one of {', '.join(LISTS)}.")
        asked.append(own["list"].lower())
    if len(asked) > 1:
        raise InvalidInputError(f"{' and '.join(map(_named, asked))} are asked for at once; read them one by one.")
    return asked[0] if asked else STATE


def _named(what: str) -> str:
    """Return how people name what is read."""
    named = {STATE: "a state", CHANGES: "changes=true", LATE: "late=true"}
    return named.get(what, f"list={what}")


def _value(own: Mapping[str, str], name: str, read: Callable[[str], Any]) -> Any:
    text = own.get(name.lower())
    if text is None:
        return None
    try:
        return read(text)
    except InvalidInputError as error:
        # The sentence begins with the name of an argument.
        told = f"{name}={str(error).partition('=')[2]}"
        raise InvalidInputError(told) from None


def _flag(own: Mapping[str, str], name: str) -> bool:
    given = own.get(name.lower(), "false")
    text = given.lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"{name}={given!r} is neither true nor false; give one of both.")
    return text == "true"


def _keys(text: str) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    keys = found if isinstance(found, list) else [found]
    if not all(isinstance(key, dict) for key in keys):
        raise InvalidInputError(
            f"key={shortened(repr(text))} is not a JSON object, nor a list of some; write a key by the names of its columns, "
            'as in {"shop": "Oslo", "item": 7}.'
        )
    return tuple(keys)


def _storage(text: str) -> Any:
    """Return the value of a storage option. A number stays a text, since an access key may look like one."""
    if text in ("true", "false", "null") or text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _imported(name: str) -> Monoid[Any] | Aggregator[Any, Any, Any]:
    """Return the monoid or aggregator of this name: MODULE:NAME. A class is called."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
        found = found() if isinstance(found, type) else found
    except Exception as error:
        raise InvalidInputError(
            f"monoids={name!r} can't be imported: {raised(error)}; write MODULE:NAME, of a module that Spark's Python can "
            "import."
        ) from error
    if not isinstance(found, (Monoid, Aggregator)):
        raise InvalidInputError(f"monoids={name!r} is neither a monoid nor an aggregator; name one.")
    return found
