"""What every monoid promises, as one property."""

from __future__ import annotations

import json
import operator
import pickle
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monoids import Group, Monoid

Same = Callable[[Any, Any], bool]


def check_laws(
    monoid: Monoid[Any], values: st.SearchStrategy[Any], same: Same = operator.eq, examples: int = 40
) -> None:
    """Fail with the name of a law that does not hold for some of these values (not None, as `from_arrow` gives them).

    same: what a law means by equal; == unless the monoid is not exact.
    """

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(values, min_size=3, max_size=9), st.data())
    def laws(updates: list[Any], data: st.DataObject) -> None:
        cuts = data.draw(st.sets(st.integers(1, len(updates) - 1)))
        _algebra(monoid, updates[0], updates[1], updates[2], same)
        _columns(monoid, updates)
        _reduction(monoid, updates, [0, *sorted(cuts)], same)

    assert json.loads(json.dumps(monoid.identity)) == monoid.identity, "identity: it is not JSON"
    laws()


def _algebra(monoid: Monoid[Any], a: Any, b: Any, c: Any, same: Same) -> None:
    plus, zero = _pure(monoid.plus), monoid.zero
    assert same(plus(zero, a), a), "identity: zero + a is not a"
    assert same(plus(a, zero), a), "identity: a + zero is not a"
    assert same(plus(plus(a, b), c), plus(a, plus(b, c))), "associativity"
    if monoid.commutative:
        assert same(plus(a, b), plus(b, a)), "commutativity"
    if isinstance(monoid, Group):
        minus = _pure(monoid.minus)
        assert same(minus(plus(a, b), b), a), "inverse: a + b - b is not a"
        assert same(plus(minus(a, b), b), a), "inverse: a - b + b is not a"


def _pure(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(a: Any, b: Any) -> Any:
        before = deepcopy((a, b))
        result = operation(*before)
        assert before == (a, b), "mutation: an argument was changed"
        return result

    return checked


def _columns(monoid: Monoid[Any], updates: list[Any]) -> None:
    column = monoid.to_arrow([*updates, None])
    column.validate(full=True)
    assert column.type == monoid.type, "type: to_arrow gives another"
    back = monoid.from_arrow(column)
    assert len(back) == len(updates) + 1, "round trip: rows are lost"
    assert back[-1] is None, "round trip: None is no update"
    assert all(map(operator.eq, back, updates)), "round trip"
    assert monoid.from_arrow(column[1:]) == back[1:], "round trip: of a slice"
    assert monoid.to_arrow(back).equals(column), "round trip: equal values are not equal columns"
    again, bad = monoid.cast(column[1:])
    assert again.equals(column[1:]), "cast: a column of the monoid's own type is changed"
    assert not bad.any(), "cast: a value of the monoid's own type is bad"
    assert monoid.accepts(monoid.type), "cast: the monoid's own type is not accepted"


def _reduction(monoid: Monoid[Any], updates: list[Any], starts: list[int], same: Same) -> None:
    expected = [reduce(monoid.plus, updates[i:j]) for i, j in pairwise([*starts, len(updates)])]
    column = monoid.to_arrow(updates)
    # Rows before and after must not get in: what is reduced is often a slice.
    longer = pa.concat_arrays([column[1:], column, column[:-1]])
    for values in (column, longer[len(column) - 1 :][: len(column)]):
        reduced = monoid.reduce(values, np.array(starts, np.int64))
        reduced.validate(full=True)
        assert reduced.type == monoid.type, "reduce: the type is another"
        assert len(reduced) == len(starts), "reduce: not one row per segment"
        assert _all_same(same, monoid.from_arrow(reduced), expected), "reduce: not the fold of plus"
        if monoid.exact:
            assert reduced.equals(monoid.to_arrow(expected)), "reduce: equal values are not equal columns"
    whole = np.zeros(1, np.int64)
    in_two_steps = monoid.reduce(reduced, whole)
    assert _all_same(same, monoid.from_arrow(in_two_steps), [reduce(monoid.plus, updates)]), "reduce: of sums"
    nothing = monoid.reduce(monoid.to_arrow([]), np.zeros(0, np.int64))
    assert len(nothing) == 0, "reduce: something of nothing"
    assert nothing.type == monoid.type, "reduce: the type of nothing"


def _all_same(same: Same, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def pickled(monoid: Monoid[Any]) -> Monoid[Any]:
    """The monoid as another process gets it."""
    copy: Monoid[Any] = pickle.loads(pickle.dumps(monoid))
    return copy
