"""The laws of monoids as tests: one line in a pytest file checks any of them.

    from monoids.laws import monoid_laws

    test_laws = monoid_laws(MyMonoid(), st.integers())

Needs hypothesis and pytest, which the extra `laws` brings.
"""

from __future__ import annotations

import inspect
import json
import operator
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from monoids.base import Group, Monoid, Semigroup

try:
    import pytest
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(f"package={error.name!r} is missing; pip install 'persistent-state[laws]'.") from None

T = TypeVar("T")

Same = Callable[[Any, Any], bool]
Term = Callable[[Any, Any, Any], Any]


class LawBroken(AssertionError):
    """A law that does not hold, with the values for which it does not."""


def monoid_laws(
    monoid: Semigroup[T], values: st.SearchStrategy[T] | None = None, *, same: Same | None = None, examples: int = 100
) -> Callable[[str], None]:
    """Return a test of a monoid, semigroup or group for pytest, with a case for each law that it must keep.

    values: what its values are, None left out; None: those of `monoids.strategies`, which knows the monoids of this package.
    same: when two values are the same; `monoid.near` unless said, which for an exact monoid is ==.
    """
    laws = {law.name: law for law in LAWS if law.applies(monoid)}

    @pytest.mark.parametrize("law", laws)
    def test(law: str) -> None:
        _check(laws[law], monoid, values, same, examples)

    return test


def check_laws(
    monoid: Semigroup[T], values: st.SearchStrategy[T] | None = None, *, same: Same | None = None, examples: int = 100
) -> None:
    """Check all laws of a monoid at once.

    Raises:
        LawBroken: the first of them that does not hold.
    """
    for law in LAWS:
        if law.applies(monoid):
            _check(law, monoid, values, same, examples)


@dataclass(frozen=True)
class Subject:
    """The subject of a law: a monoid, some of its values, the starts of segments of them, and when two are equal."""

    monoid: Any
    values: list[Any]
    starts: list[int]
    same: Same

    def must(self, truth: bool, counterexample: str) -> None:
        if not truth:
            letters = [f"{letter}={value!r}" for letter, value in zip("abcdefghi", self.values, strict=False)]
            raise LawBroken(f"{counterexample} for {', '.join(letters)}")

    def equal(self, left: str, ours: Term, right: str, theirs: Term) -> None:
        """Raise LawBroken if two terms in the first three values, a, b and c, differ."""
        one, other = (term(*deepcopy(self.values[:3])) for term in (ours, theirs))
        self.must(self.same(one, other), f"{left} = {one!r}, {right} = {other!r}")


@dataclass(frozen=True)
class Law:
    """A law that every monoid of a kind must keep."""

    name: str
    of: type
    check: Callable[[Subject], None]
    of_groups: bool = False

    def applies(self, monoid: Any) -> bool:
        """Return whether the monoid must keep the law."""
        return isinstance(monoid, self.of) and (not self.of_groups or bool(getattr(monoid, "is_group", False)))


def _check(law: Law, monoid: Any, values: Any, same: Same | None, examples: int) -> None:
    if values is None:
        from monoids import strategies

        values = strategies.values(monoid)

    @settings(max_examples=examples, deadline=None, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
    @given(st.lists(values, min_size=3, max_size=9), st.data())
    def holds(drawn: list[Any], data: st.DataObject) -> None:
        cuts = data.draw(st.sets(st.integers(1, len(drawn) - 1)))
        try:
            law.check(Subject(monoid, drawn, [0, *sorted(cuts)], same or monoid.near))
        except LawBroken as broken:
            raise LawBroken(f"{monoid!r} breaks the law of {law.name}: {broken}") from None

    holds()


def _associativity(subject: Subject) -> None:
    plus = subject.monoid.plus
    subject.equal(
        *("plus(plus(a, b), c)", lambda a, b, c: plus(plus(a, b), c)),
        *("plus(a, plus(b, c))", lambda a, b, c: plus(a, plus(b, c))),
    )


def _identity(subject: Subject) -> None:
    plus, monoid = subject.monoid.plus, subject.monoid
    subject.equal("plus(zero, a)", lambda a, b, c: plus(monoid.zero, a), "a", lambda a, b, c: a)
    subject.equal("plus(a, zero)", lambda a, b, c: plus(a, monoid.zero), "a", lambda a, b, c: a)


def _commutativity(subject: Subject) -> None:
    plus = subject.monoid.plus
    if subject.monoid.commutative:
        subject.equal("plus(a, b)", lambda a, b, c: plus(a, b), "plus(b, a)", lambda a, b, c: plus(b, a))


def _inverse(subject: Subject) -> None:
    plus, minus = subject.monoid.plus, subject.monoid.minus
    subject.equal("minus(plus(a, b), b)", lambda a, b, c: minus(plus(a, b), b), "a", lambda a, b, c: a)
    subject.equal("plus(minus(a, b), b)", lambda a, b, c: plus(minus(a, b), b), "a", lambda a, b, c: a)


def _inverses(subject: Subject) -> None:
    monoid = subject.monoid
    values = monoid.to_arrow(subject.values)
    inverses = monoid.from_arrow(monoid.inverses(values))
    for value, inverse in zip(monoid.from_arrow(values), inverses, strict=True):
        total = monoid.plus(value, inverse)
        subject.must(
            monoid.near(total, monoid.zero), f"plus({value!r}, {inverse!r}), its inverse, is {total!r}, not the zero"
        )


def _no_mutation(subject: Subject) -> None:
    operations = {name: getattr(subject.monoid, name, None) for name in ("plus", "minus")}
    for name, operation in operations.items():
        a, b = deepcopy(subject.values[:2])
        if operation is not None:
            operation(a, b)
            left, right = subject.values[:2]
            subject.must((a, b) == (left, right), f"{name}(a, b) made a={a!r}, b={b!r} of its arguments")


def _round_trip(subject: Subject) -> None:
    monoid, values = subject.monoid, subject.values
    column = monoid.to_arrow([*values, None])
    column.validate(full=True)
    subject.must(column.type == monoid.type, f"to_arrow makes a column of {column.type}, not of {monoid.type},")
    back = monoid.from_arrow(column)
    subject.must(len(back) == len(values) + 1, f"from_arrow(to_arrow(values)) has {len(back)} rows")
    subject.must(back[-1] is None, "from_arrow does not give None for null")
    subject.must(all(map(operator.eq, back, values)), f"from_arrow(to_arrow(values)) = {back[:-1]!r}")
    subject.must(monoid.from_arrow(column[1:]) == back[1:], "from_arrow of a slice is another")
    subject.must(monoid.to_arrow(back).equals(column), "equal values are not equal columns")


def _cast(subject: Subject) -> None:
    monoid = subject.monoid
    column = monoid.to_arrow([*subject.values, None])[1:]
    subject.must(monoid.accepts(monoid.type), "cast does not take columns of the monoid's own type")
    again, bad = monoid.cast(column)
    subject.must(again.equals(column) and not bad.any(), "cast changes a column of the monoid's own type")


def _reduction(subject: Subject) -> None:
    monoid, values, starts = subject.monoid, subject.values, subject.starts
    folded = [reduce(monoid.plus, deepcopy(values[i:j])) for i, j in pairwise([*starts, len(values)])]
    column = monoid.to_arrow(values)
    # Rows before and after must not get in: what is reduced is often a slice.
    longer = pa.concat_arrays([column[1:], column, column[:-1]])
    for rows in (column, longer[len(column) - 1 :][: len(column)]):
        reduced = monoid.reduce(rows, np.array(starts, np.int64))
        reduced.validate(full=True)
        subject.must(reduced.type == monoid.type, f"reduce makes a column of {reduced.type}, not of {monoid.type},")
        sums = monoid.from_arrow(reduced)
        like = len(sums) == len(folded) and all(map(subject.same, sums, folded))
        subject.must(like, f"reduce(values, {starts}) = {sums!r}, the fold of plus is {folded!r}")
        if monoid.exact:
            subject.must(reduced.equals(monoid.to_arrow(folded)), "reduce makes unequal columns of equal values")
    (total,) = monoid.from_arrow(monoid.reduce(reduced, np.zeros(1, np.int64)))
    whole = reduce(monoid.plus, deepcopy(values))
    subject.must(subject.same(total, whole), f"reduce of sums = {total!r}, the fold of plus is {whole!r}")


def _of_nothing(subject: Subject) -> None:
    monoid = subject.monoid
    nothing = monoid.reduce(monoid.to_arrow([]), np.zeros(0, np.int64))
    subject.must(len(nothing) == 0 and nothing.type == monoid.type, "reduce of no rows is no column of no rows")


def _declared(subject: Subject) -> None:
    """Check that a store can hold name, parameters and type, and that other monoids of its class have others."""
    monoid = subject.monoid
    identity = monoid.identity
    try:
        kept = json.loads(json.dumps(identity))
    except TypeError:
        kept = None
    subject.must(kept == identity, f"identity={identity!r} is not JSON")
    # Two monoids of one identity share a store: what their class was made with must be in it.
    for name in inspect.signature(type(monoid)).parameters.keys() - set(dir(Monoid)):
        given = vars(monoid).get(name, vars(monoid).get(f"_{name}"))
        is_there = not isinstance(given, (bool, int, float, str)) or given in _leaves(monoid.parameters)
        subject.must(is_there, f"parameters={monoid.parameters!r} lack {name}={given!r}, and the identity is the same")


def _leaves(value: Any) -> list[Any]:
    """Return the numbers and texts in a value of JSON."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else None
    return [value] if parts is None else [leaf for part in parts for leaf in _leaves(part)]


LAWS = (
    Law("associativity", Semigroup, _associativity),
    Law("identity", Monoid, _identity),
    Law("commutativity", Semigroup, _commutativity),
    Law("inverse", Group, _inverse),
    Law("no mutation", Semigroup, _no_mutation),
    Law("round trip", Semigroup, _round_trip),
    Law("cast", Semigroup, _cast),
    Law("reduction", Semigroup, _reduction),
    Law("reduction of nothing", Semigroup, _of_nothing),
    Law("declaration", Semigroup, _declared),
    Law("inverses of a column", Monoid, _inverses, of_groups=True),
)
"""Every law, and of what it is one."""
