"""Every monoid of the package, with parameters that tests can reach the bounds of."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pyarrow as pa

from monoids import (
    KLL,
    REQ,
    Affine,
    All,
    Average,
    BitAnd,
    BitOr,
    BloomFilter,
    Count,
    CountMin,
    Covariance,
    DecayedValue,
    ExactSum,
    First,
    FrequentItems,
    Histogram,
    HyperLogLog,
    Interval,
    Last,
    List,
    Map,
    Max,
    MaxBy,
    Min,
    MinBy,
    MinHash,
    Moments,
    Monoid,
    Optional,
    Product,
    Set,
    Struct,
    Sum,
    Theta,
    TopK,
    Tuple,
    VarOpt,
)
from monoids import Any as AnyOf

ORDERED = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "decimal": pa.decimal128(38, 4),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "instant": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
}

NESTED = Map(
    pa.string(), Struct(least=Min(pa.timestamp("us", "UTC")), days=Map(pa.date32(), Sum()), log=List(pa.string()))
)

CATALOGUE: list[Monoid[Any]] = [
    *(kind(type) for kind in (Min, Max) for type in ORDERED.values()),
    *(List(type) for type in ORDERED.values()),
    *(Map(type, Count()) for type in ORDERED.values()),
    *(Set(type) for type in ORDERED.values()),
    *(kind(type) for kind in (Sum, Product, Affine) for type in (pa.int64(), pa.float64())),
    *(kind(pa.decimal128(38, 2)) for kind in (Sum, Average)),
    *(Count(), ExactSum(), AnyOf(), All(), BitAnd(), BitOr()),
    *(MinBy(pa.int64(), pa.string()), MaxBy(pa.float64(), pa.date32()), Interval(pa.float64()), Interval(pa.string())),
    *(First(pa.string()), Last(pa.list_(pa.int64())), TopK(2, pa.int64()), TopK(3, pa.float64(), pa.string())),
    *(Average(), Average(pa.int64()), Moments(), Covariance(), Histogram([0.0, 1.0]), DecayedValue(timedelta(hours=1))),
    *(Optional(Sum()), Optional(Map(pa.string(), Sum()))),
    *(List(pa.list_(pa.int64())), Map(pa.int64(), Min()), Map(pa.string(), Map(pa.bool_(), Sum())), NESTED),
    List(pa.struct([("at", pa.timestamp("us", "UTC")), ("tags", pa.map_(pa.string(), pa.int64()))])),
    *(Tuple(Sum(), Max(pa.string())), Tuple(Sum(pa.float64()), Count()), Struct(n=Count(), last=Max(pa.date32()))),
    *(HyperLogLog(), HyperLogLog(pa.int64(), lg_k=7), Theta(), Theta(pa.date32(), lg_k=5)),
    *(KLL(), KLL(k=8), REQ(), REQ(4, is_high=False), FrequentItems(), FrequentItems(lg_max=3), VarOpt(), VarOpt(k=4)),
    *(BloomFilter(), BloomFilter(pa.int64(), capacity=100), MinHash(), MinHash(pa.timestamp("us", "UTC"), k=8)),
    *(CountMin(), CountMin(pa.int64(), hashes=2, buckets=20)),
    Struct(mean=Average(), spread=Moments(), users=HyperLogLog(lg_k=7), some=Optional(Count())),
    *(Map(pa.string(), Theta(lg_k=5)), Tuple(Interval(pa.int64()), Set(pa.int64()), KLL(k=8))),
]


def pickled(monoid: Monoid[Any]) -> Monoid[Any]:
    """The monoid as another process gets it."""
    copy: Monoid[Any] = pickle.loads(pickle.dumps(monoid))
    return copy
