"""A state without bounds has the fold of all rows of a key, and its changes are of the keys with newer rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials.layout import below
from persistent_state.partials.since import Since
from tests.windows import CLOCKS, SENT, Sent, layout_of, shown, table

LAYOUT = layout_of(None)


@given(SENT, CLOCKS, CLOCKS, st.booleans())
def test_values_are_of_the_keys_that_changed_with_all_they_had(
    messages: list[Sent], before: int, clock: int, is_all: bool
) -> None:
    before, clock = sorted((before, clock))
    levels = [below(table(LAYOUT, messages[i::2], [before, clock]), clock) for i in range(2) if messages[i::2]]
    levels.append(LAYOUT.schema.empty_table())
    state: dict[int, int] = {}
    for key, time, value in messages:
        if time < clock:
            state[key] = state.get(key, 0) + value
    changed = {key for key, time, _ in messages if before <= time < clock}
    assert shown(LAYOUT.kind.state(levels, LAYOUT, clock)) == state
    assert shown(LAYOUT.kind.running(levels, LAYOUT, clock)) == state
    assert shown(LAYOUT.kind.values(levels, LAYOUT, Since(), clock, BEGINNING)) == state
    found = shown(LAYOUT.kind.values(levels, LAYOUT, Since(before, all=is_all), clock, BEGINNING))
    assert found == {key: value for key, value in state.items() if is_all or key in changed}


@pytest.mark.parametrize("changed", [1, 2])
def test_a_key_that_shares_its_hash_with_one_that_changed_is_not_given(changed: int) -> None:
    rows = [{"hash": 5, "key0": key, "start": 0, "value": 10 * key} for key in (1, 2)]
    more = [{"hash": 5, "key0": changed, "start": 10, "value": 1}]
    levels = [pa.Table.from_pylist(some, LAYOUT.schema) for some in (rows, more)]
    found = LAYOUT.kind.values(levels, LAYOUT, Since(10), 20, BEGINNING)
    assert shown(found) == {changed: 10 * changed + 1}
