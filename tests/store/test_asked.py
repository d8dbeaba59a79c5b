"""Values of keys as JSON or a text names them."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from persistent_state.errors import InvalidInputError
from persistent_state.store.asked import key_value


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (pa.string(), " 1 ", " 1 "),
        (pa.int8(), " 1 ", 1),
        (pa.float64(), "1.5", 1.5),
        (pa.bool_(), "true", True),
        (pa.binary(), "AAE=", b"\x00\x01"),
        (pa.decimal128(5, 2), "1.25", Decimal("1.25")),
        (pa.date32(), "2020-01-02", date(2020, 1, 2)),
        (pa.timestamp("us", "UTC"), "2020-01-02T00:00:00Z", datetime(2020, 1, 2, tzinfo=timezone.utc)),
        (pa.timestamp("us", "UTC"), "2020-01-02T03:00:00+03:00", datetime(2020, 1, 2, tzinfo=timezone.utc)),
        (pa.timestamp("us", "UTC"), "2020-01-02T00:00:00", datetime(2020, 1, 2, tzinfo=timezone.utc)),
        (pa.timestamp("s", "Europe/Oslo"), "2020-01-02", datetime(2020, 1, 2, tzinfo=timezone.utc)),
        (pa.timestamp("us"), "2020-01-02 05:00", datetime(2020, 1, 2, 5)),
        (pa.date32(), "0000-01-02", "0000-01-02"),
        (pa.date32(), "-0044-03-15", "-0044-03-15"),
        (pa.timestamp("us", "UTC"), "0000-01-02", "0000-01-02T00:00:00.000000Z"),
        (pa.timestamp("us", "UTC"), "10000-01-02 05:00Z", "10000-01-02T05:00:00.000000Z"),
        (pa.timestamp("us"), "10000-01-02", "10000-01-02T00:00:00.000000"),
    ],
)
def test_texts_are_read_by_the_type_of_the_column(type: pa.DataType, text: str, value: Any) -> None:
    assert key_value("T", "c", text, type) == value
    if not pa.types.is_string(type):
        with pytest.raises(InvalidInputError, match=r"^'wrong!' of column 'c' of task=T is not "):
            key_value("T", "c", "wrong!", type)


@pytest.mark.parametrize(
    ("type", "given", "value"),
    [
        (pa.int64(), 7, 7),
        (pa.float64(), 7, 7),
        (pa.bool_(), True, True),
        (pa.decimal128(5, 2), 7, Decimal(7)),
        (pa.string(), None, None),
    ],
)
def test_values_that_json_has_are_taken_as_they_are(type: pa.DataType, given: Any, value: Any) -> None:
    assert key_value("T", "c", given, type) == value


@pytest.mark.parametrize("text", ["1e-3", "1e-41", "1e-999999999", "1e999999999", "sNaN", "Infinity"])
def test_a_decimal_of_other_digits_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"of column 'c' of task=T is not decimal128\(5, 2\)"):
        key_value("T", "c", text, pa.decimal128(5, 2))


@pytest.mark.parametrize(
    ("type", "given"), [(pa.string(), 1), (pa.int64(), True), (pa.bool_(), 1), (pa.int64(), [1]), (pa.date32(), 5)]
)
def test_a_value_of_another_type_is_refused(type: pa.DataType, given: Any) -> None:
    with pytest.raises(InvalidInputError, match="of column 'c' of task=T is not "):
        key_value("T", "c", given, type)
