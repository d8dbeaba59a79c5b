"""Types of values are inferred from monoids, also through states and combinators, as mypy sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

import persistent_state

pytestmark = pytest.mark.release

SOURCE = """
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
from typing_extensions import assert_type

import monoids
from monoids import (
    Aggregator, Count, ExactSum, HyperLogLog, Map, Max, Moments, Monoid, Optional, Set, Spread, Sum, Tuple, from_pair
)
from persistent_state import NonWindowState, PersistentState

assert_type(Sum().plus(1, 2), int)
assert_type(NonWindowState(Sum()).get(), int)
assert_type(NonWindowState(Max()).get(), int | None)
assert_type(Sum(pa.float64()).plus(0.5, 1.5), Any)
assert_type(Max(pa.string()).sum(["a", "b"]), Any | None)
cents: Sum[Decimal] = Sum(pa.decimal128(38, 2))
assert_type(NonWindowState(cents).get(), Decimal)
assert_type(NonWindowState(Tuple(Sum(), Count(), Sum(), Moments())).get(), tuple[int, int, int, Spread])
assert_type(NonWindowState(Tuple(Sum(), monoids.Any())).get(), tuple[int, bool])
assert_type(NonWindowState(Map(None, Tuple(Count(), ExactSum()))).get(), dict[Any, tuple[int, Fraction]])
assert_type(NonWindowState(Optional(Moments())).get(), Spread | None)
assert_type(NonWindowState(Moments().aggregator).get(), Spread)
longest = Aggregator(len, Max(), lambda length: length or 0, pa.int64())
assert_type(longest(["a"]), int)
assert_type(NonWindowState(longest).get(), int | None)
assert_type(HyperLogLog().aggregator(["a"]), float)
assert_type(Moments().aggregator([1.0]), Spread)
assert_type(Set(None).sum([]), frozenset[Any])
assert_type(from_pair("Longest", None, "", max), Monoid[str])


def total(state: PersistentState[int]) -> int:
    return state.get()


total(NonWindowState(Count()))
"""

WRONG = """
from monoids import Map, Moments, Sum
from persistent_state import NonWindowState

text: str = NonWindowState(Sum()).get()
NonWindowState(Sum()).update(0, "1")
Sum().plus(1, "2")
Map(None, Sum()).plus({}, {1: "a"})
Moments().of("a")
text = NonWindowState(Moments().aggregator).get().casefold()
"""


def checked(source: str, tmp_path: Path) -> str:
    from mypy import api

    config = Path(persistent_state.__file__).parents[1] / "setup.cfg"
    (tmp_path / "user.py").write_text(source)
    found, errors, _ = api.run(
        ["--strict", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "user.py")]
    )
    return found + errors


def test_values_have_the_types_of_their_monoids(tmp_path: Path) -> None:
    assert checked(SOURCE, tmp_path).startswith("Success")


def test_values_of_other_types_are_refused(tmp_path: Path) -> None:
    assert checked(WRONG, tmp_path).count("error:") == 6
