"""Monoids over Arrow columns: values that can be put together in any grouping, and reduced by segments."""

from monoids.base import Aggregator, Group, Monoid, MonoidError, Semigroup, Summary, from_pair
from monoids.chosen import By, Ends, First, Interval, Last, MaxBy, MinBy, TopK
from monoids.containers import List, Map, Optional, Set, Struct, Tuple
from monoids.exact import ExactSum
from monoids.functions import Affine, Line
from monoids.hashed import BloomFilter, CountMin, MinHash
from monoids.identity import from_identity
from monoids.logic import All, Any, BitAnd, BitOr
from monoids.numeric import Count, Max, Min, Product, Sum
from monoids.quantiles import KLL, REQ
from monoids.sketches import FrequentItems, HyperLogLog, Theta, VarOpt
from monoids.statistics import (
    Average,
    Averaged,
    Covariance,
    Decayed,
    DecayedValue,
    Histogram,
    Joint,
    Moments,
    Spread,
)

__all__ = [
    "KLL",
    "REQ",
    "Affine",
    "Aggregator",
    "All",
    "Any",
    "Average",
    "Averaged",
    "BitAnd",
    "BitOr",
    "BloomFilter",
    "By",
    "Count",
    "CountMin",
    "Covariance",
    "Decayed",
    "DecayedValue",
    "Ends",
    "ExactSum",
    "First",
    "FrequentItems",
    "Group",
    "Histogram",
    "HyperLogLog",
    "Interval",
    "Joint",
    "Last",
    "Line",
    "List",
    "Map",
    "Max",
    "MaxBy",
    "Min",
    "MinBy",
    "MinHash",
    "Moments",
    "Monoid",
    "MonoidError",
    "Optional",
    "Product",
    "Semigroup",
    "Set",
    "Spread",
    "Struct",
    "Sum",
    "Summary",
    "Theta",
    "TopK",
    "Tuple",
    "VarOpt",
    "from_identity",
    "from_pair",
]
