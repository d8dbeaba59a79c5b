"""Values before and after: two are one change only if they differ."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.partials.changed import are_equal

numbers = st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan")])
lists = st.none() | st.lists(numbers, max_size=3)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float64(): numbers,
    pa.list_(pa.float64()): lists,
    pa.list_(pa.list_(pa.float64())): st.none() | st.lists(lists, max_size=2),
    pa.struct([("a", pa.list_(pa.float64())), ("b", pa.string())]): st.none()
    | st.fixed_dictionaries({"a": lists, "b": st.sampled_from([None, "", "x"])}),
    pa.map_(pa.string(), pa.float64()): st.none() | st.lists(st.tuples(st.sampled_from("ab"), numbers), max_size=2),
    pa.binary(): st.none() | st.binary(max_size=2),
}


@pytest.mark.parametrize("type", VALUES, ids=str)
@given(st.data())
def test_equal_values_are_equal_with_nulls_and_nans_within(type: pa.DataType, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(VALUES[type], VALUES[type]), max_size=8))
    one, other = (pa.array([pair[side] for pair in pairs], type) for side in (0, 1))
    # As texts nulls, NaNs and zeros are what they are.
    texts = [[*map(repr, column.to_pylist())] for column in (one, other)]
    same = [mine == others for mine, others in zip(*texts, strict=True)]
    assert are_equal(one, other, signed_zeros=True).tolist() == same
    texts = [[text.replace("-0.0", "0.0") for text in column] for column in texts]
    assert are_equal(one, other).tolist() == [mine == others for mine, others in zip(*texts, strict=True)]
    assert are_equal(one[1:], other[1:]).tolist() == are_equal(one, other).tolist()[1:]
