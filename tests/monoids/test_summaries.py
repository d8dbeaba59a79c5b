"""Summaries say what their items are like: exactly where they promise it, within their bounds elsewhere."""

from __future__ import annotations

import math
import sys
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import (
    KLL,
    REQ,
    Affine,
    Average,
    BloomFilter,
    Count,
    CountMin,
    Covariance,
    DecayedValue,
    ExactSum,
    FrequentItems,
    Histogram,
    HyperLogLog,
    Interval,
    Max,
    MaxBy,
    MinHash,
    Moments,
    Monoid,
    MonoidError,
    Product,
    Set,
    Sum,
    Summary,
    Theta,
    TopK,
    VarOpt,
)

FLOATS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)
RANDOM = np.random.default_rng(1)


def summed(monoid: Summary[Any, Any, Any], items: Any, parts: int = 1) -> Any:
    """The summary of a column of items, put together from parts."""
    summaries, bad = monoid.cast(pa.array(items, monoid.items.type))
    assert not bad.any()
    starts = np.arange(0, len(summaries), -(-len(summaries) // parts))
    return monoid.sum(monoid.from_arrow(monoid.reduce(summaries, starts)))


@given(FLOATS)
def test_moments_are_those_of_numpy(numbers: list[float]) -> None:
    array = np.array(numbers)
    spread = summed(Moments(), array, 3)
    away = array - array.mean()
    assert spread.n == len(numbers)
    assert math.isclose(spread.mean, array.mean(), rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(spread.variance, array.var(), rel_tol=1e-9, abs_tol=1e-6)
    if array.std() > 1e-3:
        assert math.isclose(spread.skewness, (away**3).mean() / array.std() ** 3, rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(spread.kurtosis, (away**4).mean() / array.var() ** 2 - 3, rel_tol=1e-6, abs_tol=1e-6)


def test_moments_lose_no_digits_to_a_large_mean() -> None:
    assert math.isclose(summed(Moments(), 1e9 + np.arange(1000) % 2, 7).variance, 0.25, rel_tol=1e-9)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=20))
def test_covariance_is_that_of_numpy(pairs: list[tuple[float, float]]) -> None:
    joint = Covariance().aggregator(pairs)
    x, y = np.array(pairs).T
    assert math.isclose(joint.covariance, np.cov(x, y, bias=True)[0, 1], rel_tol=1e-9, abs_tol=1e-6)
    if x.std() > 1e-3 and y.std() > 1e-3:
        assert math.isclose(joint.correlation, np.corrcoef(x, y)[0, 1], rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(joint.slope, np.polyfit(x, y, 1)[0], rel_tol=1e-5, abs_tol=1e-6)


def test_of_too_few_numbers_nothing_is_said() -> None:
    nothing = Moments().zero
    assert Average().present(Average().zero) is None
    assert math.isnan(nothing.variance)
    assert math.isnan(Moments().of(1.0).skewness)
    assert math.isnan(Covariance().of((1.0, 1.0)).correlation)
    assert KLL().present(KLL().zero) == (None, None, None)
    assert MinHash().similarity(MinHash().zero, MinHash().zero) is None


@given(FLOATS, st.lists(st.floats(-100, 100), min_size=1, max_size=5, unique=True))
def test_histograms_are_those_of_numpy(numbers: list[float], edges: list[float]) -> None:
    edges.sort()
    counts = summed(Histogram(edges), numbers, 2)
    assert counts == np.histogram(numbers, [-math.inf, *edges, math.inf])[0].tolist()


def test_a_decayed_value_halves() -> None:
    hourly = DecayedValue(timedelta(hours=1))
    hour = 3_600_000_000
    value = hourly.sum([hourly.of((hour * i, 1.0)) for i in range(3)])
    assert hourly.present(value) == 1.75
    assert hourly.at_clock(value, 3 * hour) == 0.875


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20).filter(
        lambda some: abs(sum(map(Fraction, some))) < 1e308
    )
)
def test_an_exact_sum_is_rounded_once(numbers: list[float]) -> None:
    assert ExactSum().aggregator(numbers) == math.fsum(numbers)


def test_an_exact_sum_beyond_floats_comes_back() -> None:
    most = sys.float_info.max
    assert ExactSum().aggregator([most, most]) == math.inf
    assert ExactSum().aggregator([most, most, -most]) == most


def test_integers_wrap_as_int64_does() -> None:
    assert Sum().plus(2**63 - 1, 1) == -(2**63)
    assert Product().plus(2**62, 2) == -(2**63)
    assert Average(pa.int64()).aggregator([2**62, 2**62]) == -(2**62)


def test_top_values_stay_as_often_as_they_came() -> None:
    assert summed(TopK(3, pa.int64()), [5, 1, 5, 5, 9], 2) == [9, 5, 5]
    assert Interval(pa.string()).aggregator(["b", "a", "c"]) == ("a", "c")
    assert Set(pa.int64()).aggregator([1, 1, 2]) == 2


USERS = [f"user {i}" for i in range(20_000)]


@pytest.mark.parametrize("monoid", [HyperLogLog(), Theta()], ids=repr)
def test_distinct_counts_are_within_their_bounds(monoid: HyperLogLog | Theta) -> None:
    value = summed(monoid, [*USERS, *USERS[:5000]], 9)
    low, high = monoid.bounds(value, 3)
    assert low <= len(USERS) <= high
    assert low <= monoid.present(value) <= high
    assert abs(monoid.present(value) / len(USERS) - 1) < 0.05


def test_theta_tells_what_sets_share() -> None:
    theta = Theta()
    a, b = summed(theta, USERS[:12_000]), summed(theta, USERS[8_000:])
    assert abs(theta.present(theta.intersection(a, b)) / 4_000 - 1) < 0.15
    assert abs(theta.present(theta.difference(a, b)) / 8_000 - 1) < 0.1


@pytest.mark.parametrize("monoid", [KLL(), REQ()], ids=repr)
def test_quantiles_are_within_their_bounds(monoid: KLL | REQ) -> None:
    value = summed(monoid, RANDOM.permutation(50_000).astype(float), 50)
    for rank, found in zip((0.5, 0.95, 0.99), monoid.present(value), strict=True):
        assert abs(found / 50_000 - rank) < 0.02
    assert monoid.quantiles(value, [0.0, 1.0]) == (0.0, 49_999.0)
    assert abs((monoid.rank(value, 25_000.0) or 0) - 0.5) < 0.02
    assert len(value) < (5_000 if isinstance(monoid, KLL) else 12_000)
    for wrong in (math.nan, "a"):
        with pytest.raises(MonoidError, match=f"^{monoid.name}: "):
            monoid.rank(value, wrong)  # type: ignore[arg-type]


def test_tails_are_sharper_with_req() -> None:
    req = REQ()
    (found,) = req.quantiles(summed(req, RANDOM.permutation(50_000).astype(float), 50), [0.999])
    assert abs(found - 49_950) < 10


def test_frequent_items_are_found_and_counts_are_bounded() -> None:
    items = [f"{i % 7 if i % 3 else i}" for i in range(20_000)]
    frequent, true = FrequentItems(lg_max=8), Counter(items)
    value = summed(frequent, items, 5)
    assert {item for item, _, _ in frequent.present(value)[:7]} == {str(i) for i in range(7)}
    for item in ["0", "3", "19998", "never"]:
        low, high = frequent.count(value, item)
        assert low <= true[item] <= high


def test_items_that_a_sketch_has_forgotten_still_bound_its_counts() -> None:
    frequent = FrequentItems(lg_max=3)
    value = summed(frequent, [str(i) for i in range(1000)], 100)
    for _ in range(3):
        value = frequent.plus(value, summed(frequent, [str(i) for i in range(7)]))
        assert frequent.count(value, "999")[1] >= 1


def test_counts_are_never_too_low() -> None:
    often, true = CountMin(buckets=100), Counter(f"{i % 50 * (i % 4)}" for i in range(20_000))
    value = summed(often, list(true.elements()), 7)
    assert often.present(value) == 20_000
    assert all(n <= often.count(value, item) <= n + 0.06 * 20_000 for item, n in true.items())
    few = often.plus(often.weighted("a", 3), often.of("b"))
    assert [often.count(few, item) for item in "abc"] == [3, 1, 0]


def test_a_sample_weighs_as_much_as_all() -> None:
    sample = VarOpt(k=20)
    value = sample.plus(summed(sample, USERS[:1000], 9), sample.weighted("größer", 500.0))
    found = sample.present(value)
    assert ("größer", 500.0) in found
    assert len(found) == 20
    assert math.isclose(sum(weight for _, weight in found), 1500)


@pytest.mark.parametrize("parts", [1, 40])
def test_a_bloom_filter_forgets_nothing_and_errs_seldom(parts: int) -> None:
    bloom = BloomFilter(capacity=5000)
    value = summed(bloom, USERS[:5000], parts)
    assert all(bloom.contains(value, user) for user in USERS[:500])
    assert sum(bloom.contains(value, user) for user in USERS[5000:10_000]) < 2 * 0.01 * 5000
    assert abs(bloom.present(value) / 5000 - 1) < 0.05


def test_similarity_is_near_what_sets_share() -> None:
    alike = MinHash(k=256)
    a, b = summed(alike, USERS[:12_000], 3), summed(alike, USERS[8_000:], 2)
    assert abs((alike.similarity(a, b) or 0) - 0.2) < 0.1
    assert alike.similarity(a, alike.zero) == 0
    assert abs(alike.present(a) / 12_000 - 1) < 0.3
    few = summed(alike, USERS[:100])
    assert 0 < (alike.similarity(a, few) or 0) < 0.05


@pytest.mark.parametrize(
    "monoid",
    [
        *(Average(), Moments(), Histogram([0.0]), ExactSum(), KLL(), REQ(), Interval(pa.float64()), Set(pa.float64())),
        *(TopK(1, pa.float64()), HyperLogLog(pa.float64()), CountMin(pa.float64())),
    ],
    ids=repr,
)
def test_nan_is_refused_by_the_name_of_the_monoid(monoid: Summary[Any, Any, Any]) -> None:
    with pytest.raises(MonoidError, match=f"^{monoid.name}: .*nan"):
        monoid.of(math.nan)
    summaries, bad = monoid.cast(pa.array([math.nan, 1.0, None]))
    assert bad.tolist() == [True, False, False]
    assert summaries.is_valid().to_pylist() == [False, True, False]


@pytest.mark.parametrize(
    ("monoid", "wrong"),
    [
        (Average(), "1"),
        (Covariance(), (1.0, None)),
        (DecayedValue(timedelta(1)), (1.5, 1.0)),
        (HyperLogLog(), 1),
        (Theta(pa.int64()), "a"),
        (FrequentItems(), b"a"),
        (BloomFilter(), 1.0),
        (TopK(2, pa.int64()), "a"),
        (Moments(), True),
    ],
    ids=repr,
)
def test_items_of_a_wrong_type_are_refused_by_the_name_of_the_monoid(monoid: Any, wrong: Any) -> None:
    with pytest.raises(MonoidError, match=f"^{monoid.name}: "):
        monoid.of(wrong)


FOREIGN: list[tuple[Any, Any]] = [
    (HyperLogLog(), HyperLogLog(lg_k=10)),
    (HyperLogLog(), Theta()),
    (Theta(lg_k=5), Theta(lg_k=10)),
    (KLL(), KLL(k=100)),
    (REQ(), REQ(is_high=False)),
    (FrequentItems(), FrequentItems(lg_max=5)),
    (VarOpt(), VarOpt(k=7)),
    (BloomFilter(), BloomFilter(error=0.02)),
    (MinHash(), MinHash(k=64)),
    (CountMin(), CountMin(hashes=5)),
    (MinHash(), MinHash(pa.int64())),
]


@pytest.mark.parametrize(("monoid", "other"), FOREIGN, ids=str)
def test_sketches_of_other_parameters_are_refused_by_the_name_of_the_monoid(monoid: Any, other: Any) -> None:
    values = [str(i) for i in range(300)] if other.items.type == pa.string() else list(range(300))
    value = summed(other, [float(v) for v in values] if other.items.type == pa.float64() else values)
    with pytest.raises(MonoidError, match=f"^{monoid.name} of "):
        monoid.plus(monoid.zero, value)
    with pytest.raises(MonoidError, match=f"^{monoid.name}: .* does not fit binary, which takes its own values"):
        monoid.to_arrow([value])
    with pytest.raises(MonoidError, match=f"^{monoid.name} of "):
        monoid.present(value)
    _, bad = monoid.cast(pa.array([value, monoid.zero, b"anything", b""]))
    assert bad.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: HyperLogLog(lg_k=3), "HyperLogLog: lg_k=3 is out of 7 to 21"),
        (lambda: REQ(k=5), "REQ: k=5 is odd"),
        (lambda: TopK(0, pa.int64()), "TopK: k=0 is out of 1 to"),
        (lambda: MinHash(k=8.5), "MinHash: k=8.5 is out of"),
        (lambda: HyperLogLog(lg_k="12"), "HyperLogLog: lg_k=12 is out of"),
        (lambda: BloomFilter(capacity=2**32), "BloomFilter: a value of .* would have 5145939040 bytes"),
        (lambda: DecayedValue(3600), "DecayedValue: half_life=3600 is no positive timedelta"),
        (lambda: Histogram("abc"), "Histogram: value='a' does not fit"),
        (lambda: KLL(ranks=(50, 95)).present(KLL().zero), "KLL: ranks=.* are not from 0 to 1"),
        (lambda: Histogram([1.0, 1.0]), "Histogram: edges=.* do not rise"),
        (lambda: DecayedValue(timedelta(0)), "DecayedValue: half_life=0:00:00 is no positive timedelta"),
        (lambda: BloomFilter(error=1.0), "BloomFilter: error=1.0 is no share"),
        (lambda: Set(pa.list_(pa.int64())), "Set: type=list.* is not a primitive"),
        (lambda: Product(pa.decimal128(10, 2)), "Product: type=decimal128.* is not a number of 64 bits"),
        (lambda: HyperLogLog(pa.binary()), "HyperLogLog: type=binary is that of its values"),
        (lambda: CountMin().weighted("a", 0), "CountMin: weight=0 is no count"),
        (lambda: VarOpt().weighted("a", -1.0), "VarOpt: weight=-1.0 is not positive and finite"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(MonoidError, match=f"^{sentence}"):
        make()


def test_values_that_a_column_cannot_mean_are_bad_rows() -> None:
    def bad(monoid: Monoid[Any], column: Any) -> list[bool]:
        array, misfits = monoid.cast(pa.array(column, monoid.type))
        assert array.is_null().to_pylist() == misfits.tolist()
        rows: list[bool] = misfits.tolist()
        return rows

    assert bad(Interval(pa.int64()), [{"low": 2, "high": 1}, {"low": 1, "high": 2}, {"low": None, "high": 1}]) == [
        True,
        False,
        True,
    ]
    assert bad(TopK(2, pa.int64()), [[1, 2], [2, 1], [3, 2, 1], [None]]) == [True, False, True, True]
    assert bad(Histogram([0.0]), [[1], [1, 2], [1, None]]) == [True, False, True]
    assert bad(Average(), [{"n": 3, "sum": None}, {"n": -1, "sum": 1.0}, {"n": 1, "sum": 1.0}]) == [True, True, False]
    assert bad(Affine(), [{"slope": math.nan, "intercept": 1.0}, {"slope": 1.0, "intercept": 1.0}]) == [True, False]
    assert bad(
        Moments(), [{"n": n, "mean": 1.0, "m2": m2, "m3": 0.0, "m4": 0.0} for n, m2 in [(-1, 0.0), (1, -1.0)]]
    ) == [
        True,
        True,
    ]
    full = CountMin(hashes=1, buckets=3)
    assert bad(full, [full.zero + b"\0" * (len(summed(full, USERS[:50])) - 4), summed(full, USERS[:50])]) == [
        True,
        False,
    ]
    assert bad(full, [full.zero + np.array([(1, -7)], "u8,i8").tobytes(), full.weighted("a", 7)]) == [True, False]
    assert bad(MaxBy(pa.int64(), pa.int64()), [{"by": None, "value": 1}, {"by": 1, "value": 1}]) == [True, False]
    assert bad(Set(pa.int64()), [[1, None], [2, 1, 2]]) == [True, False]
    assert bad(ExactSum(), [b"", b"\0\0\2", b"\0\0\1", b"\x7f\xff~", b"\x7f\xff\1"]) == [False, True, False, True, True]


@pytest.mark.parametrize(
    ("monoid", "wrong"),
    [
        (TopK(2, pa.int64()), [3, 2, 1]),
        (TopK(2, pa.int64()), [1, 2]),
        (TopK(2, pa.int64()), [None]),
        (Interval(pa.int64()), (3, 1)),
        (Average(), (-1, 2.0)),
        (Average(), (np.array([1, 2]), 1.0)),
        (Affine(), (math.nan, 1.0)),
        (Moments(), (1, 0.0, -1.0, 0.0, 0.0)),
        (Sum(), 10**5000),
        (Sum(), 0.5),
        (Sum(pa.float64()), np.longdouble(1)),
        (Max(pa.float64()), math.nan),
        (ExactSum(), 0.5),
        (Histogram([0.0]), [1.5, 1]),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, int) else "int",
)
def test_what_is_no_value_is_refused_in_sums_and_updates(monoid: Monoid[Any], wrong: Any) -> None:
    for use in (monoid.to_arrow, monoid.sum):
        with pytest.raises(MonoidError, match=f"^{monoid.name}: "):
            use([wrong])


def test_integers_of_numpy_are_what_they_are() -> None:
    assert Sum(pa.float64()).sum([np.uint64(2**53)]) == 2.0**53
    assert Sum(pa.float64()).sum([np.int8(-1), 0.5]) == -0.5
    with pytest.raises(MonoidError, match=r"^Sum: "):
        Sum(pa.float64()).sum([np.uint64(2**64 - 1)])


SMALLEST: list[Any] = [BloomFilter(capacity=1, error=0.9), MinHash(k=2), CountMin(hashes=1, buckets=3)]


@pytest.mark.parametrize("monoid", SMALLEST, ids=repr)
def test_one_item_is_found_in_the_smallest_summary(monoid: Any) -> None:
    for item in USERS[:50]:
        one = monoid.of(item)
        found = {"BloomFilter": "contains", "CountMin": "count", "MinHash": "similarity"}[monoid.name]
        assert getattr(monoid, found)(one, one if found == "similarity" else item) == 1
        assert monoid.present(one) == 1


@given(st.lists(st.text("ab", max_size=2)))
def test_few_items_are_counted_exactly(items: list[str]) -> None:
    for monoid in (HyperLogLog(), Theta(), BloomFilter(), MinHash(), Set(pa.string())):
        assert monoid.aggregator(items) == len(set(items))


def test_a_filter_that_is_full_finds_what_it_was_given() -> None:
    bloom = BloomFilter(capacity=10)
    value = summed(bloom, USERS[:30], 4)
    assert all(bloom.contains(value, user) for user in USERS[:30])
    assert not all(bloom.contains(value, user) for user in USERS[30:200])


def test_equal_numbers_have_no_spread() -> None:
    for number in (0.1, 1e9 + 0.1, 1e160):
        spread = Moments().aggregator([number] * 10)
        assert (spread.mean, spread.variance) == (number, 0)
        assert math.isnan(spread.skewness)
        assert Moments().plus(Moments().zero, spread) == spread
    assert math.isnan(Covariance().aggregator([(0.1, 1.0), (0.1, 2.0), (0.1, 4.0)]).correlation)


@pytest.mark.parametrize("scale", [1e-75, 1.0, 1e75])
def test_scale_changes_no_shape(scale: float) -> None:
    spread = Moments().aggregator([scale, 2 * scale, 4 * scale])
    assert math.isclose(spread.skewness, 0.3818017741606063, rel_tol=1e-9)
    assert math.isclose(spread.kurtosis, -1.5, rel_tol=1e-9)
    assert math.isclose(Covariance().aggregator([(scale, scale), (2 * scale, 2 * scale)]).correlation, 1)


def test_many_segments_of_any_length_are_summed_like_few() -> None:
    numbers = RANDOM.normal(size=200_000)
    starts = np.append(0, np.sort(RANDOM.choice(np.arange(1, 200_000), 20_000, replace=False)))
    starts = np.append(starts[starts < 50_000], starts[starts > 150_000])
    summaries, _ = Moments().cast(pa.array(numbers))
    spreads = Moments().from_arrow(Moments().reduce(summaries, starts))
    for spread, some in zip(spreads, np.split(numbers, starts[1:]), strict=True):
        assert spread is not None
        assert spread.n == len(some)
        assert math.isclose(spread.variance, some.var(), rel_tol=1e-9, abs_tol=1e-12)


def test_an_average_of_decimals_has_all_their_digits() -> None:
    assert Average(pa.decimal128(38, 0)).aggregator([Decimal("1" * 38)]) == Decimal("1" * 38)


def test_counts_of_occurrences() -> None:
    assert Count().sum([1, 1, 2]) == 4
    assert Max().sum([]) is None


def test_datasketches_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(
        MonoidError, match=r"package='datasketches' is missing; pip install 'persistent-state\[sketches\]'"
    ):
        HyperLogLog()
