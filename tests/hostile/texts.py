"""Texts, numbers and bytes that somebody else may send, written so that what reads them carelessly comes to harm."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

EXPONENTS = st.sampled_from(
    [0, 1, 2, 9, 10, 37, 38, 39, 41, 76, 77, 308, 400, 4_000, 999_999, 10**7, 999_999_999, 2**31 - 1, 2**31, 10**18]
) | st.integers(0, 2**63)

DIGITS = st.sampled_from(
    ["", "0", "1", "9", "00", "9" * 38, "9" * 39, "0" * 50, "1" + "0" * 60, "9" * 5_000]
) | st.text("0123456789", max_size=50)

TINY = st.builds(
    "{}{}e-{}".format,
    st.sampled_from(["", "-"]),
    st.sampled_from([0, 1, 123]),
    st.sampled_from([39, 41, 10**7, 999_999_999]),
)
"""Decimals for which pyarrow looks beyond its table of powers of ten: as another number, or by the end of the process."""

NUMBERS = TINY | st.builds(
    lambda sign, whole, point, part, e, way, exponent: f"{sign}{whole}{point}{part}" + (f"{e}{way}{exponent}" if e else ""),
    st.sampled_from(["", "-", "+"]),
    DIGITS,
    st.sampled_from(["", "."]),
    DIGITS,
    st.sampled_from(["", "e", "E"]),
    st.sampled_from(["-", "", "+"]),
    EXPONENTS,
)  # fmt: skip
"""Numbers, and what nearly is one."""

TIMES = st.sampled_from(
    [
        "2013-01-01", "2013-01-01T00:00:00Z", "0000-00-00", "0000-01-01", "0000-12-30 00:00:00", "0001-01-01T00:00:00",
        "9999-12-31T23:59:59-12:00", "9999-12-31T23:59:60", "99999-01-01",
        "-9999-01-01T00:00:00Z", "2013-02-30", "2013-01-01T24:00:00", "2013-01-01T00:00:00+99:99", "2013-01-01 00:00:00.1234567890",
        "292277-01-09T04:00:54.775807Z", "2013-01-01T00:00:00Z\x00", "12:00", "P1D", "1677-09-21T00:12:43.145224192Z",
    ]
) | st.datetimes().map(str) | st.dates().map(str)  # fmt: skip

WORDS = st.sampled_from(
    [
        "", " ", "null", "None", "true", "nan", "NaN", "inf", "-Infinity", "\x00", "\ufeff", "\ud800", "\u2028", "\U0001f600", "../..",
        "a" * 3_000, "[" * 3_000, "{" * 3_000, "'", '"', "\\", "\\u0000", "\\ud800", "%00", "%", "%s%n", "$(id)", "<script>", "0x1p-1074",
        "1_0", "\u0661", "history:x", "--help", "@/dev/null", "http://ann:pw@host/?#", "1 minute", "1e9 hours", "-1 day", "=cmd()",
    ]
)  # fmt: skip

UNITS = st.builds(
    "{}{}{}".format, NUMBERS, st.sampled_from([" ", "", "  "]), st.sampled_from(["seconds", "day", "us", "weeks", "s"])
)

SCHEMAS = st.builds(
    "{} {}{}".format,
    st.sampled_from(["a", "`a b`", "a,", ""]),
    st.sampled_from(
        [
            "decimal(",
            "map<",
            "struct<a:",
            "array<array<",
            "char(",
            "int, a int",
            "timestamp_ntz COMMENT 'x",
            "decimal(3,",
        ]
    ),
    NUMBERS.map("{})".format) | st.sampled_from([">", "int>>", "int,int>", ")", "*" * 50, "array<" * 2_000]),
)

TEXTS = UNITS | SCHEMAS | NUMBERS | TIMES | WORDS | st.text(max_size=40)
"""Any text, and each kind of text that is read as something."""

BYTES = st.binary(max_size=60) | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))

DECIMALS = NUMBERS.map(lambda text: _decimal(text))


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        return Decimal("sNaN")


SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 10**38, 10**400]),
    st.floats(),
    DECIMALS,
    TEXTS,
    st.binary(max_size=20),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.just(timezone.utc)),
    st.timedeltas(),
    st.sampled_from(
        [date.min, date.max, datetime.min, datetime.max, time.max, timedelta.min, timedelta.max, object(), 1j]
    ),
)
"""Values that a user's code may return."""

VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", "d", "l", ""]), inner, max_size=3),
    ),
    max_leaves=6,
)

NUMBERS_OF_JSON = st.builds(
    lambda column, quote, number: column % f"{quote}{number}{quote}",
    st.sampled_from(
        [
            '{"d":%s}',
            '{"w":%s}',
            '{"\\u0064":%s}',
            '{"a":{"d":%s}}',
            '{"a":{"l":[{"d":1},{"d":%s}]}}',
            '{"l":%s,"f":1e-99}',
        ]
    ),
    st.sampled_from(["", '"']),
    NUMBERS,
)

JSON_TEXTS: st.SearchStrategy[str] = st.recursive(
    NUMBERS
    | TEXTS.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"')
    | NUMBERS.map(lambda text: '"' + "".join(f"\\u{ord(char):04x}" for char in text) + '"')
    | st.sampled_from(
        ["null", "true", "", "{}", "[]", "[" * 2_000, '{"a":' * 500, "NaN", "-", "\\", '"\\ud800"', "//", "1 1", "{}{}"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda some: f"[{','.join(some)}]")
        | st.lists(st.tuples(st.sampled_from(["a", "d", "l", "s", "\\u0064", "x"]), inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"
        )
    ),
    max_leaves=6,
)
"""JSON, and what nearly is JSON."""
