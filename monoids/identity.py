"""Monoids from their identities: what opens a store without the program that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from monoids import logic
from monoids.base import Monoid, MonoidError, Semigroup
from monoids.chosen import First, Interval, Last, MaxBy, MinBy, TopK
from monoids.containers import List, Map, Optional, Set, Struct, Tuple
from monoids.exact import ExactSum
from monoids.functions import Affine
from monoids.hashed import BloomFilter, CountMin, MinHash
from monoids.numeric import Count, Max, Min, Product, Sum
from monoids.quantiles import KLL, REQ
from monoids.sketches import FrequentItems, HyperLogLog, Theta, VarOpt
from monoids.statistics import Average, Covariance, DecayedValue, Histogram, Moments
from monoids.types import parse_type

_Parameters = Mapping[str, Any]
_Builder = Callable[[_Parameters, str, Sequence[Semigroup[Any]]], Monoid[Any]]


def from_identity(identity: Mapping[str, Any], others: Sequence[Semigroup[Any]] = ()) -> Monoid[Any]:
    """Return the monoid that has this identity: one of `others`, or one of this package, also where they are within each other.

    Nothing is imported or executed by a name in it.

    Raises:
        MonoidError: no monoid has it. Give your own in `others`.
    """
    for other in others:
        if other.identity == identity:
            # A semigroup is only met within Optional, which makes it a monoid.
            return cast("Monoid[Any]", other)
    try:
        monoid: Monoid[Any] | None = _BUILDERS[identity["name"]](identity["parameters"], identity["type"], others)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        monoid = None
    # What is rebuilt must be the same in every respect, or its values would be misread.
    if monoid is None or monoid.identity != identity:
        name, type = (identity.get(part) if isinstance(identity, Mapping) else None for part in ("name", "type"))
        raise MonoidError(
            f"monoid={name} of {type} is not one of the package monoids; give an instance of it, as it was written with."
        )
    return monoid


def _in_order(parts: Mapping[str, Monoid[Any]], fields: str) -> dict[str, Monoid[Any]]:
    """Return the parts in the order of a struct's fields, which JSON may have lost; none if the fields are others."""
    for name, part in parts.items():
        written = f"{name}: {part.type}"
        others = {other: parts[other] for other in parts if other != name}
        if not others and fields == written:
            return {name: part}
        if others and fields.startswith(f"{written}, ") and (rest := _in_order(others, fields[len(written) + 2 :])):
            return {name: part, **rest}
    return {}


def _parts(parameters: _Parameters, others: Sequence[Semigroup[Any]]) -> dict[str, Any]:
    return {name: from_identity(identity, others) for name, identity in parameters.items()}


def _struct(parameters: _Parameters, type: str, others: Sequence[Semigroup[Any]]) -> Struct:
    fields = _in_order(_parts(parameters, others), type.removeprefix("struct<").removesuffix(">"))
    if not fields:
        raise ValueError(type)
    return Struct(**fields)


def _tuple(parameters: _Parameters, type: str, others: Sequence[Semigroup[Any]]) -> Monoid[Any]:
    parts = _parts(parameters, others)
    return Tuple(*(parts[str(place)] for place in range(len(parts))))


def _plainly(kind: Callable[..., Monoid[Any]]) -> _Builder:
    """Parameters are arguments by name, types of items by theirs."""
    return lambda parameters, type, others: kind(
        **{name: parse_type(value) if name == "items" else value for name, value in parameters.items()}
    )


def _of_own_type(kind: Callable[[Any], Monoid[Any]]) -> _Builder:
    return lambda parameters, type, others: kind(parse_type(type))


def _of_parameter(kind: Callable[[Any], Monoid[Any]]) -> _Builder:
    return lambda parameters, type, others: kind(parse_type(parameters["of"]))


def _of_item_type(kind: Callable[[Any], Monoid[Any]]) -> _Builder:
    return lambda parameters, type, others: kind(parse_type(type).value_type)


def _by(kind: Callable[[Any, Any], Monoid[Any]]) -> _Builder:
    return lambda parameters, type, others: kind(parse_type(parameters["by"]), parse_type(parameters["value"]))


_BUILDERS: dict[str, _Builder] = {
    **{kind.name: _of_own_type(kind) for kind in (Sum, Product, Min, Max, First, Last)},
    **{kind.name: _of_parameter(kind) for kind in (Average, Interval, Affine)},
    **{kind.name: _of_item_type(kind) for kind in (List, Set)},
    **{kind.name: _by(kind) for kind in (MinBy, MaxBy)},
    **{
        kind.name: _plainly(kind)
        for kind in (
            *(Count, ExactSum, logic.Any, logic.All, logic.BitAnd, logic.BitOr, Moments, Covariance, Histogram),
            *(HyperLogLog, Theta, KLL, REQ, FrequentItems, VarOpt, BloomFilter, MinHash, CountMin),
        )
    },
    "DecayedValue": lambda parameters, type, others: DecayedValue(timedelta(microseconds=parameters["half_life"])),
    "TopK": lambda parameters, type, others: TopK(parameters["k"], *map(parse_type, parameters["of"])),
    "Optional": lambda parameters, type, others: Optional(from_identity(parameters["of"], others)),
    "Map": lambda parameters, type, others: Map(
        parse_type(parameters["key"]), from_identity(parameters["value"], others)
    ),
    "Struct": _struct,
    "Tuple": _tuple,
}
