"""Monoids over Arrow columns: values that can be put together in any grouping, and reduced by segments."""

from monoids.base import Group, Monoid, MonoidError
from monoids.containers import List, Map, Struct, Tuple
from monoids.identity import from_identity
from monoids.numeric import Count, Max, Min, Sum

__all__ = [
    "Count",
    "Group",
    "List",
    "Map",
    "Max",
    "Min",
    "Monoid",
    "MonoidError",
    "Struct",
    "Sum",
    "Tuple",
    "from_identity",
]
