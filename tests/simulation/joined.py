"""Joins of a world: what must become of the rows of their two inputs, by loops over all of them.

To the oracle a join is an ordered task whose state and rows are these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from persistent_state.edges.joins.as_of import AsOfJoin
from persistent_state.edges.joins.interval import Bounds, IntervalJoin
from persistent_state.edges.joins.join import Join
from persistent_state.edges.joins.pair import IS_RIGHT, SHARED
from tests.core import us
from tests.simulation.messages import SCHEMA, UNFIT_VALUE, Sent, batch_of, input_of
from tests.simulation.ordered import Given, Kept, Ordered, Outcome
from tests.simulation.source import Several

LEFT, RIGHT = "a", "b"
"""The inputs."""


@dataclass(frozen=True)
class Joining(Ordered):
    """A join of two inputs of these `sources`, by `bounds`, or as of a time without them. `ttl` is the tolerance then."""

    sources: Several | None = None
    bounds: Bounds | None = None

    @property
    def mark(self) -> str:
        """A column of the right that may be null."""
        return f"{RIGHT}_v"

    @property
    def back(self) -> int:
        return 0 if self.bounds is None else self.bounds.back

    def task(self) -> Join:
        keys = self.keys or None
        if self.bounds is None:
            tolerance = None if self.ttl is None else us(self.ttl)
            return AsOfJoin(LEFT, RIGHT, key=keys, tolerance=tolerance, name=self.name)
        before, after, how = us(self.bounds.before), us(self.bounds.after), "left" if self.bounds.has_all else "inner"
        return IntervalJoin(LEFT, RIGHT, before, after, key=keys, how=how, name=self.name)

    def given(self, sent: Sent) -> Given:
        # A channel is called otherwise among those of all inputs.
        assert self.sources is not None
        assert sent.timestamp is not None
        input = input_of(sent.partition)
        own = self.sources.of(input).messages[sent.partition.removeprefix(f"{input}:")][sent.position]
        return Given(sent.timestamp, input, 0, batch_of([own]).to_pylist()[0])

    def waiting(self, key: tuple[Any, ...], timestamp: int, value: Mapping[str, Any]) -> Given:
        input = RIGHT if value[IS_RIGHT] else LEFT
        beside = {**dict(zip(self.keys, key, strict=True)), "ts": timestamp}
        # Where rows leave at once, columns of both inputs share a place.
        places = {name: f"{input}.{name}" if self.bounds else f"{name}{SHARED}{name}" for name in SCHEMA.names}
        row = {name: beside[name] if name in beside else value[place] for name, place in places.items()}
        return Given(timestamp, input, 0, row)

    def updates_of(self, sent: Sent) -> list[Sent] | None:
        return None if sent.value == UNFIT_VALUE else [sent]

    def outcome(self, key: tuple[Any, ...], messages: Iterable[Given], upto: int) -> Outcome:
        messages = [*messages]
        lefts = [message for message in messages if message.input == LEFT]
        rights = [message for message in messages if message.input == RIGHT]
        found = Outcome()
        if self.bounds is not None:
            self._join_near(found, lefts, rights, self.bounds, upto)
            return found
        for left in lefts:
            older = [right for right in rights if right.timestamp <= left.timestamp]
            right = older[-1] if older else None
            if right and self.ttl is not None and right.timestamp < left.timestamp - self.ttl:
                right = None
                found.calls["too old"] += 1
            found.calls["as of" if right else "none before"] += 1
            found.rows.append((left.timestamp, None, self._row(left, right)))
        if rights:
            found.kept = Kept(rights[-1].row, frozenset(), rights[-1].timestamp)
        return found

    def _join_near(self, found: Outcome, lefts: list[Given], rights: list[Given], bounds: Bounds, upto: int) -> None:
        for left in lefts:
            low, high = left.timestamp - bounds.before, left.timestamp + bounds.after
            near = [right for right in rights if low <= right.timestamp <= high]
            # Of those that will come, none is near enough to what the clock has passed.
            found.rows += [(max(left.timestamp, right.timestamp), None, self._row(left, right)) for right in near]
            found.calls.update("near, older" if right.timestamp < left.timestamp else "near" for right in near)
            if bounds.has_all and not near and high < upto:
                found.calls["none near"] += 1
                found.rows.append((high, None, self._row(left, None)))
        found.rows.sort(key=lambda row: row[0])

    def _row(self, left: Given, right: Given | None) -> Mapping[str, Any]:
        assert left.row is not None
        more = {name: None if right is None or right.row is None else right.row[name] for name in SCHEMA.names}
        named = {f"{RIGHT}_{name}": value for name, value in more.items() if name not in self.keys}
        return {**left.row, **named}
