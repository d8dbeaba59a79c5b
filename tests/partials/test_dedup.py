"""Of the messages of a key with one id the first counts, as in plain Python."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import keys
from persistent_state.partials.dedup import without_copies
from persistent_state.partials.fold import fold, fold_keys
from persistent_state.partials.layout import Once
from tests.windows import layout_of


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(1, 99), st.sampled_from([None, 1, 2])),
            min_size=1,
            max_size=8,
        ),
        max_size=4,
    ),
    st.integers(1, 30),
)
def test_copies_are_those_of_plain_python(batches: list[list[tuple[int, int, int, int | None]]], horizon: int) -> None:
    layout = layout_of(None, once=Once(pa.int64(), horizon))
    accepted: list[tuple[int, int, int, int | None]] = []
    levels: list[pa.Table] = []
    for batch in batches:
        columns = list(zip(*batch, strict=True))
        key, times, values, ids = (pa.array(column, pa.int64()) for column in columns)
        hash = pa.array(keys.hash_keys([key], len(batch)))
        parts = [hash, key, times, ids, times, values]
        rows = pa.table(parts, names=["hash", "key0", "start", "id", "time", "value"]).select(layout.schema.names)
        kept, copies = without_copies([rows], levels, layout)
        levels.append(fold([kept], layout, ids_from=BEGINNING))
        counted = 0
        for message in sorted(batch, key=lambda m: m[1]):
            same = [m for m in accepted if (m[0], m[3]) == (message[0], message[3])]
            if message[3] is None or all(abs(m[1] - message[1]) > horizon for m in same):
                accepted.append(message)
            else:
                counted += 1
        assert copies == counted
    sums: Counter[int] = Counter()
    for key_of, _, n, _ in accepted:
        sums[key_of] += n
    table = fold_keys([*levels, layout.schema.empty_table()], layout)
    assert dict(zip(table["key0"].to_pylist(), table["value"].to_pylist(), strict=True)) == sums
