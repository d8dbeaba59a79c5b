"""The bytes of rows are known without copying them, and more than Arrow holds is refused with a sentence."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state import TaskFailedError
from persistent_state.partials import sizes
from persistent_state.partials.layout import one_chunk

COLUMNS = {
    "text": pa.array(["a", None, "long" * 50, "", "b"]),
    "bytes": pa.array([b"", b"ab" * 99, None, b"c", b""]),
    "numbers": pa.array([1, 2, None, 4, 5]),
    "lists": pa.array([[1, 2], [], None, list(range(99)), [3]]),
    "lists of text": pa.array([["a" * 99], [], None, ["b", "c"], []]),
    "maps": pa.array([[("a", 1)], [], None, [("b" * 99, 2), ("c", 3)], []], pa.map_(pa.string(), pa.int64())),
    "structs": pa.array([{"n": 1, "t": "a" * 300}, None, {"n": 2, "t": ""}, {"n": 3, "t": "b"}, {"n": 4, "t": "c"}]),
    "flags": pa.array([True, False, None, True, True]),
}


@given(st.sampled_from(sorted(COLUMNS)), st.integers(0, 4), st.integers(0, 5), st.integers(0, 5))
def test_the_bytes_of_rows_are_known_from_their_offsets(name: str, first: int, low: int, high: int) -> None:
    column = COLUMNS[name].slice(first)
    low, high = sorted((min(low, len(column)), min(high, len(column))))
    batch = pa.record_batch({"column": column})
    (found,) = sizes.of_ranges(batch, np.array([low]), np.array([high])).tolist()
    # Arrow counts the bits of nulls and flags, and one offset more.
    assert abs(found - batch.slice(low, high - low).nbytes) <= 8 * (high - low) + 24


def test_more_than_arrow_holds_is_refused_with_a_sentence() -> None:
    overflow = pa.ArrowInvalid("offset overflow while concatenating arrays, consider casting input")
    column = pa.chunked_array([["a"], ["b"]])
    with (
        mock.patch.object(sizes.pa, "concat_arrays", side_effect=overflow),
        pytest.raises(TaskFailedError, match="the values of one key hold more than 2 GiB"),
    ):
        one_chunk(column)
