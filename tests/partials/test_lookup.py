"""The current value of a key is the fold of all its rows, wherever they are, however runs are merged and cut."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Max, Monoid, Struct, Sum
from persistent_state.partials import fold
from persistent_state.partials.layout import CURRENT, Layout, below
from persistent_state.partials.lookup import add_current
from persistent_state.partials.unbounded import Unbounded
from tests.soak import soak_or

HASHES = (3, 2**40, 2**63, 2**63 + 1)
"""Few, so that keys share them."""


def a_table(chance: random.Random, layout: Layout, clock: int) -> pa.Table:
    """New partial sums, as they come out of a fold: one row for each key and interval."""
    rows = {}
    for _ in range(chance.randrange(1, 12)):
        key = chance.choice([None, *range(6)])
        start = chance.randrange(clock, clock + 4)
        value = chance.randrange(9)
        rows[HASHES[(key or 0) % len(HASHES)], key, start] = (
            value if layout.monoid.name == "Sum" else {"sum": value, "max": value}
        )
    made = [{"hash": h, "key0": k, "start": s, "value": v} for (h, k, s), v in rows.items()]
    return fold.fold([pa.Table.from_pylist(made, layout.schema)], layout)


@pytest.mark.parametrize("monoid", [Sum(), Struct(sum=Sum(), max=Max())], ids=repr)
@pytest.mark.soak
@settings(max_examples=soak_or(ci=40, soak=500))
@given(st.integers(0, 2**32))
def test_the_current_value_of_a_key_is_the_fold_of_its_rows(monoid: Monoid, seed: int) -> None:
    layout, chance = Layout((pa.int64(),), monoid, Unbounded()), random.Random(seed)
    levels: list[pa.Table] = []
    for batch in range(12):
        new = a_table(chance, layout, batch)
        with_it, now = add_current(new, levels, layout)
        assert with_it.drop_columns([CURRENT]).equals(new)
        rows = fold.fold_keys([*levels, new], layout)
        expected = {(row["hash"], row["key0"]): row["value"] for row in rows.to_pylist()}
        found = {(row["hash"], row["key0"]): row["value"] for row in now.to_pylist()}
        assert found == {(row["hash"], row["key0"]): expected[row["hash"], row["key0"]] for row in new.to_pylist()}
        assert now.num_rows == len(found)
        keep = chance.randrange(len(levels) + 1)
        levels[keep:] = [fold.fold([*levels[keep:], with_it], layout, [batch], batch, with_current=True)]
        said = Counter((row["hash"], row["key0"]) for row in levels[-1].to_pylist() if row[CURRENT] is not None)
        assert max(said.values()) == 1, "it stands at one row of a key"
        if chance.random() < 0.2:
            # As a start does it: the run that it cuts, and those after it, don't know what is current any more.
            first = chance.randrange(len(levels))
            levels[first:] = [below(level.select(layout.schema.names), batch + 2) for level in levels[first:]]
