"""Every monoid keeps the laws, and the check of the laws finds those that do not, each by the law that it breaks."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from monoids import Group, HyperLogLog, List, Monoid, MonoidError, Semigroup, Sum, Summary, from_identity, from_pair
from monoids.laws import LAWS, LawBroken, check_laws, monoid_laws
from monoids.strategies import items_of, values
from tests.monoids.catalogue import CATALOGUE, pickled
from tests.soak import soak_or

SMALL = st.integers(-9, 9)
SHORT = st.lists(SMALL, max_size=2)


@pytest.mark.soak
@pytest.mark.parametrize("monoid", CATALOGUE, ids=lambda monoid: f"{monoid.name} {monoid.parameters}")
def test_a_monoid_of_the_package_keeps_the_laws(monoid: Monoid[Any]) -> None:
    check_laws(monoid, examples=soak_or(ci=8, soak=100))
    assert pickled(monoid).identity == from_identity(monoid.identity).identity == monoid.identity


def test_the_catalogue_is_whole() -> None:
    kinds = {kind for kind in vars(monoids).values() if isinstance(kind, type) and issubclass(kind, Monoid)}
    assert kinds - {type(monoid) for monoid in CATALOGUE} == {Monoid, Group, Summary}


@pytest.mark.parametrize("monoid", [m for m in CATALOGUE if isinstance(m, Summary)], ids=repr)
def test_a_column_of_items_is_one_of_their_summaries(monoid: Summary[Any, Any, Any]) -> None:
    check_items(monoid)
    with pytest.raises(MonoidError, match="None is no item"):
        monoid.of(None)


def check_items(monoid: Summary[Any, Any, Any]) -> None:
    @settings(max_examples=20, deadline=None)
    @given(st.lists(items_of(monoid), min_size=1, max_size=3))
    def holds(items: list[Any]) -> None:
        column = monoid.items.to_arrow([None, *items])
        summaries, bad = monoid.cast(column[1:])
        again, _ = monoid.cast(column)
        assert not bad.any()
        assert monoid.from_arrow(again)[0] is None
        for value, kept, item in zip(monoid.from_arrow(summaries), monoid.from_arrow(again)[1:], items, strict=True):
            assert monoid.near(value, monoid.of(item))
            assert monoid.near(value, kept)

    holds()


test_the_line_in_the_docs = monoid_laws(Sum())


class Xor(Group[int]):
    type = pa.int64()
    zero = 0

    def plus(self, a: int, b: int) -> int:
        return a ^ b

    minus = plus


test_a_group_of_ones_own = monoid_laws(Xor(), st.integers(-9, 9))


class Longest(Semigroup[str]):
    type = pa.string()

    def plus(self, a: str, b: str) -> str:
        return max(a, b, key=lambda word: (len(word), word))


test_a_semigroup_of_ones_own = monoid_laws(Longest(), st.text(max_size=3))
test_a_semigroup_with_none_for_a_zero = monoid_laws(monoids.Optional(Longest()), st.text(max_size=3))
test_a_pair = monoid_laws(from_pair("Concatenation", pa.string(), "", lambda a, b: a + b, commutative=False), st.text())


class Bits(Monoid[frozenset[int]]):
    """A value that is no Arrow value: kept as a list."""

    type = pa.list_(pa.int64())
    zero: frozenset[int] = frozenset()

    def plus(self, a: frozenset[int], b: frozenset[int]) -> frozenset[int]:
        return a | b

    def to_arrow(self, values: Any) -> Any:
        return super().to_arrow([None if value is None else sorted(value) for value in values])  # type: ignore[misc]

    def from_arrow(self, array: Any) -> Any:
        return [None if value is None else frozenset(value) for value in super().from_arrow(array)]


def test_a_monoid_may_keep_its_values_in_its_own_way_also_within_others() -> None:
    sets = st.frozensets(SMALL, max_size=3)
    check_laws(Bits(), sets, examples=30)
    check_laws(monoids.Map(pa.string(), Bits()), st.dictionaries(st.text(max_size=1), sets, max_size=3), examples=30)
    check_laws(monoids.Struct(bits=Bits()), st.fixed_dictionaries({"bits": sets}), examples=30)


class Difference(Sum[int]):
    def plus(self, a: int, b: int) -> int:
        return a - b


class Middle(Monoid[float]):
    type = pa.float64()
    zero = 0.0

    def plus(self, a: float, b: float) -> float:
        return a if b == self.zero else b if a == self.zero else (a + b) / 2


class FromOne(Sum[int]):
    @property
    def zero(self) -> int:
        return 1


class Growing(List):
    def plus(self, a: list[Any], b: list[Any]) -> list[Any]:
        a.extend(b)
        return a


class Commuting(List):
    commutative = True


class HalfInverse(Sum[int]):
    def minus(self, a: int, b: int) -> int:
        return a


class OwnInverse(Sum[int]):
    def inverses(self, values: Any) -> Any:
        return values


class OffByOne(Sum[int]):
    def reduce(self, values: Any, starts: Any) -> Any:
        return super().reduce(values[:-1], np.minimum(starts, len(values) - 2)) if len(values) > 1 else values


class WholeBuffer(Sum[int]):
    def reduce(self, values: Any, starts: Any) -> Any:
        unsliced = np.frombuffer(values.buffers()[1], np.int64) if len(values) else np.zeros(0, np.int64)
        return super().reduce(pa.array(unsliced[: len(values)]), starts)


class Unordered(List):
    commutative = False

    def reduce(self, values: Any, starts: Any) -> Any:
        return self.to_arrow([sorted(value) for value in self.from_arrow(super().reduce(values, starts))])


class Lossy(Sum[int]):
    def from_arrow(self, array: Any) -> Any:
        return [None if value is None else value % 7 for value in super().from_arrow(array)]


class Unreadable(Sum[int]):
    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": self.type}


class Newest(Monoid[list[int]]):
    """The last of a list: lists of another length have the same identity."""

    type = pa.list_(pa.int64())
    zero: ClassVar[list[int]] = []
    commutative = False

    def __init__(self, most: int) -> None:
        self.most = most

    def plus(self, a: list[int], b: list[int]) -> list[int]:
        return [*a, *b][-self.most :]


class Hip(HyperLogLog):
    """Without the union, what was counted first counts."""

    def present(self, value: bytes) -> float:
        estimate: float = self.read(value).get_estimate()
        return estimate


def counted(*numbers: int) -> bytes:
    """The sketch of these numbers."""
    monoid = HyperLogLog(pa.int64(), lg_k=7)
    return monoid.sum(map(monoid.of, numbers))


FEW_COUNTS = st.sampled_from([counted(-3), counted(-5), counted(*range(40))])
"""Two of the 27 triples show that what was counted first counts. Hypothesis tries all; nearly no random sketches do."""


class Choosy(Sum[int]):
    def _cast(self, column: Any) -> Any:
        kept, bad = super()._cast(column)
        return kept, bad | np.asarray(pa.compute.equal(kept, 7).fill_null(False))


class Nothing(Sum[int]):
    def reduce(self, values: Any, starts: Any) -> Any:
        return super().reduce(values, starts) if len(values) else pa.array([], pa.float64())


@pytest.mark.parametrize(
    ("broken", "some", "law"),
    [
        (Difference, SMALL, "associativity"),
        (Middle, st.floats(1, 100), "associativity"),
        (lambda: Hip(pa.int64(), lg_k=7), FEW_COUNTS, "associativity"),
        (FromOne, SMALL, "identity"),
        (lambda: Commuting(pa.int64()), SHORT, "commutativity"),
        (HalfInverse, SMALL, "inverse"),
        (OwnInverse, SMALL, "inverses of a column"),
        (lambda: Growing(pa.int64()), SHORT, "no mutation"),
        (Lossy, SMALL, "round trip"),
        (Choosy, SMALL, "cast"),
        (OffByOne, SMALL, "reduction"),
        (WholeBuffer, SMALL, "reduction"),
        (lambda: Unordered(pa.int64()), SHORT, "reduction"),
        (Nothing, SMALL, "reduction of nothing"),
        (Unreadable, SMALL, "declaration"),
        (lambda: Newest(3), SHORT, "declaration"),
    ],
)
def test_a_broken_monoid_is_caught_by_its_law(broken: Callable[[], Monoid[Any]], some: Any, law: str) -> None:
    with pytest.raises(LawBroken, match=f"breaks the law of {law}: "):
        check_laws(broken(), some)


def test_there_is_a_broken_monoid_for_every_law() -> None:
    (mark,) = test_a_broken_monoid_is_caught_by_its_law.pytestmark  # type: ignore[attr-defined]
    assert {law for _, _, law in mark.args[1]} == {law.name for law in LAWS}


def test_a_counterexample_is_small_and_can_be_read() -> None:
    with pytest.raises(LawBroken) as caught:
        check_laws(Difference(), st.integers(0, 100))
    assert str(caught.value).startswith(
        "Difference(int64) breaks the law of associativity: plus(plus(a, b), c) = -1, plus(a, plus(b, c)) = 1 for a=0, b=0, c=1"
    )


def test_each_law_is_a_test_of_its_own(tmp_path: Any) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from monoids import Sum\n"
        "from monoids.laws import monoid_laws\n"
        "class Off(Sum):\n"
        "    def minus(self, a, b):\n"
        "        return a\n"
        "test_laws = monoid_laws(Off())\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    out = subprocess.run(
        command, cwd=Path(monoids.__file__).parents[1], capture_output=True, text=True, check=False
    ).stdout
    assert "1 failed, 10 passed" in out
    assert "test_laws[inverse]" in out
    assert "Off(int64) breaks the law of inverse: minus(plus(a, b), b) = 1, a = 0 for a=0, b=1" in out


@pytest.mark.parametrize("module", [module.name for module in pkgutil.iter_modules(monoids.__path__)])
def test_examples_in_docstrings_are_true(module: str) -> None:
    found = importlib.import_module(f"monoids.{module}")
    names = {name: value for name, value in vars(monoids).items() if not name.startswith("_")}
    failed, _ = doctest.testmod(found, extraglobs={**names, **vars(found)})
    assert failed == 0


def test_every_monoid_has_an_example() -> None:
    for monoid in {type(monoid) for monoid in CATALOGUE}:
        assert ">>>" in (monoid.__doc__ or ""), monoid


def test_a_strategy_is_not_guessed_for_what_is_not_of_the_package() -> None:
    with pytest.raises(MonoidError, match="not a monoid of this package"):
        values(Bits())
