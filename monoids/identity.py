"""Monoids from their identities: what opens a store without the program that wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monoids.base import Monoid, MonoidError
from monoids.containers import List, Map, Struct, Tuple
from monoids.numeric import Count, Max, Min, Sum
from monoids.types import parse_type


def from_identity(identity: Mapping[str, Any], others: Sequence[Monoid[Any]] = ()) -> Monoid[Any]:
    """The monoid that has this identity: one of `others`, or one of this package, also where they are within each other.

    Nothing is imported or executed by a name in it.

    Raises:
        MonoidError: no monoid has it. Give your own in `others`.
    """
    for other in others:
        if other.identity == identity:
            return other
    try:
        monoid = _build(identity["name"], identity["parameters"], identity["type"], others)
    except (KeyError, TypeError, ValueError, AttributeError):
        monoid = None
    # What is rebuilt must be the same in every respect, or its values would be misread.
    if monoid is None or monoid.identity != identity:
        name, type = identity.get("name"), identity.get("type")
        raise MonoidError(
            f"monoid={name} of {type} is not one of the package monoids; give an instance of it, as it was written with."
        )
    return monoid


def _build(name: str, parameters: Mapping[str, Any], type: str, others: Sequence[Monoid[Any]]) -> Monoid[Any] | None:
    if name == "Count":
        return Count()
    if name == "Sum":
        return Sum(parse_type(type))
    if name == "Min":
        return Min(parse_type(type))
    if name == "Max":
        return Max(parse_type(type))
    if name == "List":
        return List(parse_type(type).value_type)
    if name == "Map":
        return Map(parse_type(parameters["key"]), from_identity(parameters["value"], others))
    if name in ("Struct", "Tuple"):
        parts = {part: from_identity(identity, others) for part, identity in parameters.items()}
        if name == "Struct":
            fields = _in_order(parts, type.removeprefix("struct<").removesuffix(">"))
            return Struct(**fields) if fields else None
        return Tuple(*(parts[str(place)] for place in range(len(parts))))
    return None


def _in_order(parts: Mapping[str, Monoid[Any]], fields: str) -> dict[str, Monoid[Any]]:
    """The parts in the order of a struct's fields, which JSON may have lost; none if they are other fields."""
    for name, part in parts.items():
        written = f"{name}: {part.type}"
        others = {other: parts[other] for other in parts if other != name}
        if not others and fields == written:
            return {name: part}
        if others and fields.startswith(f"{written}, ") and (rest := _in_order(others, fields[len(written) + 2 :])):
            return {name: part, **rest}
    return {}
