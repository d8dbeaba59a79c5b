"""What many groups come to at once is what each comes to by itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.batch.groups import NO_ROWS, Groups

NAMES = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=30)


@given(NAMES, st.data())
def test_rows_of_groups(names: list[str], data: st.DataObject) -> None:
    count = len(names)
    values = np.array(data.draw(st.lists(st.integers(-(2**62), 2**63 - 1), min_size=count, max_size=count)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    groups = Groups.of_column(pa.array([name or None for name in names]))
    some = [name for name, kept in zip(names, mask, strict=True) if kept]
    assert groups.column(count).to_pylist() == [groups.name(row) for row in range(count)] == names
    assert sorted(groups.met(mask)) == sorted(set(some))
    picked = groups.take(mask)
    assert picked.column(len(some)).to_pylist() == some
    for name, top, least in zip(groups.names, picked.greatest(values[mask]), picked.least(values[mask]), strict=True):
        own = [value for value, of, kept in zip(values.tolist(), names, mask, strict=True) if of == name and kept]
        assert (top, least) == (max(own, default=NO_ROWS), min(own, default=2**63 - 1))
    rows, some, begins = groups.together(count)
    assert [names[row] for row in rows[begins]] == some == sorted(set(names), key=list(groups.names).index)
    assert rows.tolist() == sorted(range(count), key=lambda row: (groups.names.index(names[row]), row))


@pytest.mark.parametrize("values", [[], [3, 9, 5]])
def test_rows_of_one_group(values: list[int]) -> None:
    groups, count = Groups(["p"]), len(values)
    assert groups.column(count).to_pylist() == ["p"] * count
    assert groups.greatest(np.array(values, np.int64)) == [max(values, default=NO_ROWS)]
    assert groups.met(np.ones(count, np.bool_)) == (["p"] if values else [])
    rows, names, begins = groups.together(count)
    assert (rows.tolist(), names, begins.tolist()) == ([*range(count)], ["p"][:count], [0][:count])
