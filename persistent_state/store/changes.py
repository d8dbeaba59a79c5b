"""Kinds of values in a log entry: each as JSON, whole or as what changed since the entry before.

A change names only what is new. What is the same object before and after costs a comparison, and is not written.
`docs/format.md` describes the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias

Json: TypeAlias = Any


class Kind(Protocol):
    """A kind of values. A change is written only if the value is another than before."""

    def to_json(self, value: Any) -> Json:
        """Return the value, whole."""

    def from_json(self, json: Json) -> Any:
        """Return the value of this JSON."""

    def change(self, before: Any, after: Any) -> Json:
        """Return what changed."""

    def changed(self, before: Any, json: Json) -> Any:
        """Return the value after this change."""


@dataclass(frozen=True)
class Plain:
    """Values that are written whole whenever they change."""

    to_json: Callable[[Any], Json] = lambda value: value
    from_json: Callable[[Json], Any] = lambda json: json

    def change(self, before: Any, after: Any) -> Json:
        return self.to_json(after)

    def changed(self, before: Any, json: Json) -> Any:
        return self.from_json(json)


@dataclass(frozen=True)
class Named:
    """Values of one kind by name. A change has the names whose values changed; null for a name that is gone."""

    kind: Kind

    def to_json(self, value: Mapping[str, Any]) -> Json:
        return {name: self.kind.to_json(each) for name, each in value.items()}

    def from_json(self, json: Json) -> dict[str, Any]:
        return {name: self.kind.from_json(each) for name, each in json.items()}

    def change(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Json:
        change = {
            name: self.kind.change(before[name], each) if name in before else self.kind.to_json(each)
            for name, each in after.items()
            if name not in before or is_other(before[name], each)
        }
        return change | dict.fromkeys(before.keys() - after.keys())

    def changed(self, before: Mapping[str, Any], json: Json) -> dict[str, Any]:
        after = {name: each for name, each in before.items() if json.get(name, each) is not None}
        for name, each in json.items():
            if each is not None:
                after[name] = self.kind.changed(before[name], each) if name in before else self.kind.from_json(each)
        return after


@dataclass(frozen=True)
class ByClock:
    """Values of one kind by clock, ascending. In the JSON a clock is text, as each name is."""

    kind: Kind

    def to_json(self, value: Mapping[int, Any]) -> Json:
        return Named(self.kind).to_json(_by_text(value))

    def from_json(self, json: Json) -> dict[int, Any]:
        return _by_clock(Named(self.kind).from_json(json))

    def change(self, before: Mapping[int, Any], after: Mapping[int, Any]) -> Json:
        return Named(self.kind).change(_by_text(before), _by_text(after))

    def changed(self, before: Mapping[int, Any], json: Json) -> dict[int, Any]:
        return _by_clock(Named(self.kind).changed(_by_text(before), json))


def _by_text(value: Mapping[int, Any]) -> dict[str, Any]:
    return {str(clock): each for clock, each in value.items()}


def _by_clock(value: Mapping[str, Any]) -> dict[int, Any]:
    return dict(sorted((int(clock), each) for clock, each in value.items()))


@dataclass(frozen=True)
class Listed:
    """Lists of values. A change is [i, j, new]: the items from number i up to j stay, and the new ones come after them."""

    kind: Kind

    def to_json(self, value: Sequence[Any]) -> Json:
        return [self.kind.to_json(each) for each in value]

    def from_json(self, json: Json) -> tuple[Any, ...]:
        return tuple(self.kind.from_json(each) for each in json)

    def change(self, before: Sequence[Any], after: Sequence[Any]) -> Json:
        begin = next((i for i, each in enumerate(before) if after and each == after[0]), len(before))
        stay = min(len(before) - begin, len(after))
        if before[begin : begin + stay] != after[:stay]:
            stay = next(i for i in range(stay) if before[begin + i] != after[i])
        return [begin, begin + stay, self.to_json(after[stay:])]

    def changed(self, before: Sequence[Any], json: Json) -> tuple[Any, ...]:
        begin, end, new = json
        return (*before[begin:end], *self.from_json(new))


@dataclass(frozen=True)
class Numbered(Listed):
    """Lists of values that change one by one. A change has those that changed, by number.

    It is the whole list if that is longer or shorter than before.
    """

    def change(self, before: Sequence[Any], after: Sequence[Any]) -> Json:
        if len(before) != len(after):
            return self.to_json(after)
        pairs = enumerate(zip(before, after, strict=True))
        return {str(number): self.kind.change(was, now) for number, (was, now) in pairs if is_other(was, now)}

    def changed(self, before: Sequence[Any], json: Json) -> tuple[Any, ...]:
        if isinstance(json, list):
            return self.from_json(json)
        after = [*before]
        for number, each in json.items():
            after[int(number)] = self.kind.changed(before[int(number)], each)
        return tuple(after)


@dataclass(frozen=True)
class Record:
    """Values of a class, by field. A change has the fields that changed.

    `what` names the class in messages. A record lacks a field of `added` where the field has the value that stands there.
    """

    what: str
    made: Callable[..., Any]
    fields: Mapping[str, Kind]
    added: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self, value: Any) -> Json:
        return lean({name: kind.to_json(getattr(value, name)) for name, kind in self.fields.items()}, self.added)

    def from_json(self, json: Json) -> Any:
        json = {**self.added, **json}
        self._check(json)
        return self.made(**{name: kind.from_json(json[name]) for name, kind in self.fields.items()})

    def change(self, before: Any, after: Any) -> Json:
        values = ((name, kind, getattr(before, name), getattr(after, name)) for name, kind in self.fields.items())
        return {name: kind.change(was, now) for name, kind, was, now in values if is_other(was, now)}

    def changed(self, before: Any, json: Json) -> Any:
        self._check(json)
        return replace(
            before, **{name: self.fields[name].changed(getattr(before, name), each) for name, each in json.items()}
        )

    def _check(self, json: Json) -> None:
        all_read(self.what, json.keys() - self.fields.keys())


@dataclass(frozen=True)
class Recast(Record):
    """Values that are written by other fields: `recast` makes these of a value, and `made` the value of them."""

    recast: Callable[[Any], SimpleNamespace] = field(kw_only=True)

    def to_json(self, value: Any) -> Json:
        return super().to_json(self.recast(value))

    def change(self, before: Any, after: Any) -> Json:
        return super().change(self.recast(before), self.recast(after))

    def changed(self, before: Any, json: Json) -> Any:
        self._check(json)
        fields = vars(self.recast(before))
        return self.made(
            **fields | {name: self.fields[name].changed(fields[name], each) for name, each in json.items()}
        )


@dataclass(frozen=True)
class Parted:
    """Values of a class of which some attributes are records too. In the JSON the fields of all stand side by side."""

    own: Record
    parts: Mapping[str, Record]

    def to_json(self, value: Any) -> Json:
        record = {name: kind.to_json(getattr(value, name)) for name, kind in self.own.fields.items()}
        for name, part in self.parts.items():
            record |= part.to_json(getattr(value, name))
        return lean(record, self.own.added)

    def from_json(self, json: Json) -> Any:
        json = {**self.own.added, **json}
        parts = {name: part.from_json(_taken(json, part)) for name, part in self.parts.items()}
        own = {name: kind.from_json(json.pop(name)) for name, kind in self.own.fields.items()}
        all_read(self.own.what, json)
        return self.own.made(**own, **parts)

    def change(self, before: Any, after: Any) -> Json:
        change = self.own.change(before, after)
        for name, part in self.parts.items():
            if (was := getattr(before, name)) is not (now := getattr(after, name)):
                change |= part.change(was, now)
        return change

    def changed(self, before: Any, json: Json) -> Any:
        json = dict(json)
        parts = {name: part.changed(getattr(before, name), _taken(json, part)) for name, part in self.parts.items()}
        return replace(self.own.changed(before, json), **parts)


def _taken(json: Json, part: Record) -> Json:
    """Take the fields of a part out of the JSON."""
    return {name: json.pop(name) for name in part.fields if name in json}


def lean(record: Json, added: Mapping[str, Json]) -> Json:
    """Return the record without the added fields that have their defaults."""
    return {name: value for name, value in record.items() if name not in added or value != added[name]}


class UnknownFieldError(Exception):
    """A field that this version does not know."""


def all_read(what: str, left: Collection[str]) -> None:
    """Refuse a record that has more fields than were read."""
    if left:
        raise UnknownFieldError(f"{', '.join(sorted(left))} in a {what}")


def is_other(before: Any, after: Any) -> bool:
    """Return True if a value changed."""
    return before is not after and before != after
